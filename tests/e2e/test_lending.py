"""What is lent comes back, on a real API server with a stock kube-scheduler: which pods go, and which stay; and how
long they held what is summed for a budget.
"""

from __future__ import annotations

import json
import signal
import time
from functools import partial
from typing import Any

import pytest

from hami_webhook.devices.placement_annotations import TIME
from hami_webhook.kube.objects import format_time, parse_time
from hami_webhook.quota.held_time import parse_held

from .deployment import SYSTEM, Deployment, Kubectl, eventually
from .hamischeduler import HamiScheduler
from .objects import GPU, JSON, accelerator_quota, add_ready_node, gpu_node, namespace, pod
from .scheduling import scheduler_account

ALL, NOMINAL = 20, 10


@pytest.fixture(scope="module")
def program(one_replica: Deployment) -> Deployment:
    scheduler_account(one_replica.kubectl)
    add_ready_node(one_replica.kubectl, gpu_node("lent", 24576, 24576), gpu=ALL)
    meta = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "lending-high"}}
    one_replica.kubectl.apply({**meta, "value": 10})
    return one_replica


class Team:
    """A namespace with a quota of its own, of which half is its nominal."""

    def __init__(self, kubectl: Kubectl) -> None:
        self.kubectl = kubectl
        self.space = namespace(kubectl)
        kubectl("label", "namespace", self.space, f"team={self.space}", "lending=shared")
        self.lend(reclaim="off")

    def lend(self, **spec: Any) -> None:
        """Its quota's fields about lending."""
        more = {"nominal": {GPU: NOMINAL}, "reclaimMinRuntime": "1s", **spec}
        self.kubectl.apply(accelerator_quota(self.space, {"matchLabels": {"team": self.space}}, {"gpu": ALL}, **more))

    def create(self, *names: str, **spec: Any) -> None:
        made = [pod(self.space, name, gpu=1, gpumem=100) for name in names]
        for each in made:
            each["metadata"]["labels"] = {"app": self.space}
            each["spec"] |= {"terminationGracePeriodSeconds": 1, **spec}
        self.kubectl.apply(*made)

    def running(self) -> set[str]:
        """The names of its pods that run and don't end."""
        return {
            each["metadata"]["name"]
            for each in self.kubectl.get("pods", "-n", self.space)["items"]
            if each["status"].get("phase") == "Running" and "deletionTimestamp" not in each["metadata"]
        }

    def runs(self, *names: str) -> bool:
        """Whether all of these run."""
        return {*names} <= self.running()

    def waits(self, name: str, text: str) -> bool:
        """Whether a pod's condition says it."""
        found = self.kubectl.get("pod", name, "-n", self.space)["status"].get("conditions", [])
        return any(text in each.get("message", "") for each in found)

    def runs_or_waits(self, name: str, text: str) -> bool:
        """Whether a pod runs, or its condition says it."""
        return self.runs(name) or self.waits(name, text)

    def says(self, name: str, text: str) -> bool:
        """Whether an event of a pod and its condition say it."""
        events = self.kubectl.get("events", "-n", self.space, "--field-selector", f"involvedObject.name={name}")
        return any(text in each["message"] for each in events["items"]) and self.waits(name, text)

    def delete_all(self) -> None:
        self.kubectl.delete_all("pods", namespace=self.space)


