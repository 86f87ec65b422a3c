"""Events on pods, recorded in the background: nobody waits for one, and none fails what it is about.

As kubelet's `--event-qps`: of the Normal events of a burst only so many a second are recorded, and the others dropped.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from hami_webhook.cluster.api import Cluster, ClusterError, EventNote
from hami_webhook.cluster.rate import in_background
from hami_webhook.kube.event_reasons import EventReason
from hami_webhook.kube.objects import Pod

logger = logging.getLogger(__name__)

_NORMAL_PER_SECOND = 5.0
_NORMAL_BURST = 25.0
_MOST_WAITING = 1000
"""As many events wait to be recorded; the oldest are dropped for newer ones."""


class EventRecorder:
    """Records events on pods in the order they come. `clock` gives Unix seconds."""

    def __init__(self, cluster: Cluster, clock: Callable[[], float]) -> None:
        self._cluster = cluster
        self._clock = clock
        self._waiting: deque[EventNote] = deque(maxlen=_MOST_WAITING)
        self._worker: asyncio.Task[None] | None = None
        self._tokens = _NORMAL_BURST
        self._refilled = clock()

    def record(self, pod: Pod, kind: str, reason: EventReason, message: str | Callable[[], str]) -> None:
        """Have an event recorded on the pod; `kind` is Normal or Warning. Needs a running event loop.

        A message that takes time to write is a function, which isn't called for an event that is dropped.
        """
        if kind == "Normal" and not self._may_record_normal():
            return
        text = message if isinstance(message, str) else message()
        self._waiting.append(EventNote("Pod", pod.namespace, pod.name, pod.uid, kind, reason, text))
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._run())

    async def flush(self) -> None:
        """Return once everything that waits is recorded."""
        if self._worker is not None:
            await self._worker

    def _may_record_normal(self) -> bool:
        now = self._clock()
        self._tokens = min(_NORMAL_BURST, self._tokens + (now - self._refilled) * _NORMAL_PER_SECOND)
        self._refilled = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    async def _run(self) -> None:
        in_background.set(True)
        while self._waiting:
            note = self._waiting.popleft()
            await record_event(self._cluster, note)


async def record_event(cluster: Cluster, note: EventNote) -> None:
    """Record an event, best effort: a failure is only logged."""
    try:
        await cluster.record_event(note)
    except ClusterError as error:
        logger.warning("%s/%s: event %s can't be recorded: %s", note.namespace, note.name, note.reason, error)
