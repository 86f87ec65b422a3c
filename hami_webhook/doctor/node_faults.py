"""What is wrong with one node's device plugins, a sentence each."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC

from hami_webhook.controller.node_audit import remarks
from hami_webhook.kube.objects import Node
from hami_webhook.state.cluster_view import ClusterView


def unreadable_registrations(view: ClusterView, node: Node) -> Iterator[str]:
    """What was registered and can't be read."""
    return (each.text for each in view.state.problems() if (each.kind, each.name) == ("Node", node.name))


def silent_plugins(view: ClusterView, node: Node, now: float) -> Iterator[str]:
    """Device plugins that registered cards and stopped, or leave a handshake unanswered at `now` (Unix seconds).

    Where a plugin's connection ends, kubelet leaves its resource on the node and offers 0 of it.
    """
    for vendor in view.vendors.values():
        kept = vendor.registration
        if kept.annotation not in node.annotations:
            continue
        if not vendor.health(node, now, UTC).healthy:
            text = node.annotations.get(kept.handshake, "")
            yield f"the device plugin of {vendor.key} is silent ({kept.handshake}={text}): its cards don't count"
        elif vendor.count_name in node.allocatable and not vendor.allocatable(node):
            yield (
                f"the device plugin of {vendor.key} registered cards, and kubelet offers 0 {vendor.count_name}: "
                "it has stopped, or all of its cards are unhealthy"
            )


def unhealthy_cards(view: ClusterView, node: Node) -> Iterator[str]:
    """Cards that take no new pod, as they are unhealthy."""
    found = view.state.view(node.name)
    if found is None:
        return
    for inventory in found.inventories.values():
        for card in inventory.devices:
            if not found.is_healthy(card):
                why = found.unhealthy.get(card.uuid) or "its device plugin says so"
                yield f"card {card.uuid} is unhealthy: {why}; no new pod gets it"


def mixed_managers(view: ClusterView, node: Node) -> Iterator[str]:
    """GPU managers that get in each other's way."""
    return (text for _, text in remarks(view, node))
