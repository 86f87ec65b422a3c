"""Priorities in a run of `simulate`, and who is evicted in it."""

from __future__ import annotations

from typing import Any

import pytest
from builders import card, node

from .files import GPU, JSON, MEM, Run, Simulate, listed, pod, quota

ONE_NODE = [node("n1", card("GPU-1"))]


def priority_class(name: str, value: object, **fields: object) -> JSON:
    meta = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}}
    return {**meta, "value": value, **fields}


HIGH = priority_class("high", 1000)


@pytest.mark.parametrize(
    ("classes", "spec", "expected"),
    [
        ([HIGH], {"priorityClassName": "high"}, ("high", 1000, "PreemptLowerPriority")),
        (
            [priority_class("high", 1000, preemptionPolicy="Never")],
            {"priorityClassName": "high", "priority": 1000},
            ("high", 1000, "Never"),
        ),
        ([HIGH], {}, (None, None, None)),
        ([HIGH], {"priority": 7}, (None, 7, None)),
        (
            [HIGH, priority_class("usual", 5, globalDefault=True), priority_class("more", 6, globalDefault=True)],
            {},
            ("usual", 5, "PreemptLowerPriority"),
        ),
        (
            [HIGH],
            {"priorityClassName": "system-node-critical"},
            ("system-node-critical", 2000001000, "PreemptLowerPriority"),
        ),
        ([], {"priorityClassName": "high", "priority": 7}, ("high", 7, None)),
    ],
)
def test_a_pod_gets_the_priority_of_its_class(
    simulate: Simulate, classes: list[JSON], spec: JSON, expected: tuple[object, ...]
) -> None:
    (found,) = simulate([*ONE_NODE, *classes], pod("p", gpu=1, mem=1, **spec)).pods
    stored = found["pod"]["spec"]
    assert tuple(stored.get(key) for key in ("priorityClassName", "priority", "preemptionPolicy")) == expected


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"priorityClassName": "low"}, "no PriorityClass with name low was found"),
        (
            {"priorityClassName": "high", "priority": 7},
            "the integer value of priority (7) must not be provided in pod spec; "
            "priority admission controller computed 1000 from the given PriorityClass name",
        ),
    ],
)
def test_what_the_api_server_refuses_is_refused(simulate: Simulate, spec: JSON, message: str) -> None:
    (found,) = simulate([*ONE_NODE, HIGH], pod("p", gpu=1, mem=1, **spec)).pods
    assert (found["code"], found["message"]) == (403, f'pods "p" is forbidden: {message}')


def test_a_class_that_cannot_be_read_is_named(simulate: Simulate) -> None:
    run = simulate([*ONE_NODE, priority_class("high", "much")], pod("p", gpu=1, mem=1))
    assert run.status == 2
    assert "PriorityClass 'high': value must be" in run.err


CLUSTER = [node("n1", card("GPU-1", 8000)), HIGH, quota(mem="20000", gpu="10")]
LOW = [pod(f"low{number}", gpu=1, mem=4000) for number in (0, 1)]


def pod_with_limits(memory: int, **spec: Any) -> JSON:
    return pod("asking", gpu=1, mem=memory, **{"priorityClassName": "high", **spec})


def evictions(run: Run) -> dict[str, tuple[list[str], str, bool]]:
    """Of each pod whom it had evicted, for whom it was, and whether it was placed."""
    return {found["name"]: (found["victims"], found["preempted_by"], bool(found["placement"])) for found in run.pods}


def test_a_pod_of_high_priority_is_placed_and_lists_its_victims(simulate: Simulate) -> None:
    run = simulate(CLUSTER, *LOW, pod_with_limits(4000))
    assert evictions(run) == {
        "low0": ([], "", True),
        "low1": ([], "team-a/asking", True),
        "asking": (["team-a/low1"], "", True),
    }
    found = run.pod("asking")
    assert (found["placement"]["node"], found["failed"], found["debits"]) == ("n1", {}, {GPU: 1, MEM: 4000})
    assert run.used == {GPU: 2, MEM: 8000}, "the victim costs nothing any more"


