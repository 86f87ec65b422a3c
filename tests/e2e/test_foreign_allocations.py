"""A tenant can't write what Volcano or Koordinator allocates; their own service accounts can. KAI's pods cost what they
ask for and where they are, whatever a tenant writes.

KAI can't be had here: a stand-in does on the API what its binder does (docs/spec/kai.md#1 and #3).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import builders
import pytest

from hack.devcluster.plane import ControlPlane

from .deployment import Deployment, Kubectl, deployed, eventually
from .objects import CORES as GPUCORES
from .objects import GPU, JSON, MEM, add_node, define_devices, gpu_node, namespace, quota, remove_devices
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
    remove_devices(deployment.kubectl)


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


def bind(
    kubectl: Kubectl, space: str, name: str, annotations: dict[str, str] | None = None, node: str = "foreign-1"
) -> str:
    """Bind a pod to the node; what kubectl says against it, empty if it is done."""
    meta = {"name": name, "namespace": space, "annotations": annotations or {}}
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
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


def test_a_pod_of_koordinator_that_names_hami_s_cards_of_another_vendor_too_is_refused(program: Deployment) -> None:
    """It was charged for both, without a word; each manager would count the same card. One of them is fine."""
    kubectl, space = program.kubectl, namespace(program.kubectl)
    refused = kubectl.refused(pod(space, "both", **{RATIO: "80", "hygon.com/dcunum": "1"}))
    assert "invalid resource device requests: hygon.com/dcunum, koordinator.sh/gpu-memory-ratio" in refused
    assert "each counts the same card separately" in refused
    kubectl.apply(share(space, "share"), pod(space, "dcu", **{"hygon.com/dcunum": "1"}))


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


def test_words_of_vendors_are_reserved_on_pods_with_cards_alone(program: Deployment) -> None:
    """Elsewhere they mean nothing: another project may use them, and a pod gets no card by them."""
    kubectl, space = program.kubectl, namespace(program.kubectl)
    mine = tenant(kubectl, program.plane, program.folder, space)
    words = ("predicate-time", "AWS_NEURON_IDS", "enflame.com/gcu-assigned", "huawei.com/Ascend910B3")
    mine.apply(builders.pod("plain", namespace=space, annotations=dict.fromkeys(words, "1")))
    assert annotate(mine, space, "plain", dict.fromkeys(words, "2")) == ""
    card = pod(space, "card", **{"huawei.com/Ascend910B3": 1})
    for key in words:
        forged = card | {"metadata": {**card["metadata"], "name": "forged", "annotations": {key: "1"}}}
        assert f"annotation {key} is written by the scheduler only; remove it from the pod" in mine.refused(forged)
    mine.apply(card)
    for key in words:
        assert f"{key} {ONLY_SCHEDULERS.format(space)}" in annotate(mine, space, "card", {key: "1"})


def test_device_plugins_of_hami_write_allocations_by_their_manifests_accounts_alone(program: Deployment) -> None:
    """Stand-ins: the accounts and rights of HAMi's manifests for Ascend, Hygon and AMD, and of its chart."""
    kubectl, space = program.kubectl, namespace(program.kubectl)
    mine = tenant(kubectl, program.plane, program.folder, space)
    mine.apply(pod(space, "npu", **{"huawei.com/Ascend910B3": 1}))
    for name in (
        "hami-ascend",
        "dcu-device-plugin",
        "hcu-device-plugin",
        "amd-gpu-device-plugin",
        "hami-device-plugin",
    ):
        plugin = foreign_scheduler(program, "kube-system", name)
        assert annotate(plugin, space, "npu", {"hami.io/bind-phase": name, "predicate-time": name}) == ""
    # the name alone is nobody's
    forged = foreign_scheduler(program, f"{space}-own", "hami-ascend")
    assert "may not add, change or remove it" in annotate(forged, space, "npu", {"hami.io/bind-phase": "mine"})


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


