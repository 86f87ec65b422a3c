"""Pods with limits through our extender and pods with claims through stock kube-scheduler, under the same quotas.

Replicas and the leader are killed, and requests to the API server fail. A sum of the test's own says what is held.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from dra.objects import HAMI, exactly, resource_slice, share

from hack.devcluster.plane import ControlPlane
from hami_webhook.controller.match_conditions import CLAIMING_PODS
from hami_webhook.kube.quantity import Quantity

from .apiproxy import ApiProxy
from .claims import API, CONFIGURATION, NODE, charging_claims, pod, requests, template
from .deployment import Deployment, Kubectl, eventually
from .hamischeduler import scheduling
from .kubelet import Kubelets
from .objects import JSON, MEM, accelerator_quota, namespace, quota
from .objects import pod as limits_pod
from .revisions import CLAIMS, Revisions
from .test_bursts import create_all
from .test_placement import nodes_with_cards

PODS = int(os.environ.get("HAMI_CLAIMS_PODS", "24"))
"""Half of them ask by limits, half by claims, ten in each namespace."""
EACH = 1000
"""MiB of each."""
OWN = 8 * EACH
"""The quota of each namespace."""
ALL = "limits-and-claims"
"""The AcceleratorQuota of all namespaces together, which is for one pod less than theirs are."""
FAILING = 25
"""One in so many requests of ours fails."""


@pytest.fixture(scope="module")
def program(plane: ControlPlane, proxy: ApiProxy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    folder = tmp_path_factory.mktemp("program")
    with charging_claims(
        plane, folder, through=lambda login: proxy.login(login, folder / "proxy.kubeconfig")
    ) as deployment:
        deployment.start("b")
        refuse_unreviewed_pods(deployment.kubectl)
        yield deployment


def refuse_unreviewed_pods(kubectl: Kubectl) -> None:
    """No pod with claims is let in while no webhook answers: what it is allocated before a recompute isn't refused."""
    webhooks = kubectl.get("validatingwebhookconfiguration", CONFIGURATION)["webhooks"]
    index = [each["name"] for each in webhooks].index(CLAIMING_PODS)
    patch = [{"op": "replace", "path": f"/webhooks/{index}/failurePolicy", "value": "Fail"}]
    kubectl("patch", "validatingwebhookconfiguration", CONFIGURATION, "--type=json", "-p", json.dumps(patch))


