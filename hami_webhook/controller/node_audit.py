"""Warning events on nodes: what other projects' GPU managers do there (docs/spec/volcano.md#5.7 and #13), what
can't be used of what device plugins registered, and what can't be read of their unhealthy cards.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping

from hami_webhook.cluster.object_events import ObjectEvents
from hami_webhook.devices.unhealthy_cards import unhealthy_cards
from hami_webhook.kube.event_reasons import EventReason
from hami_webhook.kube.objects import Node
from hami_webhook.loops import Sleep, contained, repeat
from hami_webhook.state.cluster_view import ClusterView
from hami_webhook.state.presumed_usage import remark

EVERY = 30.0
LOOP = "node remarks"
_MOST_CARDS = 8
"""Cards that a sentence names."""
_MOST_SLICES = 3
"""ResourceSlices that a sentence names."""
_NODES_AT_ONCE = 200
"""Nodes after which a pass yields to other tasks."""


class NodeAudit:
    """Audits all nodes; a problem is recorded again only when it changed."""

    def __init__(self, view: ClusterView, object_events: ObjectEvents, failures: Counter[str]) -> None:
        self._view = view
        self._object_events = object_events
        self._failures = failures

    async def run(self, sleep: Sleep = asyncio.sleep) -> None:
        """A pass every 30 seconds, until cancelled."""
        await repeat(self.audit, EVERY, sleep)

    async def audit(self) -> None:
        """One pass over the nodes."""
        nodes = list(self._view.state.nodes())
        self._object_events.keep_only({node.name for node in nodes})
        of_slices = self._view.caches.claims.inventory.devices.problems_by_node()
        registered = {each.name: each.text for each in self._view.state.problems() if each.kind == "Node"}
        for number, node in enumerate(nodes, start=1):
            with contained(self._failures, LOOP, f"node {node.name}"):
                problems = dict(remarks(self._view, node))
                if node.name in of_slices:
                    problems["ResourceSliceIgnored"] = _of_slices(of_slices[node.name])
                _, unreadable = unhealthy_cards(node.annotations)
                if unreadable:
                    problems["UnhealthyCardsUnreadable"] = unreadable
                unusable = registered.get(node.name, "").replace(unreadable, "").strip("; ")
                if unusable:
                    problems["RegistrationUnusable"] = unusable
                for reason in {*problems, *self._object_events.reasons(node.name)}:
                    # kubectl looks for a node's events under its name in place of a UID
                    await self._object_events.warn("Node", "", node.name, node.name, reason, problems.get(reason, ""))
            if number % _NODES_AT_ONCE == 0:
                await asyncio.sleep(0)


def _of_slices(problems: Mapping[str, str]) -> str:
    """What of a node's slices doesn't count, and why; a node may write any number of them."""
    listed = [f"ResourceSlice {name}: {text}" for name, text in list(problems.items())[:_MOST_SLICES]]
    more = f"; and {len(problems) - _MOST_SLICES} more" if len(problems) > _MOST_SLICES else ""
    return f"{'; '.join(listed)}{more}"


def remarks(view: ClusterView, node: Node) -> Iterator[tuple[EventReason, str]]:
    """GPU managers that get in each other's way on a node: the reason of the event, and a sentence."""
    mixed = [view.vendors.mixing.remark(node, view.state.device(node.name)), *_registered_and_published(view, node)]
    on_node = view.state.view(node.name)
    mixed += [remark(on_node, unreadable=False)] if on_node is not None and on_node.unplaced else []
    if any(mixed):
        yield "MixedGPUManagers", "; ".join(filter(None, mixed))
    for scheduler in view.vendors.foreign:
        yield from scheduler.remarks(node, view.state)


def _registered_and_published(view: ClusterView, node: Node) -> Iterator[str]:
    """The cards that a device plugin registers, and a driver publishes for claims."""
    published = view.caches.claims.inventory.devices.on(node.name)
    found = view.state.view(node.name) if published else None
    if found is None:
        return
    uuids = {card.uuid for inventory in found.inventories.values() for card in inventory.devices}
    twice: dict[str, set[str]] = {}
    for device in published:
        if device.uuid in uuids:
            twice.setdefault(device.id.driver, set()).add(device.uuid)
    for driver, cards in sorted(twice.items()):
        listed = sorted(cards)
        more = f" and {len(listed) - _MOST_CARDS} more" if len(listed) > _MOST_CARDS else ""
        yield (
            f"driver {driver} publishes cards for claims that a device plugin also registers: "
            f"{', '.join(listed[:_MOST_CARDS])}{more}; kube-scheduler doesn't know the parts that pods with limits hold"
        )
