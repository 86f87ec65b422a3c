"""The JSON result of `simulate`, key by key, and what goes into a run."""

from __future__ import annotations

import io
import json
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from builders import card, container, node

from .files import CORES, GPU, JSON, MEM, START, Run, Simulate, listed, pod, quota

ONE_NODE = [node("n1", card("GPU-1"))]
KEYS = ["namespace", "name", "allowed", "code", "message", "warnings", "patch", "pod"]
KEYS += ["placement", "failed", "debits", "victims", "preempted_by"]


def test_the_result_of_a_placed_pod_has_every_key_as_documented(simulate: Simulate) -> None:
    run = simulate(
        [node("node-1", card("GPU-1")), node("node-2", card("GPU-2", 1000), card("GPU-3", type="NVIDIA T4")),
         quota(gpu="4", mem="3000")],
        pod("train-0", gpu=1, mem=2000, cores=30, annotations={"nvidia.com/use-gputype": "A100"}),
    )  # fmt: skip
    assert run.status == 0
    assert run.err == ""
    assert list(run.result) == ["pods", "quotas", "not_judged"]
    (train,) = run.pods
    assert list(train) == KEYS
    admitted = train.pop("pod")
    assert admitted["spec"]["schedulerName"] == "hami-scheduler"
    assert "uid" not in admitted["metadata"]
    written = "GPU-1,NVIDIA,2000,30:;"
    assert train == {
        "namespace": "team-a",
        "name": "train-0",
        "allowed": True,
        "code": 200,
        "message": "",
        "warnings": [],
        "patch": [{"op": "add", "path": "/spec/schedulerName", "value": "hami-scheduler"}],
        "placement": {
            "node": "node-1",
            "score": 0,
            "containers": [
                {
                    "name": "main",
                    "init": False,
                    "devices": [
                        {"vendor": "NVIDIA", "uuid": "GPU-1", "memory": 2000, "cores": 30, "profile": None},
                    ],
                }
            ],
            "annotations": {
                "hami.io/vgpu-devices-allocated": written,
                "hami.io/vgpu-devices-to-allocate": written,
                "hami.io/vgpu-node": "node-1",
                "hami.io/vgpu-time": str(START),
            },
        },
        "failed": {"node-2": "1/2 CardInsufficientMemory, 1/2 CardTypeMismatch"},
        "debits": {CORES: 30, GPU: 1, MEM: 2000},
        "victims": [],
        "preempted_by": "",
    }
    hard, used = {GPU: 4, MEM: 3000}, {GPU: 1, MEM: 2000}
    assert run.result["quotas"] == [{"namespace": "team-a", "name": "gpu-quota", "hard": hard, "used": used}]


def test_a_denied_pod_has_its_code_its_sentence_and_nothing_else(simulate: Simulate) -> None:
    run = simulate([*ONE_NODE, quota(gpu="2", mem="3000")], pod("p", gpu=2, mem=2000))
    (denied,) = run.pods
    assert denied == {
        "namespace": "team-a",
        "name": "p",
        "allowed": False,
        "code": 403,
        "message": "exceeding resource quota: exceeded quota: gpu-quota, requested: limits.nvidia.com/gpumem=4000, "
        "used: limits.nvidia.com/gpumem=0, limited: limits.nvidia.com/gpumem=3000"
        " (memory: 3.9Gi requested, 0Mi used, 2.9Gi limited)",
        "warnings": [],
        "patch": denied["patch"],
        "pod": None,
        "placement": None,
        "failed": {},
        "debits": {},
        "victims": [],
        "preempted_by": "",
    }
    assert run.used == {GPU: 0, MEM: 0}


def test_a_pod_that_asks_for_nothing_passes_unchanged(simulate: Simulate) -> None:
    plain = pod("p", cpu="1", namespace="")
    (found,) = simulate(ONE_NODE, plain).pods
    assert (found["namespace"], found["allowed"], found["patch"], found["placement"]) == ("default", True, [], None)
    assert (found["failed"], found["debits"]) == ({}, {})
    assert found["pod"]["spec"] == plain["spec"]


