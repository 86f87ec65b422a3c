"""What `kubectl hami doctor` says of DeviceClasses that take a resource of limits; claims aren't charged."""

from __future__ import annotations

import pytest
from dra.objects import NVIDIA, resource_slice, whole

from .conftest import Hami
from .installation import Installation, device_class, with_claims
from .test_doctor import SCHEDULER, found, rewrite

FILTERED = "its filter DynamicResources is on"


def installation_with_class(resource: str, *, filtered: bool, version: str = "v1.36.3", gate: str = "") -> Installation:
    """A driver's chart brought a class; kube-scheduler is configured by our manifests or, if `filtered`, by others."""
    made = Installation()
    made.api.version = version
    made.api.groups |= {"resource.k8s.io/v1", "resource.k8s.io"}
    found = device_class("gpu.example.com", ())
    found["spec"]["extendedResourceName"] = resource
    made.objects.append(found)
    if filtered:
        rewrite(made, SCHEDULER, "disabled: [{name: DynamicResources}]", "disabled: []")
    if gate:
        deployment = made.find("Deployment", "hami-scheduler")
        beside = {
            "name": "kube-scheduler",
            "command": ["kube-scheduler", f"--feature-gates=DRAExtendedResource={gate}"],
        }
        deployment["spec"]["template"]["spec"]["containers"].append(beside)
    return made


@pytest.mark.parametrize(
    ("filtered", "version", "gate", "waiting"),
    [
        (False, "v1.36.3", "", False),
        (True, "v1.36.3", "", True),
        (True, "v1.38.0", "", True),
        (True, "v1.36.3", "false", False),
        (True, "v1.35.4", "", False),
        (True, "v1.35.4", "true", True),
    ],
)
def test_the_class_is_named_and_whether_pods_wait_for_it(
    hami: Hami, filtered: bool, version: str, gate: str, waiting: bool
) -> None:
    installation = installation_with_class("nvidia.com/gpu", filtered=filtered, version=version, gate=gate)
    faults = found(hami(installation.api, "doctor", "-o", "json").result)["device-classes"]
    ((subject, fault, *_),) = faults
    assert subject == "DeviceClass gpu.example.com"
    assert fault.startswith("takes nvidia.com/gpu by extendedResourceName, which pods request by limits")
    assert (FILTERED in fault) == waiting


def test_a_class_that_takes_nothing_of_ours_is_no_fault(hami: Hami) -> None:
    installation = installation_with_class("example.com/nic", filtered=True)
    assert "device-classes" not in found(hami(installation.api, "doctor", "-o", "json").result)


def test_devices_that_no_row_is_for_are_named(hami: Hami) -> None:
    installation = with_claims()
    installation.objects.append(
        {"kind": "ResourceSlice", **resource_slice("n4", whole("x0", kind="vgpu"), driver=NVIDIA)}
    )
    ((subject, fault, *_),) = found(hami(installation.api, "doctor", "-o", "json").result)["claims"]
    assert subject == f"driver {NVIDIA}"
    assert (
        fault == "publishes devices of type vgpu, which no row of dra.devices prices: under a quota no claim gets one"
    )
