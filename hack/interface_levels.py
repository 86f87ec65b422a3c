"""How far each part of the interface can be relied on: docs/stability.md says what the levels mean.

Patterns are those of shells, and the first one that matches counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

Level = Literal["stable", "beta", "alpha", "internal"]
Writer = Literal["people", "hami-webhook", "others"]


@dataclass(frozen=True, slots=True)
class Key:
    """Keys of annotations or labels: `on` says where, unless an annotation of pods is meant."""

    pattern: str
    writer: Writer
    on: str = ""


KEYS = (
    Key("hami.io/quota-device-types", "people", "on a ResourceQuota"),
    Key("hami.io/quota-enforcement", "people", "on a ResourceQuota"),
    Key("hami.io/quota-node-selector", "people", "on a ResourceQuota"),
    Key("hami.io/quota-preemption", "people", "on a ResourceQuota"),
    Key("hami.io/quota-queue-*", "people", "on a ResourceQuota"),
    Key("hami.io/device-cordon", "people", "on a Node"),
    Key("hami.io/webhook", "people", "label"),
    Key("hami.io/claims", "people", "label"),
    Key("hami.io/pod-group*", "people", "label"),
    Key("hami.io/do-not-disturb", "people"),
    Key("karpenter.sh/do-not-disrupt", "people"),
    Key("scheduling.x-k8s.io/pod-group", "people", "label"),
    Key("kueue.x-k8s.io/pod-group-total-count", "people"),
    Key("kueue.x-k8s.io/pod-group-fast-admission", "others"),
    Key("kueue.x-k8s.io/managed", "others", "label"),
    Key("kueue.x-k8s.io/workload", "others"),
    Key("kueue.x-k8s.io/*", "people", "label"),
    Key("hami.io/device-scoring-weights", "people"),
    Key("hami.io/*-scheduler-policy", "people"),
    Key("hami.io/overwrite-env*", "people"),
    Key("hami.io/numa-alignment", "people"),
    Key("volcano.sh/vgpu-mode", "people"),
    Key("volcano.sh/vgpu-podgroup-policy", "people"),
    Key("scheduling.k8s.io/group-name", "people"),
    Key("scheduling.volcano.sh/group-name", "people"),
    Key("koordinator.sh/gpu-isolation-provider", "people", "label"),
    Key("scheduling.koordinator.sh/device-allocate-hint", "people"),
    Key("scheduling.koordinator.sh/device-joint-allocate", "people"),
    Key("scheduling.koordinator.sh/gpu-partition-spec", "people"),
    Key("hami.io/mutex.lock", "hami-webhook", "on a Node"),
    Key("cambricon.com/dsmlu.lock", "hami-webhook", "on a Node"),
    Key("hami.io/node-handshake*", "hami-webhook", "on a Node"),
    Key("hami.io/node-nvidia-score*", "hami-webhook", "on a Node"),
    Key("hami.io/unhealthy-cards", "hami-webhook", "on a Node"),
    Key("hami.io/quota-*", "hami-webhook", "on a ResourceQuota"),
    Key("hami.io/quota", "hami-webhook", "scheduling gate"),
    Key("hami.io/scheduler-role", "hami-webhook", "label"),
    Key("hami.io/showback-until", "hami-webhook", "on a Lease"),
    Key("hami.io/next-ca-trusted-since", "hami-webhook", "on a Secret"),
    Key("hami.io/superpod-rounded", "hami-webhook"),
    Key("hami.io/defaulted-limits", "hami-webhook"),
    Key("mthreads.com/request-gpu-num", "hami-webhook"),
    Key("hami.io/devices-freed", "hami-webhook", "on a Node"),
    Key("hami.io/report-review-source", "hami-webhook"),
    Key("hami.io/claim-template-specs", "hami-webhook"),
    Key("hami.io/submitted-by", "hami-webhook"),
    Key("hami.io/submitted-by-groups", "hami-webhook"),
    Key("hami.io/placeholders", "hami-webhook", "label, on a Node"),
    Key("enflame.com/gcu-*-capacity", "others", "on a Node"),
    Key("metax-tech.com/gpu.topology.*", "others", "on a Node"),
    Key("node.koordinator.sh/gpu-*", "others", "label, on a Node"),
    Key("*/node-*register*", "others", "on a Node"),
    Key("*/node-*handshake*", "others", "on a Node"),
    Key("metax-tech.com/node-gpu-devices", "others", "on a Node"),
    Key("scheduling.koordinator.sh/gpu-partitions", "others", "on a Device"),
    Key("nvidia.com/gpu.memory", "others", "label, on a Node"),
    Key("nvidia.com/gpu.product", "others", "label, on a Node"),
    Key("scheduling.koordinator.sh/scheduler-name", "others", "label"),
)
"""Who writes the keys that no class declares, and where other keys than those of pods' annotations stand."""

