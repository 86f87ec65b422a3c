"""Events about pod groups that lost a member while others run (docs/spec/queues.md#5.4). Nobody is ended for it."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from hami_webhook.cluster.api import EventNote, Kind
from hami_webhook.cluster.object_events import ObjectEvents
from hami_webhook.kube.objects import Pod
from hami_webhook.kube.pod_group import PodGroup
from hami_webhook.state.caches import Change, Subscriptions
from hami_webhook.state.cluster_view import ClusterView

LOOP = "pod group events"

_EVERY = 5.0
"""Seconds between two looks: who deletes a whole group, or replaces a member at once, has done so by then."""

_MOST = 100
"""Groups that are remembered between two looks: of one a round there is one event."""


class PodGroupEvents:
    """Notes which members are lost, and writes events while `run` runs; only the leader calls `run`."""

    def __init__(
        self,
        view: ClusterView,
        object_events: ObjectEvents,
    ) -> None:
        self._view = view
        self._object_events = object_events
        self._lost: OrderedDict[PodGroup, str] = OrderedDict()

    def subscriptions(self) -> Subscriptions:
        return {Kind.PODS: self._pod_changed}

    def _pod_changed(self, change: Change[Pod]) -> None:
        before, after = change.before, change.after
        if before is None or not before.node_name or before.terminal or (after is not None and after.phase != "Failed"):
            return
        group = PodGroup.of(before)
        if group is not None:
            self._lost[group] = before.name
            if len(self._lost) > _MOST:
                self._lost.popitem(last=False)

    async def run(self) -> None:
        """Work until cancelled; what a former leader saw it has written."""
        self._lost.clear()
        while True:
            await asyncio.sleep(_EVERY)
            await self.step()

    async def step(self) -> None:
        """Write the events that are due."""
        while self._lost:
            group, lost = self._lost.popitem(last=False)
            running = [pod for pod in self._view.state.by_namespace.members(group.key) if pod.node_name]
            if running and len(running) < group.size:
                pod, rest = running[0], f"{len(running)} of {group.size} pods run"
                text = f"pod {lost} of pod group {group.name} has failed or disappeared; {rest}"
                await self._object_events.record(
                    EventNote("Pod", pod.namespace, pod.name, pod.uid, "Warning", "PodGroupIncomplete", text)
                )
