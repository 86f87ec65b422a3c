"""Events on pods that Kubernetes ends soon, as their quotas limit how long they run (docs/spec/time.md#1.3).

Each pod has one event. It is written again by a leader that didn't see it. Nobody is ended here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from hami_webhook.cluster.api import EventNote, Kind
from hami_webhook.cluster.object_events import ObjectEvents
from hami_webhook.kube.human_duration import human_duration
from hami_webhook.kube.objects import Pod
from hami_webhook.loops import repeat
from hami_webhook.quota.runtime import runtime_of
from hami_webhook.state.caches import Caches, Change, Subscriptions

LOOP = "runtime events"

_BEFORE = 600.0
"""Seconds before the end at which the event is written."""

_EVERY, _MOST = 1.0, 10
"""Seconds between two rounds, and the events that one writes: tenants may have thousands of short pods."""


class RuntimeEvents:
    """Knows by subscription when pods with a deadline end, and writes events while `run` runs, as the leader's does."""

    def __init__(
        self,
        caches: Caches,
        object_events: ObjectEvents,
        clock: Callable[[], float],
    ) -> None:
        self._caches = caches
        self._object_events = object_events
        self._clock = clock
        self._ends: dict[str, float] = {}
        """When pods end that have had no event, in Unix seconds by UID."""

    def subscriptions(self) -> Subscriptions:
        return {Kind.PODS: self._pod_changed}

    def _pod_changed(self, change: Change[Pod]) -> None:
        before, after = change.before, change.after
        if after is None or after.terminal or after.deletion_time is not None:
            if before is not None:
                self._ends.pop(before.uid, None)
            return
        end = _end_of(after)
        if end is not None and (before is None or _end_of(before) != end):
            self._ends[after.uid] = end

    async def run(self) -> None:
        """Work until cancelled."""
        await repeat(self.step, _EVERY, asyncio.sleep)

    async def step(self) -> None:
        """Write the next events that are due."""
        now, written = self._clock(), 0
        due = [(end, uid) for uid, end in self._ends.items() if end - now <= _BEFORE]
        for end, uid in sorted(due):
            pod = self._caches.state.pod(uid)
            quota = self._limiting(pod) if pod is not None and end > now else ""
            if pod is not None and quota:
                if written == _MOST:
                    return
                written += 1
                text = f"ends in {human_duration(end - now)}: quota {quota} limits its pods to "
                text += human_duration(pod.active_deadline or 0)
                note = EventNote("Pod", pod.namespace, pod.name, pod.uid, "Warning", "QuotaRuntimeEnds", text)
                await self._object_events.record(note)
            self._ends.pop(uid, None)

    def _limiting(self, pod: Pod) -> str:
        """The quota whose limit is the pod's deadline; empty for one that it has chosen itself."""
        if pod.active_deadline is not None:
            for quota in self._caches.shown(pod.namespace):
                runtime = runtime_of(quota)
                if runtime is not None and runtime.sets(pod):
                    return runtime.quota
        return ""


def _end_of(pod: Pod) -> float | None:
    """When Kubernetes ends a pod, in Unix seconds; None while that isn't known."""
    return None if pod.active_deadline is None or pod.started is None else pod.started + pod.active_deadline