def test_bound_pods_of_the_files_are_evicted_too(simulate: Simulate) -> None:
    notes = {"hami.io/vgpu-node": "n1", "hami.io/vgpu-devices-allocated": "GPU-1,NVIDIA,8000,0:;"}
    there = pod("there", gpu=1, mem=8000, namespace="b", annotations=notes, nodeName="n1", priority=5)
    run = simulate([*CLUSTER, there], pod_with_limits(4000))
    assert evictions(run) == {"asking": (["b/there"], "", True)}


@pytest.mark.parametrize(
    ("why", "pods", "flags"),
    [
        ("it may not", [*LOW, pod_with_limits(4000, priorityClassName="never")], []),
        ("preemption is off", [*LOW, pod_with_limits(4000)], ["--preemption", "off"]),
        ("no node is its own", [*LOW, pod_with_limits(4000, nodeSelector={"zone": "x"})], []),
    ],
)
def test_nobody_is_evicted(simulate: Simulate, why: str, pods: list[JSON], flags: list[str]) -> None:
    never = priority_class("never", 1000, preemptionPolicy="Never")
    run = simulate([*CLUSTER, never], *pods, flags=["--strict", *flags])
    nobody: dict[str, tuple[list[str], str, bool]] = {
        "low0": ([], "", True),
        "low1": ([], "", True),
        "asking": ([], "", False),
    }
    assert (run.status, evictions(run)) == (1, nobody), why


def test_a_budget_holds_once_it_is_spent(simulate: Simulate) -> None:
    """Its status allows one disruption, and nobody writes it anew within a run."""
    labelled = [{**each, "metadata": {**each["metadata"], "labels": {"app": "low"}}} for each in LOW]
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "pdb", "namespace": "team-a"},
        "status": {"disruptionsAllowed": 1},
        "spec": {"selector": {"matchLabels": {"app": "low"}}},
    }
    others = [
        node("n2", card("GPU-2", 4000), labels={"zone": "x"}),
        pod("other", gpu=1, mem=4000, priority=9, nodeSelector={"zone": "x"}),
    ]
    second = {**pod_with_limits(4000), "metadata": {"name": "second", "namespace": "team-a"}}
    run = simulate([*CLUSTER, budget, others[0]], *labelled, others[1], pod_with_limits(4000), second)
    assert [run.pod(name)["victims"] for name in ("asking", "second")] == [["team-a/low1"], ["team-a/other"]]


def test_strict_fails_where_a_pod_was_evicted(simulate: Simulate) -> None:
    assert simulate(CLUSTER, *LOW, flags=["--strict"]).status == 0
    assert simulate(CLUSTER, *LOW, pod_with_limits(4000), flags=["--strict"]).status == 1


def test_a_pod_of_the_same_name_may_come_again(simulate: Simulate) -> None:
    run = simulate(CLUSTER, *LOW, pod_with_limits(8000), LOW[0])
    assert [(found["name"], found["allowed"], found["preempted_by"]) for found in run.pods] == [
        ("low0", True, "team-a/asking"),
        ("low1", True, "team-a/asking"),
        ("asking", True, ""),
        ("low0", True, ""),
    ]


def test_the_table_says_who_was_evicted(simulate: Simulate) -> None:
    files = simulate.file("c.json", listed(*CLUSTER)), simulate.file("p.json", listed(*LOW, pod_with_limits(4000)))
    run = simulate.main("simulate", "--cluster", *files)
    assert run.status == 0
    for expected in ("evicted for it: team-a/low1", "then evicted for team-a/asking", "3 pods: 2 placed, 0 denied, "):
        assert expected in run.out, run.out
    assert run.out.endswith("without a node, 1 evicted\n")