def test_both_ways_keep_one_quota_while_replicas_are_killed_and_requests_fail(
    program: Deployment, plane: ControlPlane, proxy: ApiProxy, kubelets: Kubelets, tmp_path: Path
) -> None:
    """At each revision of etcd no namespace, and not all together, hold more than their quota; at the end nothing."""
    kubectl = program.kubectl
    spaces = [namespace(kubectl) for _ in range(max(2, PODS // 10))]
    all_of_them = OWN * len(spaces) - EACH
    nodes = prepare(kubectl, spaces, all_of_them)
    made = [each for space in spaces for each in pods_of(space)]
    login = proxy.login(program.login("hami-scheduler"), tmp_path / "scheduler.kubeconfig")
    with (
        scheduling(plane, tmp_path, login, "cooperative", program.flags) as both,
        Revisions(plane, keep=summary, claims=True) as revisions,
        ThreadPoolExecutor() as pool,
    ):
        proxy.failing = FAILING
        creating = pool.submit(asyncio.run, create_all(kubectl.kubeconfig, made))
        for name in ("a", "b"):
            program.stop(name, signal.SIGKILL)
            program.start(name)
        both.kill_extender()
        both.start_extender()
        creating.result()
        eventually(lambda: fill(kubectl, made, spaces), all_of_them, seconds=120 + PODS)
        proxy.failing = 0
        assert proxy.failed > 0
        last = max(int(each["metadata"]["resourceVersion"]) for each in claims_of(kubectl, spaces))
        eventually(lambda: revisions.newest(CLAIMS) >= last)
    most, together = most_held(revisions)
    assert {space: most[space] for space in spaces if most[space] > OWN} == {}
    assert (max(most.values()), together) == (OWN, all_of_them)
    for space in spaces:
        kubectl.delete_all("pods", namespace=space)
    nothing: list[object] = [("0", {})] * (len(spaces) + 1)
    eventually(lambda: list(map(charged, quotas_of(kubectl, spaces))), nothing, seconds=120 + PODS)
    assert claims_of(kubectl, spaces) == []
    kubectl("delete", "acceleratorquota", ALL)
    kubectl("delete", "nodes", *nodes)
    kubectl("delete", "namespaces", *spaces, "--wait=false")


def prepare(kubectl: Kubectl, spaces: Sequence[str], all_of_them: int) -> list[str]:
    """Quotas, templates and cards for both ways; the names of the nodes of those with limits."""
    of_spaces = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": list(spaces)}
    kubectl.apply(accelerator_quota(ALL, {"matchExpressions": [of_spaces]}, {MEM: all_of_them}))
    asked = requests(exactly(HAMI, memory=f"{EACH}Mi", cores="1"))
    for space in spaces:
        kubectl.apply(quota(space, mem=OWN), template(space, "cards", asked))
    eventually(lambda: list(map(charged, quotas_of(kubectl, spaces))), [("0", {})] * (len(spaces) + 1))
    published = resource_slice(NODE, *(share(f"b{number}") for number in range(len(spaces))), name="more")
    published["spec"]["pool"]["name"] = "more"
    kubectl.apply({"apiVersion": API, "kind": "ResourceSlice", **published})
    return nodes_with_cards(kubectl, spaces[0], [f"n{number}" for number in range(len(spaces))], 2, 24576)


def pods_of(space: str) -> Iterator[JSON]:
    for number in range(5):
        yield pod(space, f"c{number}", of="cards")
        yield limits_pod(space, f"l{number}", gpu=1, gpumem=EACH)


def fill(kubectl: Kubectl, made: Sequence[JSON], spaces: Sequence[str]) -> int:
    """Create those that were refused, as a Job's controller does; the MiB that all hold."""
    pods = [each for each in kubectl.get("pods", "-A")["items"] if each["metadata"]["namespace"] in spaces]
    # an allocation that is charged after its pod is gone can leave no room for pods that wait with charged claims
    over = {found["metadata"].get("namespace") for found in quotas_of(kubectl, spaces) if is_over(found)}
    for each in pods:
        space, name = each["metadata"]["namespace"], each["metadata"]["name"]
        if not over.isdisjoint((space, None)) and name.startswith("c") and not each["spec"].get("nodeName"):
            kubectl("delete", "pod", name, "-n", space, "--grace-period=0", "--force", "--ignore-not-found")
    there = {(each["metadata"]["namespace"], each["metadata"]["name"]) for each in pods}
    missing = [each for each in made if (each["metadata"]["namespace"], each["metadata"]["name"]) not in there]
    asyncio.run(create_all(kubectl.kubeconfig, missing))
    return sum(map(held, itertools.chain(pods, claims_of(kubectl, spaces))))


def quotas_of(kubectl: Kubectl, spaces: Sequence[str]) -> list[JSON]:
    """The quotas of the namespaces, and that of all of them."""
    found = kubectl.get("resourcequotas", "-A")["items"]
    own = [each for each in found if each["metadata"]["namespace"] in spaces]
    return [*own, kubectl.get("acceleratorquota", ALL)]


def claims_of(kubectl: Kubectl, spaces: Sequence[str]) -> list[JSON]:
    return [each for each in kubectl.get(CLAIMS, "-A")["items"] if each["metadata"]["namespace"] in spaces]


def charged(found: JSON) -> tuple[str | None, JSON]:
    """What is used of a quota, and its ledger."""
    status = found.get("status") or {}
    ledger = status.get("ledger") or (found["metadata"].get("annotations") or {}).get("hami.io/quota-ledger")
    return (status.get("used") or {}).get(MEM), json.loads(ledger or "{}")


def is_over(found: JSON) -> bool:
    used, _ = charged(found)
    return Quantity.parse(used or "0").ceil() > Quantity.parse(str(found["spec"]["hard"][MEM])).ceil()


def held(item: JSON) -> int:
    """MiB of a bound pod's limits, or that are allocated to a claim."""
    spec = item.get("spec") or {}
    if "devices" in spec:
        results = item.get("status", {}).get("allocation", {}).get("devices", {}).get("results", ())
        return sum(Quantity.parse(result["consumedCapacity"]["memory"]).ceil() for result in results) // 2**20
    if not spec.get("nodeName"):
        return 0
    limits = (each["resources"].get("limits", {}) for each in spec["containers"])
    return sum(Quantity.parse(each.get("nvidia.com/gpumem", "0")).ceil() for each in limits)


def summary(item: JSON) -> JSON:
    """What is remembered of an object: whose it is, and what it holds."""
    return {"metadata": item["metadata"], "held": held(item)}


def most_held(revisions: Revisions) -> tuple[Counter[str], int]:
    """The most MiB that each namespace, and all together, held at any revision."""
    now: dict[str, int] = {}
    sums, most = Counter[str](), Counter[str]()
    together = 0
    for change in revisions.changes():
        meta = change.object["metadata"]
        space, uid = meta.get("namespace", ""), meta["uid"]
        amount = 0 if change.type == "DELETED" else change.object["held"]
        sums[space] += amount - now.get(uid, 0)
        now[uid] = amount
        most[space] = max(most[space], sums[space])
        together = max(together, sums.total())
    return most, together