def test_init_containers_come_first_and_a_sidecar_is_one(simulate: Simulate) -> None:
    wants = pod(
        "p",
        container("app", gpu=1, mem=1000),
        container("idle", cpu="1"),
        init=[container("load", gpu=1, mem=3000), container("side", gpu=1, mem=500, restartPolicy="Always")],
    )
    (found,) = simulate(ONE_NODE, wants).pods
    containers = found["placement"]["containers"]
    assert [(c["name"], c["init"], len(c["devices"])) for c in containers] == [
        ("load", True, 1),
        ("side", True, 1),
        ("app", False, 1),
        ("idle", False, 0),
    ]
    assert found["placement"]["annotations"]["hami.io/vgpu-devices-allocated"] == (
        "GPU-1,NVIDIA,3000,0:;GPU-1,NVIDIA,500,0:;GPU-1,NVIDIA,1000,0:;;"
    )
    assert found["debits"] == {GPU: 2, MEM: 3000}


def test_a_mig_profile_is_named_and_booked(simulate: Simulate) -> None:
    places = [{"start": start, "size": 2} for start in (0, 2, 4)]
    profile = {"name": "2g.10gb", "memoryMB": 10240, "core": 28, "sliceCount": 2, "placements": places}
    mig = card("GPU-m", mode="mig", count=7, migProfiles=[profile])
    (found,) = simulate([node("n1", mig)], pod("p", gpu=2, mem=8000)).pods
    (main,) = found["placement"]["containers"]
    device = {"vendor": "NVIDIA", "uuid": "GPU-m", "memory": 10240, "cores": 28, "profile": "2g.10gb"}
    assert main["devices"] == [device, device]
    assert found["debits"] == {GPU: 2, MEM: 20480, CORES: 56}
    records = json.loads(found["placement"]["annotations"]["hami.io/vgpu-mig-allocations"])
    assert [record["placement"] for record in records] == places[:2]


def test_each_pod_sees_what_the_earlier_ones_did(simulate: Simulate) -> None:
    run = simulate(ONE_NODE, *(pod(name, gpu=1, mem=30000) for name in "ab"), pod("c", gpu=1, mem=9))
    assert [bool(found["placement"]) for found in run.pods] == [True, False, True]
    assert run.pod("b")["failed"] == {"n1": "1/1 CardInsufficientMemory"}
    assert run.pod("c")["placement"]["score"] == pytest.approx(10 * (1 / 10 + 30000 / 40960))


def test_a_waiting_pod_stays_charged(simulate: Simulate) -> None:
    run = simulate([*ONE_NODE, quota(mem="100000")], pod("big", gpu=1, mem=50000))
    (found,) = run.pods
    assert (found["allowed"], found["placement"], found["debits"]) == (True, None, {})
    assert run.used == {MEM: 50000}


@pytest.mark.parametrize("scheduler", ["volcano", "my-scheduler"])
def test_a_pod_of_another_scheduler_is_charged_and_not_placed(simulate: Simulate, scheduler: str) -> None:
    wants = pod("p", gpu=2, mem=1000, cores=10, schedulerName=scheduler)
    run = simulate([*ONE_NODE, quota(mem="2000", gpu="9")], wants, pod("q", gpu=1, mem=1), flags=["--strict"])
    found = run.pod("p")
    assert (found["allowed"], found["patch"], found["placement"], found["failed"]) == (True, [], None, {})
    assert run.used == {MEM: 2000, GPU: 2}
    assert "used: limits.nvidia.com/gpumem=2000" in run.pod("q")["message"]


def test_pods_in_the_cluster_files_hold_cards_and_quota(simulate: Simulate) -> None:
    notes = {"hami.io/vgpu-node": "n1", "hami.io/vgpu-devices-allocated": "GPU-1,NVIDIA,40000,10:;"}
    existing = {**pod("old", gpu=1, annotations=notes, nodeName="n1"), "status": {"phase": "Running"}}
    run = simulate([*ONE_NODE, quota(mem="41000"), existing], pod("p", gpu=1, mem=961))
    assert run.used == {MEM: 40961}
    assert run.pod("p")["failed"] == {"n1": "1/1 CardInsufficientMemory"}
    assert [found["name"] for found in run.pods] == ["p"]


@pytest.mark.parametrize("written", ["0", "5000", "999999"])
def test_used_in_the_cluster_files_is_ignored_for_managed_keys(simulate: Simulate, written: str) -> None:
    hard: JSON = {"mem": "3000", "requests.cpu": "4"}
    stale = quota(used={MEM: written, "requests.cpu": "1"}, **hard)
    run = simulate([*ONE_NODE, stale], pod("p", gpu=1, mem=3000))
    assert run.pods[0]["allowed"]
    assert run.result["quotas"][0] == {
        "namespace": "team-a",
        "name": "gpu-quota",
        "hard": {MEM: 3000},
        "used": {MEM: 3000},
    }