HELD_IN, GROUP = "kai-resource-reservation", "runai-gpu-group"


def share_of_card(space: str, name: str, fraction: str = "0.5", **more: Any) -> JSON:
    return builders.pod(
        name, namespace=space, annotations={"gpu-fraction": fraction}, **{"schedulerName": "kai-scheduler", **more}
    )


def reservation(name: str, space: str = HELD_IN) -> JSON:
    """What KAI's binder makes to hold a card of node kai-large."""
    limits = {"nvidia.com/gpu": "1"}
    holding = builders.container("resource-reservation", limits, limits)
    return builders.pod(name, holding, namespace=space, labels={"app": HELD_IN, GROUP: "g1"}, nodeName="kai-large")


@pytest.fixture(scope="module")
def binder(program: Deployment) -> Kubectl:
    """kubectl as KAI's binder, with two nodes that GPU feature discovery has labelled."""
    kubectl = program.kubectl
    for name, memory in (("kai-small", "24576"), ("kai-large", "81559")):
        labels = {"nvidia.com/gpu.memory": memory}
        add_node(kubectl, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}, gpu=8)
    found = foreign_scheduler(program, "kai-scheduler", "binder")
    kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": HELD_IN}})
    rbac = "rbac.authorization.k8s.io"
    kubectl.apply(
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "binder", "namespace": HELD_IN},
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "edit"},
            "subjects": [{"kind": "ServiceAccount", "name": "binder", "namespace": "kai-scheduler"}],
        }
    )
    accounts = "serviceaccounts", "-n", HELD_IN, "--field-selector=metadata.name=default"
    eventually(lambda: len(kubectl.get(*accounts)["items"]), 1)
    return found


def bind_share(binder: Kubectl, space: str, name: str) -> str:
    """What KAI's binder does once it holds the card: the label, the annotation, the Binding."""
    written = {"metadata": {"labels": {GROUP: "g1"}, "annotations": {"received-resource-type": "Fraction"}}}
    binder("patch", "pod", name, "-n", space, "--type=merge", "-p", json.dumps(written))
    return bind(binder, space, name, node="kai-large")


def test_a_share_that_kai_places_costs_the_least_and_then_its_nodes_card(program: Deployment, binder: Kubectl) -> None:
    """The pod with which the binder holds the card was refused: "pod has node assigned"."""
    kubectl, space = program.kubectl, namespace(program.kubectl)
    mine = tenant(kubectl, program.plane, program.folder, space)
    hard: JSON = {GPU: 4, MEM: 60000, GPUCORES: 200}
    kubectl.apply(quota(space, **hard), quota(HELD_IN, **hard))

    def used(of: str = space) -> list[str | None]:
        return [kubectl.used(of).get(key) for key in ("gpu", "gpumem", "gpucores")]

    eventually(used, ["0", "0", "0"])
    mine.apply(share_of_card(space, "first"))
    eventually(used, ["1", "12288", "50"])
    binder.apply(reservation("gpu-reservation-large-1"))
    stored = kubectl.get("pod", "gpu-reservation-large-1", "-n", HELD_IN)
    assert stored["spec"]["schedulerName"] == "default-scheduler"
    assert bind_share(binder, space, "first") == ""
    eventually(used, ["1", "40780", "50"])
    mine.apply(share_of_card(space, "second"))
    eventually(used, ["2", "53068", "100"])
    refused = mine.refused(share_of_card(space, "third"))
    assert "exceeding resource quota" in refused
    assert f"requested: {MEM}=12288 (smallest eligible card)" in refused
    mine("delete", "pod", "first", "-n", space, "--grace-period=0", "--force")
    eventually(used, ["1", "12288", "50"])
    assert used(HELD_IN) == ["0", "0", "0"]
    binder("delete", "pod", "gpu-reservation-large-1", "-n", HELD_IN, "--grace-period=0", "--force")


