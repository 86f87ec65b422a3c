"""Two jobs that each need more than half of the cards, with a stock kube-scheduler: one runs whole, then the other."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from collections.abc import Iterator
from functools import partial

import pytest

from hack.devcluster.plane import ControlPlane

from .deployment import Deployment, Kubectl, eventually
from .hamischeduler import HamiScheduler, scheduling
from .kubelet import Kubelets
from .objects import JSON, namespace, pod, quota
from .queueing import Ending, free
from .revisions import Revisions
from .scheduling import scheduler_account
from .test_bursts import create_all
from .test_placement import nodes_with_cards

ROUNDS = int(os.environ.get("HAMI_POD_GROUP_ROUNDS", "1"))
PODS = int(os.environ.get("HAMI_POD_GROUP_PODS", "10"))
"""Pods of each of the two jobs, each of a whole card; there are cards for three halves of them."""
NODES = 5
CARDS = 3 * PODS // (2 * NODES)
"""Of each node."""
JOBS = ("a", "b")
LOW, HIGH = "groups-low", "groups-high"


@pytest.fixture(scope="module")
def program(two_replicas: Deployment) -> Deployment:
    scheduler_account(two_replicas.kubectl)
    for name, value in ((LOW, 10), (HIGH, 1000)):
        meta = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}}
        two_replicas.kubectl.apply({**meta, "value": value})
    return two_replicas


@pytest.fixture(scope="module")
def scheduler(
    plane: ControlPlane, program: Deployment, kubelets: Kubelets, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[HamiScheduler]:
    login = program.login("hami-scheduler")
    with scheduling(plane, tmp_path_factory.mktemp("scheduler"), login, "cooperative", ("--preemption=on",)) as both:
        nodes_with_cards(program.kubectl, "groups", [f"n{number}" for number in range(NODES)], CARDS, 24576)
        yield both
    assert [fault for fault in kubelets.faults if fault.startswith(("card ", "no allocation"))] == []


def job(space: str, name: str, *, grouped: bool) -> list[JSON]:
    pods = [pod(space, f"{name}{number:02}", gpu=1, gpumem=1000, gpucores=100) for number in range(PODS)]
    for each in pods if grouped else ():
        each["metadata"]["labels"] = {"hami.io/pod-group": name, "hami.io/pod-group-size": str(PODS)}
    return pods


def created(kubectl: Kubectl, pods: list[JSON], order: int) -> None:
    random.Random(order).shuffle(pods)
    assert asyncio.run(create_all(kubectl.kubeconfig, pods, clients=4)) == []


def bound(kubectl: Kubectl, space: str, job: str = "") -> int:
    """Pods of a job, or of all, that have a node."""
    pods = kubectl.get("pods", "-n", space)["items"]
    return sum(each["metadata"]["name"].startswith(job) and bool(each["spec"].get("nodeName")) for each in pods)


def whole(kubectl: Kubectl, space: str) -> bool:
    return any(bound(kubectl, space, each) == PODS for each in JOBS)


def is_whole(pods: list[JSON], each: JSON) -> bool:
    """Whether all pods of a pod's job are on nodes, or have been."""
    name = each["metadata"]["name"][0]
    return len([p for p in pods if p["metadata"]["name"][0] == name and p["spec"].get("nodeName")]) == PODS


def assert_never_both_in_part(revisions: Revisions, space: str) -> None:
    """At no revision have both jobs some of their pods on nodes, and not all."""
    placed: dict[str, set[str]] = {each: set() for each in JOBS}
    for _, kind, _, item in revisions.changes():
        if kind == "pods" and item["metadata"]["namespace"] == space and item["spec"].get("nodeName"):
            placed[item["metadata"]["name"][0]].add(item["metadata"]["name"])
            assert sum(0 < len(each) < PODS for each in placed.values()) < 2, placed
    assert all(len(each) == PODS for each in placed.values())


