"""Many clients at once, through several replicas: the quota holds exactly, whoever dies meanwhile."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hami_webhook.cluster.api import ClusterError, Kind
from hami_webhook.cluster.connect import connect
from hami_webhook.cluster.kubernetes import KubernetesCluster

from .deployment import Deployment, Kubectl, eventually
from .objects import JSON, namespace, pod, quota
from .webhooks import slow_webhook

REPLICAS = ("hami-webhook-0", "hami-webhook-1", "hami-webhook-2")
CLIENTS = 8


@pytest.fixture(scope="module")
def deployment(three_replicas: Deployment) -> Deployment:
    return three_replicas


@pytest.fixture
def program(deployment: Deployment) -> Deployment:
    """All replicas; one that the test before this one killed is started again."""
    deployment.start_missing(*REPLICAS)
    return deployment


async def create_all(
    login: Path, pods: list[JSON], meanwhile: Callable[[], Awaitable[None]] | None = None, clients: int = CLIENTS
) -> list[str]:
    """Create the pods through so many clients at once; what each refusal said."""
    refusals: list[str] = []
    waiting = list(reversed(pods))

    async def client() -> None:
        async with KubernetesCluster(await connect(str(login))) as cluster:
            while waiting:
                try:
                    await cluster.create(Kind.PODS, waiting.pop())
                except ClusterError as error:
                    refusals.append(str(error))

    async with asyncio.TaskGroup() as tasks:
        for _ in range(clients):
            tasks.create_task(client())
        if meanwhile is not None:
            tasks.create_task(meanwhile())  # type: ignore[arg-type]  # a coroutine, as all callers give
    return refusals


def existing(kubectl: Kubectl, space: str) -> int:
    return len(kubectl.get("pods", "-n", space)["items"])


def check_books(kubectl: Kubectl, space: str, pods: int) -> None:
    """Used is what exists, and nothing is remembered, within a minute."""
    assert existing(kubectl, space) == pods
    eventually(lambda: (kubectl.used(space), kubectl.ledger(space)), ({"gpu": str(pods)}, {}))


def test_200_pods_by_8_clients_against_a_quota_for_50(program: Deployment) -> None:
    kubectl = program.kubectl
    space = namespace(kubectl)
    kubectl.apply(quota(space, gpu=50))
    pods = [pod(space, f"p{number:03d}", gpu=1, gpumem=100) for number in range(200)]
    refusals = asyncio.run(create_all(kubectl.kubeconfig, pods))
    assert len(refusals) == 150
    assert [text for text in refusals if "exceeded quota: gpu-quota" not in text] == []
    check_books(kubectl, space, 50)


@pytest.mark.parametrize("victim", ["a replica", "the leader"])
def test_the_same_while_one_is_killed(program: Deployment, victim: str) -> None:
    kubectl = program.kubectl
    space = namespace(kubectl)
    kubectl.apply(quota(space, gpu=50))
    eventually(lambda: program.leader() is not None)
    leader = program.leader()
    assert leader is not None
    killed = leader if victim == "the leader" else next(name for name in REPLICAS if name != leader)

    async def kill() -> None:
        await asyncio.sleep(0.3)
        program.stop(killed, signal.SIGKILL)

    pods = [pod(space, f"p{number:03d}", gpu=1, gpumem=100) for number in range(200)]
    asyncio.run(create_all(kubectl.kubeconfig, pods, kill))
    assert existing(kubectl, space) <= 50
    # whoever was told to try again tries again; a charge whose call broke is believed until its TTL has passed
    eventually(lambda: program.leader() is not None)
    missing = [item for item in pods if item["metadata"]["name"] not in names(kubectl, space)]
    eventually(lambda: kubectl.ledger(space), {})
    asyncio.run(create_all(kubectl.kubeconfig, missing))
    check_books(kubectl, space, 50)


def test_a_controller_that_puts_a_quota_back_all_the_time_lets_nothing_through(program: Deployment) -> None:
    """GitOps controllers and Rancher write metadata and `hard` as they want them: the ledger is gone with each PUT."""
    kubectl = program.kubectl
    space = namespace(kubectl)
    wanted = quota(space, gpu=20)
    kubectl.apply(wanted)
    eventually(lambda: kubectl.used(space), {"gpu": "0"})
    merge = json.dumps({"metadata": {"annotations": {"hami.io/quota-ledger": None}}, "spec": wanted["spec"]})
    ways = {
        "PUT": ("replace", "--raw", f"/api/v1/namespaces/{space}/resourcequotas/gpu-quota", "-f", "-"),
        "merge patch": ("patch", "quota", "gpu-quota", "-n", space, "--type=merge", "-p", merge),
        "forced apply": ("apply", "--server-side", "--force-conflicts", "--field-manager=gitops", "-f", "-"),
    }
    done = Counter[str]()
    stop = False

    def put_back(way: str) -> None:
        while not stop:
            kubectl(*ways[way], stdin=json.dumps(wanted))
            done[way] += 1

    with ThreadPoolExecutor() as background:
        rewriting = [background.submit(put_back, way) for way in ways]
        try:
            refusals, number = [], 0
            while number < 60 or min(done[way] for way in ways) < 3:
                assert number < 2000, f"rewritten only {dict(done)}"
                pods = [pod(space, f"p{number + each:04d}", gpu=1, gpumem=100) for each in range(30)]
                refusals += asyncio.run(create_all(kubectl.kubeconfig, pods))
                number += len(pods)
                assert existing(kubectl, space) <= 20
        finally:
            stop = True
        for each in rewriting:
            each.result()
    kept = existing(kubectl, space)
    assert 0 < kept <= 20
    assert len(refusals) == number - kept
    check_books(kubectl, space, kept)


def names(kubectl: Kubectl, space: str) -> set[str]:
    return {item["metadata"]["name"] for item in kubectl.get("pods", "-n", space)["items"]}


def test_of_two_quotas_both_hold_and_a_refusal_leaves_nothing(program: Deployment) -> None:
    kubectl = program.kubectl
    space = namespace(kubectl)
    kubectl.apply(quota(space, "base", gpu=30, mem=100000), quota(space, "tenant", mem=500))
    stop = False

    def disturb() -> None:
        """Somebody writes to one of the quotas all the time, so that its charges conflict."""
        number = 0
        while not stop:
            number += 1
            kubectl("annotate", "--overwrite", "quota", "tenant", "-n", space, f"touched={number}")

    with ThreadPoolExecutor() as background:
        disturbing = background.submit(disturb)
        try:
            pods = [pod(space, f"p{number:02d}", gpu=1, gpumem=100) for number in range(40)]
            refusals = asyncio.run(create_all(kubectl.kubeconfig, pods))
        finally:
            stop = True
        disturbing.result()
    kept = existing(kubectl, space)
    assert kept <= 5
    assert len(refusals) == 40 - kept
    assert [text for text in refusals if "quota" not in text] == []
    expected = ({"gpu": str(kept), "gpumem": str(kept * 100)}, {"gpumem": str(kept * 100)})
    eventually(lambda: (kubectl.used(space, "base"), kubectl.used(space, "tenant")), expected)


def pods_above(kubectl: Kubectl, space: str) -> set[str]:
    """Which pods the events about a quota name, by namespace and name."""
    found = kubectl.get("events", "-n", space, "--field-selector", "reason=QuotaExceeded")["items"]
    texts = [item["message"].partition("above the limit: ")[2] for item in found]
    return {named.partition(" ")[0] for text in texts for named in text.split(", ") if named}


def test_a_quota_that_is_made_again_under_load_is_not_passed_or_says_by_whom(program: Deployment) -> None:
    """Of 16 pods that 8 clients create, some are charged and not stored yet when the quota is deleted and created."""
    kubectl, hard = program.kubectl, 3
    space, dice = namespace(kubectl), random.Random(1)
    made = quota(space, gpu=hard)
    kubectl.apply(made)
    eventually(lambda: kubectl.used(space), {"gpu": "0"})

    async def make_again() -> None:
        notes: JSON = {}
        async with KubernetesCluster(await connect(str(kubectl.kubeconfig))) as admin, asyncio.timeout(60):
            while "hami.io/quota-ledger" not in notes:
                found = await admin.get(Kind.RESOURCE_QUOTAS, "gpu-quota", space)
                notes = found["metadata"].get("annotations", {})
            await admin.call("DELETE", f"/api/v1/namespaces/{space}/resourcequotas/gpu-quota")
            await admin.create(Kind.RESOURCE_QUOTAS, made)

    pods = [pod(space, f"p{number:02d}", gpu=1, gpumem=100) for number in range(16)]
    with slow_webhook(program, space, lambda name: time.sleep(dice.random() * 0.6)):
        refusals = asyncio.run(create_all(kubectl.kubeconfig, pods, make_again))
    stored = existing(kubectl, space)
    assert stored >= 1
    assert len(refusals) == 16 - stored
    eventually(lambda: (kubectl.used(space), kubectl.ledger(space)), ({"gpu": str(stored)}, {}))
    if stored > hard:
        eventually(lambda: len(pods_above(kubectl, space)) >= min(stored - hard, 5))  # so many are named


def test_pods_that_came_while_there_was_no_quota_are_named_by_one_that_they_pass(program: Deployment) -> None:
    kubectl = program.kubectl
    space = namespace(kubectl)
    assert asyncio.run(create_all(kubectl.kubeconfig, [pod(space, f"p{n}", gpu=1) for n in range(5)], clients=1)) == []
    kubectl.apply(quota(space, gpu=3))
    eventually(lambda: pods_above(kubectl, space), {f"{space}/p4", f"{space}/p3"})
    assert "exceeded quota: gpu-quota" in kubectl.refused(pod(space, "late", gpu=1))
