"""A tenant can't write what Volcano or Koordinator allocates; their own service accounts can."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import builders
import pytest

from hack.devcluster.plane import ControlPlane

from .deployment import Deployment, Kubectl, deployed, eventually
from .objects import JSON, add_node, define_devices, namespace, quota
from .scheduling import foreign_scheduler
from .tenants import tenant

NUMBER, MEMORY, CORES = "volcano.sh/vgpu-number", "volcano.sh/vgpu-memory", "volcano.sh/vgpu-cores"
IDS, RATIO = "volcano.sh/vgpu-ids-new", "koordinator.sh/gpu-memory-ratio"
DEVICES = "scheduling.koordinator.sh/device-allocated"
RESERVATION = "hami.io/quota-reservation"
ONLY_SCHEDULERS = "is written by the scheduler and device plugins only; system:serviceaccount:{}:tenant may not "


@pytest.fixture(scope="module")
def program(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with deployed(plane, tmp_path_factory.mktemp("foreign"), "hami-webhook-0") as deployment:
        define_devices(deployment.kubectl)
        add_node(deployment.kubectl, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "foreign-1"}})
        yield deployment


def pod(space: str, name: str, **limits: Any) -> JSON:
    return builders.pod(name, namespace=space, **limits)


def vgpu(space: str, name: str, memory: int = 20000) -> JSON:
    return pod(space, name, **{NUMBER: "1", MEMORY: str(memory)})


def share(space: str, name: str) -> JSON:
    return pod(space, name, **{RATIO: "80"})


def allocation(memory: int) -> dict[str, str]:
    """What Volcano writes on a pod that is about to be bound to the node."""
    now = str(int(time.time()))
    return {
        IDS: f"GPU-0,NVIDIA,{memory},0:",
        "volcano.sh/devices-to-allocate": f"GPU-0,NVIDIA,{memory},0:",
        "volcano.sh/vgpu-node": "foreign-1",
        "volcano.sh/vgpu-time": now,
        "volcano.sh/bind-time": now,
        "volcano.sh/bind-phase": "allocating",
    }


def device_allocated(ratio: int) -> dict[str, str]:
    entry = {"minor": 0, "resources": {RATIO: str(ratio), "koordinator.sh/gpu-memory": str(ratio)}}
    return {DEVICES: json.dumps({"gpu": [entry]})}


def annotate(kubectl: Kubectl, space: str, name: str, annotations: dict[str, str | None]) -> str:
    """Merge-patch annotations of a pod; what kubectl says against it, empty if it is done."""
    patch = json.dumps({"metadata": {"annotations": annotations}})
    done = kubectl.run("patch", "pod", name, "-n", space, "--type=merge", "-p", patch)
    return done.stderr if done.returncode else ""


def bind(kubectl: Kubectl, space: str, name: str, annotations: dict[str, str] | None = None) -> str:
    """Bind a pod to the node; what kubectl says against it, empty if it is done."""
    meta = {"name": name, "namespace": space, "annotations": annotations or {}}
    target = {"apiVersion": "v1", "kind": "Node", "name": "foreign-1"}
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": meta, "target": target}
    path = f"/api/v1/namespaces/{space}/pods/{name}/binding"
    done = kubectl.run("create", "--raw", path, "-f", "-", stdin=json.dumps(binding))
    return done.stderr if done.returncode else ""


def test_a_tenant_can_not_shrink_what_its_volcano_pod_costs(program: Deployment) -> None:
    """Used fell from 20000 to 1, and a second pod was let in."""
    kubectl, space = program.kubectl, namespace(program.kubectl)
    mine = tenant(kubectl, program.plane, program.folder, space)
    hard: JSON = {f"limits.{MEMORY}": 20000}
    kubectl.apply(quota(space, **hard))

    def used() -> str | None:
        return kubectl.used(space).get(f"limits.{MEMORY}")

    eventually(used, "0")
    mine.apply(vgpu(space, "first"))
    eventually(used, "20k")
    for key, value in allocation(1).items():
        error = annotate(mine, space, "first", {key: value})
        assert f"{key} {ONLY_SCHEDULERS.format(space)}add, change or remove it" in error
    assert annotate(mine, space, "first", dict(allocation(1))) != ""
    assert "exceeding resource quota" in mine.refused(vgpu(space, "second"))
    assert used() == "20k"

    volcano = foreign_scheduler(program, "volcano-system", "volcano-scheduler")
    allocated = allocation(20000)
    assert bind(volcano, space, "first", allocated) == ""
    assert kubectl.get("pod", "first", "-n", space)["metadata"]["annotations"].items() >= allocated.items()
    plugin = {"volcano.sh/bind-phase": "success", "volcano.sh/devices-to-allocate": ""}
    assert annotate(volcano, space, "first", dict(plugin)) == ""
    for change in ({IDS: None}, {"volcano.sh/bind-phase": "failed"}, {IDS: "GPU-0,NVIDIA,1,0:"}):
        assert "may not add, change or remove it" in annotate(mine, space, "first", dict(change))
    assert annotate(mine, space, "first", {"team": "a"}) == ""
    assert "exceeding resource quota" in mine.refused(vgpu(space, "second"))
    assert used() == "20k"


def test_a_pod_is_never_debited_less_than_it_declares(program: Deployment) -> None:
    """Not even by an allocation from before it was guarded: 1 MiB of 20000, and cores that weren't asked for."""
    kubectl, space = program.kubectl, namespace(program.kubectl)
    mine = tenant(kubectl, program.plane, program.folder, space)
    hard: JSON = {f"limits.{MEMORY}": 20000, f"limits.{CORES}": 100}
    kubectl.apply(quota(space, **hard))

    def used() -> tuple[str | None, str | None]:
        found = kubectl.used(space)
        return found.get(f"limits.{MEMORY}"), found.get(f"limits.{CORES}")

    eventually(used, ("0", "0"))
    mine.apply(vgpu(space, "first"))
    volcano = foreign_scheduler(program, "volcano-system", "volcano-scheduler")
    assert annotate(volcano, space, "first", {**allocation(1), IDS: "GPU-0,NVIDIA,1,30:"}) == ""
    assert bind(volcano, space, "first") == ""
    eventually(used, ("20k", "30"))
    assert "exceeding resource quota" in mine.refused(vgpu(space, "second", 1))


