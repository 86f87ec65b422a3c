"""What Koordinator calls things: resources, labels, annotations (docs/spec/koordinator.md#2, #3, #4 and #9)."""

from __future__ import annotations

from collections.abc import Mapping

from hami_webhook.integrations.sections import KOORDINATOR_RESOURCES

SHARED, CORE, MEMORY, RATIO, GPU = KOORDINATOR_RESOURCES
"""Different cards; percent; bytes; percent; percent for both. All but the first are totals over a container's cards."""

ALIASES: Mapping[str, str] = {
    "kubernetes.io/gpu": GPU,
    "kubernetes.io/gpu-core": CORE,
    "kubernetes.io/gpu-memory": MEMORY,
    "kubernetes.io/gpu-memory-ratio": RATIO,
    "koordinator.sh/gpu-shared": SHARED,
}
"""Other names of the same: deprecated ones, and one that the announcement of v1.6 misspelt."""

NPU_CORE, NPU_CPU, NPU_DVPP = "huawei.com/npu-core", "huawei.com/npu-cpu", "huawei.com/npu-dvpp"
NVIDIA, AMD, HYGON = "nvidia.com/gpu", "amd.com/gpu", "dcu.com/gpu"
"""Whole cards of other managers, which Koordinator can place as well."""

ISOLATION = "koordinator.sh/gpu-isolation-provider"
SCHEDULER_NAME = "scheduling.koordinator.sh/scheduler-name"

HINT = "scheduling.koordinator.sh/device-allocate-hint"
JOINT = "scheduling.koordinator.sh/device-joint-allocate"
PARTITION_SPEC = "scheduling.koordinator.sh/gpu-partition-spec"

ALLOCATED = "scheduling.koordinator.sh/device-allocated"
SCHEDULERS_OWN = (ALLOCATED, "scheduling.koordinator.sh/bind-timestamp", "scheduling.koordinator.sh/gpu-minors")
"""Annotations that only Koordinator's scheduler may write."""

PARTITIONS = "scheduling.koordinator.sh/gpu-partitions"
VENDOR, MODEL = "node.koordinator.sh/gpu-vendor", "node.koordinator.sh/gpu-model"
PARTITION_POLICY = "node.koordinator.sh/gpu-partition-policy"
