"""Triggering kube-scheduler: pods that were refused must be retried soon after devices or quota are freed.

A stock kube-scheduler retries a pod that an extender refused after any cluster event it watches, and else not for
minutes. Its own events come too early for us: it sees a deletion before our caches or the quota's account do. So when
our caches show that something was freed, and pods were refused before, an annotation of one node is updated, which is
such an event.

Who waits is known here alone. So after a restart kube-scheduler is made to try once what may wait, and what is refused
again is known again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import NoReturn

from hami_webhook.cluster.api import Cluster, ClusterError, Kind

logger = logging.getLogger(__name__)

TOUCHED = "hami.io/devices-freed"
_GATHER = 0.2
_BETWEEN = 1.0
_LATE = 5.0
"""Seconds for which a refusal may be reported that was decided before something was freed."""


class RequeueTrigger:
    """`refused` and `settled` follow the pods that wait; `freed` reports that a retry may succeed."""

    def __init__(
        self,
        cluster: Cluster,
        a_node: Callable[[], str | None],
        *,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._cluster = cluster
        self._a_node = a_node
        self._clock = clock
        self._sleep = sleep
        self._waiting: set[str] = set()
        self._may_wait: set[str] = set()
        """Pods that a former process may have refused, until a node was touched."""
        self._freed = asyncio.Event()
        self._freed_at: float | None = None

    def refused(self, uid: str) -> None:
        """No node fits the pod."""
        self._waiting.add(uid)
        if self._freed_at is not None and self._clock() - self._freed_at < _LATE:
            self._freed.set()

    def resume(self, waiting: Iterable[str]) -> None:
        """Take over from a former process, which may have refused these pods, and missed since what was freed."""
        self._may_wait.update(waiting)
        self.freed()

    def settled(self, uid: str) -> None:
        """The pod is placed or deleted."""
        self._waiting.discard(uid)
        self._may_wait.discard(uid)

    def freed(self) -> None:
        """Devices or quota were freed, by our own caches."""
        self._freed_at = self._clock()
        if self._waiting or self._may_wait:
            self._freed.set()

    async def run(self) -> NoReturn:
        """Update a node's annotation after something was freed, at most once a second, until cancelled."""
        while True:
            await self._freed.wait()
            await self._sleep(_GATHER)
            self._freed.clear()
            await self.touch()
            await self._sleep(_BETWEEN)

    async def touch(self) -> None:
        """Update a node's annotation, so that kube-scheduler has an event to retry after."""
        node = self._a_node()
        if node is None or not (self._waiting or self._may_wait):
            return
        patch = {"metadata": {"annotations": {TOUCHED: f"{self._clock():.3f}"}}}
        try:
            await self._cluster.patch(Kind.NODES, node, patch)
        except ClusterError as error:
            logger.warning("the scheduler can't be woken", extra={"node": node, "reason": str(error)})
            self._freed.set()
        else:
            self._may_wait.clear()