def budget(team: Team) -> JSON:
    """A PodDisruptionBudget that allows none of a team's pods to be evicted."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "all", "namespace": team.space},
        "spec": {"minAvailable": ALL, "selector": {"matchLabels": {"app": team.space}}},
    }


def test_what_is_lent_comes_back_and_not_against_a_budget(program: Deployment, scheduler: HamiScheduler) -> None:
    kubectl = program.kubectl
    a, b = Team(kubectl), Team(kubectl)
    kubectl.apply(
        accelerator_quota("shared", {"matchLabels": {"lending": "shared"}}, {"gpu": ALL}, enforcement="queue")
    )
    old, young = [f"old-{number}" for number in range(5)], [f"young-{number}" for number in range(10)]
    high = [f"high-{number}" for number in range(5)]
    for names, spec in ((old, {}), (young, {}), (high, {"priorityClassName": "lending-high"})):
        b.create(*names, **spec)
        eventually(partial(b.runs, *names))
        time.sleep(1.1)  # times of pods are whole seconds
    everybody = {*old, *young, *high}

    a.lend(reclaim="dry-run")
    a.create("asks")
    eventually(lambda: a.says("asks", f"1 pod of AcceleratorQuota/{b.space} would be evicted for {GPU}"))
    a.delete_all()

    a.lend(reclaim="on")
    kubectl.apply(budget(b))
    a.create("waits")
    eventually(lambda: a.says("waits", "nobody is evicted for it: PodDisruptionBudgets protect the pods"))
    assert b.running() == everybody
    a.delete_all()
    kubectl("delete", "pdb", "all", "-n", b.space)

    mine = {f"mine-{number}" for number in range(NOMINAL)}
    began = time.monotonic()
    a.create(*mine)
    eventually(a.running, mine)
    print(f"{NOMINAL} pods ran in place of others after {time.monotonic() - began:.1f} s")
    assert b.running() == everybody - {*young}

    def gone() -> set[str]:
        events = kubectl.get("events", "-n", b.space, "--field-selector", "reason=QuotaReclaimed")["items"]
        return {each["involvedObject"]["name"] for each in events}

    eventually(gone, {*young})
    assert program.metric("hami-webhook-0", "hami_webhook_quota_reclaimed_pods_total") == NOMINAL
    used = json.loads(kubectl("get", "aq", "-o", "json"))["items"]
    assert all(int(each["status"]["used"][GPU]) <= ALL for each in used)


def test_a_team_that_deletes_its_pods_once_they_run_has_few_evicted(
    program: Deployment, scheduler: HamiScheduler
) -> None:
    program.kubectl.delete_all("pods")
    a, b = Team(program.kubectl), Team(program.kubectl)
    a.lend(reclaim="on")
    b.lend(enforcement="queue")
    program.kubectl.apply(
        accelerator_quota("shared", {"matchLabels": {"lending": "shared"}}, {"gpu": ALL}, enforcement="queue")
    )
    b.create(*(f"b-{number}" for number in range(ALL + 5)))
    began = time.monotonic()
    for number in range(4):
        eventually(lambda: len(b.running()), ALL)
        time.sleep(1.1)  # reclaimMinRuntime
        a.create(f"a-{number}")
        eventually(partial(a.runs_or_waits, f"a-{number}", "nobody is evicted: "))
        a.delete_all()
    reclaimed = program.kubectl.get("events", "-n", b.space, "--field-selector", "reason=QuotaReclaimed")["items"]
    print(f"\n{len(reclaimed)} pods were evicted in {time.monotonic() - began:.1f} s")
    assert len(reclaimed) == 2
    assert len(b.running()) == ALL


KILLS = 4


def end(team: Team, *names: str) -> None:
    """Pods succeed: their containers ended just now."""
    for name in names:
        at = format_time(time.time())
        finished = {"name": "c", "image": "i", "imageID": "", "ready": False, "restartCount": 0}
        finished["state"] = {"terminated": {"exitCode": 0, "finishedAt": at}}
        patch = json.dumps({"status": {"phase": "Succeeded", "containerStatuses": [finished]}})
        team.kubectl("patch", "pod", name, "-n", team.space, "--subresource=status", "--type=merge", "-p", patch)


def held(team: Team) -> int:
    """What all its pods held, in milliseconds: by each one's own times."""
    sums = 0.0
    for each in team.kubectl.get("pods", "-n", team.space)["items"]:
        states = [status["state"] for status in each["status"]["containerStatuses"]]
        seconds = parse_time(states[0]["terminated"]["finishedAt"]) - int(each["metadata"]["annotations"][TIME])
        sums += seconds * int(each["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"])
    return round(1000 * sums)


def test_a_budget_is_summed_once_over_kills_of_the_leader(program: Deployment, scheduler: HamiScheduler) -> None:
    """Each leader is killed while pods run; some end while nobody leads. The sum is that of the pods' own times."""
    program.kubectl.delete_all("pods")
    kubectl, team = program.kubectl, Team(program.kubectl)
    team.lend(budget={"amounts": {GPU: "1h"}, "period": "Month"})

    def sums() -> JSON:
        found: JSON = kubectl.get("aq", team.space).get("status", {}).get("budget") or {}
        return found

    eventually(lambda: "summedTo" in sums())
    begun = [f"stays-{number}" for number in range(4)]
    kubectl.apply(*(pod(team.space, name, gpu=2, gpumem=100) for name in begun))
    eventually(partial(team.runs, *begun))
    for number in range(KILLS):
        names = [f"p{number}-{each}" for each in range(3)]
        team.create(*names)
        eventually(partial(team.runs, *names))
        eventually(lambda: sums()["rate"][GPU] >= 11)
        program.stop("hami-webhook-0", signal.SIGKILL)
        end(team, *names[:1])
        kubectl.delete_all("leases", namespace=SYSTEM)  # or nobody leads until it expires
        program.start_missing("hami-webhook-0")
        end(team, *names[1:2])
        begun += names[2:]
    eventually(lambda: parse_held(sums()["spent"][GPU]) > 60_000)
    end(team, *begun)
    eventually(lambda: sums()["rate"][GPU], 0)
    spent, expected = parse_held(sums()["spent"][GPU]), held(team)
    print(f"\n{spent} ms summed over {KILLS} kills, {expected} ms by the pods' own times")
    assert spent == pytest.approx(expected, abs=1000 * (8 + 3 * KILLS))  # times of pods are whole seconds

    team.lend(budget={"amounts": {GPU: "1s"}, "period": "Week"})
    eventually(lambda: "exhaustedAt" in sums())
    refused = kubectl.refused(pod(team.space, "late", gpu=1, gpumem=1))
    assert f"budget of quota {team.space}: 1s of limits.nvidia.com/gpu in the week of " in refused
    assert "are spent; next period begins " in refused
