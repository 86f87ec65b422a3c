"""Priorities in a run of `simulate`, and who is evicted in it."""

from __future__ import annotations

import pytest

from .files import JSON, Simulate, card, container, node, pod

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
    (found,) = simulate([*ONE_NODE, *classes], pod("p", container(gpu=1, mem=1), **spec)).pods
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
    (found,) = simulate([*ONE_NODE, HIGH], pod("p", container(gpu=1, mem=1), **spec)).pods
    assert (found["code"], found["message"]) == (403, f'pods "p" is forbidden: {message}')


def test_a_class_that_cannot_be_read_is_named(simulate: Simulate) -> None:
    run = simulate([*ONE_NODE, priority_class("high", "much")], pod("p", container(gpu=1, mem=1)))
    assert run.status == 2
    assert "PriorityClass 'high': value must be" in run.err