def test_a_tenant_gets_no_share_of_kais_cards_for_less(program: Deployment, binder: Kubectl) -> None:
    kubectl, space = program.kubectl, namespace(program.kubectl)
    mine = tenant(kubectl, program.plane, program.folder, space)
    guest = tenant(kubectl, program.plane, program.folder, HELD_IN)
    hard: JSON = {GPU: 1, MEM: 30000}
    kubectl.apply(quota(space, **hard))

    def used() -> list[str | None]:
        return [kubectl.used(space).get(key) for key in ("gpu", "gpumem")]

    eventually(used, ["0", "0"])
    for who in (mine, guest):
        held_in = space if who is mine else HELD_IN
        words = "pod has node assigned" if who is mine else f"only KAI makes pods with cards in namespace {HELD_IN}"
        assert words in who.refused(reservation("gpu-reservation-mine", held_in))
    for fraction in ("1", "-0.5", "NaN", "1e400"):
        assert "must be a number above 0 and below 1" in mine.refused(share_of_card(space, "odd", fraction))
    assert "pod has node assigned" in mine.refused(share_of_card(space, "odd", nodeName="kai-large"))

    mine.apply(
        share_of_card(space, "small", "0.01"), builders.pod("none", namespace=space, schedulerName="kai-scheduler")
    )
    eventually(used, ["1", "246"])
    for name, change in (
        ("small", {"gpu-fraction": "0.9"}),
        ("none", {"gpu-fraction": "0.9"}),
        ("none", {"gpu-memory": "1"}),
    ):
        assert "once the pod exists; delete the pod and create it again" in annotate(mine, space, name, dict(change))
    mine("label", "pod", "small", "-n", space, f"{GROUP}=g1", f"{GROUP}/g2=g2")
    assert annotate(mine, space, "small", {"received-resource-type": "Fraction", "team": "a"}) == ""
    assert "exceeding resource quota" in mine.refused(share_of_card(space, "more", "0.01"))
    assert bind_share(binder, space, "small") == ""
    eventually(used, ["1", "816"])
    mine("label", "pod", "small", "-n", space, f"{GROUP}-", f"{GROUP}/g2-")
    assert annotate(mine, space, "small", {"received-resource-type": None}) == ""
    assert "exceeding resource quota" in mine.refused(share_of_card(space, "more", "0.01"))
    assert used() == ["1", "816"]


def test_pods_that_mean_something_else_by_kais_words_cost_no_review(program: Deployment, binder: Kubectl) -> None:
    """Nor do pods of KAI's that ask for no card: the API server asks nobody."""
    kubectl, space = program.kubectl, namespace(program.kubectl)
    mine = tenant(kubectl, program.plane, program.folder, space)
    before = program.metric("hami-webhook-0", "hami_webhook_reviews_total")
    for name, scheduler in (("other", "default-scheduler"), ("plain", "kai-scheduler")):
        notes = {"gpu-memory": "a lot"} if name == "other" else {"gpu-fraction-container-name": "main"}
        mine.apply(builders.pod(name, namespace=space, annotations=notes, schedulerName=scheduler))
        assert annotate(mine, space, name, {"team": "a"}) == ""
    assert annotate(mine, space, "other", {"gpu-memory": "more"}) == ""
    assert program.metric("hami-webhook-0", "hami_webhook_reviews_total") == before


def test_cards_that_are_registered_without_memory_are_named_by_an_event_on_their_node(program: Deployment) -> None:
    kubectl = program.kubectl
    add_node(kubectl, gpu_node("no-memory", 0, 8192), gpu=20)

    def said() -> str:
        found = kubectl.get("events", "-n", "default", "--field-selector", "reason=RegistrationUnusable")["items"]
        return "; ".join(each["message"] for each in found if each["involvedObject"]["name"] == "no-memory")

    text = "1 of 2 NVIDIA cards are registered without memory, so they can't be used: no-memory-0"
    eventually(lambda: text in said())
    kubectl("delete", "node", "no-memory")
