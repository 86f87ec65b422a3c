"""Metax-GPU: registration, the topology tables, Fit of whole cards, broken ones.

Source: docs/spec/metax.md#3, #6 to #8, #11, #13.
"""

from __future__ import annotations

import json

import pytest

from hami_webhook.devices.vendors.metax.whole import read_table
from hami_webhook.kube.objects import Node

from .fit_env import CHART, FitEnv, pod
from .metaxes import (
    GPU,
    GPU_ALLOCATED,
    LOSSES,
    NODE_POLICY,
    cards_of,
    gpu_node,
    one,
    placed,
    pod_with_limits,
)

WHOLE = CHART["Metax-GPU"]
LOSS_TABLE = {"1": 150, "2": 80, "3": 390, "4": 80, "5": 150, "6": 0}
SCORE_TABLE = {"1": 0, "2": 110, "3": 330, "4": 660, "5": 700, "6": 850}


def test_capacity_makes_cards() -> None:
    inventory = WHOLE.inventory(gpu_node(2))
    assert inventory is not None
    assert [(d.uuid, d.index, d.slots, d.memory, d.cores, d.type, d.numa, d.healthy) for d in inventory.devices] == [
        ("n1-metax-0", 0, 1, 65536, 100, "Metax-GPU", 0, True),
        ("n1-metax-1", 1, 1, 65536, 100, "Metax-GPU", 0, True),
    ]


@pytest.mark.parametrize(
    ("text", "table"),
    [
        (None, {}),
        ("{}", {}),
        (json.dumps(LOSS_TABLE), LOSS_TABLE),
        ('{"1":-5}', {"1": -5}),
        ('{"1":1.5}', None),
        ('{"1":"150"}', None),
        ('{"1":true}', None),
        ('{"1":1e400}', None),
        ('{"1":99999999999999999999999}', None),
        ("[1]", None),
        ("null", None),
        ("{", None),
        ("", None),
    ],
)
def test_a_topology_table_is_a_json_object_of_integers(text: str | None, table: dict[str, int] | None) -> None:
    assert read_table(text) == table


def test_a_table_that_cannot_be_read_is_told_and_leaves_the_cards() -> None:
    inventory = WHOLE.inventory(gpu_node(2, losses="{", scores={"1": 5}))
    assert inventory is not None
    assert inventory.warnings == (f"{LOSSES} is ignored: it must be a JSON object of integers",)
    assert inventory.facts.scores == {"1": 5}


@pytest.mark.parametrize(
    ("policy", "count", "tables", "score"),
    [
        ("binpack", 1, True, 1850),
        ("binpack", 6, True, 2000),
        ("spread", 1, True, 2000),
        ("spread", 6, True, 1150),
        ("spread", 7, True, 2000),
        ("binpack", 7, True, 0),
        ("binpack", 1, False, 0),
        ("spread", 1, False, 2000),
        ("Binpack", 6, True, 0),
        ("", 6, True, 0),
        (None, 6, True, 2000),
    ],
)
def test_the_node_score(policy: str | None, count: int, tables: bool, score: float) -> None:
    env = FitEnv([gpu_node(7, losses=LOSS_TABLE, scores=SCORE_TABLE) if tables else gpu_node(7)])
    notes = {} if policy is None else {NODE_POLICY: policy}
    assert placed(env, pod_with_limits(notes=notes, gpu=count)).score == score


@pytest.mark.parametrize(
    ("policy", "tables"),
    [
        ("binpack", {}),
        ("binpack", {"scores": SCORE_TABLE}),
        ("binpack", {"losses": {"2": 0}}),
        ("binpack", {"losses": "{"}),
        ("spread", {}),
        ("spread", {"losses": LOSS_TABLE}),
        ("spread", {"scores": {"2": 900}}),
        ("spread", {"scores": "{"}),
    ],
)
def test_a_node_without_its_table_or_entry_is_the_last_to_be_taken(policy: str, tables: dict[str, object]) -> None:
    """Issues 2566 and 2572: half a table made a node the best of all in one policy."""
    env = FitEnv([gpu_node(6, "bare", **tables), gpu_node(6, "full", losses={"1": 1999}, scores={"1": 1})])
    assert placed(env, pod_with_limits(notes={NODE_POLICY: policy}, gpu=1)).node == "full"


def test_cards_are_counted_once_over_all_containers() -> None:
    """Each container takes its own cards; an init container may use those of an app container."""
    env = FitEnv([gpu_node(6, losses=LOSS_TABLE)])
    found = placed(env, pod("p", one("a", gpu=1), one("b", gpu=2), init=[one("i", gpu=2)]))
    assert cards_of(found, GPU_ALLOCATED) == [
        ["n1-metax-5", "n1-metax-4"],
        ["n1-metax-5"],
        ["n1-metax-4", "n1-metax-3"],
    ]
    assert found.score == 2000 - LOSS_TABLE["3"]
    assert found.debits == {f"limits.{GPU}": 3}


def test_two_containers_with_whole_cards_fit() -> None:
    """HAMi wants the second container to take the first one's card, which is full."""
    found = placed(FitEnv([gpu_node(2)]), pod("p", one("a", gpu=1), one("b", gpu=1)))
    assert cards_of(found, GPU_ALLOCATED) == [["n1-metax-1"], ["n1-metax-0"]]
    refused = FitEnv([gpu_node(2)]).place(pod("p", one("a", gpu=1), one("b", gpu=2)))
    assert refused == {"n1": "1/2 AllocatedCardsInsufficientRequest, 1/2 CardTimeSlicingExhausted"}


def test_uuid_lists_have_no_effect_as_the_ids_are_not_hardware() -> None:
    notes = {"metax-tech.com/use-gpuuuid": "x", "metax-tech.com/nouse-gpuuuid": "n1-metax-0"}
    placed(FitEnv([gpu_node(1)]), pod_with_limits(notes=notes, gpu=1))


def test_broken_cards_are_not_given() -> None:
    """Which of the cards are broken isn't known; as many as are allocatable may be in use at once."""
    env = FitEnv(
        [Node.from_object({"metadata": {"name": "n1"}, "status": {"capacity": {GPU: "4"}, "allocatable": {GPU: "2"}}})]
    )
    assert env.place(pod_with_limits("three", gpu=3)) == {
        "n1": "2/4 AllocatedCardsInsufficientRequest, 2/4 CardNotHealth"
    }
    placed(env, pod_with_limits("a", gpu=1))
    assert env.place(pod_with_limits("two", gpu=2)) == {
        "n1": "1/4 AllocatedCardsInsufficientRequest, 1/4 CardTimeSlicingExhausted, 2/4 CardNotHealth"
    }
    assert isinstance(env.place(pod("xy", one("x", gpu=1), one("y", gpu=1))), dict)
    placed(env, pod_with_limits("b", gpu=1))
    assert env.place(pod_with_limits("c", gpu=1)) == {"n1": "2/4 CardNotHealth, 2/4 CardTimeSlicingExhausted"}


def test_capacity_without_allocatable_is_all_usable() -> None:
    bare = Node.from_object({"metadata": {"name": "n1"}, "status": {"capacity": {GPU: "2"}}})
    placed(FitEnv([bare]), pod_with_limits(gpu=2))
