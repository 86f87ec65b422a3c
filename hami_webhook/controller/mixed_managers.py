"""Warning events on nodes for what other projects' GPU managers do there (docs/spec/volcano.md#5.7 and #13)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from hami_webhook.assembly import Core
from hami_webhook.controller.loops import Sleep, contained, repeat
from hami_webhook.controller.object_events import ObjectEvents
from hami_webhook.kube.objects import Node

EVERY = 30.0
LOOP = "node remarks"
_NODES_AT_ONCE = 200
"""Nodes after which a pass yields to other tasks."""


class MixedManagerAudit:
    """Audits all nodes; a problem is recorded again only when it changed."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._object_events = ObjectEvents(core.cluster, core.problems)

    async def run(self, sleep: Sleep = asyncio.sleep) -> None:
        """A pass every 30 seconds, until cancelled."""
        await repeat(self.audit, EVERY, sleep)

    async def audit(self) -> None:
        """One pass over the nodes."""
        nodes = list(self._core.state.nodes())
        self._object_events.keep_only({node.name for node in nodes})
        for number, node in enumerate(nodes, start=1):
            with contained(self._core.failures, LOOP, f"node {node.name}"):
                problems = dict(remarks(self._core, node))
                for reason in {*problems, *self._object_events.reasons(node.name)}:
                    # kubectl looks for a node's events under its name in place of a UID
                    await self._object_events.warn("Node", "", node.name, node.name, reason, problems.get(reason, ""))
            if number % _NODES_AT_ONCE == 0:
                await asyncio.sleep(0)


def remarks(core: Core, node: Node) -> Iterator[tuple[str, str]]:
    """GPU managers that get in each other's way on a node: the reason of the event, and a sentence."""
    mixed = core.vendors.mixing.remark(node, core.state.device(node.name))
    if mixed:
        yield "MixedGPUManagers", mixed
    for scheduler in core.vendors.foreign:
        yield from scheduler.remarks(node, core.state)
