"""What is lent comes back, on a real API server with a stock kube-scheduler: which pods go, and which stay; how long
they held what is summed for a budget; and what goes when the limit of a window comes.
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


KILLS = 20


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
        if number % 4 == 3:
            end(team, *begun[4:])
            del begun[4:]
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


def window(seconds: float, hard: int) -> JSON:
    """A window of an hour that begins so many seconds from now."""
    return {"at": format_time(time.time() + seconds)[:-1], "for": "1h", "hard": {GPU: hard}}


def test_limits_of_windows_come_and_go(program: Deployment, scheduler: HamiScheduler) -> None:
    """Windows that are far away, and such as begin within a second: nothing depends on how long a step takes."""
    program.kubectl.delete_all("pods")
    kubectl, team = program.kubectl, Team(program.kubectl)

    def limit(*windows: JSON, hard: int = 4, **spec: Any) -> None:
        spec = {"enforcement": "queue", "windows": [*windows], **spec}
        kubectl.apply(accelerator_quota(team.space, {"matchLabels": {"team": team.space}}, {"gpu": hard}, **spec))

    def held() -> JSON:
        found: JSON = kubectl.get("aq", team.space)["status"]
        return found

    # a higher limit: who costs more than the one of now waits, and starts once the window has begun
    limit(window(7200, 8), hard=1)
    wide = pod(team.space, "wide", gpu=2, gpumem=100)
    wide["spec"] |= {"activeDeadlineSeconds": 600, "terminationGracePeriodSeconds": 1}
    kubectl.apply(wide)
    eventually(partial(team.waits, "wide", "needs 2 nvidia.com/gpu, and AcceleratorQuota"))
    limit(window(1, 8), hard=1)
    eventually(partial(team.runs, "wide"))
    assert held()["hard"] == {GPU: "8"}
    assert held()["window"]["names"]
    team.delete_all()

    # a lower limit that comes: a long pod isn't started, shorter ones are
    limit(window(7200, 0))
    team.create("long", activeDeadlineSeconds=9000)
    eventually(partial(team.waits, "long", "has a limit of 0 from "))
    short = [f"short-{number}" for number in range(4)]
    team.create(*short, activeDeadlineSeconds=3000)
    eventually(partial(team.runs, *short))
    assert team.running() == {*short}
    eventually(lambda: held()["hard"], {GPU: "4"})

    # it begins: what runs is over, nothing else starts, and with reclaim what is over goes
    limit(window(1, 2))
    eventually(lambda: held()["hard"], {GPU: "2"})
    team.create("late", activeDeadlineSeconds=3000)
    eventually(partial(team.waits, "late", "0 free of 2"))
    assert team.running() == {*short}
    limit(window(-60, 2), reclaim="on", reclaimMinRuntime="1s")
    eventually(lambda: len(team.running()), 2)
    eventually(lambda: held()["used"], {GPU: "2"})
    assert team.running() < {*short}

    def gone() -> list[str]:
        events = kubectl.get("events", "-n", team.space, "--field-selector", "reason=QuotaReclaimed")["items"]
        return [each["message"] for each in events]

    eventually(lambda: len(gone()), 2)
    assert all(f"holds more than its limit {GPU}=2; this limit holds until " in each for each in gone())

    # it is taken away: all have room again
    limit()
    eventually(partial(team.runs, "late", "long"))
    eventually(lambda: "window" in held(), False)


NO_CRON = ("0 20 * *", "60 20 * * *", "0 24 * * *", "0 0 0 * *", "0 2 * * MON", "0 20 * * 5-1", "0 */0 * * *", "@daily")
NO_TIME = ("2026-12-24", "2026-12-24T18:00Z", "2026-13-24T18:00", "2026-02-30T18:00")
EACH: JSON = {"for": "1h", "hard": {GPU: 1}}
ONCE: JSON = {"at": "2026-12-24T18:00", **EACH}
WRONG: dict[str, list[JSON]] = {
    "must be a cron line of five fields, numbers only: minute, hour, day, month, weekday; such as 0 20 * * 1-5": [
        {"from": cron, **EACH} for cron in NO_CRON
    ],
    "names no day that ever comes": [{"from": cron, **EACH} for cron in ("0 0 30 2 *", "0 0 31 4,6 *")],
    "must be a time without a zone, such as 2026-12-24T18:00": [{**ONCE, "at": at} for at in NO_TIME],
    "set either from, a cron line such as 0 20 * * 1-5, or at": [EACH, {"from": "0 20 * * *", **ONCE}],
    "must be a duration of 1s to 8784h, such as 10h": [{**ONCE, "for": "-1h"}, {**ONCE, "for": "0s"}],
    "windows may only have keys of hard": [{**ONCE, "hard": {"limits.nvidia.com/gpumem": 1}}],
    "should be greater than or equal to 0": [{**ONCE, "hard": {GPU: -1}}],
    "unknown time zone": [{**ONCE, "timeZone": "Europe/Berlim"}],
    "must be the name of a time zone": [{**ONCE, "timeZone": "Local"}],
}
RIGHT: list[JSON] = [
    *[{"from": "*/9 0-6/2,22 1,31 02 0-5", **EACH, "timeZone": "Asia/Gaza"}] * 8,
    {"at": "2028-02-29T18:00:30", **EACH},
]


def test_a_window_that_means_nothing_is_refused_with_what_would_be_right(program: Deployment) -> None:
    for reason, windows in WRONG.items():
        for each in windows:
            wrong = accelerator_quota("wrong", {}, {"gpu": 4}, windows=[each])
            assert reason in program.kubectl.refused(wrong), each
    many = accelerator_quota("wrong", {}, {"gpu": 4}, windows=RIGHT)
    assert "must have at most 8 items" in program.kubectl.refused(many)
    right = accelerator_quota("right", {}, {"gpu": 4}, windows=RIGHT[1:], reclaim="on")
    program.kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(right))
