"""Runs at a time of their own: what ended by then, and when pods that wait start (docs/spec/cli.md)."""

from __future__ import annotations

import pytest
from builders import bound_pod, card, node

from .files import GPU, JSON, Simulate, listed, pod

CARD = node("n1", card("GPU-1", count=2), card("GPU-2", count=2))
AT = "2026-01-01T00:00:00Z"
NIGHT = {"from": "0 20 * * *", "for": "10h", "timeZone": "Europe/Berlin", "hard": {GPU: 2}}


def queueing(hard: int = 1, **spec: object) -> JSON:
    made = {"namespaceSelector": {}, "hard": {GPU: hard}, "enforcement": "queue", "maxRuntime": "2h", **spec}
    return {"apiVersion": "hami.io/v1alpha1", "kind": "AcceleratorQuota", "metadata": {"name": "train"}, "spec": made}


def asking(name: str, seconds: int | None = None, gpu: int = 1) -> JSON:
    found = pod(name, gpu=gpu, mem=1000)
    if seconds is not None:
        found["spec"]["activeDeadlineSeconds"] = seconds
    return found


FILES = [
    ("c.json", [CARD, queueing()]),
    ("p.json", [asking("first", 3600), asking("second")]),
]


def running(seconds: int | None, name: str = "runs") -> JSON:
    found = bound_pod(name, "n1", "GPU-1,NVIDIA,1000,10:;", namespace="team-a", uid="runs")
    found["metadata"] |= {"uid": "runs", "creationTimestamp": AT}
    found["status"]["startTime"] = AT
    if seconds is not None:
        found["spec"]["activeDeadlineSeconds"] = seconds
    found["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1000"}}
    return found


def test_a_pod_gets_the_runtime_of_its_quota_and_one_that_waits_says_when_it_starts(simulate: Simulate) -> None:
    run = simulate([CARD, queueing()], asking("first", 3600), asking("second"), asking("third"), flags=("--at", AT))
    assert run.pod("first")["placement"]["node"] == "n1"
    second, third = run.pod("second"), run.pod("third")
    assert second["pod"]["spec"]["activeDeadlineSeconds"] == 7200
    short = "Waits for AcceleratorQuota train: needs 1 nvidia.com/gpu, 0 free of 1; starts by"
    assert (second["allowed"], second["placement"]) == (True, None)
    # an hour, 30 s of grace, and 10 s until others have the room
    assert second["waits"] == f"{short} 2026-01-01T01:00:40Z at the latest; first in line"
    # 10 s to start, 2 hours, and the same again
    assert third["waits"] == f"{short} 2026-01-01T03:01:30Z at the latest; 1 pod waits before it"
    assert "waits" not in run.pod("first")


@pytest.mark.parametrize(
    ("at", "seconds", "waits"),
    [
        ("2026-01-01T00:30:00Z", 3600, "starts by 2026-01-01T01:00:40Z at the latest; first in line"),
        ("2026-01-01T01:00:29Z", 3600, "starts by 2026-01-01T01:00:40Z at the latest; first in line"),
        ("2026-01-01T01:00:30Z", 3600, ""),
        ("2026-01-01T09:00:00Z", None, "its start isn't known: 1 pod without an end; first in line"),
    ],
)
def test_pods_that_ended_by_then_are_gone(simulate: Simulate, at: str, seconds: int | None, waits: str) -> None:
    run = simulate([CARD, queueing(), running(seconds)], asking("p", 60), flags=("--at", at))
    found = run.pod("p")
    assert found.get("waits", "").endswith(waits)
    assert (found["placement"] is None) == bool(waits)


def test_a_short_pod_passes_the_one_that_starts_later(simulate: Simulate) -> None:
    cluster = [CARD, queueing(2), running(3600)]
    run = simulate(cluster, asking("large", gpu=2), asking("long", 7200), asking("short", 600), flags=("--at", AT))
    assert "starts by 2026-01-01T01:00:40Z at the latest" in run.pod("large")["waits"]
    assert "1 pod waits before it" in run.pod("long")["waits"]
    assert run.pod("short")["placement"]["node"] == "n1"


def test_the_table_says_it_too(simulate: Simulate) -> None:
    paths = [simulate.file(name, listed(*found)) for name, found in FILES]
    run = simulate.main("simulate", "--cluster", *paths, "--at", AT)
    assert "waits: Waits for AcceleratorQuota train" in " ".join(run.out.split())


def test_ordinary_day_without_a_queue_no_result_has_more_than_before(simulate: Simulate) -> None:
    run = simulate([CARD, queueing(enforcement="enforce")], asking("first"), asking("second"))
    assert [each["allowed"] for each in run.pods] == [True, False]
    assert not any("waits" in each for each in run.pods)