def test_every_quota_is_listed_with_its_managed_keys_only(simulate: Simulate) -> None:
    requested = quota("c", namespace="other", spec={"hard": {"requests.nvidia.com/gpu": "1"}})
    quotas = [quota("b", cpu="1"), quota("a", gpu="3k"), requested]
    run = simulate([*ONE_NODE, *quotas], pod("p", gpu=1, mem=1))
    assert run.result["quotas"] == [
        {"namespace": "other", "name": "c", "hard": {}, "used": {}},
        {"namespace": "team-a", "name": "a", "hard": {GPU: 3000}, "used": {GPU: 1}},
        {"namespace": "team-a", "name": "b", "hard": {}, "used": {}},
    ]


def workload(kind: str, api: str, name: str, template: JSON, **spec: Any) -> JSON:
    body = {"template": template, **spec}
    if kind == "CronJob":
        body = {"jobTemplate": {"spec": body}}
    meta = {"name": name, "namespace": "team-a"}
    return {"apiVersion": api, "kind": kind, "metadata": meta, "spec": body}


def test_pods_are_read_from_several_files_lists_and_standard_input_in_order(
    simulate: Simulate, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = simulate.file("a.yaml", "\n---\n".join(json.dumps(pod(name)) for name in ("a", "b")))
    stdin = json.dumps({**listed(pod("c")), "kind": "PodList"})
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(stdin.encode())))
    last = simulate.file("d.json", pod("d"))
    nodes = [simulate.file(f"{name}.json", node(name, card(f"card-{name}"))) for name in ("n1", "n2")]
    placed = simulate.file("p.json", pod("p", gpu=1, cores=100))
    more = simulate.file("q.json", pod("q", gpu=1, cores=100))
    clusters = [part for path in nodes for part in ("--cluster", path)]
    run = simulate.main("simulate", *clusters, "-o", "json", first, "-", last, placed, more)
    assert [found["name"] for found in run.pods] == ["a", "b", "c", "d", "p", "q"]
    assert [found["placement"]["node"] for found in run.pods[4:]] == ["n1", "n2"]


def test_kinds_that_do_not_count_are_skipped_with_one_warning_each(simulate: Simulate) -> None:
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}}
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}}
    priority = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"}}
    template = {"spec": {"containers": [container(gpu=1)]}}
    deployment = workload("Deployment", "apps/v1", "d", template)
    job = workload("Job", "batch/v1", "j", template)
    run = simulate(
        [*ONE_NODE, service, config, {**service, "metadata": {"name": "t"}}, priority, deployment, job], service
    )
    assert run.pods == []
    assert run.err.splitlines() == [
        "hami-webhook: warning: skipped 1 of kind ConfigMap",
        "hami-webhook: warning: skipped 2 of kind Service",
        "hami-webhook: warning: skipped 1 of kind Deployment in cluster files: their pods count",
        "hami-webhook: warning: skipped 1 of kind Job in cluster files: their pods count",
        "hami-webhook: warning: skipped 1 of kind Service: no pod template in s",
    ]


@pytest.mark.parametrize(
    ("pods", "status"),
    [
        ([pod("p", gpu=1, mem=1), pod("q")], 0),
        ([pod("p", gpu=1, mem=50000)], 1),
        ([pod("p", gpu=-1)], 1),
        ([pod("p", gpu=1, mem=1, nodeSelector={"no": "where"})], 1),
        ([pod("p", gpu=1, mem=1, schedulingGates=[{"name": "wait"}])], 1),
        ([], 1),
    ],
    ids=["all well", "no node", "denied", "no node suits", "gated", "no pods"],
)
def test_strict_fails_where_a_pod_was_denied_or_found_no_node(
    simulate: Simulate, pods: list[JSON], status: int
) -> None:
    assert simulate(ONE_NODE, *pods, flags=["--strict"]).status == status
    assert simulate(ONE_NODE, *pods).status == 0


