"""Runs in which pods of other schedulers are placed in their stead, under a quota.

Source: docs/spec/volcano.md#7, #10, #15.
"""

from __future__ import annotations

from typing import Any

import pytest
from builders import card, container, node
from integrations.volcanoes import (
    CORES,
    IDS,
    MEMORY,
    NUMBER,
    REGISTER,
    a40,
    pod_with_limits,
    registered,
    t4,
)

from .files import GPU, JSON, START, Simulate, pod, quota

BLOCKS = f"limits.{MEMORY}"
A30 = "NVIDIA-NVIDIA A30"


def volcano_node(name: str, *cards: str, labels: JSON | None = None) -> JSON:
    memory = sum(int(each.split(",")[2]) for each in cards)
    amounts = {NUMBER: 10 * len(cards), MEMORY: memory, CORES: 100 * len(cards)}
    made = node(name, labels=labels, capacity=amounts)
    made["metadata"]["annotations"][REGISTER] = registered(*cards)
    return made


def vgpus(
    name: str, number: object = None, memory: object = None, cores: object = None, percent: object = None, **more: Any
) -> JSON:
    made = pod_with_limits(number, memory, cores, percent, name=name, **more)
    made["metadata"]["namespace"] = "team-a"
    return made


def running(name: str, on: str, ids: str, number: object, memory: object) -> JSON:
    found = vgpus(name, number, memory, notes={IDS: ids}, nodeName=on)
    return {**found, "status": {"phase": "Running"}}


def test_volcanos_pods_are_placed_and_count_for_those_after_them(simulate: Simulate) -> None:
    run = simulate([volcano_node("n1", a40("GPU-m"))], vgpus("a", 1, 8000, mode="mig"), vgpus("b", 1, 5000, mode="mig"))
    for name, uuid, memory, profile, entry in (
        ("a", "GPU-m", 10240, "2g.10gb", "GPU-m[group2-0],NVIDIA,8000,0:"),
        ("b", "GPU-m", 5120, "1g.5gb", "GPU-m[group2-3],NVIDIA,5000,0:"),
    ):
        found = run.pod(name)
        assert found["pod"]["spec"]["schedulerName"] == "volcano"
        assert found["placement"] == {
            "node": "n1",
            "score": 0.0,
            "containers": [
                {
                    "name": "main",
                    "init": False,
                    "devices": [{"vendor": "volcano", "uuid": uuid, "memory": memory, "cores": 0, "profile": profile}],
                }
            ],
            "annotations": {
                "volcano.sh/bind-phase": "allocating",
                "volcano.sh/bind-time": str(START),
                "volcano.sh/devices-to-allocate": entry,
                "volcano.sh/vgpu-ids-new": entry,
                "volcano.sh/vgpu-node": "n1",
                "volcano.sh/vgpu-time": str(START),
            },
        }
        assert found["debits"] == {f"limits.{NUMBER}": 1, BLOCKS: memory}


def test_why_no_node_takes_a_pod(simulate: Simulate) -> None:
    cluster = [
        volcano_node("n1", t4("GPU-a"), labels={"zone": "x"}),
        volcano_node("n2", t4("GPU-b"), labels={"zone": "y"}),
        node("n3", card("GPU-c"), labels={"zone": "x"}),
    ]
    run = simulate(cluster, vgpus("p", 1, 16385, nodeSelector={"zone": "x"}))
    found = run.pod("p")
    assert (found["allowed"], found["placement"], found["debits"]) == (True, None, {})
    assert found["failed"] == {
        "n1": "1/1 CardInsufficientMemory",
        "n2": "node(s) didn't match Pod's node affinity/selector",
        "n3": "node unregistered",
    }
    assert simulate(cluster, vgpus("p", 1, 16385), flags=["--strict"]).status == 1


@pytest.mark.parametrize(("scheduler", "placed"), [("volcano", True), (None, True), ("mine", False)])
def test_only_pods_of_volcanos_schedulers_are_placed(simulate: Simulate, scheduler: str | None, placed: bool) -> None:
    spec = {"schedulerName": scheduler} if scheduler else {}
    run = simulate(
        [volcano_node("n1", t4("GPU-a")), quota(spec={"hard": {BLOCKS: "5000"}})], vgpus("p", 1, 3000, **spec)
    )
    found = run.pod("p")
    assert (found["placement"] is not None, found["failed"]) == (placed, {})
    assert run.used == {BLOCKS: 3000}


def test_an_unbound_allocation_of_a_dump_is_judged_at_the_start(simulate: Simulate) -> None:
    notes = {
        IDS: "GPU-a,NVIDIA,16000,0:",
        "volcano.sh/vgpu-node": "n1",
        "volcano.sh/bind-phase": "allocating",
        "volcano.sh/bind-time": "1800000000",
    }
    there = vgpus("there", 1, 16000, notes=notes)
    assert simulate([volcano_node("n1", t4("GPU-a")), there], vgpus("p", 1, 500)).pod("p")["failed"] == {
        "n1": "1/1 CardInsufficientMemory"
    }
    late = node("n2", card("GPU-x"))
    late["metadata"]["creationTimestamp"] = "2027-06-01T00:00:00Z"
    found = simulate([volcano_node("n1", t4("GPU-a")), there, late], vgpus("p", 1, 500)).pod("p")
    assert found["placement"]["node"] == "n1"


def test_a_mixed_pod_goes_to_ours_and_is_charged_for_both(simulate: Simulate) -> None:
    both = pod("p", container("ours", gpu=1, mem=2000), container("theirs", {NUMBER: "1", MEMORY: "300"}))
    run = simulate([node("n1", card("GPU-1")), volcano_node("n2", t4("GPU-a"))], both)
    found = run.pod("p")
    assert [warning.partition("]")[0] for warning in found["warnings"]] == ["[mixed-names"]
    assert found["placement"]["node"] == "n1"
    assert (found["debits"][GPU], found["debits"][BLOCKS]) == (1, 300)


def test_kais_pods_are_charged_and_left_unplaced(simulate: Simulate) -> None:
    """KAI's rules aren't known here (docs/spec/kai.md#6)."""

    def share(name: str, fraction: str) -> JSON:
        return pod(name, annotations={"gpu-fraction": fraction}, schedulerName="kai-scheduler", namespace="team-a")

    labelled = node("n1", labels={"nvidia.com/gpu.memory": "80000"})
    run = simulate([labelled, quota(mem=50000)], share("a", "0.5"), share("b", "0.5"), share("c", "1.5"))
    assert [found["allowed"] for found in run.pods] == [True, False, False]
    assert run.pod("a")["placement"] is None
    assert "limits.nvidia.com/gpumem=40000 (smallest eligible card)" in run.pod("b")["message"]
    assert "must be a number above 0 and below 1" in run.pod("c")["message"]