NOT_KEYS = (
    "*/v1*",  # versions of the API
    "*kubernetes.io/*",
    *("hami.io/QuotaReserved", "hami.io/QuotaIdle"),  # conditions
    "0.0.0.0/0",
    *("nvidia.com/gpu.shared", "enflame.com/gcu-count", "huawei.com/npu-*"),
    *("amd.com/gpu", "dcu.com/gpu", "koordinator.sh/gpu-shared", "volcano.sh/gpu-*"),  # resources of others
)
"""What looks like a key of our interface and is none."""

LEVELS: Sequence[tuple[Level, str, str]] = (
    # what a version writes for itself and its successors
    ("internal", "annotation or label of hami-webhook", "hami.io/quota-ledger"),
    ("internal", "annotation or label of hami-webhook", "hami.io/quota-reservation"),
    ("internal", "annotation or label of hami-webhook", "hami.io/quota-counted-cards"),
    ("internal", "annotation or label of hami-webhook", "hami.io/showback-until"),
    ("internal", "annotation or label of hami-webhook", "hami.io/next-ca-trusted-since"),
    ("internal", "annotation or label of hami-webhook", "hami.io/devices-freed"),
    ("internal", "annotation or label of hami-webhook", "hami.io/superpod-rounded"),
    ("internal", "annotation or label of hami-webhook", "hami.io/defaulted-limits"),
    ("internal", "annotation or label of hami-webhook", "hami.io/report-review-source"),
    ("internal", "annotation or label of hami-webhook", "hami.io/node-nvidia-score-written"),
    ("internal", "annotation or label of hami-webhook", "hami.io/claim-template-specs"),
    ("internal", "AcceleratorQuota", "* status.ledger"),
    ("internal", "AcceleratorQuota", "* status.countedCards"),
    ("internal", "AcceleratorQuota", "* status.countedSubjects"),
    ("internal", "AcceleratorQuota", "* status.subjectUse"),
    ("internal", "annotation or label of hami-webhook", "hami.io/quota-counted-subjects"),
    ("internal", "annotation or label of hami-webhook", "hami.io/quota-subject-use"),
    # new in 0.5.0
    ("alpha", "annotation or label of hami-webhook", "hami.io/submitted-by*"),
    ("alpha", "flag", "hami-webhook serve --submitted-by*"),
    ("alpha", "environment variable", "HAMI_SUBMITTED_BY*"),
    ("alpha", "chart value", "submittedBy*"),
    ("alpha", "path", "webhook /templates"),
    ("alpha", "annotation or label of hami-webhook", "hami.io/placeholders"),
    ("alpha", "flag", "hami-webhook serve --placeholder*"),
    ("alpha", "environment variable", "HAMI_PLACEHOLDER*"),
    ("alpha", "chart value", "placeholders*"),
    # new in 0.3.0
    ("alpha", "AcceleratorQuota", "*"),
    ("alpha", "annotation or label of hami-webhook", "hami.io/unhealthy-cards"),
    ("alpha", "annotation or label of hami-webhook", "hami.io/quota"),
    ("alpha", "annotation or label of people", "hami.io/quota-queue-*"),
    ("alpha", "annotation or label of people", "*/pod-group*"),
    ("alpha", "annotation or label of people", "kueue.x-k8s.io/*"),
    ("alpha", "annotation or label of device plugins and other schedulers", "kueue.x-k8s.io/*"),
    ("alpha", "flag", "hami-webhook serve --controller-service-accounts"),
    ("alpha", "environment variable", "HAMI_CONTROLLER_SERVICE_ACCOUNTS"),
    ("alpha", "flag", "hami-webhook serve --claims"),
    ("alpha", "environment variable", "HAMI_CLAIMS"),
    ("alpha", "annotation or label of people", "hami.io/claims"),
    ("alpha", "condition", "*"),
    ("alpha", "metric", "hami_webhook_accelerator_quota_*"),
    ("alpha", "chart value", "node.*"),
    ("alpha", "flag", "hami-webhook serve --priority-feedback"),
    ("alpha", "environment variable", "HAMI_PRIORITY_FEEDBACK"),
    ("alpha", "environment variable", "NODE_NAME"),
    ("alpha", "*", "kubectl hami ui*"),
    ("alpha", "flag", "hami-webhook * --workloads"),
    ("alpha", "hami-test.yaml", "workloads"),
    ("alpha", "workloads file", "*"),
    ("alpha", "policy file", "*.denyEnv*"),
    ("alpha", "*", "hami-webhook kueue*"),
    ("beta", "*", "kubectl hami *"),
    ("beta", "*", "hami-webhook report*"),
    ("beta", "*", "hami-webhook test*"),
    ("beta", "*", "hami-webhook quota*"),
    ("beta", "hami-test.yaml", "*"),
    ("beta", "flag", "hami-webhook * --preemption*"),
    ("beta", "flag", "hami-webhook simulate --kubeconfig"),
    ("beta", "flag", "hami-webhook simulate --namespace"),
    ("beta", "flag", "hami-webhook simulate -n"),
    *(("beta", "flag", f"hami-webhook simulate --{name}") for name in ("add", "like", "remove", "template", "waiting")),
    ("beta", "flag", "hami-webhook serve --log-format"),
    ("beta", "environment variable", "HAMI_PREEMPTION*"),
    ("beta", "environment variable", "HAMI_LOG_FORMAT"),
    ("beta", "annotation or label of people", "hami.io/quota-*"),
    ("beta", "annotation or label of people", "nvidia.com/require-nvlink"),
    ("beta", "annotation or label of hami-webhook", "hami.io/quota-observed"),
    ("beta", "annotation or label of hami-webhook", "hami.io/nominated-*"),
    ("beta", "path", "extender /preempt"),
    ("beta", "path", "extender /filter-simulation"),
    ("beta", "path", "webhook /quotas"),
    ("beta", "rejection reason", "NVLinkNotFit"),
    ("beta", "rejection reason", "NodeInternalError"),
    ("beta", "rejection reason", "SearchLimitExceeded"),
    # of HAMi's 2.11, which isn't released yet
    ("beta", "flag", "hami-webhook serve --extender-bind"),
    ("beta", "flag", "hami-webhook serve --device-plugin-namespace"),
    ("beta", "flag", "hami-webhook serve --device-plugin-service-account"),
    ("beta", "*", "hami-webhook serve --profiling-bind-address"),
    ("beta", "*", "hami-webhook serve --hcu-*"),
    ("beta", "environment variable", "HAMI_EXTENDER_BIND"),
    ("beta", "environment variable", "HAMI_DEVICE_PLUGIN_NAMESPACE"),
    ("beta", "environment variable", "HAMI_DEVICE_PLUGIN_SERVICE_ACCOUNT"),
    ("beta", "environment variable", "HAMI_PROFILING_BIND_ADDRESS"),
    ("beta", "metric", "hami_scheduler_*"),
    ("beta", "device-config.yaml", "hygon.resourceHCU*"),
    ("beta", "device-config.yaml", "vnpus.hamiVnpuMode"),
    ("beta", "device-config.yaml", "vnpus.enpuPolicy"),
    ("beta", "device-config.yaml", "vnpus.vnpuDeviceSplitCount"),
    ("beta", "device-config.yaml", "vnpus.runtimeClassName"),
    ("beta", "device-config.yaml", "vnpus.overwriteEnv"),
    ("beta", "device-config.yaml", "mthreads.memoryPerCard*"),
    ("beta", "device-config.yaml", "amd.runtimeClassName"),
    ("beta", "annotation or label of *", "hami.io/hcu-*"),
    ("beta", "annotation or label of *", "hami.io/node-*hcu*"),
    ("beta", "annotation or label of *", "hygon.com/*use-hcutype"),
    ("beta", "annotation or label of *", "hami.io/overwrite-env*"),
    ("beta", "annotation or label of *", "hami.io/numa-alignment"),
    ("beta", "annotation or label of *", "nvidia.com/mig-profile-preference"),
    ("beta", "annotation or label of *", "hami.io/do-not-disturb"),
    ("beta", "annotation or label of *", "karpenter.sh/do-not-disrupt"),
    ("beta", "annotation or label of *", "amd.com/numa-bind"),
    # ours, which HAMi doesn't have
    ("beta", "chart value", "*"),
    ("beta", "webhook", "*"),
    ("beta", "metric", "hami_webhook_*"),
    ("beta", "device-config.yaml", "volcano.*"),
    ("beta", "device-config.yaml", "koordinator.*"),
    ("beta", "device-config.yaml", "kai.*"),
    ("beta", "device-config.yaml", "dra.*"),
    ("beta", "device-config.yaml", "exporters.*"),
    ("beta", "device-config.yaml", "hami.*"),
    ("stable", "event reason", "Filtering*"),
    ("stable", "event reason", "Binding*"),
    ("beta", "event reason", "*"),
    ("stable", "*", "*"),
)
"""The level of items by their group and name."""

_LEGACY_METRICS = "0.3.0: the names that docs/metrics.md has"

DEPRECATED: Sequence[tuple[str, str, str]] = (
    ("metric of --legacy-metrics", "*", _LEGACY_METRICS),
    ("flag", "hami-webhook serve --legacy-metrics", _LEGACY_METRICS),
    ("environment variable", "HAMI_LEGACY_METRICS", _LEGACY_METRICS),
)
"""What is deprecated: by group and name, since which version, and what takes its place."""


def level_of(group: str, name: str) -> Level:
    return next(level for level, groups, names in LEVELS if fnmatchcase(group, groups) and fnmatchcase(name, names))


def deprecation_of(group: str, name: str) -> str:
    """Since when an item is deprecated, and what replaces it; empty if it isn't."""
    matching = (text for groups, names, text in DEPRECATED if fnmatchcase(group, groups) and fnmatchcase(name, names))
    return next(matching, "")
