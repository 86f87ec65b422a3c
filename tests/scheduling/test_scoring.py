"""Scores of nodes, the choice among those that fit, its ties and its topology rules, and how it is told."""

from __future__ import annotations

import asyncio
from itertools import pairwise, permutations

import pytest
from builders import bound_pod, card, node, pod

from hami_webhook.cluster.api import JSON
from hami_webhook.devices.model import Allocation
from hami_webhook.devices.pod_fit import NodeFit
from hami_webhook.devices.reasons import Rejection
from hami_webhook.kube.objects import Node
from hami_webhook.scheduling.placer import SchedulingPolicies
from hami_webhook.scheduling.scoring import (
    NodeRank,
    ScoredNode,
    best_first,
    failure_messages,
    grades,
    node_score,
    ranked,
    success_message,
)

from .placer_env import VENDORS, PlacerEnv, request_of, view_of

TOPOLOGY = {"hami.io/gpu-scheduler-policy": "topology-aware"}
NODE_POLICY = "hami.io/node-scheduler-policy"


@pytest.mark.parametrize(
    ("cards", "taken", "score"),
    [
        ([card("a", 8000), card("b", 8000)], "", 0.0),
        ([card("a", 8000), card("b", 8000)], "a,NVIDIA,2000,25:;", 3.0),
        ([card("a", 8000), card("b", 8000)], "a,NVIDIA,6000,75:;", 8.0),
        ([card("a", 8000), card("b", 8000)], "a,NVIDIA,6000,75:;b,NVIDIA,2000,25:;", 11.0),
        ([card("a", 8000, devcore=0)], "a,NVIDIA,6000,75:;", 0.0),
        ([card("a", 8000, count=0)], "a,NVIDIA,6000,75:;", 0.0),
        ([card("a", 0)], "a,NVIDIA,6000,75:;", 0.0),
        ([card("a", 8000)], "elsewhere,NVIDIA,6000,75:;", 0.0),
        ([], "", 0.0),
    ],
)
async def test_a_nodes_score_is_what_is_taken_of_all_its_cards(cards: list[JSON], taken: str, score: float) -> None:
    env = PlacerEnv()
    await env.add(node("n", *cards), bound_pod("p", "n", taken))
    view = view_of(env.state)
    assert node_score(view) == pytest.approx(score)


def chosen(
    *nodes: JSON, wants: JSON, policies: SchedulingPolicies | None = None, taken: dict[str, str] | None = None
) -> str:
    """The node that takes the pod; `taken` is what pods hold already, by node."""

    async def scenario() -> str:
        env = PlacerEnv(policies)
        await env.add(*nodes)
        for name, text in (taken or {}).items():
            await env.add(bound_pod(f"on-{name}", name, text))
        return (await env.placed(wants)).node

    return asyncio.run(scenario())


@pytest.mark.parametrize("policy", ["binpack", "spread"])
@pytest.mark.parametrize("order", list(permutations("abc")))
def test_among_equals_the_lowest_name_wins(policy: str, order: tuple[str, ...]) -> None:
    nodes = [node(name, card(f"card-{name}", 8000)) for name in order]
    assert chosen(*nodes, wants=pod("p", gpu=1, mem=100), policies=SchedulingPolicies(policy)) == "a"


@pytest.mark.parametrize(
    ("own", "default", "name"),
    [
        (None, "binpack", "full"),
        (None, "spread", "idle"),
        (None, "whatever", "full"),
        ("spread", "binpack", "idle"),
        ("binpack", "spread", "full"),
        ("", "spread", "full"),
        ("unknown", "spread", "full"),
    ],
)
def test_the_pods_node_policy_goes_before_the_default(own: str | None, default: str, name: str) -> None:
    wants = pod("p", gpu=1, mem=100, annotations={} if own is None else {NODE_POLICY: own})
    nodes = (node("full", card("x", 8000)), node("idle", card("y", 8000)))
    assert chosen(*nodes, wants=wants, policies=SchedulingPolicies(default), taken={"full": "x,NVIDIA,100,1:;"}) == name


def linked(count: int, score: int, prefix: str) -> tuple[list[JSON], dict[str, dict[str, int]]]:
    uuids = [f"{prefix}{i}" for i in range(count)]
    cards = [card(uuid, 40960, index=i) for i, uuid in enumerate(uuids)]
    return cards, {u: {v: score for v in uuids if v != u} for u in uuids}


def linked_node(name: str, count: int, score: int) -> JSON:
    cards, scores = linked(count, score, name)
    return node(name, *cards, scores=scores)


