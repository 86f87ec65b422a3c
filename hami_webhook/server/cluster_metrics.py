"""The metrics of the cluster, which the leader alone exports: a sum over all processes counts nothing twice. Nodes'
metrics and HAMi's old names are here, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from hami_webhook.cluster.api import Kind
from hami_webhook.controller.showback import Showback
from hami_webhook.devices.handshake import handshake_time
from hami_webhook.devices.lock_annotations import LockValue
from hami_webhook.kube.objects import Node
from hami_webhook.server.card_metrics import card_metrics, model_metrics, pod_metrics, read_cards
from hami_webhook.server.exposition import Family, Sample
from hami_webhook.server.quota_metrics import quota_metrics
from hami_webhook.state.cluster_view import ClusterView

_UNREADABLE = Family("hami_webhook_unreadable_objects", "Objects that can't be read.", ("kind",))
_HOLDING = ("namespace", "vendor", "model", "state", "submitted_by")
_SHOWBACK = (
    Family("hami_webhook_showback_card_seconds", "Cards held, times seconds.", _HOLDING, is_counter=True),
    Family("hami_webhook_showback_memory_mib_seconds", "MiB held, times seconds.", _HOLDING, is_counter=True),
    Family("hami_webhook_showback_core_seconds", "Cores held, times seconds.", _HOLDING, is_counter=True),
)


@dataclass(frozen=True, eq=False)  # a registry needs its collectors hashable
class ClusterCollector(Collector):
    """The state of the cluster at the scrape, of which this process `speaks` or not; large families in pieces.

    With `legacy`, HAMi's metrics are there under their old names too.
    """

    cluster: ClusterView
    showback: Showback
    speaks: Callable[[], bool] = lambda: True
    legacy: bool = False

    def collect(self) -> Iterator[Metric]:
        """Every metric, as the cluster is now, however long the rendering takes; nothing while another one speaks."""
        if not self.speaks():
            return
        cluster = self.cluster
        cluster.state.tick(cluster.clock())
        views, pods, nodes = [*cluster.state.views()], [*cluster.state.pods()], [*cluster.state.nodes()]
        cards = yield from read_cards(cluster, views)
        hamis = (
            partial(card_metrics, cards),
            partial(pod_metrics, cluster, views, pods),
            partial(quota_metrics, cluster, pods),
        )
        yield from chain.from_iterable(metrics() for metrics in hamis)
        if self.legacy:
            yield from legacy_of(chain.from_iterable(metrics() for metrics in hamis))
        yield from model_metrics(cards)
        yield from node_metrics(cluster, nodes)
        yield self._unreadable()
        yield from self._showback()

    def _showback(self) -> Iterator[Metric]:
        read = list(self.showback.read())
        for column, family in enumerate(_SHOWBACK):
            yield from family.in_pieces((holding, totals[column]) for holding, totals in read)

    def _unreadable(self) -> Metric:
        kinds = Counter(problem.kind for problem in self.cluster.state.problems())
        unreadable = {kind for kind, _, _ in self.cluster.caches.unreadable}
        kinds.update(kind.singular for kind in Kind if kind.value in unreadable)
        return _UNREADABLE.of(((kind,), number) for kind, number in sorted(kinds.items()))


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


_OLD_CARD = {
    "node": "nodeid",
    "device_uuid": "deviceuuid",
    "device_index": "deviceidx",
    "device_cores": "devicecores",
    "device_memory_limit": "devicememorylimit",
    "device_type": "devicetype",
}
_OLD_BARE_CARD = {label: old for label, old in _OLD_CARD.items() if label != "device_type"}
_POD = {
    "namespace": "podnamespace",
    "node": "nodename",
    "pod": "podname",
    "container_index": "containeridx",
    "device_uuid": "deviceuuid",
}
_QUOTA = {"namespace": "quotanamespace", "quota_name": "quotaName", "limit": "limit"}

OLD_NAMES: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "hami_gpu_memory_limit_bytes": ("GPUDeviceMemoryLimit", _OLD_CARD),
    "hami_gpu_core_limit_ratio": ("GPUDeviceCoreLimit", _OLD_CARD),
    "hami_gpu_shared_count": ("GPUDeviceSharedNum", _OLD_CARD),
    "hami_gpu_core_allocated_ratio": ("GPUDeviceCoreAllocated", _OLD_CARD),
    "hami_gpu_memory_allocated_bytes": ("GPUDeviceMemoryAllocated", _OLD_CARD),
    "hami_node_gpu_overview": ("nodeGPUOverview", _OLD_CARD),
    "hami_node_gpu_memory_allocated_ratio": ("nodeGPUMemoryPercentage", _OLD_BARE_CARD),
    "hami_resource_quota_used": ("QuotaUsed", _QUOTA),
    "hami_vgpu_memory_allocated_bytes": ("vGPUMemoryAllocated", _POD),
    "hami_vgpu_core_allocated_ratio": ("vGPUCoreAllocated", _POD),
}
"""HAMi's names up to 2.9 (docs/spec/core.md#12), for --legacy-metrics. Today's name to the old one, and today's labels
to the old ones; other labels but `zone` are left out.
"""


def legacy_of(metrics: Iterable[Metric]) -> Iterator[Metric]:
    """The metrics under their old names; those that had none are left out."""
    for metric in metrics:
        if metric.name == "hami_node_gpu_mig_instance_info":
            yield _old_instances(metric)
        old = OLD_NAMES.get(metric.name)
        if old is None:
            continue
        name, labels = old
        kept = [label for label in labels if any(label in sample.labels for sample in metric.samples)]
        family = Family(name, metric.documentation, ("zone", *(labels[label] for label in kept)))
        yield family.of(
            ((sample.labels["zone"], *(sample.labels[label] for label in kept)), sample.value)
            for sample in metric.samples
        )


def _old_instances(metric: Metric) -> Metric:
    """The MIG instances, of which the old metric names two labels in one."""
    family = Family(
        "nodeGPUMigInstance", metric.documentation, ("zone", "nodeid", "deviceuuid", "deviceidx", "migname")
    )
    samples: list[Sample] = []
    for sample in metric.samples:
        card = [sample.labels[label] for label in ("zone", "node", "device_uuid", "device_index")]
        samples.append(((*card, f"{sample.labels['profile']}-{sample.labels['gpu_instance_id']}"), sample.value))
    return family.of(samples)