def test_a_time_that_is_none_is_refused(simulate: Simulate) -> None:
    cluster, pods = simulate.file("c.json", queueing()), simulate.file("p.json", asking("p"))
    run = simulate.main("simulate", "--cluster", cluster, "--at", "tomorrow", pods)
    assert (run.status, "--now or --at must be an RFC 3339 time" in run.err) == (2, True)


@pytest.mark.parametrize(
    "at", ["0001-01-01T00:00:00Z", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-12:00", "1969-12-31T23:59:59Z"]
)
def test_attack_times_that_no_calendar_goes_on_from_are_refused(simulate: Simulate, at: str) -> None:
    cluster, pods = simulate.file("c.json", queueing()), simulate.file("p.json", asking("p"))
    run = simulate.main("simulate", "--cluster", cluster, "--at", at, pods)
    assert (run.status, f"of 1970 to 2999, not '{at}'" in run.err) == (2, True)


@pytest.mark.parametrize("grace", [7200, 2**63 - 1])
def test_attack_a_pod_with_a_long_grace_period_holds_its_room_at_a_later_time(simulate: Simulate, grace: int) -> None:
    runs = running(3600)
    runs["spec"]["terminationGracePeriodSeconds"] = grace
    run = simulate([CARD, queueing(), runs], asking("p", 60), flags=("--at", "2026-01-01T02:00:00Z"))
    ends = "starts by 2026-01-01T03:00:10Z" if grace == 7200 else "its start isn't known: 1 pod without an end"
    assert run.pod("p")["placement"] is None
    assert ends in run.pod("p")["waits"]


@pytest.mark.parametrize("field", ["startTime", "creationTimestamp"])
@pytest.mark.parametrize("time", ["9999-12-31T23:59:59Z", "0001-01-01T00:00:00Z"])
def test_attack_times_that_others_wrote_on_pods_end_no_run(simulate: Simulate, field: str, time: str) -> None:
    """A node writes when a pod started; what was restored from a backup may have any creation time."""
    runs, made = running(2**31 - 1), queueing(1, windows=[NIGHT])
    (runs["status"] if field == "startTime" else runs["metadata"])[field] = time
    run = simulate([CARD, made, runs], asking("p", 60), flags=("--at", "2026-10-25T02:30:00+02:00"))
    assert run.pod("p")["allowed"]


def test_a_folder_expects_when_a_pod_starts(simulate: Simulate) -> None:
    text = f"""\
cluster: [c.json]
pods: [p.json]
now: {AT}
expected:
  pods:
  - name: second
    waits: {{contains: starts by 2026-01-01T01:00:40Z at the latest}}
"""
    for name, items in (("c.json", [CARD, queueing(), running(3600)]), ("p.json", [asking("second", 60)])):
        simulate.file(name, {"apiVersion": "v1", "kind": "List", "items": items})
    path = simulate.file("hami-test.yaml", text)
    run = simulate.main("test", path.rpartition("/")[0])
    assert (run.status, run.err) == (0, "")
    simulate.file("hami-test.yaml", text.replace("01:00:40", "02:00:00"))
    run = simulate.main("test", path.rpartition("/")[0])
    assert (run.status, "01:00:40" in run.out) == (1, True)


def test_a_budget_and_a_runtime_are_those_of_the_time(simulate: Simulate) -> None:
    budget = {"amounts": {GPU: "1h"}, "period": "Month"}
    made = queueing(4, budget=budget)
    sums = {"since": AT, "until": "2026-02-01T00:00:00Z", "summedTo": AT, "spent": {GPU: "0h"}, "rate": {GPU: 1}}
    made["status"] = {"budget": sums}
    refused = simulate([CARD, made], asking("p", 1800), flags=("--at", "2026-01-01T00:40:00Z")).pod("p")
    assert "the pod may hold 0.5h" in refused["message"]
    assert simulate([CARD, made], asking("p", 1800), flags=("--at", "2026-01-01T00:20:00Z")).pod("p")["allowed"]


@pytest.mark.parametrize(
    ("at", "waits"),
    [
        ("2026-01-01T00:10:00Z", "AcceleratorQuota train has a limit of 1 until 2026-01-01T01:00:00Z"),
        ("2026-01-01T01:10:00Z", ""),
        ("2026-01-01T01:55:00Z", "AcceleratorQuota train has a limit of 1 from 2026-01-01T02:00:00Z on"),
    ],
)
def test_limits_of_windows_are_those_of_the_time(simulate: Simulate, at: str, waits: str) -> None:
    """Whatever the status says of the time at which the cluster was read."""
    made = queueing(1, windows=[{"at": "2026-01-01T01:00", "for": "1h", "hard": {GPU: 2}}])
    made["status"] = {"hard": {GPU: 1}, "window": {"since": AT, "until": "2026-01-01T01:00:00Z", "names": []}}
    found = simulate([CARD, made], asking("p", 600, gpu=2), flags=("--at", at)).pod("p")
    assert waits in found.get("waits", "")
    assert bool(waits) == ("waits" in found)
