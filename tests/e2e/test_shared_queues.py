"""Namespaces that wait for a quota of all of them, or beside each other: none holds up another."""

from __future__ import annotations

import asyncio
import json
import os
import time
from contextlib import suppress
from pathlib import Path
from statistics import median

import pytest

from hami_webhook.cluster.api import Kind, NotFound
from hami_webhook.cluster.connect import connect
from hami_webhook.cluster.kubernetes import KubernetesCluster

from .deployment import Deployment, eventually
from .objects import JSON, accelerator_quota, add_node, gpu_node, namespace, pod, quota
from .queueing import (
    GATE,
    InBackground,
    add_ten_cards,
    each_released,
    free,
    gated,
    queued,
    queueing,
    released,
    reserved,
    why,
)
from .test_bursts import create_all

FLOOD = int(os.environ.get("HAMI_QUEUE_FLOOD", "200"))
"""Pods of one team that wait, while another's come and go."""
RELABELLED = 300
"""Pods that wait and are labelled all the time."""


@pytest.fixture(scope="module")
def program(three_replicas: Deployment) -> Deployment:
    add_ten_cards(three_replicas.kubectl)
    return three_replicas


def of_different_shapes(space: str, pods: int, group: str = "") -> list[JSON]:
    """Pods of which no two request the same, and whose charges depend on the cards; of one group if it is named."""
    made = []
    for number in range(pods):
        shape = {"gpumem_percentage": 1 + number % 64, "gpucores": 1 + number // 64}
        each = pod(space, f"shape{number:03}", gpu=1, **shape)
        if group:
            each["metadata"]["labels"] = {"hami.io/pod-group": group, "hami.io/pod-group-size": str(pods)}
        made.append(each)
    return made


@pytest.mark.parametrize(
    ("own", "group", "pods", "told"),
    [
        ("enforce", "gang", 256, True),
        ("enforce", "", 253, True),
        ("observe", "gang", 256, True),
        ("", "gang", 256, False),  # what all namespaces share has room for one namespace's shapes
    ],
)
def test_pods_whose_charge_is_refused_for_another_reason_than_room_hold_up_nobody(
    program: Deployment, own: str, group: str, pods: int, told: bool
) -> None:
    """One team's pods all differ, more than the ledger of its own quota remembers, before another team's pods."""
    kubectl = program.kubectl
    attacker, other = namespace(kubectl), namespace(kubectl)
    for space in (attacker, other):
        kubectl("label", "namespace", space, f"shapes={attacker}")
    shared = accelerator_quota(
        attacker,
        {"matchLabels": {"shapes": attacker}},
        {"gpu": 1000, "mem": 100_000_000},
        enforcement="queue",
        queue={"order": "strict"},
    )
    kubectl.apply(shared)
    # a gang that the cards can't hold is refused, but where nodes may be added
    add_node(kubectl, {**gpu_node("added", 24576), "spec": {"providerID": "e2e://added"}}, gpu=10)
    if own:
        made = quota(attacker, gpu=1000, mem=100_000_000, cores=100_000)
        made["metadata"]["annotations"] = {"hami.io/quota-enforcement": own}
        kubectl.apply(made)
    eventually(lambda: "used" in kubectl.get("acceleratorquota", attacker).get("status", {}))
    assert asyncio.run(create_all(kubectl.kubeconfig, of_different_shapes(attacker, pods, group))) == []
    beside = released(kubectl, other, "beside")
    print(f"{beside:.3f} s from creation to release beside pods of {pods} shapes")
    assert beside < 10  # a pod that is held up waits for as long as the others are there
    if told:
        stuck = gated(kubectl, attacker)
        assert len(stuck) == (pods if group else 3)
        eventually(lambda: any("can't remember another one" in why(kubectl, attacker, name) for name in stuck))
    else:
        eventually(lambda: gated(kubectl, attacker), [])
    kubectl("delete", "acceleratorquota", attacker)
    kubectl("delete", "node", "added")
    kubectl("delete", "namespace", attacker, other, "--wait=false")


def test_a_team_whose_own_quota_is_full_closes_no_strict_quota_to_others(program: Deployment) -> None:
    kubectl = program.kubectl
    full, other = namespace(kubectl), namespace(kubectl)
    for space in (full, other):
        kubectl("label", "namespace", space, f"strict={full}")
    kubectl.apply(queueing(full, gpu=1))
    shared = {"matchLabels": {"strict": full}}
    kubectl.apply(accelerator_quota(full, shared, {"gpu": 3}, enforcement="queue", queue={"order": "strict"}))
    eventually(lambda: "used" in kubectl.get("acceleratorquota", full).get("status", {}))
    kubectl.apply(pod(full, "runs", gpu=1, gpumem=1))
    eventually(lambda: free(kubectl, full), ["runs"])
    kubectl.apply(pod(full, "waits", gpu=1, gpumem=1))
    eventually(lambda: reserved(kubectl, full, "waits"), "False")
    kubectl.apply(pod(other, "a", gpu=1, gpumem=1))
    eventually(lambda: free(kubectl, other), ["a"])
    # an ordinary day: among those whose own quotas have room, nobody passes anybody
    kubectl.apply(pod(other, "large", gpu=2, gpumem=1))
    eventually(lambda: reserved(kubectl, other, "large"), "False")
    kubectl.apply(pod(other, "small", gpu=1, gpumem=1))
    eventually(lambda: reserved(kubectl, other, "small"), "False")
    assert gated(kubectl, other) == ["large", "small"]
    kubectl("delete", "acceleratorquota", full)
    kubectl("delete", "namespace", full, other, "--wait=false")


def test_a_flood_of_one_team_keeps_no_other_waiting(program: Deployment) -> None:
    """The seconds are printed, and what the flood adds to them; with 10,000 pods that is to be 0.5 at most."""
    kubectl = program.kubectl
    flooding, other = namespace(kubectl), namespace(kubectl)
    kubectl.apply(queueing(flooding, gpu=1), queueing(other, gpu=100))
    eventually(lambda: kubectl.used(other), {"gpu": "0"})
    alone = released(kubectl, other, "alone")
    flood = [pod(flooding, f"p{number:05}", gpu=1, gpumem=1) for number in range(FLOOD)]
    assert asyncio.run(create_all(kubectl.kubeconfig, flood)) == []
    eventually(lambda: queued(program), FLOOD - 1.0)
    beside = released(kubectl, other, "beside")
    assert queued(program) == FLOOD - 1
    print(f"from creation to release: {alone:.3f} s alone, {beside:.3f} s beside {FLOOD} pods that wait")
    kubectl("delete", "namespace", flooding, "--wait=false")


class Relabelling(InBackground):
    """Labels pods again and again through some clients, until the block ends."""

    def __init__(self, login: Path, space: str, names: list[str], clients: int = 4) -> None:
        super().__init__()
        self._login = login
        self._space = space
        self._names = names
        self._clients = clients
        self.patches = 0

    async def work(self) -> None:
        async with KubernetesCluster(await connect(str(self._login))) as cluster:

            async def client(number: int) -> None:
                while not self.stop.is_set():
                    for name in self._names[number :: self._clients]:
                        patch = {"metadata": {"labels": {"n": str(self.patches)}}}
                        with suppress(NotFound):
                            await cluster.patch(Kind.PODS, name, patch, self._space)
                            self.patches += 1
                        if self.stop.is_set():
                            return

            await asyncio.gather(*(client(number) for number in range(self._clients)))


def test_pods_that_are_relabelled_all_the_time_keep_no_other_waiting(program: Deployment) -> None:
    kubectl = program.kubectl
    relabelling, other = namespace(kubectl), namespace(kubectl)
    kubectl.apply(queueing(relabelling, gpu=1), queueing(other, gpu=100))
    eventually(lambda: kubectl.used(other), {"gpu": "0"})
    waiting = [pod(relabelling, f"p{number:03}", gpu=1, gpumem=1) for number in range(RELABELLED)]
    assert asyncio.run(create_all(kubectl.kubeconfig, waiting)) == []
    eventually(lambda: queued(program), RELABELLED - 1.0)
    alone = each_released(kubectl, other, "alone")
    with Relabelling(kubectl.kubeconfig, relabelling, gated(kubectl, relabelling)) as storm:
        beside = each_released(kubectl, other, "beside")
    print(f"from creation to release: {max(alone):.3f} s at most, {max(beside):.3f} s beside {storm.patches} patches")
    # those that are released are relabelled, too: their gate goes all the same
    mine = [f"own{number}" for number in range(10)]
    with Relabelling(kubectl.kubeconfig, other, mine) as storm:
        own = each_released(kubectl, other, "own")
    print(f"{max(own):.3f} s at most for pods that are relabelled themselves")
    # a machine that is busy with something else may delay some of them
    assert max(median(beside), median(own)) < max(alone) + 1
    assert max(*beside, *own) < 10 * max(alone) + 1
    kubectl("delete", "namespace", relabelling, other, "--wait=false")


def test_pods_that_another_gate_hides_pass_none_that_waited_in_the_open(program: Deployment) -> None:
    kubectl = program.kubectl
    space = namespace(kubectl)
    kubectl.apply(queueing(space, gpu=1))
    kubectl.apply(pod(space, "runs", gpu=1, gpumem=1))
    eventually(lambda: free(kubectl, space), ["runs"])
    hidden = [pod(space, f"hidden{number}", gpu=1, gpumem=1) for number in range(3)]
    for each in hidden:
        each["spec"]["schedulingGates"] = [{"name": "x.io/hold"}]
    kubectl.apply(*hidden)
    older = time.time()
    eventually(lambda: time.time() > older + 1)  # creation is known by the second
    kubectl.apply(pod(space, "open", gpu=1, gpumem=1))
    opening = time.time()
    eventually(lambda: time.time() > opening + 1)
    for number in range(3):
        gates = json.dumps({"spec": {"schedulingGates": [{"name": GATE}]}})
        kubectl("patch", "pod", f"hidden{number}", "-n", space, "--type=merge", "-p", gates)
    eventually(lambda: all(why(kubectl, space, f"hidden{number}") for number in range(3)))
    kubectl("delete", "pod", "runs", "-n", space, "--grace-period=0", "--force")
    eventually(lambda: free(kubectl, space), ["open"])
    kubectl("delete", "namespace", space, "--wait=false")
