"""`explain` shows what policy does to a pod that waits, whatever its user wrote on it since, and which policy it is."""

from __future__ import annotations

from builders import card, node
from simulate.files import JSON, Simulate, listed, pod

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