def test_strict_fails_where_there_is_no_node_at_all(simulate: Simulate) -> None:
    run = simulate([quota(gpu="4")], pod("p", gpu=1, mem=1), flags=["--strict"])
    assert run.status == 1
    assert run.pods[0]["failed"] == {}


def test_yaml_and_json_are_the_same_result(simulate: Simulate) -> None:
    twice = {"labels": {"a": "b"}}
    template = {"metadata": twice, "spec": {"containers": [container(gpu=1, mem=100)], "nodeSelector": {}}}
    pods = workload("Deployment", "apps/v1", "d", template, replicas=2), pod("no", gpu=-1)
    cluster = [*ONE_NODE, quota(mem="1000")]
    as_json, as_yaml = simulate(cluster, *pods), simulate(cluster, *pods, flags=["-o", "yaml"])
    assert yaml.safe_load(as_yaml.out) == as_json.result
    assert "&id" not in as_yaml.out


def test_a_second_pod_of_the_same_name_is_refused_and_not_charged(simulate: Simulate) -> None:
    same = pod("p", gpu=1, mem=100)
    run = simulate([*ONE_NODE, quota(mem="1000")], same, same, {**same, "metadata": {"name": "p", "namespace": "b"}})
    assert [(found["allowed"], found["code"]) for found in run.pods] == [(True, 200), (False, 409), (True, 200)]
    assert run.pods[1]["message"] == 'pods "p" already exists'
    assert run.used == {MEM: 100}


def test_a_pod_the_api_server_would_refuse_is_not_charged(simulate: Simulate) -> None:
    huge = pod("p", gpu=1, mem=100, annotations={"note": "x" * 300_000})
    run = simulate([*ONE_NODE, quota(mem="1000")], huge)
    assert (run.pods[0]["allowed"], run.pods[0]["code"]) == (False, 422)
    assert "may not be more than 262144 bytes" in run.pods[0]["message"]
    assert run.used == {MEM: 0}


def test_what_only_the_api_server_sets_is_dropped_from_new_pods(simulate: Simulate) -> None:
    raw = pod("p", gpu=1, mem=100)
    raw["metadata"] |= {
        "uid": "mine",
        "creationTimestamp": "2020-01-01T00:00:00Z",
        "deletionTimestamp": "2020-01-01T00:00:00Z",
        "deletionGracePeriodSeconds": 0,
        "resourceVersion": "7",
        "managedFields": [{}],
    }
    run = simulate([*ONE_NODE, quota(mem="1000")], {**raw, "status": {"phase": "Succeeded"}})
    assert run.pods[0]["pod"]["metadata"] == {"name": "p", "namespace": "team-a"}
    assert "status" not in run.pods[0]["pod"]
    assert run.pods[0]["debits"] == {GPU: 1, MEM: 100}
    assert run.used == {MEM: 100}


def test_a_gated_pod_is_charged_and_waits(simulate: Simulate) -> None:
    wants = pod("p", gpu=1, mem=100, schedulingGates=[{"name": "wait"}])
    run = simulate([*ONE_NODE, quota(mem="1000")], wants)
    assert (run.pods[0]["placement"], run.pods[0]["failed"]) == (None, {"n1": "waiting for scheduling gates: [wait]"})
    assert run.used == {MEM: 100}


def test_a_generated_name_is_completed(simulate: Simulate) -> None:
    raw = pod("x", gpu=1, mem=1)
    raw["metadata"] = {"generateName": "job-", "namespace": "team-a"}
    names = [found["name"] for found in simulate(ONE_NODE, raw, raw).pods]
    assert len(set(names)) == 2
    assert all(name.startswith("job-") for name in names)


def test_with_a_configuration_that_file_alone_counts(simulate: Simulate) -> None:
    renamed = simulate.file(
        "config.yaml", "nvidia: {resourceCountName: example.com/card, resourceMemoryName: example.com/mem}"
    )
    theirs = pod("theirs", container(limits={"example.com/card": "1", "example.com/mem": "100"}))
    cluster = [*ONE_NODE, quota(spec={"hard": {MEM: "1", "limits.example.com/mem": "1000"}})]
    run = simulate(cluster, theirs, pod("ours", gpu=2, mem=99999), flags=["--config", renamed])
    assert run.pod("theirs")["debits"] == {"limits.example.com/card": 1, "limits.example.com/mem": 100}
    assert (run.pod("ours")["allowed"], run.pod("ours")["placement"]) == (True, None)
    assert run.used == {"limits.example.com/mem": 100}


