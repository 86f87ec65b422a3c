"""`kubectl hami doctor` where claims are charged: an installation without faults, and each fault by itself."""

from __future__ import annotations

import pytest
from dra.objects import HAMI, NVIDIA, share
from simulate.files import GPU, JSON, MEM

from .conftest import Hami
from .installation import Installation, with_claims
from .test_doctor import WEB, Spoil, check_only_fault, container_of, found, hook

EVIL: JSON = {"kind": "ResourceSlice", "metadata": {"name": "evil"}}


def slices(installation: Installation) -> list[JSON]:
    return [each["spec"] for each in installation.objects if each["kind"] == "ResourceSlice"]


def unshared(installation: Installation) -> None:
    del slices(installation)[0]["devices"][0]["allowMultipleAllocations"]


def no_driver(installation: Installation) -> None:
    kept = [each for each in installation.objects if each["kind"] not in ("DeviceClass", "ResourceSlice")]
    installation.objects[:] = kept


def same_card(installation: Installation) -> None:
    slices(installation)[0].update(nodeName="n1")
    slices(installation)[0]["devices"][0]["attributes"]["uuid"]["string"] = "GPU-1"


def in_hamis_chart(installation: Installation) -> None:
    configuration = installation.find("ValidatingWebhookConfiguration", "hami-webhook-admission")
    for name in (WEB, "hami-webhook-controller"):
        container_of(installation, name)["args"].append("--webhook-configuration=")
    configuration["webhooks"] = [each for each in configuration["webhooks"] if not each["name"].startswith("claims")]


OF_CLAIMS: list[tuple[str, Spoil, str, str]] = [
    ("claims", lambda i: i.api.groups.discard("resource.k8s.io/v1"), "the API server", "doesn't serve resource.k8s"),
    ("claims", lambda i: setattr(i.api, "version", "v1.34.4"), "the API server", "whose kube-scheduler panics"),
    ("claims", unshared, f"driver {HAMI}", "has devices that aren't shared"),
    ("claims", lambda i: slices(i)[1].update(devices=[]), f"driver {NVIDIA}", "publishes no device in a ResourceSlice"),
    (
        "claims",
        no_driver,
        "the cluster",
        "has neither a DeviceClass nor a ResourceSlice",
    ),
    (
        "claims",
        lambda i: i.find("DeviceClass", NVIDIA)["metadata"].update(name="any.example.com"),
        "DeviceClass any.example.com",
        f"selects devices of {NVIDIA}, and no row of dra.devices names it",
    ),
    (
        "device-classes",
        lambda i: i.find("DeviceClass", HAMI)["spec"].update(extendedResourceName="nvidia.com/gpu"),
        f"DeviceClass {HAMI}",
        "takes nvidia.com/gpu by extendedResourceName",
    ),
    ("claims", lambda i: slices(i)[0]["devices"].append(share("GPU-2")), "ResourceSlice", "is in another slice too"),
    ("claims", lambda i: i.objects.append({**EVIL, "spec": slices(i)[0] | {"nodeName": "evil"}}), "evil", "pool n2"),
    (
        "webhook-configurations",
        lambda i: hook(i, "claims.webhook.hami.io")["rules"].pop(),
        "ValidatingWebhookConfiguration",
        "rules of claims.webhook.hami.io aren't those of the manifests",
    ),
    ("claims", in_hamis_chart, "ValidatingWebhookConfigurations", "no webhook is asked about resourceclaims/status"),
    (
        "rights",
        lambda i: setattr(i.api, "allowed", lambda spec: spec["resourceAttributes"]["resource"] != "resourceslices"),
        "ServiceAccount hami-system/hami-webhook",
        "may not list resourceslices.resource.k8s.io, watch resourceslices.resource.k8s.io",
    ),
    ("managers", same_card, "node n1", f"driver {HAMI} publishes cards for claims that a device plugin also registers"),
    (
        "quota-drift",
        lambda i: i.find("ResourceQuota", "gpu-quota")["status"].update(used={GPU: "0", MEM: "0"}),
        "ResourceQuota team-a/gpu-quota",
        "limits.nvidia.com/gpumem: used is 0, its pods cost 1024",
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("check", "spoil", "subject", "fault"), OF_CLAIMS, ids=[f"{f[0]}-{f[3]}"[:60] for f in OF_CLAIMS]
)
def test_one_fault_of_claims_is_found_and_nothing_else(
    hami: Hami, monkeypatch: pytest.MonkeyPatch, check: str, spoil: Spoil, subject: str, fault: str
) -> None:
    monkeypatch.setattr("hami_webhook.doctor.cluster_checks._SETTLED", 0.0)
    installation = with_claims()
    spoil(installation)
    check_only_fault(hami(installation.api, "doctor", "-o", "json").result, check, subject, fault)


def test_an_installation_that_charges_claims_has_no_faults(hami: Hami) -> None:
    run = hami(with_claims().api, "doctor", "-o", "json")
    assert found(run.result) == {}
    assert [each["check"] for each in run.result["checks"] if each["unseen"]] == []
