"""Replicas that a quota refuses are no pods: what their controllers' events say, beside the quota and by itself."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from builders import card, node
from simulate.files import GPU, JSON, quota

from hami_webhook.kubectl.workloads import RefusedReplicas

from .apiserver import ApiServer
from .conftest import Hami
from .test_ui import entered
from .test_verbs import DEPLOYED, SPACES, placed

REFUSED = (
    'Error creating: pods "serve-1-x" is forbidden: admission webhook "validate.webhook.hami.io" denied the request: '
    f"exceeding resource quota: exceeded quota: gpu-quota, requested: {GPU}=2, used: {GPU}=8, limited: {GPU}=8"
)
OWNED = [{"kind": "Deployment", "name": "serve", "controller": True}]


def workload(kind: str, name: str, wanted: int, current: int, **meta: Any) -> JSON:
    spec: JSON = {"replicas": wanted, "selector": {"matchLabels": {"app": "serve"}}}
    status: JSON = {"replicas": current}
    if kind == "Job":
        spec, status = {"parallelism": wanted, "selector": {"matchLabels": {"app": "serve"}}}, {"active": current}
    return {"kind": kind, "metadata": {"name": name, "namespace": "team-a", **meta}, "spec": spec, "status": status}


def event(kind: str, name: str, first: float, last: float, message: str = REFUSED, **about: Any) -> JSON:
    """An event of a controller; the times are seconds ago."""

    def ago(seconds: float) -> str:
        return f"{datetime.now(UTC) - timedelta(seconds=seconds):%Y-%m-%dT%H:%M:%SZ}"

    return {
        "kind": "Event",
        "metadata": {"name": f"{name}.1", "namespace": "team-a"},
        "involvedObject": {"kind": kind, "name": name, "namespace": "team-a", **about},
        "reason": "FailedCreate",
        "message": message,
        "firstTimestamp": ago(first),
        "lastTimestamp": ago(last),
        "count": 9,
    }


def cluster(*objects: JSON) -> list[JSON]:
    running = placed("serve-1-a")
    running["metadata"]["labels"] = {"app": "serve"}
    return [node("n1", card("GPU-1")), running, quota(gpu="8", used={GPU: "8"}), *SPACES, *DEPLOYED, *objects]


SERVE = [workload("Deployment", "serve", 5, 1), workload("ReplicaSet", "serve-1", 5, 1, ownerReferences=OWNED)]


def refused_now() -> list[JSON]:
    """With an event of this moment: the next pause is as long as all before it, 115 s, of which 30 are over."""
    return [*SERVE, event("ReplicaSet", "serve-1", 145, 30)]


def first_line(text: str) -> str:
    return text.splitlines()[0]


def test_the_first_line_names_the_replicas_the_quota_and_the_next_try(hami: Hami) -> None:
    run = hami(ApiServer(cluster(*refused_now())), "explain", "deployment", "serve")
    assert run.err == ""
    assert re.fullmatch("4 replicas of serve refused by gpu-quota, next try in [0-9]{1,2} s", first_line(run.out))
    assert f"it has 1 of 5: {REFUSED}" in run.out
    assert "kubectl hami quota gpu-quota -n team-a lists the pods that hold it" in run.out
    assert [line.split()[:3] for line in run.out.splitlines() if line.startswith("serve-1-a")] == [
        ["serve-1-a", "Bound", "n1"]
    ]
    found = hami(ApiServer(cluster(*refused_now())), "explain", "deployment", "serve", "-o", "json").result
    assert (found["wanted"], found["current"], found["refused"]["missing"]) == (5, 1, 4)
    assert [each["name"] for each in found["pods"]] == ["serve-1-a"]


def test_literally() -> None:
    refused = RefusedReplicas("team-a", "Deployment", "serve", 4, "gpu-quota", REFUSED, 1000.0, 1040.0)
    assert refused.sentence(1000.0) == "4 replicas of serve refused by gpu-quota, next try in 40 s"
    assert refused.sentence(1400.0) == "4 replicas of serve refused by gpu-quota, last try 6m40s ago"
    job = RefusedReplicas("team-a", "Job", "train", 1, "AcceleratorQuota all", REFUSED, 1000.0, 1500.0)
    assert job.sentence(1000.0) == "1 pod of train refused by AcceleratorQuota all, next try in 8m20s"


def test_a_quota_of_many_namespaces_is_named_with_its_kind(hami: Hami) -> None:
    told = event("ReplicaSet", "serve-1", 145, 30, message=REFUSED.replace("gpu-quota", "AcceleratorQuota all-teams"))
    line = first_line(hami(ApiServer(cluster(*SERVE, told)), "explain", "deployment", "serve").out)
    assert line.startswith("4 replicas of serve refused by AcceleratorQuota all-teams, next try in ")


def test_the_quota_shows_what_it_refuses(hami: Hami) -> None:
    lines = hami(ApiServer(cluster(*refused_now())), "quota").out.splitlines()
    assert lines[-1].startswith("team-a: 4 replicas of serve refused by gpu-quota, next try in ")


@pytest.mark.parametrize(
    ("kind", "word", "refused"),
    [
        ("Job", "job", "2 pods of batch refused by gpu-quota"),
        ("StatefulSet", "statefulset", "2 replicas of batch refused"),
    ],
)
def test_jobs_and_stateful_sets(hami: Hami, kind: str, word: str, refused: str) -> None:
    objects = [workload(kind, "batch", 3, 1), event(kind, "batch", 60, 10)]
    assert first_line(hami(ApiServer(cluster(*objects)), "explain", word, "batch").out).startswith(refused)


QUIET = [
    pytest.param([workload("Deployment", "serve", 5, 5), workload("ReplicaSet", "serve-1", 5, 5, ownerReferences=OWNED),
                  event("ReplicaSet", "serve-1", 90, 40)], id="has them by now"),
    pytest.param([workload("Deployment", "serve", 5, 5), event("ReplicaSet", "serve-0", 90, 40)], id="is gone"),
    pytest.param([workload("Deployment", "serve", 5, 4), workload("ReplicaSet", "serve-1", 5, 4, ownerReferences=OWNED),
                  event("ReplicaSet", "serve-1", 90, 40, message="Error creating: denied")], id="by others"),
    pytest.param([workload("Deployment", "serve", 0, 0), workload("ReplicaSet", "serve-1", 0, 0, ownerReferences=OWNED),
                  event("ReplicaSet", "serve-1", 90, 40)], id="wants none"),
]  # fmt: skip


@pytest.mark.parametrize("objects", QUIET)
def test_on_an_ordinary_day_nothing_is_said_to_be_refused(hami: Hami, objects: list[JSON]) -> None:
    api = ApiServer(cluster(*objects))
    line = first_line(hami(api, "explain", "deployment", "serve").out)
    assert line.startswith("Deployment team-a/serve has ")
    assert line.endswith("no quota refuses any")
    assert "refused" not in hami(api, "quota").out


def test_events_that_somebody_made_up_do_no_harm(hami: Hami) -> None:
    """Whoever may write events of a namespace writes what it likes: times, names and messages are anybody's text."""
    strange = event("ReplicaSet", "serve-1", 90, 40, message=f"exceeded quota: {'x' * 9999}, requested: \x1b[31m")
    strange |= {"lastTimestamp": "tomorrow", "firstTimestamp": 7, "eventTime": None}
    nameless = {**event("ReplicaSet", "", 1, 1), "involvedObject": {"kind": "ReplicaSet"}}
    moved = event("ReplicaSet", "../../../secrets/x", 9, 1)
    control = event(
        "ReplicaSet", "serve-1", 145, 30, message=REFUSED.replace("denied", "\x1b[31mdenied\nFAKE: all is well")
    )
    api = ApiServer(cluster(*refused_now(), strange, nameless, moved, control))
    run = hami(api, "explain", "deployment", "serve")
    assert (run.status, first_line(run.out).startswith("4 replicas of serve refused by gpu-quota")) == (0, True)
    assert "\x1b" not in run.out
    assert not any(line.startswith("FAKE") for line in run.out.splitlines())
    assert not any("secrets/x" in path for _, path in api.asked)


