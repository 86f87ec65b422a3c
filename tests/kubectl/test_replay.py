"""`kubectl hami simulate`: when pods would start, and a recorded time replayed (docs/room.md#a-recorded-time)."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from builders import card, node
from simulate.files import GPU, pod, quota
from usage.test_recorded_pods import COUNT, parts, server

from hami_webhook.kube.objects import format_time

from .apiserver import ApiServer
from .conftest import Hami
from .test_verbs import DEPLOYED, SPACES, cluster, placed

AT = "1970-01-12T13:46:40Z"
"""When the recorded answers end."""
FLAGS = ("simulate", "--replay", "24", "--at", AT, "--prometheus")


def test_the_record_is_replayed_on_the_live_cluster_which_stays_as_it_is(hami: Hami) -> None:
    """The pods of today, which hold the one healthy card, aren't those of the record."""
    api = ApiServer(cluster(*DEPLOYED))
    with server(parts()) as url:
        run = hami(api, *FLAGS, url, "-o", "json", "--add", "1xn1")
        table = hami(api, *FLAGS, url)
    assert (run.status, run.err) == (0, "")
    assert [(row["run"], row["started"], row["never"]) for row in run.result["rows"]] == [
        ("as recorded", 1, 0),
        ("replayed", 1, 0),
        ("with other nodes", 1, 0),
    ]
    assert [row["wait_mean"] for row in run.result["rows"]] == [600, 0, 0]
    assert run.result["rows"][1]["cards"] == pytest.approx(2 * run.result["rows"][2]["cards"], abs=0.1)
    assert table.status == 0
    assert "as recorded" in table.out
    assert (
        "starts 0 % of the pods within a minute of their recorded start, and its mean wait is 10m shorter" in table.out
    )
    assert {method for method, _ in api.asked} == {"GET"}


def test_what_todays_pods_use_of_a_quota_is_free_in_the_replay(hami: Hami) -> None:
    """The quota of team-b has one card, which its pod of today holds."""
    of_b = [(text, {**of, "namespace": "team-b"} if "namespace" in of else of, value) for text, of, value in parts()]
    with server(of_b) as url:
        run = hami(ApiServer(cluster(*DEPLOYED)), *FLAGS, url, "-o", "json")
    assert [(row["started"], row["never"]) for row in run.result["rows"]] == [(1, 0), (1, 0)]


@pytest.mark.parametrize("flags", [[], ["--add", "1xn1"]])
def test_a_tenant_who_may_not_list_nodes_gets_a_sentence(hami: Hami, flags: list[str]) -> None:
    with server(parts()) as url:
        run = hami(ApiServer(cluster(*DEPLOYED), only="team-a"), *FLAGS, url, *flags)
    assert (run.status, run.out) == (1, "")
    assert "nodes can't be listed with your rights" in run.err


def test_a_record_of_more_pods_than_a_replay_takes_is_refused(hami: Hami) -> None:
    with server([each if each[0] != COUNT else (COUNT, {}, 1_000_000) for each in parts()]) as url:
        run = hami(ApiServer(cluster(*DEPLOYED)), *FLAGS, url)
    assert (run.status, run.out) == (2, "")
    assert "1000000 pods with cards in the last 24h; a replay takes at most 20000: give fewer hours" in run.err


# `kubectl hami simulate` says when pods would start that aren't created


@pytest.mark.parametrize(("at", "placed_then"), [(None, False), (3000, False), (4000, True)])
def test_simulate_says_when_a_pod_would_start(hami: Hami, tmp_path: Path, at: int | None, placed_then: bool) -> None:
    """The pod that runs ends an hour from now by its deadline; `at` is so many seconds from now."""
    path = tmp_path / "p.json"
    path.write_text(json.dumps(pod("p", gpu=1, mem=1000)))
    full = quota(gpu="1", used={GPU: "1"})
    full["metadata"]["annotations"] = {"hami.io/quota-enforcement": "queue", "hami.io/quota-max-runtime": "2h"}
    runs = placed("runs", memory=1000, activeDeadlineSeconds=7200)
    now = int(time.time())
    runs["status"] = {"phase": "Running", "startTime": format_time(now - 3600)}
    api = ApiServer([node("n1", card("GPU-1")), full, runs, *SPACES, *DEPLOYED])
    flags = [] if at is None else ["--at", format_time(now + at)]
    run = hami(api, "simulate", "-n", "team-a", "-o", "json", *flags, str(path))
    (found,) = run.result["pods"]
    # 30 s of grace, and 10 s until others have the room
    waits = f"starts by {format_time(now + 3640)} at the latest; first in line"
    assert (bool(found["placement"]), found.get("waits", "").endswith(waits)) == (placed_then, not placed_then)
    assert {method for method, _ in api.asked} == {"GET"}


def test_a_tenant_who_does_not_see_what_holds_room_gets_no_start(hami: Hami, tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text(json.dumps(pod("p", gpu=1, mem=1000, activeDeadlineSeconds=60)))
    full = quota(gpu="1", used={GPU: "1"})
    full["metadata"]["annotations"] = {"hami.io/quota-enforcement": "queue", "hami.io/quota-max-runtime": "2h"}
    api = ApiServer([node("n1", card("GPU-1")), full, *SPACES, *DEPLOYED])
    run = hami(api, "simulate", "-n", "team-a", "-o", "json", str(path))
    assert "its start isn't known: amounts of no pod" in run.result["pods"][0]["waits"]
