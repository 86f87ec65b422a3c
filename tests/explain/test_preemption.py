"""Whom preemption would evict for a waiting pod, or why nobody (docs/preemption.md)."""

from __future__ import annotations

import pytest
from builders import card, node, pod, quota
from evictions.extended import budget, high, low
from evictions.test_quota_room import giving_room
from scheduling.placer_env import MEM

from hami_webhook.cluster.api import JSON

from .contexts import explained

ONE, TWO = node("n1", card("a", 8000)), node("n2", card("b", 8000))
OTHER = low("y", "n2", "b,NVIDIA,8000,0:;", 5)
FULL = low("x", "n1", "a,NVIDIA,8000,0:;")
NOBODY = "preemption evicts nobody for it: "


@pytest.mark.parametrize(
    ("objects", "incoming", "note"),
    [
        (
            [ONE, FULL],
            high(gpu=1, mem=10),
            "preemption, where it is on, evicts 1 pod from node n1: default/x",
        ),
        (
            [ONE, low("x", "n1", "a,NVIDIA,4000,0:;"), low("y", "n1", "a,NVIDIA,4000,0:;", 10)],
            high(gpu=1, mem=8000),
            NOBODY + "it wouldn't fit without all pods of lower priority either",
        ),
        (
            [ONE, low("x", "n1", "a,NVIDIA,8000,0:;", 10)],
            high(gpu=1, mem=10),
            NOBODY + "no pod of lower priority holds such devices",
        ),
        (
            [ONE, FULL],
            high(gpu=1, mem=10, preemptionPolicy="Never"),
            NOBODY + "its preemptionPolicy is Never",
        ),
        ([ONE, FULL], pod("high", gpu=1, mem=10), ""),
        (
            [ONE, {**FULL, "metadata": {**FULL["metadata"], "labels": {"app": "a"}}}, budget(0)],
            high(gpu=1, mem=10),
            "preemption, where it is on, evicts 1 pod from node n1: default/x, of which 1 against a "
            "PodDisruptionBudget",
        ),
        (
            [ONE, TWO, FULL, quota("q", mem=9000, used={MEM: 12000})],
            high(gpu=1, mem=4000),
            NOBODY + 'a quota leaves it no room, and doesn\'t have the annotation hami.io/quota-preemption: "true"',
        ),
        (
            [ONE, TWO, FULL, giving_room(3000, 12000)],
            high(gpu=1, mem=4000),
            NOBODY + "its quotas wouldn't have room without all pods of lower priority either",
        ),
        (
            [ONE, {**FULL, "metadata": {**FULL["metadata"], "deletionTimestamp": "2026-01-01T00:00:30Z"}}],
            high(gpu=1, mem=10),
            NOBODY + "pods that are ending are enough for a place on node n1",
        ),
    ],
)
def test_a_note_says_who_would_be_evicted(objects: list[JSON], incoming: JSON, note: str) -> None:
    explanation = explained(incoming, *objects)
    notes = [each for each in explanation.notes if each.startswith("preemption")]
    assert notes == ([note] if note else [])


FREE = node("n3", card("c", 8000))


@pytest.mark.parametrize(
    ("objects", "spec", "note"),
    [
        (
            [ONE, TWO, FULL, OTHER], {},
            "preemption, where it is on, evicts 2 pods: default/y, default/x, for its whole pod group",
        ),
        ([ONE, FULL, FREE], {}, "preemption, where it is on, evicts 1 pod: default/x, for its whole pod group"),
        ([TWO, FREE], {}, ""),
        (
            [ONE, FULL], {},
            "preemption evicts nobody for its pod group: it wouldn't fit without all pods of lower priority either",
        ),
        ([ONE, FULL], {"priority": 0}, ""),
        (
            [ONE, FREE, FULL], {"preemptionPolicy": "Never"},
            "preemption evicts nobody for its pod group: the preemptionPolicy of a member is Never",
        ),
    ],
)  # fmt: skip
def test_of_a_pod_group_a_note_says_who_would_go_for_all_of_it(objects: list[JSON], spec: JSON, note: str) -> None:
    members = [high(gpu=1, mem=8000, name=name, **spec) for name in ("high", "sibling")]
    for each in members:
        each["metadata"]["labels"] = {"hami.io/pod-group": "g", "hami.io/pod-group-size": "2"}
    notes = [each for each in explained(members[0], *objects, members[1]).notes if each.startswith("preemption")]
    assert notes == ([note] if note else [])
    alone = explained(members[0], *objects).notes
    assert not any(each.startswith("preemption") for each in alone), "it isn't complete"