def test_a_tenant_sees_its_own_and_who_may_not_list_events_sees_the_rest(hami: Hami) -> None:
    tenant = ApiServer(cluster(*refused_now()), only="team-a")
    run = hami(tenant, "explain", "deployment", "serve")
    assert (run.status, run.err) == (0, "")
    assert first_line(run.out).startswith("4 replicas of serve refused by gpu-quota")
    blind = ApiServer(cluster(*refused_now()), lacking={"/api/v1/namespaces/team-a/events"})
    assert first_line(hami(blind, "explain", "deployment", "serve").out) == (
        "Deployment team-a/serve has 1 of 5 replicas; refusals of quotas aren't known, "
        "as events can't be listed with your rights"
    )
    assert hami(blind, "quota").status == 0


@pytest.mark.integration
def test_the_page_of_a_team_has_the_line(tmp_path: Path) -> None:
    with entered(ApiServer(cluster(*refused_now())), tmp_path) as client:
        assert "4 replicas of serve refused by gpu-quota, " in client.get("/teams/team-a").text
        assert "refused" not in client.get("/teams/team-b").text


def test_a_workload_that_is_not_there(hami: Hami) -> None:
    run = hami(ApiServer(cluster()), "explain", "job", "none")
    assert (run.status, run.err) == (1, "kubectl hami: no Job none in namespace team-a\n")
