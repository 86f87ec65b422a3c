"""Waking kube-scheduler: whatever frees devices must lead to a prompt retry of pods that were refused.

A stock kube-scheduler tries a pod that an extender refused again after any cluster event it watches, and then not for
minutes. Its own events come too early for us: it hears of a deletion before our caches or the quota's books have it. So
once *we* know that something was freed, and somebody was refused before, an annotation of one node is touched; a change
of a node's annotations is such an event.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from hami_webhook.cluster.api import Cluster, ClusterError, Kind

logger = logging.getLogger(__name__)

TOUCHED = "hami.io/devices-freed"
_GATHER = 0.2
_BETWEEN = 1.0
_LATE = 5.0
"""Seconds for which something freed may have been missed by who was refused: they were judged before, told after."""


class RequeueTrigger:
    """`refused` and `settled` follow the pods that wait; `freed` says that it may be worth trying again."""

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
        self._freed = asyncio.Event()
        self._freed_at: float | None = None
        self.touches = 0

    def refused(self, uid: str) -> None:
        """No node took the pod."""
        self._waiting.add(uid)
        if self._freed_at is not None and self._clock() - self._freed_at < _LATE:
            self._freed.set()

    def settled(self, uid: str) -> None:
        """The pod has a place, or is gone."""
        self._waiting.discard(uid)

    def freed(self) -> None:
        """Devices or quota were freed, as far as our own caches know."""
        self._freed_at = self._clock()
        if self._waiting:
            self._freed.set()

    async def run(self) -> None:
        """Touch a node for what was freed, at most once a second, until cancelled."""
        while True:
            await self._freed.wait()
            await self._sleep(_GATHER)
            self._freed.clear()
            await self.touch()
            await self._sleep(_BETWEEN)

    async def touch(self) -> None:
        """Give kube-scheduler an event to try again after."""
        node = self._a_node()
        if node is None or not self._waiting:
            return
        patch = {"metadata": {"annotations": {TOUCHED: f"{self._clock():.3f}"}}}
        try:
            await self._cluster.patch(Kind.NODES, node, patch)
            self.touches += 1
        except ClusterError as error:
            logger.warning("waking the scheduler: node %s can't be touched: %s", node, error)
            self._freed.set()
