"""Pods that wait for quota on a real API server: all run in the end, in their order, and hard holds at any revision."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from hack.devcluster.plane import ControlPlane
from hami_webhook.kube.objects import format_time, parse_time
from hami_webhook.quota.ledger import decode

from .deployment import SYSTEM, Deployment, Kubectl, eventually
from .objects import JSON, accelerator_quota, namespace, pod, quota
from .queueing import GATE, Ending, add_ten_cards, free, gated, queued, queueing, reserved, why
from .revisions import Revisions
from .tenants import tenant
from .test_bursts import create_all

TEAMS, PODS, OWN, SHARED, KILLS = 5, 100, 20, 70, 10
"""Teams, the pods of each, the cards that each may use, those that all may use together, and how often the leader is
killed."""
KEY = "limits.nvidia.com/gpu"


@pytest.fixture(scope="module")
def program(three_replicas: Deployment) -> Deployment:
    add_ten_cards(three_replicas.kubectl)
    return three_replicas


def test_500_pods_of_five_teams_all_run_in_their_order_while_leaders_are_killed(
    program: Deployment, plane: ControlPlane
) -> None:
    kubectl = program.kubectl
    spaces = sorted(namespace(kubectl) for _ in range(TEAMS))
    for space in spaces:
        kubectl("label", "namespace", space, "queue=shared")
        kubectl.apply(queueing(space, gpu=OWN))
    kubectl.apply(
        accelerator_quota("queue", {"matchLabels": {"queue": "shared"}}, {"gpu": SHARED}, enforcement="queue")
    )
    with Revisions(plane) as revisions:
        pods = [pod(space, f"p{number:03}", gpu=1, gpumem=1) for number in range(PODS) for space in spaces]
        assert asyncio.run(create_all(kubectl.kubeconfig, pods)) == []
        eventually(lambda: sum(len(free(kubectl, space)) for space in spaces), SHARED)
        # in the quotas of the teams and in that of all: the leader knows of each of them
        eventually(lambda: queued(program), 2.0 * (TEAMS * PODS - SHARED))
        all_known = revision(kubectl)
        with Ending(program.login("hami-device-plugin"), spaces) as ending:
            for kill in range(1, KILLS + 1):
                share = kill * TEAMS * PODS // (KILLS + 2)
                eventually(partial(ending.has_ended, share))
                leader = program.leader()
                assert leader is not None
                program.stop(leader, signal.SIGKILL)
                kubectl("delete", "lease", "hami-scheduler-controller", "-n", SYSTEM)  # it would last for 15 s
                program.start(leader)
                eventually(lambda: program.leader() is not None)
            eventually(lambda: ending.ended, TEAMS * PODS, seconds=180)
        eventually(lambda: [kubectl.used(space) for space in spaces], [{"gpu": "0"}] * TEAMS)
    assert_held(revisions, {(space, "gpu-quota"): OWN for space in spaces} | {("", "queue"): SHARED})
    for space in spaces:
        assert_in_order(revisions, space, all_known)
    kubectl("delete", "acceleratorquota", "queue")


def assert_held(revisions: Revisions, limits: dict[tuple[str, str], int]) -> None:
    """No revision has more used than hard, nor pods that run without being in used."""
    seen = 0
    for _, objects in revisions.objects():
        quotas = {
            (each["metadata"].get("namespace", ""), each["metadata"]["name"]): (each.get("status") or {}).get("used")
            for each in [*objects["resourcequotas"], *objects["acceleratorquotas"]]
        }
        used = {key: int((quotas[key] or {}).get(KEY, 0)) for key in limits if key in quotas}
        running: dict[str, int] = {}
        for each in objects["pods"]:
            if not each["spec"].get("schedulingGates") and each["status"].get("phase") != "Succeeded":
                space = each["metadata"]["namespace"]
                running[space] = running.get(space, 0) + 1
        for (space, name), limit in limits.items():
            if (space, name) in used:
                seen = max(seen, used[space, name])
                live = running.get(space, 0) if space else sum(running.get(each, 0) for each, _ in limits)
                assert live <= used[space, name] <= limit, (space, name)
    assert seen == max(limits.values())


def revision(kubectl: Kubectl) -> int:
    """etcd's revision now."""
    listing = json.loads(kubectl("get", "--raw", "/api/v1/namespaces?limit=1"))
    return int(listing["metadata"]["resourceVersion"])


