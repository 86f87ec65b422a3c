"""StatefulSets, Deployments and Jobs whose pods wait for quota."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from hami_webhook.kube.objects import format_time

from .deployment import Deployment, Kubectl, eventually
from .objects import JSON, namespace, pod, replicated
from .objects import job as job_of
from .queueing import Ending, add_ten_cards, free, gated, queueing
from .scheduling import messages

TWENTY, CARDS = 20, 5
"""Jobs, or pods of one, and the cards that their quota has."""


@pytest.fixture(scope="module")
def program(three_replicas: Deployment) -> Deployment:
    add_ten_cards(three_replicas.kubectl)
    return three_replicas


def test_a_replica_that_is_made_anew_does_not_lose_its_room_to_a_younger_one(program: Deployment) -> None:
    kubectl = program.kubectl
    space = namespace(kubectl)
    kubectl.apply(queueing(space, gpu=2), stateful_set(space, 2))
    eventually(lambda: sorted(free(kubectl, space)), ["set-0", "set-1"])
    youngest = max(each["metadata"]["creationTimestamp"] for each in kubectl.get("pods", "-n", space)["items"])
    eventually(lambda: format_time(time.time()) > youngest)  # ages are whole seconds
    kubectl("scale", "statefulset", "set", "-n", space, "--replicas=3")
    eventually(lambda: gated(kubectl, space), ["set-2"])
    for number in (0, 0, 1):
        name = f"set-{number}"
        uid = kubectl.get("pod", name, "-n", space)["metadata"]["uid"]
        kubectl("delete", "pod", name, "-n", space, "--grace-period=0", "--force")

        def is_back(name: str = name, uid: str = uid) -> bool:
            pods = {each["metadata"]["name"]: each for each in kubectl.get("pods", "-n", space)["items"]}
            return name in free(kubectl, space) and pods[name]["metadata"]["uid"] != uid

        eventually(is_back)
        assert gated(kubectl, space) == ["set-2"]
        eventually(lambda: kubectl.used(space), {"gpu": "2"})
    kubectl("delete", "statefulset", "set", "-n", space)


def stateful_set(space: str, replicas: int) -> JSON:
    more = {"serviceName": "set", "podManagementPolicy": "Parallel"}
    spec = pod(space, "p", gpu=1, gpumem=1)["spec"]
    return replicated(space, "set", spec, kind="StatefulSet", replicas=replicas, **more)


@pytest.mark.parametrize("enforcement", ["enforce", "queue"])
def test_a_rollout_that_can_not_end_says_why_and_ends_with_what_is_said(program: Deployment, enforcement: str) -> None:
    """As by default with one replica: at most one more, and none less."""
    kubectl = program.kubectl
    space = namespace(kubectl)
    made = queueing(space, gpu=1)
    made["metadata"]["annotations"]["hami.io/quota-enforcement"] = enforcement
    kubectl.apply(made, replicated(space, "web", pod(space, "p", gpu=1, gpumem=1)["spec"]))
    eventually(lambda: len(free(kubectl, space)), 1)
    (first,) = free(kubectl, space)
    template = {"metadata": {"annotations": {"version": "2"}}}
    kubectl(
        "patch", "deployment", "web", "-n", space, "--type=merge", "-p", json.dumps({"spec": {"template": template}})
    )
    said = "pods of another version of Deployment web hold quota. They never release it if its maxUnavailable is 0"
    eventually(lambda: said in messages(kubectl, space))
    assert free(kubectl, space) == [first]
    strategy = {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}
    kubectl(
        "patch", "deployment", "web", "-n", space, "--type=merge", "-p", json.dumps({"spec": {"strategy": strategy}})
    )
    eventually(lambda: len(free(kubectl, space)) == 1 and free(kubectl, space) != [first])
    kubectl("delete", "deployment", "web", "-n", space)


def jobs(space: str) -> list[JSON]:
    return [job(space, f"job-{number}") for number in range(TWENTY)]


def indexed_job(space: str) -> list[JSON]:
    return [job(space, "indexed", parallelism=TWENTY, completions=TWENTY, completionMode="Indexed")]


def cron_job(space: str) -> list[JSON]:
    template = job(space, "cron", parallelism=TWENTY, completions=TWENTY)["spec"]
    spec = {"schedule": "* * * * *", "concurrencyPolicy": "Forbid", "jobTemplate": {"spec": template}}
    return [
        {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "cron", "namespace": space}, "spec": spec}
    ]


def job(space: str, name: str, **spec: Any) -> JSON:
    """A Job that a single failed pod would end."""
    made = job_of(space, name, 1, gpu=1, gpumem=1)
    made["spec"] |= {"backoffLimit": 0, **spec}
    return made


@pytest.mark.parametrize("enforcement", ["enforce", "queue"])
def test_twenty_jobs_on_five_cards_all_end_and_none_fails(program: Deployment, enforcement: str) -> None:
    kubectl = program.kubectl
    kinds: list[Callable[[str], list[JSON]]] = [jobs, indexed_job, cron_job]
    spaces = {namespace(kubectl): kind for kind in kinds}
    for space in spaces:
        made = queueing(space, gpu=CARDS)
        made["metadata"]["annotations"]["hami.io/quota-enforcement"] = enforcement
        kubectl.apply(made)
        eventually(partial(kubectl.used, space), {"gpu": "0"})
    for space, kind in spaces.items():
        kubectl.apply(*kind(space))
        if kind is cron_job:  # as if it were due now, and for the last time
            past = format_time(time.time() - 90)
            patch = json.dumps({"status": {"lastScheduleTime": past}})
            kubectl("patch", "cronjob", "cron", "-n", space, "--subresource=status", "--type=merge", "-p", patch)
            eventually(partial(count_of_jobs, kubectl, space), 1)
            kubectl("patch", "cronjob", "cron", "-n", space, "--type=merge", "-p", '{"spec": {"suspend": true}}')
    with Ending(program.login("hami-device-plugin"), list(spaces)):
        for space in spaces:
            eventually(partial(succeeded, kubectl, space), TWENTY, seconds=240)


def count_of_jobs(kubectl: Kubectl, space: str) -> int:
    return len(kubectl.get("jobs", "-n", space)["items"])


def succeeded(kubectl: Kubectl, space: str) -> int:
    """How many pods of the namespace's jobs have; fails if one is counted as failed."""
    found = [each["status"] for each in kubectl.get("jobs", "-n", space)["items"]]
    assert not any(status.get("failed") for status in found)
    return sum(status.get("succeeded", 0) for status in found)
