"""The metric names of HAMi up to 2.9 (docs/spec/core.md#12), for dashboards that still use them: `--legacy-metrics`.

They have the values of today's, so each is today's metric under its old name, with its old labels.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client.core import Metric

from hami_webhook.server.exposition import Family, Sample

_CARD = {
    "node": "nodeid",
    "device_uuid": "deviceuuid",
    "device_index": "deviceidx",
    "device_cores": "devicecores",
    "device_memory_limit": "devicememorylimit",
    "device_type": "devicetype",
}
_BARE_CARD = {label: old for label, old in _CARD.items() if label != "device_type"}
_POD = {
    "namespace": "podnamespace",
    "node": "nodename",
    "pod": "podname",
    "container_index": "containeridx",
    "device_uuid": "deviceuuid",
}
_QUOTA = {"namespace": "quotanamespace", "quota_name": "quotaName", "limit": "limit"}

OLD_NAMES: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "hami_gpu_memory_limit_bytes": ("GPUDeviceMemoryLimit", _CARD),
    "hami_gpu_core_limit_ratio": ("GPUDeviceCoreLimit", _CARD),
    "hami_gpu_shared_count": ("GPUDeviceSharedNum", _CARD),
    "hami_gpu_core_allocated_ratio": ("GPUDeviceCoreAllocated", _CARD),
    "hami_gpu_memory_allocated_bytes": ("GPUDeviceMemoryAllocated", _CARD),
    "hami_node_gpu_overview": ("nodeGPUOverview", _CARD),
    "hami_node_gpu_memory_allocated_ratio": ("nodeGPUMemoryPercentage", _BARE_CARD),
    "hami_resource_quota_used": ("QuotaUsed", _QUOTA),
    "hami_vgpu_memory_allocated_bytes": ("vGPUMemoryAllocated", _POD),
    "hami_vgpu_core_allocated_ratio": ("vGPUCoreAllocated", _POD),
}
"""Today's name to the old one, and today's labels to the old ones; other labels but `zone` are left out."""


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