def assert_in_order(revisions: Revisions, space: str, all_known: int) -> None:
    """Pods that cost the same were charged in the order of their age, then UID, once all were known.

    Or one was charged with another, or before it, and lost that again, as a second quota had no room for both.
    """
    turns: dict[str, tuple[str, str]] = {}
    charged: dict[str, int] = {}
    """By UID the revision in which the charge appeared that led to the release."""
    first: dict[str, int] = {}
    """That in which any charge appeared."""
    released: set[str] = set()
    before: set[str] = set()
    for at, kind, _, item in revisions.changes():
        meta = item["metadata"]
        if meta.get("namespace") != space:
            continue
        if kind == "pods":
            turns[meta["uid"]] = (meta["creationTimestamp"], meta["uid"])
            if not item["spec"].get("schedulingGates"):
                released.add(meta["uid"])
        elif kind == "resourcequotas":
            ledger = set(decode((meta.get("annotations") or {}).get("hami.io/quota-ledger")))
            first = dict.fromkeys(ledger, at) | first
            charged |= dict.fromkeys(ledger - before - released, at)
            before = ledger
    assert released == turns.keys() == charged.keys()
    waited = sorted((uid for uid in turns if charged[uid] > all_known), key=lambda uid: charged[uid])
    assert len(waited) > PODS // 2
    for earlier, later in pairwise(waited):
        assert charged[earlier] == charged[later] or turns[earlier] < turns[later] or first[later] <= first[earlier]


def test_a_tenant_neither_removes_the_gate_nor_skips_it(
    program: Deployment, plane: ControlPlane, tmp_path: Path
) -> None:
    kubectl = program.kubectl
    space = namespace(kubectl)
    kubectl.apply(queueing(space, gpu=1))
    user = tenant(kubectl, plane, tmp_path, space, "admin")
    user.apply(pod(space, "first", gpu=1, gpumem=1))
    eventually(lambda: free(kubectl, space), ["first"])
    user.apply(pod(space, "second", gpu=1, gpumem=1))
    assert gated(kubectl, space) == ["second"]
    eventually(lambda: reserved(kubectl, space, "second"), "False")
    for patch in ('{"spec": {"schedulingGates": null}}', '{"spec": {"schedulingGates": []}}'):
        done = user.run("patch", "pod", "second", "-n", space, "--type=merge", "-p", patch)
        assert f"scheduling gate {GATE} is removed by the controller only" in done.stderr
    assert "exceeded quota: gpu-quota" in user.refused(pod(space, "large", gpu=2, gpumem=1))
    skipping = pod(space, "skips", gpu=1, gpumem=1)
    skipping["metadata"]["labels"] = {"hami.io/webhook": "ignore"}
    assert f"this pod has no scheduling gate {GATE}" in user.refused(skipping)
    # what others hold it for is waited for, and nobody else waits
    parked = pod(space, "parked", gpu=1, gpumem=1)
    parked["spec"]["schedulingGates"] = [{"name": "example.com/mine"}]
    user.apply(parked)
    user("delete", "pod", "first", "-n", space, "--grace-period=0", "--force")
    eventually(lambda: free(kubectl, space), ["second"])
    assert kubectl.used(space) == {"gpu": "1"}
    eventually(lambda: reserved(kubectl, space, "second"), "True")
    # an ordinary update of a pod that waits reaches nobody
    user("label", "pod", "parked", "-n", space, "a=b")
    user("delete", "pods", "--all", "-n", space, "--grace-period=0", "--force")
    eventually(lambda: kubectl.used(space), {"gpu": "0"})