@pytest.mark.parametrize(
    ("flags", "node_name", "uuid"),
    [
        ([], "n1", "b"),
        (["--node-scheduler-policy", "spread"], "n2", "d"),
        (["--gpu-scheduler-policy", "binpack"], "n1", "a"),
        (["--gpu-scheduler-policy", "mutex"], "n1", "b"),
    ],
)
def test_the_default_policies_are_flags(simulate: Simulate, flags: list[str], node_name: str, uuid: str) -> None:
    notes = {"hami.io/vgpu-node": "n1", "hami.io/vgpu-devices-allocated": "a,NVIDIA,100,1:;"}
    cluster = [
        node("n1", card("a"), card("b")),
        node("n2", card("c"), card("d")),
        pod("x", annotations=notes, nodeName="n1"),
    ]
    (found,) = simulate(cluster, pod("p", gpu=1, mem=1), flags=flags).pods
    assert (found["placement"]["node"], found["placement"]["containers"][0]["devices"][0]["uuid"]) == (node_name, uuid)


@pytest.mark.parametrize("name", ["hami-scheduler", "mine", ""])
def test_the_schedulers_name_is_a_flag(simulate: Simulate, name: str) -> None:
    (found,) = simulate(ONE_NODE, pod("p", gpu=1, mem=1), flags=["--scheduler-name", name]).pods
    assert found["placement"]["node"] == "n1"
    assert found["pod"]["spec"].get("schedulerName") == (name or None)


@pytest.mark.parametrize(
    ("times", "flags", "start"),
    [
        ([], [], START),
        (["2026-03-01T00:00:00Z", "2026-02-01T00:00:00Z"], [], 1_772_323_200),
        (["2026-03-01T00:00:00Z"], ["--now", "2026-01-01T00:01:00Z"], START + 60),
        (["2026-13-45T00:00:00Z", "yesterday", 5, None], [], START),
    ],
    ids=["no time", "the newest", "as given", "unreadable times"],
)
def test_a_run_starts_at_the_newest_time_of_its_cluster(
    simulate: Simulate, times: list[Any], flags: list[str], start: int
) -> None:
    conditions = [{"type": "Ready", "lastHeartbeatTime": time} for time in times]
    only = ONE_NODE[0]
    cluster = [{**only, "status": {**only["status"], "conditions": conditions}}]
    (found,) = simulate(cluster, pod("p", gpu=1, mem=1), flags=flags).pods
    assert found["placement"]["annotations"]["hami.io/vgpu-time"] == str(start)


def test_unbound_placements_and_handshakes_are_judged_at_the_start(simulate: Simulate) -> None:
    def cluster(written: int) -> list[JSON]:
        notes = {"hami.io/vgpu-node": "n1", "hami.io/vgpu-time": str(written)}
        notes["hami.io/vgpu-devices-allocated"] = "GPU-1,NVIDIA,40960,0:;"
        return [*ONE_NODE, pod("old", gpu=1, annotations=notes)]

    wants, flags = pod("p", gpu=1, mem=1), ["--now", "2026-01-01T00:00:00Z"]
    assert simulate(cluster(START - 10), wants, flags=flags).pods[0]["failed"] == {"n1": "1/1 CardInsufficientMemory"}
    assert simulate(cluster(START - 400), wants, flags=flags).pods[0]["placement"] is not None
    assert simulate(cluster(START - 400), wants).pods[0]["placement"] is None, "as of when it was written"


def test_the_table_tells_the_same_to_people(simulate: Simulate) -> None:
    run: Run = simulate(
        [*ONE_NODE, quota(mem="45000")],
        pod("fits", gpu=1, mem=2000),
        pod("toomuch", gpu=1, mem=44000),
        pod("wide", gpu=3, mem=1),
        flags=["-o", "table"],
    )
    for message in (
        "team-a/fits", "main: GPU-1 2Gi 0 cores", "limits.nvidia.com/gpumem=2000", "denied (403)",
        "no node: NodeInsufficientDevice (n1)", "3 pods: 1 placed, 1 denied, 1 without a node", "45000",
    ):  # fmt: skip
        assert message in run.out, message
    empty = simulate([], pod("p", gpu=1, mem=1), flags=["-o", "table"])
    assert "no node: the cluster has none" in empty.out