def test_a_tenant_can_not_shrink_what_its_koordinator_pod_costs(program: Deployment) -> None:
    kubectl, space = program.kubectl, namespace(program.kubectl)
    mine = tenant(kubectl, program.plane, program.folder, space)
    hard: JSON = {f"limits.{RATIO}": 100}
    kubectl.apply(quota(space, **hard))

    def used() -> str | None:
        return kubectl.used(space).get(f"limits.{RATIO}")

    eventually(used, "0")
    mine.apply(share(space, "first"))
    eventually(used, "80")
    koordinator = foreign_scheduler(program, "koordinator-system", "koord-scheduler")
    assert annotate(koordinator, space, "first", dict(device_allocated(80))) == ""
    assert bind(koordinator, space, "first") == ""
    for change in (device_allocated(1), {DEVICES: None}, {DEVICES: "{}"}):
        error = annotate(mine, space, "first", dict(change))
        assert f"{DEVICES} {ONLY_SCHEDULERS.format(space)}add, change or remove it" in error
    assert "exceeding resource quota" in mine.refused(share(space, "second"))
    assert used() == "80"


def test_each_scheduler_writes_its_own_allocations_only(program: Deployment) -> None:
    kubectl, space = program.kubectl, namespace(program.kubectl)
    volcano = foreign_scheduler(program, "volcano-system", "volcano-scheduler")
    koordinator = foreign_scheduler(program, "koordinator-system", "koord-scheduler")
    kubectl.apply(pod(space, "plain"))
    forged = {"hami.io/vgpu-devices-allocated": "GPU-0,NVIDIA,1,1:;"}
    for who, foreign in ((volcano, device_allocated(1)), (koordinator, allocation(1))):
        for key, value in (*foreign.items(), *forged.items()):
            assert f"{key} is written by the scheduler" in annotate(who, space, "plain", {key: value})
            assert f"{key} is written by the scheduler" in bind(who, space, "plain", {key: value})
    (left,) = kubectl.get("pod", "plain", "-n", space)["metadata"]["annotations"]
    assert left == "kubectl.kubernetes.io/last-applied-configuration"


def test_a_new_pod_brings_no_allocation(program: Deployment) -> None:
    """One that asks for nothing would be believed to hold it; of one that asks, copies are stripped."""
    kubectl, space = program.kubectl, namespace(program.kubectl)
    mine = tenant(kubectl, program.plane, program.folder, space)
    for key, value in {**allocation(1), **device_allocated(1)}.items():
        forged = pod(space, "forged")
        forged["metadata"]["annotations"] = {key: value}
        assert f"annotation {key} is written by the scheduler only; remove it from the pod" in mine.refused(forged)
    copied = vgpu(space, "copied")
    copied["metadata"]["annotations"] = {**allocation(1), "team": "a"}
    mine.apply(copied)
    kept = kubectl.get("pod", "copied", "-n", space)["metadata"]["annotations"]
    assert kept["team"] == "a"
    assert not allocation(1).keys() & kept.keys()


def test_a_reservation_is_set_with_the_pods_creation_only(program: Deployment) -> None:
    kubectl, space = program.kubectl, namespace(program.kubectl)
    mine = tenant(kubectl, program.plane, program.folder, space)
    mine.apply(pod(space, "without"))
    having = pod(space, "having")
    having["metadata"]["annotations"] = {RESERVATION: "mine"}
    mine.apply(having)
    for who in (mine, kubectl):
        for name, value in (("without", "x"), ("having", "x"), ("having", None)):
            assert f"{RESERVATION} is written when the pod is created only" in annotate(
                who, space, name, {RESERVATION: value}
            )
    assert annotate(mine, space, "having", {"team": "a"}) == ""
