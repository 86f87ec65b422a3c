"""Pods that have a place, had one, or don't need any."""

from __future__ import annotations

from typing import Any

import pytest
from builders import bound_pod, card, container, node, pod, quota
from scheduling.placer_env import ALLOCATED, CORES, GPU, MEM, NOW

from hami_webhook.cluster.api import JSON
from hami_webhook.explain.report import Taken

from .contexts import explained

PLACED = {"hami.io/vgpu-node": "n", "hami.io/vgpu-time": str(int(NOW) - 100), ALLOCATED: ";G,NVIDIA,3000,30:;"}


def placed(**spec: Any) -> JSON:
    return pod("p", gpu=1, mem=3000, cores=30, init=[container()], annotations=PLACED, **spec)


def test_a_bound_pod_says_where_it_is_what_it_has_and_what_it_costs() -> None:
    other = bound_pod("r", "n", "G,NVIDIA,1000,10:;")
    found = explained(
        placed(nodeName="n"), node("n", card("G", 8000), card("H", 8000)), other, quota("q", mem=9000, used={})
    )
    assert found.verdict == "is placed on n since 2025-12-31T23:58:20Z and bound"
    assert (found.nodes, found.changes, found.notes) == ((), (), [])
    place = found.place
    assert place is not None
    assert (place.node, place.bound, place.time, place.lapses) == ("n", True, NOW - 100, None)
    assert place.devices == [Taken("main", "NVIDIA", "G", 3000, 30)]
    assert place.debits == {GPU: 1, MEM: 3000, CORES: 30}
    (seen,) = place.cards
    assert (seen.used_slots, seen.used_memory, seen.used_cores) == (2, 4000, 40)
    assert seen.pods == ["default/p", "default/r"]
    (account,) = found.quotas
    assert (account.key, account.hard, account.charged, account.others, account.costs) == (MEM, 9000, 3000, 1000, 3000)


def test_a_placement_that_waits_for_its_bind_says_when_it_lapses() -> None:
    found = explained(placed(), node("n", card("G", 8000)))
    assert found.place is not None
    assert (found.place.bound, found.place.lapses) == (False, NOW + 200)
    assert found.notes == ["if it isn't bound by 2026-01-01T00:03:20Z, its placement expires, and it is placed again"]


def test_a_placement_that_lapsed_counts_for_nothing() -> None:
    raw = placed()
    raw["metadata"]["annotations"] = {**PLACED, "hami.io/vgpu-time": str(int(NOW) - 300)}
    found = explained(raw, node("n", card("G", 8000)))
    assert found.place is None
    assert found.verdict == "isn't placed, but fits on n"
    assert found.notes[0] == "it was placed on n, but never bound, and the placement has expired"


@pytest.mark.parametrize(
    ("nodes", "note"),
    [
        ([], "node n isn't there (any more)"),
        ([node("n", card("H", 8000))], "G isn't registered on n (any more)"),
    ],
    ids=["no node", "no card"],
)
def test_a_place_that_is_gone_is_told(nodes: list[JSON], note: str) -> None:
    assert explained(placed(nodeName="n"), *nodes).notes == [note]


def test_cards_of_one_node_on_another_are_told() -> None:
    found = explained(placed(nodeName="m"), node("n", card("G", 8000)), node("m", card("H", 8000)))
    assert found.notes[0] == "its cards were chosen on n, but it is bound to m"


REST = [
    ("no device", pod("p"),
     "isn't placed and asks for no card of an enabled vendor: HAMi has no say in it"),
    ("a foreign bind", pod("p", gpu=1, nodeName="n"), "is bound to n and has no cards"),
    ("an end", {**pod("p", gpu=1), "status": {"phase": "Succeeded"}},
     "is over (Succeeded): it holds no cards and costs no quota"),
    ("a bad amount", pod("p", gpu="two"),
     "fits nowhere: invalid nvidia.com/gpu value two in container main: must be an integer between 0 and 2147483647"),
    ("bad weights", pod("p", gpu=1, annotations={"hami.io/device-scoring-weights": "x"}),
     'can\'t be evaluated: calcScore failed invalid hami.io/device-scoring-weights annotation "x": '
     "expected slot, core, and memory weights for pod p"),
]  # fmt: skip


@pytest.mark.parametrize(("raw", "verdict"), [row[1:] for row in REST], ids=[row[0] for row in REST])
def test_what_needs_no_node_is_said_in_a_sentence(raw: JSON, verdict: str) -> None:
    found = explained(raw, node("n", card("G", 8000)))
    assert found.verdict == verdict
    assert found.place is None


def test_a_cluster_without_nodes_is_said_to_be_one() -> None:
    assert explained(pod("p", gpu=1)).verdict == "fits nowhere: no node is known"
