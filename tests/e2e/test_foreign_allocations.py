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

from .deployment import Deployment, Kubectl, bound_role, eventually
from .objects import CORES, GPU, JSON, MEM, add_node, define_devices, namespace, quota, remove_devices
from .scheduling import bind, foreign_scheduler
from .tenants import tenant

NUMBER, MEMORY, IDS = "volcano.sh/vgpu-number", "volcano.sh/vgpu-memory", "volcano.sh/vgpu-ids-new"
RATIO, BYTES = "koordinator.sh/gpu-memory-ratio", "koordinator.sh/gpu-memory"
KOORDINATORS = [f"limits.{name}" for name in ("koordinator.sh/gpu.shared", RATIO, BYTES)]
NODE = "foreign-1"
DEVICES = "scheduling.koordinator.sh/device-allocated"
ONLY_SCHEDULERS = "is written by the scheduler and device plugins only; system:serviceaccount:{}:tenant may not "


@pytest.fixture(scope="module")
def program(one_replica: Deployment) -> Iterator[Deployment]:
    """On a cluster with Koordinator's definition, and a node with two cards of it."""
    kubectl = one_replica.kubectl
    define_devices(kubectl)
    add_node(kubectl, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
    cards = [
        {"type": "gpu", "minor": minor, "health": True, "resources": {BYTES: size}}
        for minor, size in enumerate(("80Gi", "23040Mi"))
    ]
    kind = {"apiVersion": "scheduling.koordinator.sh/v1alpha1", "kind": "Device"}
    kubectl.apply({**kind, "metadata": {"name": NODE}, "spec": {"devices": cards}})
    yield one_replica
    remove_devices(kubectl)


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
        "volcano.sh/vgpu-node": NODE,
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
    assert bind(volcano, space, "first", NODE, allocated) == ""
    assert kubectl.get("pod", "first", "-n", space)["metadata"]["annotations"].items() >= allocated.items()
    plugin = {"volcano.sh/bind-phase": "success", "volcano.sh/devices-to-allocate": ""}
    assert annotate(volcano, space, "first", dict(plugin)) == ""
    for change in ({IDS: None}, {"volcano.sh/bind-phase": "failed"}, {IDS: "GPU-0,NVIDIA,1,0:"}):
        assert "may not add, change or remove it" in annotate(mine, space, "first", dict(change))
    assert annotate(mine, space, "first", {"team": "a"}) == ""
    assert "exceeding resource quota" in mine.refused(vgpu(space, "second"))
    assert used() == "20k"


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
    assert bind(koordinator, space, "first", NODE) == ""
    for change in (device_allocated(1), {DEVICES: None}, {DEVICES: "{}"}):
        error = annotate(mine, space, "first", dict(change))
        assert f"{DEVICES} {ONLY_SCHEDULERS.format(space)}add, change or remove it" in error
    assert "exceeding resource quota" in mine.refused(share(space, "second"))
    assert used() == "80"


def half_a_card(space: str, name: str) -> JSON:
    made = pod(space, name, **{RATIO: "50", "koordinator.sh/gpu-core": "50"})
    made["metadata"]["labels"] = {"koordinator.sh/gpu-isolation-provider": "hami-core"}
    return made


def test_a_share_is_charged_by_the_smallest_card_and_debited_as_placed(program: Deployment) -> None:
    """By Koordinator's Device objects at admission, then by what Koordinator wrote."""
    kubectl, space = program.kubectl, namespace(program.kubectl)
    koordinator = foreign_scheduler(program, "koordinator-system", "koord-scheduler")
    hard: JSON = dict(zip(KOORDINATORS, (4, 300, "60Gi"), strict=True))
    kubectl.apply(quota(space, **hard))

    def used() -> list[str | None]:
        return [kubectl.used(space).get(key) for key in KOORDINATORS]

    eventually(used, ["0", "0", "0"])
    eventually(lambda: program.metric("hami-webhook-0", 'hami_webhook_cache_objects{kind="devices"}'), 1.0)
    kubectl.apply(half_a_card(space, "p"))
    assert used() == ["1", "50", "12079595520"]
    stored = kubectl.get("pod", "p", "-n", space)
    assert stored["metadata"]["labels"] == {"koordinator.sh/gpu-isolation-provider": "HAMi-core"}
    assert stored["spec"]["schedulerName"] == "koord-scheduler"
    assert stored["spec"]["containers"][0]["resources"]["limits"] == {RATIO: "50", "koordinator.sh/gpu-core": "50"}
    # what koord-scheduler does: half of the larger card
    entry = {"minor": 0, "resources": {"koordinator.sh/gpu-core": "50", RATIO: "50"}}
    assert annotate(koordinator, space, "p", {DEVICES: json.dumps({"gpu": [entry]})}) == ""
    assert bind(koordinator, space, "p", NODE) == ""
    eventually(used, ["1", "50", "42949672960"])
    message = kubectl("describe", "quota", "gpu-quota", "-n", space).split()
    assert message[message.index(KOORDINATORS[2]) + 1 :][:2] == ["40Gi", "60Gi"]
    kubectl.apply(half_a_card(space, "q"))
    refused = kubectl.refused(half_a_card(space, "r"))
    assert "exceeding resource quota" in refused
    assert f"requested: {KOORDINATORS[2]}=12079595520 (smallest eligible card)" in refused


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
    kubectl.apply(bound_role("binder", "edit", "binder", "kai-scheduler", space=HELD_IN))
    accounts = "serviceaccounts", "-n", HELD_IN, "--field-selector=metadata.name=default"
    eventually(lambda: len(kubectl.get(*accounts)["items"]), 1)
    return found


def bind_share(binder: Kubectl, space: str, name: str) -> str:
    """What KAI's binder does once it holds the card: the label, the annotation, the Binding."""
    written = {"metadata": {"labels": {GROUP: "g1"}, "annotations": {"received-resource-type": "Fraction"}}}
    binder("patch", "pod", name, "-n", space, "--type=merge", "-p", json.dumps(written))
    return bind(binder, space, name, "kai-large")


def test_a_share_that_kai_places_costs_the_least_and_then_its_nodes_card(program: Deployment, binder: Kubectl) -> None:
    """The pod with which the binder holds the card was refused: "pod has node assigned"."""
    kubectl, space = program.kubectl, namespace(program.kubectl)
    mine = tenant(kubectl, program.plane, program.folder, space)
    hard: JSON = {GPU: 4, MEM: 60000, CORES: 200}
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