def test_no_pod_runs_for_longer_than_its_quota_says(program: Deployment, plane: ControlPlane, tmp_path: Path) -> None:
    """Nor by an update, a grace period, or a Job's template; before its end it says why. Minutes stand for hours."""
    kubectl = program.kubectl
    space = namespace(kubectl)
    made = quota(space, gpu=4)
    made["metadata"]["annotations"] = {"hami.io/quota-max-runtime": "2m", "hami.io/quota-default-runtime": "1m"}
    kubectl.apply(made)
    user = tenant(kubectl, plane, tmp_path, space, "admin")
    eventually(lambda: "maxRuntime" in user.refused(lasting(space, "long", 121)))
    refused = user.refused(lasting(space, "long", 3600))
    assert "spec.activeDeadlineSeconds 3600 (60m) is too long: maxRuntime of quota gpu-quota is 2m" in refused
    lingering = lasting(space, "lingers", 60)
    lingering["spec"]["terminationGracePeriodSeconds"] = 3600
    assert "spec.terminationGracePeriodSeconds 3600 (60m) is too long" in user.refused(lingering)
    skipping = lasting(space, "skips", None)
    skipping["metadata"]["labels"] = {"hami.io/webhook": "ignore"}
    assert "the pod has no spec.activeDeadlineSeconds; set at most 120" in user.refused(skipping)
    said = user.run("create", "-f", "-", stdin=json.dumps(lasting(space, "p", None))).stderr
    assert "Warning: spec.activeDeadlineSeconds set to 60 by quota gpu-quota" in said
    for value, why_not in (("61", "must be less than or equal to previous value"), ("null", "must not update from")):
        patch = f'{{"spec": {{"activeDeadlineSeconds": {value}}}}}'
        assert why_not in user.run("patch", "pod", "p", "-n", space, "--type=merge", "-p", patch).stderr
    user.apply(lasting(space, "own", 90))
    user.apply(job(space, "by-template", lasting(space, "p", 3600)["spec"]))
    eventually(lambda: "is too long: maxRuntime" in events_about(kubectl, space, "by-template"))
    for name in ("p", "own"):
        start_now(kubectl, space, name)
    eventually(lambda: "quota gpu-quota limits its pods to 60s" in events_about(kubectl, space, "p"))
    assert "QuotaRuntimeEnds" not in events_about(kubectl, space, "own")
    assert kubectl.used(space) == {"gpu": "2"}


def test_a_pod_that_ends_after_all_calendars_keeps_no_message_from_others(program: Deployment) -> None:
    """The API server takes any grace period."""
    kubectl = program.kubectl
    space = namespace(kubectl)
    made = queueing(space, "strict", gpu=1)
    made["metadata"]["annotations"]["hami.io/quota-default-runtime"] = "1h"
    kubectl.apply(made)
    endless = lasting(space, "endless", 60)
    endless["spec"]["terminationGracePeriodSeconds"] = 2**63 - 1
    kubectl.apply(endless)
    eventually(lambda: free(kubectl, space), ["endless"])
    start_now(kubectl, space, "endless")
    kubectl.apply(lasting(space, "next", 60))
    eventually(lambda: "its start isn't known: 1 pod without an end" in why(kubectl, space, "next"))


