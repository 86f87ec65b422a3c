"""Whom preemption would evict for a waiting pod, or why nobody (docs/preemption.md)."""

from __future__ import annotations

import pytest
from scheduling.preemption.extended import high, low
from scheduling.scenery import asks, card, node, pod

from hami_webhook.cluster.api import JSON

from .scenes import explained

ONE, TWO = node("n1", card("a")), node("n2", card("b"))
FULL = low("x", "n1", "a,NVIDIA,8000,0:;")
NOBODY = "preemption evicts nobody for it: "


@pytest.mark.parametrize(
    ("objects", "asking", "note"),
    [
        ([ONE, FULL], high(asks(1, 10)), "preemption, where it is on, evicts 1 pod from node n1: default/x"),
        (
            [ONE, low("x", "n1", "a,NVIDIA,4000,0:;"), low("y", "n1", "a,NVIDIA,4000,0:;", 10)],
            high(asks(1, 8000)),
            NOBODY + "it wouldn't fit without all pods of lower priority either",
        ),
        (
            [ONE, low("x", "n1", "a,NVIDIA,8000,0:;", 10)],
            high(asks(1, 10)),
            NOBODY + "no pod of lower priority holds such devices",
        ),
        ([ONE, FULL], high(asks(1, 10), preemptionPolicy="Never"), NOBODY + "its preemptionPolicy is Never"),
        ([ONE, FULL], pod("high", asks(1, 10)), ""),
    ],
)
def test_a_note_says_who_would_be_evicted(objects: list[JSON], asking: JSON, note: str) -> None:
    explanation = explained(asking, *objects)
    notes = [each for each in explanation.notes if each.startswith("preemption")]
    assert notes == ([note] if note else [])
