"""The metrics of nodes: registrations, handshakes, locks, several GPU managers (docs/metrics.md)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.core import Metric

from hami_webhook.devices.handshake import handshake_time
from hami_webhook.devices.lock_annotations import LockValue
from hami_webhook.kube.objects import Node
from hami_webhook.server.exposition import Family, Sample
from hami_webhook.state.cluster_view import ClusterView

_REGISTRATIONS = Family(
    "hami_webhook_node_registrations",
    "1 for a vendor's registration on a node: ready, unreadable, or silent if its device plugin has stopped.",
    ("node", "vendor", "state"),
)
_HANDSHAKES = Family(
    "hami_webhook_node_handshake_age_seconds",
    "For how long a device plugin hasn't answered the handshake.",
    ("node", "vendor"),
)
_LOCKS = Family("hami_webhook_node_lock_age_seconds", "For how long a node's lock is held.", ("node", "lock"))
_MIXED = Family("hami_webhook_mixed_gpu_managers", "1 for a node whose cards two GPU managers count.", ("node",))


def node_metrics(cluster: ClusterView, nodes: Sequence[Node]) -> Iterator[Metric]:
    """Every metric of a node."""
    yield from _REGISTRATIONS.in_pieces(
        ((node.name, vendor, state), 1)
        for node in nodes
        for vendor, state in sorted(cluster.state.registrations(node.name).items())
    )
    yield from _HANDSHAKES.in_pieces(sample for node in nodes for sample in (*_handshakes(cluster, node), None))
    annotations = sorted({vendor.lock.annotation for vendor in cluster.vendors.values() if vendor.lock is not None})
    yield from _LOCKS.in_pieces(sample for node in nodes for sample in (*_locks(cluster, node, annotations), None))
    yield from _MIXED.in_pieces(
        ((node.name,), 1) if cluster.vendors.mixing.remark(node, cluster.state.device(node.name)) else None
        for node in nodes
    )


def _handshakes(cluster: ClusterView, node: Node) -> Iterator[Sample]:
    for key, vendor in cluster.vendors.items():
        text = node.annotations.get(vendor.registration.handshake, "")
        since = handshake_time(text, cluster.zone) if "Requesting" in text else None
        if since is not None:
            yield (node.name, key), max(0.0, cluster.clock() - since)


def _locks(cluster: ClusterView, node: Node, annotations: Sequence[str]) -> Iterator[Sample]:
    for annotation in annotations:
        try:
            held = LockValue.read(node.annotations.get(annotation, ""))
        except ValueError:
            continue
        yield (node.name, annotation), max(0.0, cluster.clock() - held.since)