def test_a_short_pod_passes_and_the_first_one_starts_as_promised(program: Deployment) -> None:
    """Seconds stand for hours; the test ends pods at their deadlines, as a kubelet does."""
    kubectl = program.kubectl
    space = namespace(kubectl)
    made = queueing(space, "strict", gpu=3)
    made["metadata"]["annotations"]["hami.io/quota-max-runtime"] = "10m"
    kubectl.apply(made)
    large, head = lasting(space, "large", 90), lasting(space, "head", 60)
    large["spec"]["containers"][0]["resources"]["limits"] |= {"nvidia.com/gpu": 2}
    head["spec"]["containers"][0]["resources"]["limits"] |= {"nvidia.com/gpu": 3}
    for each in (large, head):
        each["spec"]["terminationGracePeriodSeconds"] = 0
    kubectl.apply(large)
    eventually(lambda: free(kubectl, space), ["large"])
    start_now(kubectl, space, "large")
    eventually(lambda: "starts by " in simulated(kubectl, head))
    expected, hour = simulated(kubectl, head), format_time(time.time() + 3600)
    assert "waits" not in simulated(kubectl, head, "--at", hour)
    kubectl.apply(head)
    eventually(lambda: "; starts by " in why(kubectl, space, "head"))
    start = why(kubectl, space, "head").partition("starts by ")[2].partition(" ")[0]
    assert f"starts by {start} at the latest" in expected
    promised = parse_time(start)
    for name, seconds in (("long", 300), ("short", 5)):
        each = lasting(space, name, seconds)
        each["spec"]["terminationGracePeriodSeconds"] = 0
        kubectl.apply(each)
    eventually(lambda: "short" in free(kubectl, space))
    assert gated(kubectl, space) == ["head", "long"]
    for name in ("short", "large"):
        done = json.dumps({"status": {"phase": "Failed", "reason": "DeadlineExceeded"}})
        kubectl("patch", "pod", name, "-n", space, "--subresource=status", "--type=merge", "-p", done)
    eventually(lambda: "head" in free(kubectl, space))
    assert time.time() < promised
    assert gated(kubectl, space) == ["long"]


def simulated(kubectl: Kubectl, pod: JSON, *flags: str) -> str:
    """What `kubectl hami simulate` prints about a pod that isn't created."""
    done = kubectl.hami("simulate", "-", "-o", "json", *flags, stdin=json.dumps(pod))
    assert done.returncode == 0, done.stderr
    return done.stdout


def lasting(space: str, name: str, seconds: int | None) -> JSON:
    """A pod with one card that ends by itself after so many seconds."""
    made = pod(space, name, gpu=1, gpumem=1)
    made["spec"] |= {} if seconds is None else {"activeDeadlineSeconds": seconds}
    return made


def start_now(kubectl: Kubectl, space: str, name: str) -> None:
    """Let a pod run from now on, as its kubelet would say."""
    started = json.dumps({"status": {"phase": "Running", "startTime": format_time(time.time())}})
    kubectl("patch", "pod", name, "-n", space, "--subresource=status", "--type=merge", "-p", started)


def job(space: str, name: str, spec: JSON) -> JSON:
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": space},
        "spec": {"template": {"spec": {**spec, "restartPolicy": "Never"}}},
    }


def events_about(kubectl: Kubectl, space: str, name: str) -> str:
    """The reasons and messages of the events about an object of this name."""
    events = json.loads(kubectl("get", "events", "-n", space, "-o", "json"))["items"]
    return "\n".join(
        f"{each['reason']}: {each['message']}" for each in events if each["involvedObject"]["name"] == name
    )


def test_quotas_that_do_not_queue_gate_nobody(program: Deployment) -> None:
    kubectl = program.kubectl
    space = namespace(kubectl)
    made = quota(space, gpu=1)
    kubectl.apply(made)
    kubectl.apply(pod(space, "charged", gpu=1, gpumem=1))
    assert gated(kubectl, space) == []
    made["metadata"]["annotations"] = {"hami.io/quota-enforcement": "Queue", "hami.io/quota-queue-overtaking": "soon"}
    told = kubectl.run("apply", "-f", "-", stdin=json.dumps(made)).stderr
    assert "hami.io/quota-enforcement: Queue isn't known, so the quota is enforced" in told
    assert "hami.io/quota-queue-overtaking: soon can't be read, so it is 10m" in told
    assert "exceeded quota" in kubectl.refused(pod(space, "over", gpu=1, gpumem=1))