def four_of(name: str) -> str:
    """Four whole cards of a node."""
    return "".join(f"{name}{i},NVIDIA,40960,100:" for i in range(4)) + ";"


@pytest.mark.parametrize(
    ("nodes", "gpus", "taken", "name"),
    [
        ([("x", 4, 100), ("y", 6, 300)], 2, {}, "x"),
        ([("few", 8, 100), ("many", 8, 300)], 4, {"many": four_of("many")}, "many"),
        ([("big", 8, 300), ("small", 4, 100)], 4, {"big": four_of("big")}, "small"),
        ([("a", 4, 100), ("b", 4, 200)], 2, {}, "b"),
        ([("a", 4, 200), ("b", 4, 100)], 1, {}, "b"),
        ([("a", 4, 100), ("b", 4, 100)], 2, {"b": "b0,NVIDIA,10,1:;"}, "b"),
        ([("b", 4, 100), ("a", 4, 100)], 2, {}, "a"),
        ([("plain", 2, 0), ("linked", 3, 500)], 2, {}, "linked"),
        ([("plain", 4, 0), ("linked", 3, 500)], 4, {}, "plain"),
    ],
    ids=[
        "the group that is left smallest, whatever its links", "an exactly sized free group",
        "the fewest registered cards", "the best links", "for one card the least connected",
        "the score by node policy", "the name", "a fully linked set", "a node without links stays feasible",
    ],
)  # fmt: skip
def test_topology_aware_pods_rank_nodes_by_these_rules(
    nodes: list[tuple[str, int, int]], gpus: int, taken: dict[str, str], name: str
) -> None:
    wants = pod("p", gpu=gpus, mem=1024, annotations=TOPOLOGY)
    assert chosen(*(linked_node(*each) for each in nodes), wants=wants, taken=taken) == name


@pytest.mark.parametrize(("policy", "name"), [("binpack", "y"), ("spread", "x"), ("anything", "y")])
def test_the_pods_own_node_policy_goes_before_topology(policy: str, name: str) -> None:
    nodes = (linked_node("x", 4, 100), linked_node("y", 6, 300))
    wants = pod("p", gpu=2, mem=1024, annotations={**TOPOLOGY, NODE_POLICY: policy})
    assert chosen(*nodes, wants=wants, taken={"y": "y0,NVIDIA,10,1:;"}) == name


def test_topology_breaks_the_ties_of_the_pods_own_node_policy() -> None:
    nodes = (linked_node("a", 6, 300), linked_node("b", 4, 100))
    assert chosen(*nodes, wants=pod("p", gpu=2, mem=1024, annotations={**TOPOLOGY, NODE_POLICY: "spread"})) == "b"
    assert chosen(*nodes, wants=pod("q", gpu=2, mem=1024)) == "a", "without topology-aware the name decides"


def test_the_default_card_policy_may_be_topology_aware_too() -> None:
    nodes = (linked_node("a", 6, 300), linked_node("b", 4, 100))
    assert (
        chosen(*nodes, wants=pod("p", gpu=2, mem=1024), policies=SchedulingPolicies(card="mutex, topology-aware"))
        == "b"
    )


def scored(name: str, score: float, candidates: int = 0) -> ScoredNode:
    env = PlacerEnv()

    env.state.set_node(Node.from_object(node(name, card("x", 8000))), 0)
    view = view_of(env.state, name)
    return ScoredNode(NodeFit(name, [{"NVIDIA": Allocation("NVIDIA", (), candidates)}]), view, score)


@pytest.mark.parametrize(
    ("scores", "policy", "order"),
    [
        ({"a": 1.0, "b": 2.0, "c": 3.0}, "binpack", "cba"),
        ({"a": 3.0, "b": 2.0, "c": 1.0}, "spread", "cba"),
        ({"b": 1.0, "a": 1.0 + 9e-7}, "spread", "ab"),
        ({"b": 1.0000004, "a": 1.0000006}, "spread", "ab"),
        ({"b": 1.0000006, "a": 1.0000004}, "binpack", "ab"),
        ({"b": 1.0, "a": 1.0 + 2e-6}, "spread", "ba"),
        ({"c": 1.0, "b": 1.0 + 6e-7, "a": 1.0 + 12e-7}, "spread", "bca"),
    ],
)
def test_scores_that_differ_by_less_than_a_millionth_are_equal(
    scores: dict[str, float], policy: str, order: str
) -> None:
    ask = request_of(pod("p", gpu=1), "spread")
    fits = [scored(name, score) for name, score in scores.items()]
    assert "".join(found.fit.node for found in ranked(fits, ask, VENDORS, policy)) == order


