"""Prometheus metrics, read from the core when scraped: HAMi's names (docs/spec/core.md#12), our own.

Source: docs/spec/quota.md#11.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hami_webhook import __version__
from hami_webhook.assembly import Core
from hami_webhook.build_info import build_info
from hami_webhook.cluster.api import Kind
from hami_webhook.devices.codecs import BadAnnotation
from hami_webhook.devices.placement_annotations import NODE, placement_counts, read_placed
from hami_webhook.server.legacy_metrics import with_legacy
from hami_webhook.server.quota_metrics import quota_metrics

_MIB = 1 << 20
_SINGULAR = {
    Kind.PODS: "Pod",
    Kind.NODES: "Node",
    Kind.NAMESPACES: "Namespace",
    Kind.RESOURCE_QUOTAS: "ResourceQuota",
    Kind.DEVICES: "Device",
    Kind.POD_DISRUPTION_BUDGETS: "PodDisruptionBudget",
}
_ZONE = "vGPU"
_CARD = ("zone", "node", "device_uuid", "device_index", "device_type")
_CARD_CORES = ("zone", "node", "device_uuid", "device_index", "device_cores", "device_type")
_MIG = (
    *("zone", "node", "device_uuid", "device_index", "mig_uuid", "profile"),
    *("gpu_instance_id", "compute_instance_id", "placement_start", "placement_size"),
)
_POD = ("zone", "namespace", "node", "pod", "container_index", "device_uuid")


class CoreCollector(Collector):
    """The metrics of the core, made anew at each scrape; with `legacy`, under HAMi's old names too."""

    def __init__(self, core: Core, *, legacy: bool = False, quota_backend: str = "status") -> None:
        self._core = core
        self._legacy = legacy
        self._quota_backend = quota_backend

    def collect(self) -> Iterator[Metric]:
        """Every metric."""
        yield from with_legacy(self._collect()) if self._legacy else self._collect()

    def _collect(self) -> Iterator[Metric]:
        self._core.state.tick(self._core.clock())
        build = GaugeMetricFamily(
            "hami_build_info",
            "Build of this process.",
            labels=("version", "revision", "build_date", "go_version", "compiler", "platform"),
        )
        build.add_metric((__version__, *build_info(), "", platform.python_implementation(), platform.platform()), 1)
        yield build
        yield from self._cards()
        yield from self._pods()
        yield from quota_metrics(self._core, _ZONE)
        yield from self._charges()

    def _cards(self) -> Iterator[Metric]:
        memory_limit = GaugeMetricFamily("hami_gpu_memory_limit_bytes", "Memory of a card.", labels=_CARD)
        core_limit = GaugeMetricFamily("hami_gpu_core_limit_ratio", "Compute of a card, 100 a card.", labels=_CARD)
        memory = GaugeMetricFamily(
            "hami_gpu_memory_allocated_bytes", "Memory of a card that is allocated.", labels=_CARD_CORES
        )
        shared = GaugeMetricFamily("hami_gpu_shared_count", "Containers on a card.", labels=_CARD)
        cores = GaugeMetricFamily("hami_gpu_core_allocated_ratio", "Compute of a card that is allocated.", labels=_CARD)
        overview = GaugeMetricFamily(
            "hami_node_gpu_overview",
            "Memory of a card that is allocated, with what the card has.",
            labels=(
                "zone",
                "node",
                "device_uuid",
                "device_index",
                "device_cores",
                "device_memory_limit",
                "device_type",
            ),
        )
        ratio = GaugeMetricFamily(
            "hami_node_gpu_memory_allocated_ratio", "Share of a card's memory that is allocated.", labels=_CARD
        )
        for view in self._core.state.views():
            for key, inventory in view.inventories.items():
                vendor = self._core.vendors[key]
                for device in inventory.devices:
                    usage = view.used(key, device.uuid)
                    index, total = str(device.index), str(device.cores)
                    card = (_ZONE, view.name, device.uuid, index, device.type)
                    memory_limit.add_metric(card, device.memory * _MIB)
                    core_limit.add_metric(card, vendor.core_percent(device.cores, device))
                    memory.add_metric((_ZONE, view.name, device.uuid, index, total, device.type), usage.memory * _MIB)
                    shared.add_metric(card, usage.slots)
                    cores.add_metric(card, vendor.core_percent(usage.cores, device))
                    overview.add_metric(
                        (_ZONE, view.name, device.uuid, index, total, str(device.memory), device.type),
                        usage.memory * _MIB,
                    )
                    if device.memory:
                        ratio.add_metric(card, usage.memory / device.memory)
        yield from (memory_limit, core_limit, memory, shared, cores, overview, ratio)

    def _pods(self) -> Iterator[Metric]:
        memory = GaugeMetricFamily(
            "hami_vgpu_memory_allocated_bytes", "Memory a container was given on a card.", labels=_POD
        )
        cores = GaugeMetricFamily(
            "hami_vgpu_core_allocated_ratio", "Compute a container was given on a card.", labels=_POD
        )
        instances = GaugeMetricFamily(
            "hami_node_gpu_mig_instance_info", "1 for an instance cut from a card.", labels=_MIG
        )
        now, placement_ttl = self._core.clock(), self._core.placement_ttl
        for pod in self._core.state.pods():
            if pod.terminal or not placement_counts(pod, now, placement_ttl):
                continue
            node = pod.node_name or pod.annotations[NODE]
            view = self._core.state.view(node)
            sums: dict[tuple[int, str], list[int]] = {}
            for key, vendor in self._core.vendors.items():
                try:
                    placed = read_placed(vendor, pod)
                except BadAnnotation:
                    continue
                inventory = view.inventories.get(key) if view and placed else None
                cards = {device.uuid: device for device in inventory.devices} if inventory else {}
                for made in vendor.realised(pod):
                    index = str(cards[made.card].index) if made.card in cards else ""
                    identity = (made.uuid, made.profile, made.gpu_instance, made.compute_instance)
                    instances.add_metric((_ZONE, node, made.card, index, *identity, str(made.start), str(made.size)), 1)
                for hold in placed.holds if placed else ():
                    amounts = sums.setdefault((hold.row, hold.uuid), [0, 0])
                    amounts[0] += hold.memory * _MIB
                    card = cards.get(hold.uuid)
                    amounts[1] += vendor.core_percent(hold.cores, card) if card else hold.cores
            for (row, uuid), (bytes_, ratio) in sums.items():
                labels = (_ZONE, pod.namespace, node, pod.name, str(row), uuid)
                memory.add_metric(labels, bytes_)
                cores.add_metric(labels, ratio)
        yield from (memory, cores, instances)

    def _charges(self) -> Iterator[Metric]:
        counts = self._core.charger.counts
        yield CounterMetricFamily(
            "hami_webhook_quota_conflicts", "Charges that met a conflicting write.", value=counts.conflicts
        )
        yield CounterMetricFamily("hami_webhook_quota_writes", "Writes to quotas by charges.", value=counts.writes)
        refused = CounterMetricFamily("hami_webhook_quota_denied", "Charges refused.", labels=("reason",))
        for reason, number in sorted(counts.denied.items()):
            refused.add_metric((reason,), number)
        yield refused
        yield from counts.durations.collect()
        yield from self._core.recomputer.durations.collect()
        backend = GaugeMetricFamily(
            "hami_webhook_quota_backend", "1 for where the books are kept: status or memory.", labels=("backend",)
        )
        backend.add_metric((self._quota_backend,), 1)
        yield backend
        yield _counter("hami_webhook_problems", "Events recorded about objects.", "reason", self._core.problems)
        yield _counter(
            "hami_webhook_loop_failures", "Unexpected exceptions that loops survived.", "loop", self._core.failures
        )
        yield CounterMetricFamily(
            "hami_webhook_policy_ignored",
            "Namespaces of pods found with annotations that mean nothing there.",
            value=len(self._core.ignored),
        )
        unreadable = GaugeMetricFamily(
            "hami_webhook_unreadable_objects", "Objects that can't be read.", labels=("kind",)
        )
        problems = [problem.kind for problem in self._core.state.problems()]
        problems += [_SINGULAR[Kind(kind)] for kind, _, _ in self._core.caches.unreadable]
        for kind in sorted(set(problems)):
            unreadable.add_metric((kind,), problems.count(kind))
        yield unreadable


def _counter(name: str, text: str, label: str, values: Mapping[str, int]) -> Metric:
    """A counter with one label."""
    family = CounterMetricFamily(name, text, labels=(label,))
    for value, number in sorted(values.items()):
        family.add_metric((value,), number)
    return family
