"""The verb `explain`: from files, from an API server, under policy, and what it can't use."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from builders import accelerator_quota, card, node
from kubectl.apiserver import KINDS, ApiServer, serving
from simulate.files import GPU, JSON, MEM, Simulate, listed, pod, quota

EXAMPLES = Path(__file__).parents[2] / "manifests" / "examples"
CLUSTER = str(EXAMPLES / "cluster.yaml")
PODS = str(EXAMPLES / "pods.yaml")
BIG = pod("big", gpu=1, mem=30000, schedulerName="hami-scheduler")
HELD = {"hami.io/vgpu-node": "n1", "hami.io/vgpu-devices-allocated": "GPU-1,NVIDIA,20000,10:;"}
BUSY = pod("busy", gpu=1, mem=20000, annotations=HELD, nodeName="n1")
BUSY["metadata"]["labels"] = {"app": "busy"}
NODE = node("n1", card("GPU-1", 40960))


def test_a_pod_of_a_file_is_admitted_first(command: Simulate) -> None:
    run = command.main("explain", "--cluster", CLUSTER, "-f", PODS, "-n", "team-a", "-o", "json", "half-a-card")
    assert (run.status, run.err) == (0, "")
    found = run.result
    assert (found["namespace"], found["name"]) == ("team-a", "half-a-card")
    assert found["verdict"] == "isn't placed, but fits on node-24g"
    reasons = {account["name"]: account["reason"] for account in found["nodes"]}
    assert reasons == {"node-24g": "", "node-8x40g": "8/8 CardTypeMismatch"}
    rows = {account["key"]: (account["used"], account["charged"], account["costs"]) for account in found["quotas"]}
    assert rows == {GPU: (1, 1, 1), MEM: (12288, 12288, 12288)}


def test_a_denial_is_the_explanation(command: Simulate) -> None:
    run = command.main("explain", "--cluster", CLUSTER, "-f", PODS, "forged", "-o", "json")
    assert run.status == 0
    assert run.result["verdict"].startswith("is denied at admission (403): annotation hami.io/vgpu-devices-allocated")
    assert run.result["nodes"] == []


def test_a_denial_for_quota_says_how_far_it_must_be_raised(command: Simulate) -> None:
    requested = command.file("p.json", pod("p", gpu=2, mem=30000))
    run = command.main("explain", "--cluster", CLUSTER, "-f", requested, "-o", "json")
    (change,) = run.result["changes"]
    (step,) = change["steps"]
    assert (step["kind"], step["subject"]) == ("quota", f"gpu-quota/{MEM}")
    assert step["amounts"] == {"from": 40000, "to": 60000}


def test_a_denial_for_the_limit_of_a_user_says_whose(command: Simulate) -> None:
    use = json.dumps({"keys": [GPU], "use": {"alice": [1]}})
    status = {"used": {GPU: "1"}, "subjectUse": use, "countedSubjects": "user"}
    shared = accelerator_quota(
        "shared", spec={"hard": {GPU: 9}, "per": {"user": True, "hard": {GPU: 1}}}, status=status
    )
    stamp = {"hami.io/submitted-by": "alice"}
    there = pod("a", gpu=1, mem=10, annotations=stamp, nodeName="n1")
    files = command.file("c.json", listed(NODE, there, shared))
    requested = command.file("p.json", pod("b", gpu=1, mem=10, annotations=stamp))
    run = command.main("explain", "--cluster", files, "-f", requested, "-o", "json")
    assert "exceeded quota: AcceleratorQuota shared (user alice), requested" in run.result["verdict"]
    (change,) = run.result["changes"]
    (step,) = change["steps"]
    assert (step["subject"], step["amounts"]) == (f"shared (user alice)/{GPU}", {"from": 1, "to": 2})


def cluster(command: Simulate) -> str:
    kept = quota(mem="60000", used={MEM: "50000"})
    return command.file("cluster.json", listed(NODE, BUSY, BIG, kept))


@pytest.mark.parametrize("named", [["team-a/big"], ["-n", "team-a", "big"], ["-n", "team-a", "team-a/big"]])
def test_a_pod_of_the_cluster_is_found_by_either_name(command: Simulate, named: list[str]) -> None:
    run = command.main("explain", "--cluster", cluster(command), "-o", "yaml", *named)
    assert (run.status, run.err) == (0, "")
    found = yaml.safe_load(run.out)
    assert found["nodes"][0]["reason"] == "1/1 CardInsufficientMemory"
    assert found["nodes"][0]["cards"][0]["why"] == "needs 29.3Gi, 20.5Gi of 40Gi free"
    assert found["quotas"][0]["used"] == 50000


def test_the_table_has_every_number(command: Simulate) -> None:
    run = command.main("explain", "--cluster", cluster(command), "team-a/big")
    assert (run.status, run.err) == (0, "")
    for expected in (
        "team-a/big doesn't fit on n1, the only node",
        "1/1 CardInsufficientMemory",
        "needs 29.3Gi, 20.5Gi of 40Gi free",
        "free 8.8Gi on GPU-1 of n1 (held by team-a/busy)",
        "ask for 20.5Gi (20960 MiB) of a card instead of 29.3Gi in container main: it fits on n1",
    ):
        assert expected in run.out, run.out
    placed = command.main("explain", "--cluster", cluster(command), "team-a/busy")
    for expected in ("team-a/busy is placed on n1 and bound", "19.5Gi", f"It costs {GPU}=1, limits"):
        assert expected in placed.out, placed.out


def test_the_example_of_the_page_says_what_the_page_says(command: Simulate) -> None:
    run = command.main("explain", "--cluster", str(EXAMPLES / "waiting.yaml"), "team-a/serve")
    page = (EXAMPLES.parents[1] / "docs" / "explain.md").read_text()
    shown = "\n".join(line.rstrip() for line in run.out.splitlines())
    assert f"```text\n{shown}\n```\n" in page


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "explain needs a POD, or a pod's manifest with -f FILE"),
        (["big"], "no pod big in namespace default; one of that name is in team-a"),
        (["team-a/nobody"], "no pod nobody in namespace team-a, nor in any other"),
        (["a/b/c"], "POD must be NAME or NAMESPACE/NAME, not 'a/b/c'"),
        (["/big"], "POD must be NAME or NAMESPACE/NAME, not '/big'"),
        (["-n", "b", "a/big"], "POD a/big isn't in namespace b, which -n names"),
        (["-f", PODS], f"{PODS} has 6 pods, and POD must name one"),
        (["-f", PODS, "nobody"], f"{PODS} has 0 pods of the name nobody"),
        (["-f", PODS, "default/plain"], f"the pod in {PODS} is in namespace team-a, not in default"),
        (["-f", "-", "--cluster", "-"], "standard input (-) can be read only once"),
        (["--now", "soon", "big"], "--now must be an RFC 3339 time such as"),
    ],
)
def test_what_cannot_be_meant_ends_with_one_line(command: Simulate, arguments: list[str], expected: str) -> None:
    run = command.main("explain", "--cluster", cluster(command), *arguments)
    assert (run.status, run.out) == (2, "")
    (line,) = run.err.splitlines()
    assert line.startswith(f"hami-webhook: {expected}")


API_OBJECTS: list[JSON] = [
    *(NODE, BUSY, BIG, quota(mem="60000", used={MEM: "50000"})),
    {"kind": "Namespace", "metadata": {"name": "team-a"}},
    {"kind": "PriorityClass", "metadata": {"name": "high"}, "value": 10},
    {
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "pdb", "namespace": "team-a"},
        "spec": {"selector": {"matchLabels": {"app": "busy"}}},
    },
]
LISTED = ("Node", "Pod", "ResourceQuota", "Namespace", "PriorityClass", "PodDisruptionBudget", "DeviceClass")
REQUESTS = [
    *(("GET", "/".join(KINDS[kind])) for kind in LISTED),
    # this API server doesn't have them
    ("GET", "/apis/scheduling.koordinator.sh/v1alpha1/devices"),
    ("GET", "/apis/hami.io/v1alpha1/acceleratorquotas"),
]


@pytest.fixture
def api() -> ApiServer:
    return ApiServer(API_OBJECTS)


@pytest.fixture
def kubeconfig(api: ApiServer, tmp_path: Path) -> Iterator[str]:
    with serving(api, tmp_path) as path:
        yield str(path)


def test_a_pod_that_cannot_be_seen_is_not_said_to_be_missing(
    command: Simulate, api: ApiServer, kubeconfig: str
) -> None:
    api.only = "team-a"
    run = command.main("explain", "--kubeconfig", kubeconfig, "team-b/big")
    assert (run.status, run.out) == (2, "")
    assert run.err.startswith("hami-webhook: no right to list pods, in namespace team-b neither")
    run = command.main("explain", "--kubeconfig", kubeconfig, "team-a/none")
    assert run.err == "hami-webhook: no pod none in namespace team-a\n"


def test_an_api_server_is_listed_once_and_only_read(command: Simulate, api: ApiServer, kubeconfig: str) -> None:
    run = command.main("explain", "--kubeconfig", kubeconfig, "-n", "team-a", "-o", "json", "big")
    assert (run.status, run.err) == (0, "")
    assert run.result["nodes"][0]["reason"] == "1/1 CardInsufficientMemory"
    assert run.result["quotas"][0]["used"] == 50000
    assert sorted(api.asked) == sorted(REQUESTS)


def test_a_new_pod_gets_the_priority_of_its_class(command: Simulate, kubeconfig: str) -> None:
    """It would evict the pod that is there, whose budget allows no disruption."""
    incoming = pod("p", gpu=1, mem=30000, namespace="b", priorityClassName="high")
    run = command.main("explain", "--kubeconfig", kubeconfig, "-f", command.file("p.json", incoming), "-o", "json")
    assert "preemption, where it is on, evicts 1 pod from node n1: team-a/busy, of which 1 against a " in str(
        run.result["notes"]
    )


def test_a_new_pod_can_be_tried_on_a_live_cluster(command: Simulate, api: ApiServer, kubeconfig: str) -> None:
    requested = command.file("p.json", pod("p", gpu=1, mem=20000))
    run = command.main("explain", "--kubeconfig", kubeconfig, "-f", requested, "-o", "json")
    assert run.result["verdict"].startswith("is denied at admission (403): exceeding resource quota")
    assert sorted(api.asked) == sorted(REQUESTS)


# `explain` shows what policy does to a pod that waits, whatever its user wrote on it since, and which policy it is


USE, NOUSE = "nvidia.com/use-gpuuuid", "nvidia.com/nouse-gpuuuid"
NO_GPU_1 = "policies: [{name: no-gpu-1, devices: {NVIDIA: {denyUUIDs: [GPU-1]}}}]"
ONLY_GPU_2 = "policies: [{name: only-gpu-2, devices: {NVIDIA: {allowUUIDs: [GPU-2]}}}]"


def explained(command: Simulate, policies: str, notes: JSON, *cards: str) -> JSON:
    """How a pod of the cluster with these annotations is explained, on a node with these cards."""
    waits = pod("p", gpu=1, mem=1000, annotations=notes, schedulerName="hami-scheduler")
    cluster = command.file("cluster.json", listed(node("n1", *(card(uuid) for uuid in cards)), waits))
    policy = command.file("policy.yaml", policies)
    run = command.main("explain", "--cluster", cluster, "--policy-file", policy, "-o", "json", "team-a/p")
    assert (run.status, run.err) == (0, "")
    found: JSON = run.result
    return found


def test_the_card_it_would_get_is_one_that_policy_allows(command: Simulate) -> None:
    found = explained(command, NO_GPU_1, {}, "GPU-1", "GPU-2")
    (only,) = found["nodes"]
    assert [device["uuid"] for device in only["devices"]] == ["GPU-2"]
    assert found["notes"][0] == f"{NOUSE} set to GPU-1 by policy no-gpu-1, whatever its own annotations say"


def test_a_card_that_policy_denies_is_refused_and_nothing_is_proposed_that_policy_undoes(command: Simulate) -> None:
    found = explained(command, NO_GPU_1, {USE: "GPU-1"}, "GPU-1")
    assert found["verdict"] == (
        "fits nowhere: use-gpuuuid: none of GPU-1 is allowed in namespace team-a (denied: GPU-1), by policy no-gpu-1"
    )
    found = explained(command, NO_GPU_1, {NOUSE: "GPU-2"}, "GPU-1")
    assert found["verdict"] == f"doesn't fit on {found['nodes'][0]['name']}, the only node"
    assert found["nodes"][0]["reason"] == "1/1 CardUuidMismatch"
    assert found["changes"] == []


def test_a_list_of_the_pods_own_is_proposed_to_be_left_out_where_that_helps(command: Simulate) -> None:
    found = explained(command, NO_GPU_1, {NOUSE: "GPU-2"}, "GPU-1", "GPU-2")
    assert [step["text"] for change in found["changes"] for step in change["steps"]] == [
        f"without {NOUSE}=GPU-2 the pod fits on n1"
    ]


def test_a_pod_that_policy_leaves_nothing_reads_which_policy_it_is(command: Simulate) -> None:
    found = explained(command, ONLY_GPU_2, {USE: "GPU-1"}, "GPU-1", "GPU-2")
    reason = "use-gpuuuid: none of GPU-1 is allowed in namespace team-a (allowed: GPU-2), by policy only-gpu-2"
    assert found["verdict"] == f"fits nowhere: {reason}"
    assert [each["reason"] for each in found["nodes"]] == [reason]
