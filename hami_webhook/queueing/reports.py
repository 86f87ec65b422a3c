"""What is written on waiting pods: a condition, and an event when what they wait for changed (docs/spec/queues.md#4).

However many wait, and however often their places change, few are written to in a second, the namespaces in turn.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

from hami_webhook.cluster.api import JSON, Cluster, ClusterError, EventNote, Kind
from hami_webhook.cluster.object_events import ObjectEvents
from hami_webhook.cluster.rate import in_background
from hami_webhook.kube.conditions import condition_patch
from hami_webhook.kube.objects import QUOTA_RESERVED, Pod, format_time
from hami_webhook.loops import repeat
from hami_webhook.queueing.releaser import QueueReleaser
from hami_webhook.queueing.words import RESERVED, amounts_in, reason_of, sentence
from hami_webhook.quota.queue_order import QueuePosition
from hami_webhook.quota.rollouts import other_version
from hami_webhook.state.cluster_view import ClusterView

logger = logging.getLogger(__name__)

LOOP = "queue reports"
_EVERY, _MOST = 1.0, 5
"""Seconds between two rounds, and the pods that one round writes to."""

_AGAIN = 60.0
"""Seconds after which a pod whose place changed is written to again; what is reclaimed for it is written at once."""


class _Report(NamedTuple):
    text: str
    note: str
    at: float


class QueueReports:
    """Writes each waiting pod's place into its condition while `run` runs.

    `notes` has, by UID, what else is done for it.
    """

    def __init__(
        self,
        cluster: Cluster,
        view: ClusterView,
        releaser: QueueReleaser,
        object_events: ObjectEvents,
        notes: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self._cluster = cluster
        self._view = view
        self._releaser = releaser
        self._object_events = object_events
        self._notes = notes
        self._reported: dict[str, _Report] = {}

    async def run(self) -> None:
        """Work until cancelled."""
        in_background.set(True)
        await repeat(self.step, _EVERY, asyncio.sleep)

    async def step(self) -> None:
        """Write to the next pods for which something changed."""
        waiting = {standing.pod.uid: standing for standing in self._releaser.decision.waiting}
        budget = _MOST
        for uid in [uid for uid in self._reported if uid not in waiting]:
            if budget == 0:
                return
            pod = self._view.state.pod(uid)
            if pod is not None and pod.queued:
                continue  # it is being released
            del self._reported[uid]
            if pod is not None and not pod.ended(self._view.clock()):
                budget -= 1
                await self._write(pod, RESERVED, "the pod is charged to its quotas", None)
        for pod, standing, text in islice(self._due(waiting), budget):
            reason = reason_of(standing.obstacle)
            self._reported[pod.uid] = _Report(text, self._notes().get(pod.uid, ""), self._view.clock())
            if not await self._write(pod, reason, text, standing.pod.created):
                del self._reported[pod.uid]

    def _due(self, waiting: dict[str, QueuePosition]) -> Iterator[tuple[Pod, QueuePosition, str]]:
        """The pods whose sentence changed, one of each namespace after another."""
        by_namespace: dict[str, list[QueuePosition]] = {}
        for standing in waiting.values():
            by_namespace.setdefault(standing.pod.key.partition("/")[0], []).append(standing)
        turns = deque(self._changed(standings) for standings in by_namespace.values())
        while turns:
            turn = turns.popleft()
            for found in islice(turn, 1):
                yield found
                turns.append(turn)

    def _changed(self, standings: list[QueuePosition]) -> Iterator[tuple[Pod, QueuePosition, str]]:
        now, notes = self._view.clock(), self._notes()
        for standing in standings:
            pod, last = self._view.state.pod(standing.pod.uid), self._reported.get(standing.pod.uid)
            note = notes.get(standing.pod.uid, "")
            if pod is None or (last is not None and now - last.at < _AGAIN and last.note == note):
                continue
            pods = self._view.state.by_namespace.of(pod.namespace).values()
            said = "; ".join(filter(None, (note, other_version(pod, pods))))
            text = sentence(standing, self._view.state.pod, said)
            if last is not None and last.text == text:
                self._reported[pod.uid] = _Report(text, note, now)
            else:
                yield pod, standing, text

    async def _write(self, pod: Pod, reason: str, text: str, since: float | None) -> bool:
        """Set the condition, on the pod as it is; an event whenever what it waits for changed, its place aside. Whether
        that worked, or is in vain.

        The pod waits since then, in Unix seconds; None once it is charged.
        """
        try:
            found = await self._cluster.get(Kind.PODS, pod.name, pod.namespace)
            if found["metadata"].get("uid") != pod.uid:
                return True
            before, patch = _with_condition(found, reason, text, self._view.clock(), since)
            if patch is not None:
                await self._cluster.patch_status(Kind.PODS, pod.name, patch, pod.namespace)
        except ClusterError as error:
            about = {"namespace": pod.namespace, "pod": pod.name, "reason": str(error)}
            logger.debug("the condition of a pod that waits for quota can't be written", extra=about)
            return False
        if since is not None and amounts_in(text) != amounts_in(str((before or {}).get("message") or "")):
            note = EventNote("Pod", pod.namespace, pod.name, pod.uid, "Normal", "QuotaWaiting", text)
            await self._object_events.record(note)
        return True


def _with_condition(
    found: JSON, reason: str, text: str, now: float, since: float | None
) -> tuple[JSON | None, JSON | None]:
    """The pod's condition as it was, and the patch that sets it; None if there is none, and if nothing changes.

    While it waits, `lastTransitionTime` is since when: who leads next goes on from that.
    """
    conditions: list[Any] = (found.get("status") or {}).get("conditions") or []
    before = next((each for each in conditions if each.get("type") == QUOTA_RESERVED), None)
    status = "True" if since is None else "False"
    if before is not None and (before.get("status"), before.get("message")) == (status, text):
        return before, None
    same = before is not None and before.get("status") == status
    transition = before["lastTransitionTime"] if before is not None and same else format_time(since or now)
    made = {
        "type": QUOTA_RESERVED,
        "status": status,
        "reason": reason,
        "message": text,
        "lastTransitionTime": transition,
    }
    return before, condition_patch(found, made)
