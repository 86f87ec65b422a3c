"""Groups that Kueue lets start, in a quota of ours that is smaller than Kueue's: one runs whole, and then the other.

The real Kueue can't be had here: `kueue.py` says what the stand-in does.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from .deployment import Deployment, Kubectl, eventually
from .kueue import GATE, GROUP, PARENT, QUEUE, TOTAL, kueue
from .objects import JSON, add_node, gpu_node, namespace, pod, quota, replicated
from .queueing import free, gated
from .scheduling import scheduler_account

CARDS, OURS, KUEUES = 4, 6, 8
"""Of each of two groups, of our quota, and of Kueue's."""


@pytest.fixture(scope="module")
def program(two_replicas: Deployment) -> Deployment:
    scheduler_account(two_replicas.kubectl)
    add_node(two_replicas.kubectl, gpu_node("card-24g", 24576), gpu=10)
    return two_replicas


def plain_pods(space: str, name: str) -> list[JSON]:
    """A group of plain pods: that of a has its name in a label, as before Kueue 0.18, that of b in an annotation."""
    pods = [pod(space, f"{name}{number}", gpu=1, gpumem=1) for number in range(CARDS)]
    for each in pods:
        where = "labels" if name == "a" else "annotations"
        each["metadata"]["labels"] = {QUEUE: "team"}
        each["metadata"].setdefault("annotations", {})[TOTAL] = str(CARDS)
        each["metadata"][where][GROUP] = name
    return pods


def stateful_set(space: str, name: str) -> list[JSON]:
    """A StatefulSet, as Kueue's webhook for these leaves it."""
    more = {"serviceName": name, "podManagementPolicy": "Parallel"}
    spec = pod(space, "p", gpu=1, gpumem=1)["spec"]
    made = replicated(space, name, spec, kind="StatefulSet", replicas=CARDS, **more)
    made["metadata"]["labels"] = {QUEUE: "team"}
    made["spec"]["template"]["metadata"]["annotations"] = {PARENT: "statefulset"}
    return [made]


def job(space: str, name: str) -> list[JSON]:
    """A Job as Kueue's webhook for these leaves it, whose pods have our labels."""
    ours = {"hami.io/pod-group": name, "hami.io/pod-group-size": str(CARDS)}
    of_pods = {**pod(space, "p", gpu=1, gpumem=1)["spec"], "restartPolicy": "Never"}
    template = {"metadata": {"labels": ours}, "spec": of_pods}
    spec = {"suspend": True, "parallelism": CARDS, "completions": CARDS, "template": template}
    meta = {"name": name, "namespace": space, "labels": {QUEUE: "team"}}
    return [{"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": spec}]


KINDS: dict[str, Callable[[str, str], list[JSON]]] = {
    "pods": plain_pods,
    "statefulsets": stateful_set,
    "jobs": job,
}


def running(kubectl: Kubectl, space: str) -> dict[str, int]:
    """How many pods of each group have no gate."""
    names = [name[0] for name in free(kubectl, space)]
    return {group: names.count(group) for group in "ab" if group in names}


def whole(kubectl: Kubectl, space: str) -> str:
    return next((name for name, pods in running(kubectl, space).items() if pods == CARDS), "")


def is_whole(kubectl: Kubectl, space: str) -> bool:
    return bool(whole(kubectl, space))


@pytest.mark.parametrize("enforcement", ["enforce", "queue"])
def test_one_group_runs_whole_and_then_the_other(program: Deployment, enforcement: str) -> None:
    kubectl = program.kubectl
    spaces = {kind: namespace(kubectl) for kind in KINDS}
    for space in spaces.values():
        made = quota(space, gpu=OURS)
        made["metadata"]["annotations"] = {"hami.io/quota-enforcement": enforcement}
        kubectl.apply(made)
        eventually(partial(kubectl.used, space), {"gpu": "0"})
    with kueue(program, KUEUES, *spaces.values()):
        for kind, made_of in KINDS.items():
            groups = [made_of(spaces[kind], name) for name in "ab"]
            kubectl.apply(*(each for pair in zip(*groups, strict=True) for each in pair))
        for kind, space in spaces.items():
            eventually(partial(is_whole, kubectl, space))
            first = whole(kubectl, space)
            names = [f"{first}{number}" for number in range(CARDS)] if kind == "pods" else [first]
            kubectl("delete", kind, *names, "-n", space, "--grace-period=0", "--force", "--cascade=foreground")
            second = ({"a", "b"} - {first}).pop()
            eventually(partial(running, kubectl, space), {second: CARDS})
            eventually(partial(kubectl.used, space), {"gpu": str(CARDS)})
    for space in spaces.values():  # else their controllers make pods as long as there are nodes for them
        kubectl("delete", "statefulsets,jobs,pods", "--all", "-n", space, "--grace-period=0", "--force")


def test_plain_pods_that_wait_in_kueue_hold_no_quota(program: Deployment) -> None:
    """Kueue has room for none: they cost nothing, others get the quota, and a tenant's own gate is no other case."""
    kubectl = program.kubectl
    space = namespace(kubectl)
    kubectl.apply(quota(space, gpu=1))
    with kueue(program, 0, space):
        held = pod(space, "held", gpu=1, gpumem=1)
        held["metadata"]["labels"] = {QUEUE: "team"}
        parked = pod(space, "parked", gpu=1, gpumem=1)
        parked["spec"]["schedulingGates"] = [{"name": "example.com/mine"}]
        kubectl.apply(held, parked, pod(space, "runs", gpu=1, gpumem=1))
        assert gated(kubectl, space) == ["held", "parked"]
        assert kubectl.used(space) == {"gpu": "1"}
        assert "exceeded quota" in kubectl.refused(pod(space, "over", gpu=1, gpumem=1))
        gates = kubectl.get("pod", "held", "-n", space)["spec"]["schedulingGates"]
        assert {each["name"] for each in gates} == {GATE, "hami.io/quota"}
        # who takes the other gate away waits for room like anybody, and gets no more
        patch = '{"spec": {"schedulingGates": [{"name": "hami.io/quota"}]}}'
        kubectl("patch", "pod", "parked", "-n", space, "--type=merge", "-p", patch)
        assert (
            "removed by the controller only"
            in kubectl.run(
                "patch", "pod", "parked", "-n", space, "--type=merge", "-p", '{"spec": {"schedulingGates": null}}'
            ).stderr
        )
        kubectl("delete", "pod", "runs", "-n", space, "--grace-period=0", "--force")
        eventually(lambda: free(kubectl, space), ["parked"])
        eventually(lambda: kubectl.used(space), {"gpu": "1"})
        assert gated(kubectl, space) == ["held"]
