"""The annotation keys of Volcano's vGPU scheduling and of its device plugin (docs/spec/volcano.md#3, #4 and #9)."""

from __future__ import annotations

import re
from collections.abc import Mapping

from hami_webhook.devices.pod_preferences import ListRule, split_list

REGISTER = "volcano.sh/node-vgpu-register"
HANDSHAKE = "volcano.sh/node-vgpu-handshake"

MODE = "volcano.sh/vgpu-mode"
HAMI_CORE, MIG, MPS = "hami-core", "mig", "mps"
MODES = (HAMI_CORE, MIG, MPS)
"""The modes a pod may request; no node ever has the last."""

USE_UUID, NOUSE_UUID = "volcano.sh/vgpu-use-gpuuuid", "volcano.sh/vgpu-nouse-gpuuuid"
USE_TYPE, NOUSE_TYPE = "nvidia.com/use-gputype", "nvidia.com/nouse-gputype"
POD_GROUP_POLICY = "volcano.sh/vgpu-podgroup-policy"
POD_GROUPS = ("scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name")

ALLOCATED, TO_ALLOCATE = "volcano.sh/vgpu-ids-new", "volcano.sh/devices-to-allocate"
NODE, TIME = "volcano.sh/vgpu-node", "volcano.sh/vgpu-time"
BIND_TIME, BIND_PHASE = "volcano.sh/bind-time", "volcano.sh/bind-phase"
OWNED = (
    *(TIME, ALLOCATED, TO_ALLOCATE, NODE, BIND_TIME, BIND_PHASE),
    *("volcano.sh/predicate-time", "volcano.sh/gpu-index"),
)
"""What only Volcano and the device plugin may write on a pod."""

ASCEND = re.compile(
    r"hami\.io/(?:vgpu-node|vgpu-time|bind-time|bind-phase|Ascend[-A-Za-z0-9_.]*-devices-(?:to-allocate|allocated))"
    r"|huawei\.com/Ascend[-A-Za-z0-9_.]*"
    r"|predicate-time"
)
"""HAMi's own keys that Volcano writes where it places HAMi's Ascend resources (docs/spec/volcano.md#14)."""


def mode_of(annotations: Mapping[str, str]) -> str:
    """The mode that a pod's annotations request; empty for any."""
    return annotations.get(MODE, "").strip().lower()


def uuids_of(annotations: Mapping[str, str]) -> ListRule:
    """Which UUIDs a pod's annotations admit; Volcano takes an allow list that names nothing (`,`) for none."""
    return ListRule(split_list(annotations.get(USE_UUID, "")), split_list(annotations.get(NOUSE_UUID, "")))


def types_of(annotations: Mapping[str, str]) -> ListRule:
    """Which card models a pod's annotations admit: with an allow list, nobody looks at the deny list."""
    if USE_TYPE in annotations:
        return ListRule(allow=split_list(annotations[USE_TYPE].lower()))
    return ListRule.read(annotations, (), (NOUSE_TYPE,), fold=True)


def pod_group(namespace: str, annotations: Mapping[str, str]) -> str:
    """The pod's PodGroup, with its namespace; empty for none."""
    name = next((annotations[key] for key in POD_GROUPS if annotations.get(key)), "")
    return f"{namespace}/{name}" if name else ""
