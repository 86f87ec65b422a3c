"""The scheduler's half of the handshake with device plugins (docs/spec/core.md#3.2): are they still alive?

Only where a plugin registered cards. A plugin that lives overwrites the question; one that doesn't answer in a minute,
on a node that offers none of the resource any longer, has its cards dropped (`Vendor.health`). The question is left in
place then: taking it away would read as health for another minute.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import datetime, tzinfo

from hami_webhook.assembly import Core
from hami_webhook.cluster.api import ClusterError, Kind, NotFound
from hami_webhook.controller.loops import contained
from hami_webhook.kube.objects import Node

logger = logging.getLogger(__name__)

EVERY = 15.0
LOOP = "handshakes"


class Handshakes:
    """Asks the plugins of all nodes. `zone` is that of the times written and read (None: local)."""

    def __init__(self, core: Core, zone: tzinfo | None = None) -> None:
        self._core = core
        self._zone = zone

    async def run(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """A pass every 15 seconds, until cancelled."""
        while True:
            await self.look()
            await sleep(EVERY)

    async def look(self) -> int:
        """One pass over the nodes; how many were asked."""
        asked = 0
        now = self._core.clock()
        for node in [view.node for view in self._core.state.views()]:
            with contained(self._core.failures, LOOP, f"node {node.name}"):
                asked += await self._ask(node, now)
        return asked

    async def _ask(self, node: Node, now: float) -> bool:
        """Ask a node's plugins if that is due; whether it was done."""
        stamp = f"Requesting_{datetime.fromtimestamp(now, self._zone):%Y-%m-%d %H:%M:%S}"
        questions = {
            vendor.registration.handshake: stamp
            for vendor in self._core.vendors.values()
            if vendor.registration.handshake
            and vendor.registration.annotation in node.annotations
            and vendor.health(node, now, self._zone).request_handshake
        }
        if not questions:
            return False
        try:
            await self._core.cluster.patch(Kind.NODES, node.name, {"metadata": {"annotations": questions}})
        except NotFound:
            return False
        except ClusterError as error:
            logger.warning("node %s: the handshake can't be written: %s", node.name, error)
            return False
        return True