def test_success_names_the_nodes_in_sort_order_with_the_chosen_one_last() -> None:
    fits = [NodeRank("b", 3.456), NodeRank("a", 2), NodeRank("c", 0)]
    assert success_message(fits[0], fits, 5) == ("find fit node(b), 2 nodes not fit, 3 nodes fit(c:0.00,a:2.00,b:3.46)")
    assert success_message(fits[1], fits[1:2], 2) == "find fit node(a), 1 nodes not fit, 1 nodes fit(a:2.00)"


@pytest.mark.parametrize("length", [1, 63, 253])
def test_success_names_the_best_nodes_where_an_event_has_no_room_for_all(length: int) -> None:
    fits = [NodeRank(f"{number:03}".ljust(length, "n"), 999 - number) for number in range(1000)]
    message = success_message(fits[1], fits, 1000)
    assert len(message) <= 1024
    named = message.split(" nodes fit(")[1].removesuffix(")").split(",")
    assert named[0] == "..."
    numbers = [int(each[:3]) for each in named[1:]]
    assert numbers == [*range(len(numbers) - 1, 1, -1), 0, 1]


@pytest.mark.parametrize(
    ("failed", "message"),
    [
        ({}, []),
        ({"n": Rejection(bare="node unregistered")}, []),
        (
            {"n2": Rejection(bare="NodeInsufficientDevice"), "n1": Rejection(bare="NodeInsufficientDevice")},
            ["2 nodes NodeInsufficientDevice(n1,n2)"],
        ),
        (
            {"b": Rejection({"Y": 1, "X": 2}, 3), "a": Rejection({"Y": 3}, 3), "c": Rejection(bare="some free text")},
            ["1 nodes X(b)", "2 nodes Y(a,b)"],
        ),
    ],
    ids=["no nodes", "unregistered", "bare labels", "several labels and a free text"],
)
def test_failures_are_told_by_label_and_then_in_sum(failed: dict[str, Rejection], message: list[str]) -> None:
    assert failure_messages(failed, 7) == [*message, "no available node, 7 nodes do not meet"]


@pytest.mark.parametrize("policy", ["spread", "binpack"])
def test_of_nodes_as_good_a_busy_one_comes_last_and_a_better_one_first_though_it_is_busy(policy: str) -> None:
    scores = {"a": 1.0, "b": 1.0, "c": 2.0} if policy == "spread" else {"a": 2.0, "b": 2.0, "c": 1.0}
    fits = [NodeRank(name, score) for name, score in scores.items()]
    ask = request_of(pod("p", gpu=1), policy)
    for busy, order in ((), "abc"), ("a", "bac"), ("ab", "abc"), ("c", "abc"):
        assert "".join(each.node for each in best_first(fits, ask, policy, set(busy))) == order
        graded = grades(fits, ask, policy, 10, set(busy))
        assert [graded[first] >= graded[second] for first, second in pairwise(order)] == [True, True]
        assert (graded["a"] == graded["b"]) is (busy != "a")


@pytest.mark.parametrize("policy", ["spread", "binpack"])
def test_a_node_whose_lock_was_given_up_comes_after_worse_ones(policy: str) -> None:
    scores = {"a": 1.0, "b": 2.0, "c": 3.0} if policy == "spread" else {"a": 3.0, "b": 2.0, "c": 1.0}
    fits = [NodeRank(name, score) for name, score in scores.items()]
    ask = request_of(pod("p", gpu=1), policy)
    assert "".join(each.node for each in best_first(fits, ask, policy, {"b"}, {"a"})) == "bca"
    assert grades(fits, ask, policy, 10, {"b"}, {"a"}) == {"b": 10, "c": 5, "a": 0}


@pytest.mark.parametrize("policy", ["spread", "binpack"])
@pytest.mark.parametrize("contended", [set(), {"c"}, {"a", "b", "c"}])
def test_the_node_whose_lock_the_pod_has_comes_first(policy: str, contended: set[str]) -> None:
    scores = {"a": 1.0, "b": 2.0, "c": 3.0} if policy == "spread" else {"a": 3.0, "b": 2.0, "c": 1.0}
    fits = [NodeRank(name, score) for name, score in scores.items()]
    ask = request_of(pod("p", gpu=1), policy)
    assert "".join(each.node for each in best_first(fits, ask, policy, {"c"}, contended, ["c"])) == "cab"
    assert grades(fits, ask, policy, 10, {"c"}, contended, ["c"]) == {"c": 10, "a": 5, "b": 0}