@pytest.mark.parametrize("number", range(ROUNDS))
def test_one_runs_whole_and_then_the_other_while_extender_and_controller_are_killed(
    program: Deployment, scheduler: HamiScheduler, plane: ControlPlane, number: int
) -> None:
    kubectl = program.kubectl
    space = namespace(kubectl)
    kubectl.apply(quota(space, gpu=2 * PODS))
    with Revisions(plane, space) as revisions:
        created(kubectl, [each for name in JOBS for each in job(space, name, grouped=True)], number)
        kill_leader(program)
        eventually(lambda: len(free(kubectl, space)), 2 * PODS)
        eventually(lambda: bound(kubectl, space) > PODS // 4)
        scheduler.kill_extender()
        scheduler.start_extender()
        eventually(partial(whole, kubectl, space))
        with Ending(program.login("hami-device-plugin"), [space], is_due=is_whole) as ending:
            eventually(lambda: ending.ended, 2 * PODS, seconds=240)
    assert_never_both_in_part(revisions, space)
    kubectl("delete", "namespace", space, "--wait=false")


def kill_leader(program: Deployment) -> None:
    eventually(lambda: program.leader() is not None)
    leader = program.leader()
    assert leader is not None
    program.stop(leader, signal.SIGKILL)
    program.start(leader)


def test_a_job_goes_on_after_its_first_completion(program: Deployment, scheduler: HamiScheduler) -> None:
    """Of an indexed Job's two pods one succeeds; the other fails, and kube-controller-manager makes a new one, which is
    charged and bound."""
    kubectl = program.kubectl
    space = namespace(kubectl)
    kubectl.apply(quota(space, gpu=2))
    each = pod(space, "", gpu=1, gpumem=1000, gpucores=100)
    labels = {"hami.io/pod-group": "train", "hami.io/pod-group-size": "2"}
    template = {"metadata": {"labels": labels}, "spec": {**each["spec"], "restartPolicy": "Never"}}
    spec = {"parallelism": 2, "completions": 2, "completionMode": "Indexed", "backoffLimit": 3, "template": template}
    kubectl.apply(
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train", "namespace": space}, "spec": spec}
    )
    eventually(lambda: bound(kubectl, space), 2)
    first, second = (each["metadata"]["name"] for each in kubectl.get("pods", "-n", space)["items"])
    for name, phase in ((first, "Succeeded"), (second, "Failed")):
        status = json.dumps({"status": {"phase": phase}})
        kubectl("patch", "pod", name, "-n", space, "--subresource=status", "--type=merge", "-p", status)
    # after 10 s, as any Job's
    eventually(lambda: bound(kubectl, space), 3)
    kubectl.delete_all("jobs", "pods", namespace=space)  # a card that one holds in its last 30 s is missing later
    kubectl("delete", "namespace", space, "--wait=false")


def test_what_a_group_waits_for_is_said(program: Deployment, scheduler: HamiScheduler) -> None:
    kubectl = program.kubectl
    space = namespace(kubectl)
    kubectl.apply(*job(space, "a", grouped=True)[:2])

    def sentences() -> set[str]:
        pods = kubectl.get("pods", "-n", space)["items"]
        found = [each["status"].get("conditions", []) for each in pods]
        return {c["message"] for each in found for c in each if c["type"] == "hami.io/QuotaReserved"}

    # a pod is written to once a minute at most
    eventually(sentences, {f"2 of {PODS} pods of pod group a are there"})
    wrong = pod(space, "wrong", gpu=1)
    wrong["metadata"]["labels"] = {"hami.io/pod-group": "a", "hami.io/pod-group-size": "7"}
    assert f"of pod group a says {PODS}; all its pods must say the same" in kubectl.refused(wrong)
    kubectl("delete", "namespace", space, "--wait=false")


def test_just_enough_go_for_a_group_of_high_priority_and_nobody_for_one_that_fits_even_then_not(
    program: Deployment, scheduler: HamiScheduler, kubelets: Kubelets
) -> None:
    kubectl = program.kubectl
    low, high = namespace(kubectl), namespace(kubectl)
    cluster = NODES * CARDS
    fill = [pod(low, f"low{number:02}", gpu=1, gpumem=1000, gpucores=100) for number in range(cluster - 1)]
    vain = [pod(high, f"vain{number:02}", gpu=1, gpumem=1000, gpucores=100) for number in range(cluster)]
    for each in vain:
        each["metadata"]["labels"] = {"hami.io/pod-group": "vain", "hami.io/pod-group-size": str(len(vain))}
    train = job(high, "a", grouped=True)
    for priority, pods in ((LOW, fill), (HIGH, [*vain, *train])):
        for each in pods:
            each["spec"]["priorityClassName"] = priority
    fill[0]["spec"]["priorityClassName"] = HIGH  # so the group that has as many pods as there are cards can't have all
    created(kubectl, fill, 1)
    eventually(lambda: bound(kubectl, low), cluster - 1)

    def refused(text: str) -> bool | list[str]:
        """Whether that is said; else what is."""
        events = kubectl.get("events", "-n", high, "--field-selector", "reason=FilteringFailed")["items"]
        said = [each["message"] for each in events]
        return any(text in each for each in said) or said

    created(kubectl, vain, 1)
    eventually(lambda: refused("it wouldn't fit without all pods of lower priority either"))
    assert bound(kubectl, low) == cluster - 1
    created(kubectl, train, 1)
    eventually(lambda: bound(kubectl, high, "a"), PODS)
    # the free card counts, unless a member of the other group is just being tried on it
    sentence = f" of {PODS} pods of pod group a fit; {PODS - 1} pods of lower priority are evicted for it"
    eventually(lambda: refused(sentence))
    preempted = ("events", "-n", low, "--field-selector", "reason=Preempted")
    eventually(lambda: len(kubectl.get(*preempted)["items"]), PODS - 1)
    left = [each for each in kubectl.get("pods", "-n", low)["items"] if "deletionTimestamp" not in each["metadata"]]
    assert len(left) == cluster - PODS
    for space in (low, high):
        kubectl("delete", "namespace", space, "--wait=false")
