"""The fewest moves that free what is wanted, beside all sets of moves of small clusters (docs/room.md#moves)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, combinations

import pytest
from builders import card, node, read_pod
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from scheduling.placer_env import NOW, VENDORS

from hami_webhook.cluster.api import JSON
from hami_webhook.devices.model import NodeView
from hami_webhook.devices.pod_fit import NodeFit, PodRequest, fit_pod, read_pod_request
from hami_webhook.evictions import moves as search
from hami_webhook.evictions.moves import MovablePod, NoPlan, Plan, Wanted, plan_moves
from hami_webhook.kube.objects import Node, Pod
from hami_webhook.state.cluster_cache import ClusterCache
from hami_webhook.state.node_snapshot import NodeSnapshot, shares_of, with_reserved
from hami_webhook.time_slices import run_at_once

from .extended import low

SIZE = 8000
"""MiB of each card."""


class Fleet:
    """Nodes n0, n1, … with so many cards each; pods as (node, cards, MiB of each, MiB that it asks for)."""

    def __init__(self, cards: Sequence[int], pods: Sequence[tuple[int, Sequence[int], int]]) -> None:
        state = ClusterCache(VENDORS)
        for number, count in enumerate(cards):
            made = node(f"n{number}", *(card(f"n{number}-{index}", SIZE) for index in range(count)))
            state.set_node(Node.from_object(made), NOW)
        self.movable = []
        for number, (on, held, memory) in enumerate(pods):
            text = "".join(f"n{on}-{index},NVIDIA,{memory},0:" for index in held) + ";"
            made = low(f"p{number}", f"n{on}", text)
            made["spec"]["containers"][0]["resources"] = limits(len(held), memory)
            pod = Pod.from_object(made)
            state.set_pod(pod, NOW)
            others = {f"n{other}" for other in range(len(cards))} - {f"n{on}"}
            charge = {"limits.nvidia.com/gpu": len(held), "limits.nvidia.com/gpumem": memory * len(held)}
            total = memory * len(held)
            self.movable.append(MovablePod(pod, f"n{on}", frozenset(others), requested(pod), total, charge))
        self.nodes = {view.name: NodeSnapshot(view, state.allocations(view.name), {}) for view in state.views()}

    def plan(self, count: int, memory: int, most: int = 60, effort: float = 1.0) -> Plan | NoPlan:
        wanted = Wanted(wanting(count, memory), self.nodes.keys())
        return run_at_once(plan_moves(wanted, self.nodes, self.movable, VENDORS, most=most, effort=effort))

    def moves(self, count: int, memory: int) -> list[tuple[str, str]] | None:
        """The pods that move, with where to."""
        found = self.plan(count, memory)
        return [(each.pod.pod.name, each.to) for each in found.moves] if isinstance(found, Plan) else None


def limits(count: int, memory: int) -> JSON:
    return {"limits": {"nvidia.com/gpu": str(count), "nvidia.com/gpumem": str(memory)}}


def requested(pod: Pod) -> PodRequest:
    found = read_pod_request(pod, VENDORS, "spread")
    assert found is not None
    return found


def wanting(count: int, memory: int) -> PodRequest:
    return requested(read_pod("wanted", gpu=count, mem=memory))


@pytest.mark.parametrize(
    ("why", "cards", "pods", "want", "expected"),
    [
        ("it is free", [1, 1], [(0, [0], 100)], (1, 8000), []),
        ("one small pod is in the way", [1, 1], [(0, [0], 100), (1, [0], 200)], (1, 8000), [("p0", "n1")]),
        ("one large one, not two small", [2, 1], [(0, [0], 3000), (0, [1], 1000), (0, [1], 1000), (1, [0], 100)],
         (1, 8000), [("p3", "n0")]),
        ("fewest, then least memory", [1, 1, 1], [(0, [0], 900), (1, [0], 800), (2, [0], 700)], (1, 8000),
         [("p2", "n0")]),
        ("nobody can take it", [1, 1], [(0, [0], 5000), (1, [0], 4000)], (1, 8000), None),
        ("a part is enough", [1, 1], [(0, [0], 5000), (1, [0], 4000)], (1, 4000), []),
        ("both cards of a node", [2, 2], [(0, [0], 4000), (0, [1], 4000), (1, [0], 4000), (1, [1], 4000)], (2, 8000),
         [("p0", "n1"), ("p1", "n1")]),
        ("more cards than any node has", [2, 2], [], (3, 100), None),
    ],
)  # fmt: skip
def test_who_moves(
    why: str,
    cards: list[int],
    pods: list[tuple[int, list[int], int]],
    want: tuple[int, int],
    expected: list[tuple[str, str]] | None,
) -> None:
    assert Fleet(cards, pods).moves(*want) == expected, why


def test_why_there_is_no_plan() -> None:
    full = Fleet([1, 1], [(0, [0], 5000), (1, [0], 4000)])
    assert full.plan(1, 8000) is NoPlan.NO_PLACE
    assert full.plan(2, 100) is NoPlan.NO_NODE
    assert full.plan(1, 8000, effort=0.0) is NoPlan.TOO_LONG


def test_a_short_search_on_many_nodes_looks_at_those_with_the_least_to_move_first() -> None:
    fleet = Fleet([1] * 60, [(on, [0], 2000 - on) for on in range(60)])
    found = fleet.plan(1, SIZE, effort=0.01)
    assert isinstance(found, Plan)
    assert ([each.pod.node for each in found.moves], found.fewest) == (["n59"], False)
    whole = fleet.plan(1, SIZE)
    assert isinstance(whole, Plan)
    assert ([each.pod.node for each in whole.moves], whole.fewest) == (["n59"], True)


def test_no_plan_has_more_moves_than_may_be() -> None:
    fleet = Fleet([1, 1], [(0, [0], 100), (0, [0], 100), (1, [0], 100), (1, [0], 100), (1, [0], 100)])
    found = fleet.plan(1, 8000, most=2)
    assert isinstance(found, Plan)
    assert len(found.moves) == 2
    assert fleet.plan(1, 8000, most=1) is NoPlan.NO_PLACE


def test_one_move_that_is_enough_is_found_where_to_give_back_in_turn_leaves_two() -> None:
    """p0 is small, and stays first in its turn: then p1 and p2 have to go. Of n1 two have to go in any case."""
    fleet = Fleet([4, 4], [(0, [0, 1], 1000), (0, [2], 4000), (0, [3], 4000), *((1, [card], 600) for card in range(4))])
    assert fleet.moves(2, 7500) == [("p0", "n1")]


def test_nobody_moves_to_a_node_that_is_cleared_or_that_nobody_knows() -> None:
    fleet = Fleet([2, 1], [(0, [0], 100), (0, [1], 200), (1, [0], 7850)])
    fleet.movable = [replace(each, nodes={*each.nodes, "n0", "gone"}) for each in fleet.movable]
    assert fleet.moves(1, 8000) == [("p0", "n1")]


@pytest.mark.parametrize(("count", "found"), [(36, NoPlan.NO_PLACE), (45, NoPlan.TOO_LONG)])
def test_as_many_sets_are_compared_as_the_effort_allows(count: int, found: NoPlan) -> None:
    """With a hundredth 1,000 sets: of 36 pods 666 have one or two, of 45 there are 1,035. A card holds nine of them."""
    turn = {number: index for index, number in enumerate(sorted(range(count), key=str))}
    fleet = Fleet([count // 9, 1], [*((0, [turn[number] // 9], 880) for number in range(count)), (1, [0], 881)])
    fleet.movable = fleet.movable[:count]
    wanted = Wanted(wanting(1, SIZE), {"n0"})
    plan = run_at_once(plan_moves(wanted, fleet.nodes, fleet.movable, VENDORS, most=2, effort=0.01))
    assert plan is found


@pytest.mark.parametrize(("places", "moves"), [(3, [("p0", "n3")]), (2, None)])
def test_as_many_places_are_tried_as_may_be(
    places: int, moves: list[tuple[str, str]] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three nodes the last one has room."""
    monkeypatch.setattr(search, "_PLACES", places)
    fleet = Fleet([1] * 4, [(0, [0], 1000), (1, [0], 7500), (2, [0], 7500), (3, [0], 2000)])
    fleet.movable = fleet.movable[:1]
    assert fleet.moves(1, 8000) == moves


