"""Pods that wait, as many and as different as a tenant likes, against the real API server."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import builders
import pytest

from hack.devcluster.plane import ControlPlane

from .deployment import ROOT, Deployment, eventually
from .objects import GPU, JSON, MEM, accelerator_quota, add_node, namespace, pod, quota
from .tenants import tenant
from .test_bursts import create_all

TENANTS_PODS, OTHERS_PODS = 1100, 20
TYPES = "nvidia.com/use-gputype"


@pytest.fixture(scope="module")
def program(two_replicas: Deployment) -> Deployment:
    kubectl = two_replicas.kubectl
    kubectl("apply", "-f", str(ROOT / "manifests" / "base" / "acceleratorquotas.yaml"))
    kubectl("wait", "crd/acceleratorquotas.hami.io", "--for=condition=Established", "--timeout=120s")
    for name, model in (("waiting-a", "NVIDIA A10"), ("waiting-h", "NVIDIA H100")):
        cards = [builders.card(f"{name}-{index}", 20_000, index=index, type=model) for index in range(8)]
        add_node(kubectl, builders.node(name, *cards, capacity={}), gpu=80)
    return two_replicas


def together(program: Deployment, name: str, *spaces: str, hard: JSON, **spec: Any) -> None:
    """An AcceleratorQuota of these namespaces, ready to be charged."""
    kubectl = program.kubectl
    kubectl("label", "namespace", *spaces, f"group={name}")
    kubectl.apply(accelerator_quota(name, {"matchLabels": {"group": name}}, hard, **spec))
    eventually(lambda: set(used(program, name).values()), {0})


def used(program: Deployment, name: str) -> dict[str, int]:
    found = program.kubectl.get("aq", name).get("status", {}).get("used", {})
    return {key: int(amount) for key, amount in found.items()}


def ledger(program: Deployment, name: str) -> JSON:
    found: JSON = json.loads(program.kubectl.get("aq", name)["status"].get("ledger") or "{}")
    return found


def test_a_tenant_with_1100_waiting_pods_keeps_nobody_out(program: Deployment) -> None:
    kubectl = program.kubectl
    login = kubectl.kubeconfig
    noisy, quiet = namespace(kubectl), namespace(kubectl)
    together(program, "crowd", noisy, quiet, hard={"mem": 10**7})
    many = [pod(noisy, f"p{number}", gpu=1, gpumem_percentage=1) for number in range(TENANTS_PODS)]
    few = [pod(quiet, f"q{number}", gpu=1, gpumem_percentage=2) for number in range(OTHERS_PODS)]

    async def others() -> list[tuple[float, bool]]:
        """One pod after another, all the while; how long each took, and whether it came."""
        came = []
        for each in few:
            began = time.monotonic()
            refusals = await create_all(login, [each], clients=1)
            came.append((time.monotonic() - began, not refusals))
            await asyncio.sleep(0.2)
        return came

    async def both() -> tuple[list[str], list[tuple[float, bool]]]:
        return await asyncio.gather(create_all(login, many, clients=20), others())

    refused, came = asyncio.run(both())
    if busy := [text for text in refused if text.endswith("no answer from the API server in time; try again")]:
        there = {item["metadata"]["name"] for item in kubectl.get("pods", "-n", noisy)["items"]}
        missing = [each for each in many if each["metadata"]["name"] not in there]  # a controller tries again, too
        refused = [text for text in refused if text not in busy] + asyncio.run(create_all(login, missing, clients=4))
    assert len(busy) < TENANTS_PODS / 10
    late = asyncio.run(create_all(login, [pod(quiet, "late", gpu=1, gpumem_percentage=3)]))
    print(
        f"tenant: {len(refused)} of {TENANTS_PODS} refused; others: {sum(not ok for _, ok in came)} of {len(came)} "
        f"refused, the slowest {max(taken for taken, _ in came):.2f} s; entries {len(ledger(program, 'crowd'))}"
    )
    assert all(ok for _, ok in came)
    assert (late, refused) == ([], [])
    expected = TENANTS_PODS * 200 + OTHERS_PODS * 400 + 600
    eventually(lambda: used(program, "crowd"), {MEM: expected})
    eventually(lambda: sorted(entry["s"] for entry in ledger(program, "crowd").values()), ["floor"] * 3)


def test_waiting_pods_that_are_renamed_are_charged(program: Deployment, plane: ControlPlane) -> None:
    kubectl = program.kubectl
    space, others = namespace(kubectl), namespace(kubectl)
    together(program, "h100", space, others, hard={"gpu": 4}, deviceTypes=["H100"])
    below = quota(space, "h100", gpu=1)
    below["metadata"]["annotations"] = {"hami.io/quota-device-types": "H100"}
    kubectl.apply(below)
    eventually(lambda: kubectl.used(space, "h100").get("gpu"), "0")
    user = tenant(kubectl, plane, program.folder, space)
    waiting = [
        builders.pod(f"p{number}", namespace=space, annotations={TYPES: "A10"}, gpu=1, mem=100) for number in range(13)
    ]
    user.apply(*waiting)
    answers = [user.run("annotate", "pod", "-n", space, f"p{n}", "--overwrite", f"{TYPES}=H100") for n in range(13)]
    refused = [answer.stderr for answer in answers if answer.returncode]
    print(f"renamed {13 - len(refused)} of 13; used above {used(program, 'h100')}, below {kubectl.used(space, 'h100')}")
    assert len(refused) == 12
    assert all(f"exceeded quota: h100, requested: {GPU}=1, used: {GPU}=1, limited: {GPU}=1" in text for text in refused)
    # an ordinary update of the others isn't refused
    user("label", "pod", "-n", space, "--all", "a=b")
    for number in range(3):
        kubectl.apply(builders.pod(f"q{number}", namespace=others, annotations={TYPES: "H100"}, gpu=1, mem=100))
    eventually(lambda: (used(program, "h100"), kubectl.used(space, "h100")), ({GPU: 4}, {"gpu": "1"}))


def test_a_tightened_node_selector_of_a_gated_pod_is_charged(program: Deployment, plane: ControlPlane) -> None:
    kubectl = program.kubectl
    space = namespace(kubectl)
    kubectl("label", "node", "waiting-h", "pool=h")
    together(program, "pool", space, hard={"gpu": 0}, nodeSelector={"pool": "h"})
    user = tenant(kubectl, plane, program.folder, space)
    user.apply(builders.pod("p", namespace=space, gpu=1, mem=100, schedulingGates=[{"name": "team.example/wait"}]))
    patch = json.dumps({"spec": {"nodeSelector": {"pool": "h"}}})
    answer = user.run("patch", "pod", "p", "-n", space, "-p", patch)
    assert f"exceeded quota: AcceleratorQuota pool, requested: {GPU}=1" in answer.stderr
    assert used(program, "pool") == {GPU: 0}
