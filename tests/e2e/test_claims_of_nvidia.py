"""Claims for devices of NVIDIA's driver under a quota, on a real control plane."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from dra.objects import HAMI, NVIDIA, VFIO, consumable, exactly, passed_through, resource_slice, whole

from hack.devcluster.plane import ControlPlane

from .deployment import Deployment, Kubectl, eventually
from .test_claims_charged import (
    API,
    NODE,
    bound,
    charging_claims,
    claim,
    events,
    memory,
    namespace_with_quota,
    pod,
    requests,
    settled,
    template,
)

JSON = dict[str, Any]


@pytest.fixture(scope="module")
def program(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with charging_claims(plane, tmp_path_factory.mktemp("program")) as deployment:
        yield deployment


@pytest.fixture
def team(program: Deployment) -> Iterator[str]:
    with namespace_with_quota(program.kubectl) as space:
        yield space


@contextlib.contextmanager
def nvidias(kubectl: Kubectl, *devices: JSON) -> Iterator[None]:
    """Devices of NVIDIA's driver on the node, as it publishes them; the slice is written by hand."""
    made = resource_slice(NODE, *devices, driver=NVIDIA, name="nvidias")
    kubectl.apply({"apiVersion": API, "kind": "ResourceSlice", **made})
    yield
    kubectl("delete", "resourceslice", "nvidias")


def test_cards_that_are_passed_through_and_shares_of_no_memory_are_charged(program: Deployment, team: str) -> None:
    """A tenant asks for 0 bytes of a card that two may share: half of the card is its price."""
    kubectl = program.kubectl
    with nvidias(kubectl, passed_through("v0", "4Gi"), consumable("c0", "2", "16Gi")):
        kubectl.apply(template(team, "vm", requests(exactly(VFIO))), pod(team, "a", of="vm"))
        zero = requests(exactly(NVIDIA, memory="0"))
        kubectl.apply(template(team, "zero", zero), pod(team, "b", of="zero"))
        assert memory(kubectl, team) == 4096 + 8192
        eventually(lambda: bound(kubectl, team), ["a", "b"])
        eventually(lambda: settled(kubectl, team))
        assert (memory(kubectl, team), kubectl.used(team)["gpu"]) == (4096 + 8192, "2")
        refused = kubectl.refused(pod(team, "c", of="zero"))
        assert "exceeded quota: gpu-quota, requested: limits.nvidia.com/gpumem=8192" in refused


def test_a_qualified_name_is_charged_as_kube_scheduler_allocates_it(program: Deployment, team: str) -> None:
    """kube-scheduler takes such a name from 1.38 on; with older ones the pod waits, and holds what it waits for."""
    kubectl, plane = program.kubectl, program.plane
    with nvidias(kubectl, consumable("c1", "memory", "16Gi")):
        named = requests(exactly(NVIDIA, capacity={"requests": {f"{NVIDIA}/memory": "4Gi"}}))
        kubectl.apply(template(team, "named", named), pod(team, "a", of="named"))
        assert memory(kubectl, team) == 4096
        if plane.scheduler_minor >= 38:
            eventually(lambda: bound(kubectl, team), ["a"])
            eventually(lambda: settled(kubectl, team))
        else:
            eventually(lambda: "cannot allocate all claims" in events(kubectl, team))
        assert memory(kubectl, team) == 4096


def test_a_device_that_no_row_is_for_is_called_so_and_a_qualified_name_costs_the_same(
    program: Deployment, team: str
) -> None:
    kubectl = program.kubectl
    kubectl.apply(claim(team, "long", requests(exactly(HAMI, capacity={"requests": {f"{HAMI}/memory": "9Gi"}}))))
    assert memory(kubectl, team) == 9216
    by_driver = {"selectors": [{"cel": {"expression": f'device.driver == "{NVIDIA}"'}}]}
    kubectl.apply(
        {"apiVersion": API, "kind": "DeviceClass", "metadata": {"name": "any.example.com"}, "spec": by_driver}
    )
    with nvidias(kubectl, whole("x0", "4Gi", "vgpu")):
        kubectl.apply(template(team, "any", requests(exactly("any.example.com"))), pod(team, "a", of="any"))
        text = f"device x0 of pool {NODE} of driver {NVIDIA} is of type vgpu, and no row of dra.devices prices it"
        eventually(lambda: text in events(kubectl, team))
        assert bound(kubectl, team) == []
    kubectl("delete", "deviceclass", "any.example.com")
