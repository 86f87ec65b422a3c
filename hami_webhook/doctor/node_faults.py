"""What is wrong with one node's device plugins, a sentence each."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC

from hami_webhook.cluster_view import ClusterView
from hami_webhook.controller.node_audit import remarks
from hami_webhook.kube.objects import Node


def unreadable_registrations(view: ClusterView, node: Node) -> Iterator[str]:
    """What was registered and can't be read."""
    return (each.text for each in view.state.problems() if (each.kind, each.name) == ("Node", node.name))


def silent_plugins(view: ClusterView, node: Node, now: float) -> Iterator[str]:
    """Device plugins that registered cards and leave the handshake unanswered at `now` (Unix seconds)."""
    for vendor in view.vendors.values():
        kept = vendor.registration
        if kept.annotation in node.annotations and not vendor.health(node, now, UTC).healthy:
            text = node.annotations.get(kept.handshake, "")
            yield f"the device plugin of {vendor.key} is silent ({kept.handshake}={text}): its cards don't count"


def mixed_managers(view: ClusterView, node: Node) -> Iterator[str]:
    """GPU managers that get in each other's way."""
    return (text for _, text in remarks(view, node))
