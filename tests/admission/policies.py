"""Vendors, namespaces, pods and rules for the tests of policy."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from hami_webhook.admission.denial import Denied
from hami_webhook.admission.policy import AdmissionContext, apply
from hami_webhook.devices.keys import DeviceKeys
from hami_webhook.devices.pod_preferences import GPU_POLICY
from hami_webhook.devices.vendor import Vendor
from hami_webhook.devices.vendors.nvidia import Nvidia
from hami_webhook.devices.vendors.nvidia.section import NvidiaSection
from hami_webhook.kube.draft import PodDraft
from hami_webhook.kube.objects import Namespace
from hami_webhook.policy.rules import DeviceBounds, PolicyRule, PolicyRules

USE, NOUSE = "nvidia.com/use-gpuuuid", "nvidia.com/nouse-gpuuuid"


USE_TYPE, NOUSE_TYPE = "nvidia.com/use-gputype", "nvidia.com/nouse-gputype"


MODE, QOS = "nvidia.com/vgpu-mode", "metax-tech.com/sgpu-qos-policy"


XPU, NO_XPU, OLD_XPU, NO_OLD_XPU = (
    "hami.io/use-xpu-uuid",
    "hami.io/no-use-xpu-uuid",
    "baidu.com/use-gpuuuid",
    "baidu.com/nouse-gpuuuid",
)


class MetaxSgpu(Vendor):
    key = "Metax-SGPU"
    keys = DeviceKeys(
        allocated="hami.io/metax-sgpu-devices-allocated",
        use_uuid=("metax-tech.com/use-gpuuuid",),
        nouse_uuid=("metax-tech.com/nouse-gpuuuid",),
        choices=(QOS,),
    )


class Kunlun(Vendor):
    key = "kunlun"
    keys = DeviceKeys(allocated="hami.io/kunlun-allocated", use_uuid=(XPU, OLD_XPU), nouse_uuid=(NO_XPU, NO_OLD_XPU))


class Xpu(Vendor):
    key = "XPU"
    keys = DeviceKeys(
        allocated="hami.io/xpu-devices-allocated", use_uuid=(XPU, OLD_XPU), nouse_uuid=(NO_XPU, NO_OLD_XPU)
    )


class Chooser(Vendor):
    """A vendor with many choices, no lists, and an allocation key that no other vendor has."""

    key = "Chooser"
    keys = DeviceKeys(
        allocated="chooser.io/allocated", choices=tuple(f"chooser.io/{letter}" for letter in "abcdefghijkl")
    )


NVIDIA, METAX, KUNLUN, XPU_CARD, CHOOSER = Nvidia(NvidiaSection()), MetaxSgpu(), Kunlun(), Xpu(), Chooser()


def pod_object(annotations: Mapping[str, str] | None = None, labels: Mapping[str, str] | None = None) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": "p"}
    if annotations is not None:
        metadata["annotations"] = dict(annotations)
    return {"metadata": {**metadata, "labels": dict(labels or {})}, "spec": {"containers": [{"name": "c"}]}}


def team(annotations: Mapping[str, str] | None = None, labels: Mapping[str, str] | None = None) -> Namespace:
    return Namespace("team-a", labels or {}, annotations or {})


class Applied:
    """What `apply` made of a pod; `asked` is one vendor or several."""

    def __init__(
        self,
        annotations: Mapping[str, str] | None,
        namespace: Namespace,
        *rules: PolicyRule,
        asked: Sequence[Vendor] = (NVIDIA,),
        labels: Mapping[str, str] | None = None,
    ) -> None:
        draft = PodDraft(pod_object(annotations, labels), "team-a")
        self.outcome = apply(draft, AdmissionContext(namespace, PolicyRules(rules)), asked)
        self.annotations = dict(draft.annotations)
        self.warnings = draft.warnings
        self.operations = draft.operations()


def refusal(
    annotations: Mapping[str, str], namespace: Namespace, *rules: PolicyRule, asked: Sequence[Vendor] = (NVIDIA,)
) -> str:
    with pytest.raises(Denied) as denied:
        Applied(annotations, namespace, *rules, asked=asked)
    assert (denied.value.code, denied.value.reason) == (403, "Forbidden")
    return denied.value.message


FIRST = PolicyRule("first", default={GPU_POLICY: "first-default"})


SECOND = PolicyRule("second", default={GPU_POLICY: "second-default"})


MUST = PolicyRule("must", enforce={GPU_POLICY: "must"})


LAST = PolicyRule("last", enforce={GPU_POLICY: "last"})


def bounds(**lists: tuple[str, ...]) -> dict[str, DeviceBounds]:
    return {"NVIDIA": DeviceBounds(**lists)}


A_TO_C = PolicyRule("abc", devices=bounds(allow_uuids=("GPU-a", "GPU-b", "GPU-c")))


NOT_B = PolicyRule("no-b", devices=bounds(deny_uuids=("GPU-b",)))
