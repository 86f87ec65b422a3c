"""Warning events on nodes for what other projects' GPU managers do there (docs/spec/volcano.md#5.7 and #13)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

from hami_webhook.assembly import Core
from hami_webhook.controller.loops import contained
from hami_webhook.controller.object_events import ObjectEvents
from hami_webhook.kube.objects import Node

EVERY = 30.0
LOOP = "node remarks"
_NODES_AT_ONCE = 200
"""Nodes after which a pass lets others work."""


class MixedManagerAudit:
    """Looks at all nodes; what it told, it tells again only when it changed."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._object_events = ObjectEvents(core.cluster, core.problems)

    async def run(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """A pass every 30 seconds, until cancelled."""
        while True:
            await self.look()
            await sleep(EVERY)

    async def look(self) -> None:
        """One pass over the nodes."""
        nodes = list(self._core.state.nodes())
        self._object_events.keep_only({node.name for node in nodes})
        for number, node in enumerate(nodes, start=1):
            with contained(self._core.failures, LOOP, f"node {node.name}"):
                said = dict(self._remarks(node))
                for reason in {*said, *self._object_events.reasons(node.name)}:
                    # kubectl looks for a node's events under its name in place of a UID
                    await self._object_events.tell("Node", "", node.name, node.name, reason, said.get(reason, ""))
            if number % _NODES_AT_ONCE == 0:
                await asyncio.sleep(0)

    def _remarks(self, node: Node) -> Iterator[tuple[str, str]]:
        vendors, state = self._core.vendors, self._core.state
        mixed = vendors.mixing.remark(node, state.device(node.name))
        if mixed:
            yield "MixedGPUManagers", mixed
        for scheduler in vendors.foreign:
            yield from scheduler.remarks(node, state)