def test_nobody_moves_where_it_would_cost_its_quota_more() -> None:
    fleet = Fleet([1, 1], [(0, [0], 100), (1, [0], 200)])
    assert fleet.moves(1, 8000) == [("p0", "n1")]
    cheap = [MovablePod(e.pod, e.node, e.nodes, e.request, e.memory, {**e.charge, "limits.nvidia.com/gpumem": 99})
             for e in fleet.movable]  # fmt: skip
    fleet.movable = cheap
    assert fleet.plan(1, 8000) is NoPlan.NO_PLACE


def test_pods_made_to_be_hard_to_move_cost_no_more_than_any() -> None:
    """A tenant fills a node with pods of all sizes, of which no set of others can take enough: the search ends."""
    sizes = [10 * number + 1 for number in range(1, 31)]
    many = [(0, [number // 8], size) for number, size in enumerate(sizes)]
    full = [(on, [index], SIZE - 150) for on in (1, 2) for index in range(4)]
    fleet = Fleet([4, 4, 4], [*many, *full])
    found = fleet.plan(4, SIZE)
    assert found is NoPlan.TOO_LONG
    again = fleet.plan(4, SIZE, effort=0.1)
    assert again is NoPlan.TOO_LONG


@st.composite
def fleets(draw: st.DrawFn) -> tuple[Fleet, int, int]:
    """Up to 4 nodes of up to 3 cards, with pods where they fit, at most 3 on a node; and what is wanted."""
    cards = draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    pods: list[tuple[int, Sequence[int], int]] = []
    free = {(on, index): SIZE for on, count in enumerate(cards) for index in range(count)}
    for on, count in enumerate(cards):
        for _ in range(draw(st.integers(1, 3))):
            held = sorted(draw(st.sets(st.integers(0, count - 1), min_size=1, max_size=min(2, count))))
            memory = draw(st.sampled_from([1000, 2000, 3000, 4000, 5000]))
            if all(free[on, index] >= memory for index in held):
                pods.append((on, held, memory))
                for index in held:
                    free[on, index] -= memory
    return Fleet(cards, pods), draw(st.sampled_from([1, 1, 2])), draw(st.sampled_from([SIZE, SIZE, 5000]))


Pods = tuple[MovablePod, ...]


def all_plans(fleet: Fleet, request: PodRequest, below: int) -> Iterator[tuple[str, Pods]]:
    """Every node with each smaller set of pods without which the wanted fits there, and that has places elsewhere."""
    for pods in chain.from_iterable(combinations(fleet.movable, size) for size in range(below)):
        gone = frozenset(each.pod.uid for each in pods)
        for name, snapshot in fleet.nodes.items():
            view = snapshot.without(gone, VENDORS)
            if isinstance(fit_pod(view, request, VENDORS, None), NodeFit):
                views = {each.name: each.without(gone, VENDORS) for each in fleet.nodes.values() if each.name != name}
                if have_places(pods, views):
                    yield name, pods


def have_places(pods: Pods, views: Mapping[str, NodeView]) -> bool:
    """Whether these fit, in any order, on any of the nodes but their own."""
    return not pods or any(
        have_places((*pods[:index], *pods[index + 1 :]), {**views, name: with_reserved(view, shares_of(fit))})
        for index, each in enumerate(pods)
        for name, view in views.items()
        if name != each.node and isinstance(fit := fit_pod(view, each.request, VENDORS, None), NodeFit)
    )


@settings(max_examples=500, deadline=None)
@given(fleets())
def test_no_set_of_moves_is_smaller(case: tuple[Fleet, int, int]) -> None:
    """The first plan among all sets of pods has as many moves, or takes a chain over a node that is cleared itself."""
    fleet, count, memory = case
    found = fleet.plan(count, memory)
    again = fleet.plan(count, memory)
    assert found is again or (isinstance(found, Plan) and isinstance(again, Plan) and found.moves == again.moves)
    fewest = len(found.moves) if isinstance(found, Plan) else 4
    for name, pods in all_plans(fleet, wanting(count, memory), fewest):
        assert any(each.node != name for each in pods), "of one node, with fewer moves"
    if isinstance(found, Plan):
        assert found.fewest
        assert {each.pod.node for each in found.moves} <= {found.node}
        assert found.node not in {each.to for each in found.moves}
