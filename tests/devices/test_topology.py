"""Topology-aware choice: the searches against brute force, and how Fit uses them (docs/spec/nvidia.md#7.6)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tables import in_one_test

from hami_webhook.devices.model import Usage
from hami_webhook.devices.topology import NvLinks, Scores, best_combination, largest_groups_first, pair_sum
from hami_webhook.kube.objects import Node, Pod

from .cards import card, chosen, container, first_allocation, mig_card, node, placed, pod, record, room, used, view

BIND = {"nvidia.com/numa-bind": "true"}


def brute_force(scores: Scores, count: int, admits: Callable[[Sequence[int]], bool] = lambda chosen: True) -> list[int]:
    """The first enumerated of the sets with the largest sum."""
    best, best_value = [], None
    for chosen_set in combinations(range(len(scores)), count):
        value = sum(scores[x][y] for x, y in combinations(chosen_set, 2))
        if admits(chosen_set) and (best_value is None or value > best_value):
            best, best_value = list(chosen_set), value
    return best if count else []


@st.composite
def tables(draw: st.DrawFn, most: int = 10) -> list[list[int]]:
    cards = draw(st.integers(1, most))
    values = draw(
        st.sampled_from(
            [
                st.integers(-300, 300),
                st.sampled_from([0, 0, 0, 100]),
                st.sampled_from([10, 20, 50, 110, 210]),
                st.integers(-(10**9), 10**9),
                st.just(7),
            ]
        )
    )
    rows = st.lists(values, min_size=cards, max_size=cards)
    return draw(st.lists(rows, min_size=cards, max_size=cards))


@given(tables())
def test_the_best_combination_is_that_of_brute_force_for_every_count(scores: Scores) -> None:
    for count in range(len(scores) + 2):
        assert best_combination(scores, count) == brute_force(scores, count)


@st.composite
def linked_tables(draw: st.DrawFn, most: int = 9) -> list[list[int]]:
    """Symmetric scores of PCIe and NVLink."""
    cards = draw(st.integers(1, most))
    values = draw(st.sampled_from([(10, 110), (0, 100), (10, 20, 50, 110, 210), (-5, 99, 100), (7,)]))
    scores = [[0] * cards for _ in range(cards)]
    for x, y in combinations(range(cards), 2):
        scores[x][y] = scores[y][x] = draw(st.sampled_from(values))
    return scores


def linked_pairs(scores: Scores, cards: Iterable[int]) -> int:
    return sum(scores[x][y] >= 100 for x, y in combinations(cards, 2))


def group_sizes(scores: Scores, cards: Iterable[int]) -> list[int]:
    """The sizes of the link groups among these cards, largest first."""
    groups = [{card} for card in cards]
    for x, y in combinations(cards, 2):
        if scores[x][y] >= 100:
            joined = [group for group in groups if x in group or y in group]
            groups = [group for group in groups if group not in joined] + [set().union(*joined)]
    return sorted(map(len, groups), reverse=True)


@given(linked_tables())
def test_among_equal_sums_the_set_counts_that_leaves_the_most_linked_pairs(scores: Scores) -> None:
    cards = range(len(scores))
    for count in range(2, len(scores) + 1):

        def value(chosen_set: Sequence[int]) -> tuple[int, object]:
            left = [card for card in cards if card not in chosen_set]
            return pair_sum(scores, chosen_set), linked_pairs(scores, left)

        best = max(combinations(cards, count), key=value)
        assert best_combination(NvLinks(scores).weights(count, only_linked=False), count) == list(best)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.integers(1, 6), st.randoms(use_true_random=True))
def test_where_the_groups_are_fully_linked_the_largest_stay_whole(
    sizes: list[int], count: int, chance: random.Random
) -> None:
    groups = [group for group, size in enumerate(sizes) for _ in range(size)]
    chance.shuffle(groups)
    scores = [
        [0 if x == y else 210 if groups[x] == groups[y] else 10 for y in range(len(groups))] for x in range(len(groups))
    ]
    cards = range(len(groups))
    if count > len(groups):
        return

    def value(chosen_set: Sequence[int]) -> tuple[int, object]:
        return pair_sum(scores, chosen_set), group_sizes(scores, [card for card in cards if card not in chosen_set])

    links = NvLinks(scores)
    found = [links.single()] if count == 1 else best_combination(links.weights(count, only_linked=False), count)
    assert value(found) == max(map(value, combinations(cards, count)))


@given(linked_tables())
def test_fully_linked_sets_come_first_where_they_are_required(scores: Scores) -> None:
    links = NvLinks(scores)
    for count in range(2, len(scores) + 1):
        found = best_combination(links.weights(count, only_linked=True), count)
        linked = [each for each in combinations(range(len(scores)), count) if links.fully_linked(each)]
        assert links.fully_linked(found) is bool(linked)
        if linked:
            assert pair_sum(scores, found) == max(pair_sum(scores, each) for each in linked)


@given(linked_tables())
def test_the_single_card_is_linked_to_the_fewest_then_the_least_connected(scores: Scores) -> None:
    cards = range(len(scores))
    degrees = [sum(scores[x][y] >= 100 for y in cards if y != x) for x in cards]
    assert NvLinks(scores).single() == min(cards, key=lambda x: (degrees[x], sum(scores[x]), x))


@given(linked_tables(), st.data())
def test_what_is_left_are_the_other_cards_of_the_groups_that_are_broken(scores: Scores, data: st.DataObject) -> None:
    positions = data.draw(st.lists(st.sampled_from(range(len(scores))), unique=True, min_size=1))
    links = NvLinks(scores)
    assert links.fully_linked(positions) is all(scores[x][y] >= 100 for x, y in combinations(positions, 2))
    others = [card for card in range(len(scores)) if card not in positions]
    untouched = [card for card in others if not any(reachable(scores, card, chosen_card) for chosen_card in positions)]
    assert links.left_in_groups(positions) == len(others) - len(untouched)


@given(linked_tables())
def test_groups_are_the_cards_that_reach_each_other(scores: Scores) -> None:
    cards = range(len(scores))
    expected = {tuple(y for y in cards if reachable(scores, x, y)) for x in cards}
    assert NvLinks(scores).groups() == sorted([*group] for group in expected if len(group) > 1)


def reachable(scores: Scores, start: int, end: int) -> bool:
    seen, border = {start}, [start]
    while border:
        x = border.pop()
        near = {y for y in range(len(scores)) if y != x and scores[x][y] >= 100} - seen
        seen |= near
        border += near
    return end in seen


def test_a_pair_is_linked_only_if_both_directions_say_so() -> None:
    assert NvLinks([[0, 100], [100, 0]]).fully_linked([0, 1])
    assert not NvLinks([[0, 100], [99, 0]]).fully_linked([0, 1])


def test_a_pair_sum_counts_each_pair_once_in_the_order_of_the_cards() -> None:
    assert pair_sum([[9, 1, 2], [50, 9, 4], [60, 70, 9]], [0, 1, 2]) == 7


@given(st.integers(11, 20), st.integers(1, 3), st.randoms(use_true_random=True), st.booleans())
def test_more_cards_than_fit_into_one_integer_are_searched_exactly_too(
    cards: int, count: int, chance: random.Random, complement: bool
) -> None:
    values = chance.choice([(0, 1), (10, 20, 110), range(-50, 50)])
    scores = [[chance.choice(values) for _ in range(cards)] for _ in range(cards)]
    wanted = count if complement or cards > 17 else cards - count
    assert best_combination(scores, wanted) == brute_force(scores, wanted)


# in Fit

RING = {("a", "b"): 300, ("b", "c"): 200, ("c", "d"): 100, ("a", "d"): 50}
FOUR = node(*map(card, "abcd"), scores=RING)


UNEQUAL = node(
    *(card(uuid, devmem=memory) for uuid, memory in (("a", 12000), ("b", 12000), ("c", 4000), ("d", 4000))),
    scores={("a", "b"): 900, ("a", "c"): 60, ("c", "d"): 10},
)


def topology(count: int = 2, policy: str = "topology-aware", **more: Any) -> Pod:
    notes = more.pop("annotations", None)
    return pod(container(gpu=count, mem=more.pop("mem", 1000), **more), policy=policy, annotations=notes)


@pytest.mark.parametrize(
    ("count", "usage", "answer", "candidates", "quality"),
    [
        (1, {}, "d", 4, -150),
        (2, {}, "b a", 4, 300),
        (3, {}, "c b a", 4, 500),
        (4, {}, "d c b a", 4, 650),
        (2, {"a": used(1, 40960)}, "c b", 3, 200),
        (2, {"a": used(1, 40960), "c": used(1, 40960)}, "d b", 2, 0),
        # only links among the fitting cards count: b and d have none left
        (1, {"a": used(1, 40960), "c": used(1, 40960)}, "d", 2, 0),
        (1, {"d": used(1, 40960)}, "c", 3, -200),
    ],
)
def test_the_choice_is_among_the_fitting_cards(
    count: int, usage: dict[str, Usage], answer: str, candidates: int, quality: int
) -> None:
    allocation = first_allocation(placed(topology(count), view(FOUR, usage)))
    assert " ".join(d.uuid for d in allocation.devices) == answer
    assert (allocation.candidates, allocation.link_quality) == (candidates, quality)


def test_the_score_from_the_earlier_card_to_the_later_one_counts() -> None:
    scores = '[{"uuid":"a","score":{"b":900}},{"uuid":"c","score":{"b":500}},{"uuid":"b","score":{"c":-9,"a":1}}]'
    # C is c, b, a: c to b is 500, b to a is 1, c to a is missing
    assert chosen(topology(2), view(node(*map(card, "abc"), scores=scores))) == "c b"


def groups_of(*sizes: int, score: int = 210) -> Node:
    """A node whose cards are linked in groups of these sizes."""
    names = [[f"{chr(ord('a') + group)}{i}" for i in range(size)] for group, size in enumerate(sizes)]
    pairs = dict.fromkeys(combinations([uuid for group in names for uuid in group], 2), 10)
    pairs |= {pair: score for group in names for pair in combinations(group, 2)}
    return node(*(card(uuid) for group in names for uuid in group), scores=pairs)


# with nvidia.com/require-nvlink

REQUIRED = {"nvidia.com/require-nvlink": "true"}


@in_one_test("policy", ["topology-aware", "binpack"])
@in_one_test(
    ("sizes", "count", "answer"),
    [
        ((4, 2), 4, "a3 a2 a1 a0"),
        ((4, 2), 5, "6/6 NVLinkNotFit"),
        ((2, 2), 3, "4/4 NVLinkNotFit"),
        ((1, 1), 2, "2/2 NVLinkNotFit"),
        ((1, 1), 1, "b0"),
    ],
)
def test_required_links_refuse_a_node_without_a_fully_linked_set(
    policy: str, sizes: tuple[int, ...], count: int, answer: str
) -> None:
    assert chosen(topology(count, policy, annotations=REQUIRED), view(groups_of(*sizes))) == answer


def test_a_fully_linked_set_is_taken_though_another_has_the_better_sum() -> None:
    pairs = {("a", "b"): 900, ("b", "c"): 900, ("c", "d"): 100, ("b", "d"): 100}
    on = view(node(*map(card, "abcd"), scores=pairs))
    assert set(chosen(topology(3), on).split()) == {"a", "b", "c"}
    assert set(chosen(topology(3, annotations=REQUIRED), on).split()) == {"b", "c", "d"}


def test_no_sum_of_scores_outweighs_one_missing_link() -> None:
    weak, strong = [f"a{i}" for i in range(6)], [f"b{i}" for i in range(6)]
    pairs = dict.fromkeys(combinations(weak, 2), 100) | dict.fromkeys(combinations(strong, 2), 9000)
    del pairs["b0", "b1"]
    on = view(node(*map(card, (*weak, *strong)), scores=pairs))
    assert set(chosen(topology(6), on).split()) == {*strong}
    assert set(chosen(topology(6, annotations=REQUIRED), on).split()) == {*weak}


def test_only_cards_that_fit_can_be_linked() -> None:
    on = view(groups_of(4), {"a0": used(1, 40960)})
    assert record(topology(4, annotations=REQUIRED), on) == (
        "1/4 CardInsufficientMemory, 3/4 AllocatedCardsInsufficientRequest"
    )
    split = view(groups_of(4, 4), {"a0": used(1, 40960), "b0": used(1, 40960)})
    assert record(topology(4, annotations=REQUIRED), split) == "6/8 NVLinkNotFit"


def test_links_are_required_inside_the_numa_node_that_a_pod_is_bound_to() -> None:
    pairs = {("a", "c"): 100, ("b", "d"): 100}
    on = view(node(card("a"), card("b"), card("c", numa=1), card("d", numa=1), scores=pairs))
    assert chosen(topology(2, annotations=REQUIRED), on) == "d b"
    assert record(topology(2, annotations={**REQUIRED, **BIND}), on) == "2/4 NVLinkNotFit"


def test_where_only_the_quota_forbids_the_linked_cards_it_is_named() -> None:
    on = view(UNEQUAL)
    incoming = pod(container(gpu=2, percent=100), policy="topology-aware", annotations=REQUIRED)
    assert set(chosen(incoming, on, room(incoming, memory=24000)).split()) == {"a", "b"}
    assert record(incoming, on, room(incoming, memory=23999)) == "4/4 ResourceQuotaNotFit"


@pytest.mark.parametrize("text", ["yes", "", "tru", "2"])
def test_a_value_that_is_no_boolean_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"invalid nvidia.com/require-nvlink annotation .*: must be true or false"):
        record(topology(2, annotations={"nvidia.com/require-nvlink": text}), view(FOUR))


# with numa-bind

SIX = node(
    *(card(uuid) for uuid in "abc"),
    *(card(uuid, numa=1) for uuid in "def"),
    scores={("a", "b"): 100, ("a", "c"): 50, ("d", "e"): 90, ("c", "d"): 999, ("b", "f"): 999},
)


@pytest.mark.parametrize(
    ("count", "usage", "answer", "candidates"),
    [
        (2, {}, "b a", 3),
        (2, {"a": used(1, 40960)}, "e d", 3),
        (2, {"a": used(1, 40960), "b": used(1, 40960)}, "e d", 3),
        (2, {"e": used(1, 40960), "d": used(1, 40960)}, "b a", 3),
        (3, {"d": used(1, 40960)}, "c b a", 3),
        (3, {}, "c b a", 3),
        # one card is not bound at all: e has the fewest links to all others
        (1, {}, "e", 6),
    ],
)
def test_only_sets_inside_one_numa_node_compete(
    count: int, usage: dict[str, Usage], answer: str, candidates: int
) -> None:
    allocation = first_allocation(placed(topology(count, annotations=BIND), view(SIX, usage)))
    assert " ".join(d.uuid for d in allocation.devices) == answer
    assert allocation.candidates == candidates


@pytest.mark.parametrize("full", ["ab", "de"])
def test_where_no_numa_node_is_large_enough_the_largest_is_what_was_collected(full: str) -> None:
    usage = {uuid: used(1, 40960) for uuid in full}
    assert record(topology(4, annotations=BIND), view(SIX, usage)) == (
        "1/6 NumaNotFit, 2/6 CardInsufficientMemory, 3/6 AllocatedCardsInsufficientRequest"
    )


def test_numa_first_with_topology_stays_inside_a_numa_node_if_one_is_large_enough() -> None:
    assert chosen(topology(2, "numa-first,topology-aware"), view(SIX)) == "b a"
    assert set(chosen(topology(4, "numa-first,topology-aware"), view(SIX)).split()) >= {"c", "d"}


# with a quota


def test_sets_that_break_the_quota_are_skipped() -> None:
    on = view(UNEQUAL)
    incoming = pod(container(gpu=2, percent=100), policy="topology-aware")
    assert set(chosen(incoming, on, room(incoming, memory=24000)).split()) == {"a", "b"}
    assert set(chosen(incoming, on, room(incoming, memory=23999)).split()) == {"a", "c"}
    assert set(chosen(incoming, on, room(incoming, memory=8000)).split()) == {"c", "d"}
    assert record(incoming, on, room(incoming, memory=7999)) == "4/4 ResourceQuotaNotFit"


def test_a_numa_node_whose_sets_break_the_quota_leaves_the_choice_to_another() -> None:
    cards = [card("a", devmem=9000), card("b", devmem=9000), *(card(uuid, devmem=4000, numa=1) for uuid in "cd")]
    on = view(node(*cards, scores={("a", "b"): 900}))
    incoming = pod(container(gpu=2, percent=100), policy="topology-aware", annotations=BIND)
    assert set(chosen(incoming, on).split()) == {"a", "b"}
    assert set(chosen(incoming, on, room(incoming, memory=10000)).split()) == {"c", "d"}


# with MIG


def test_different_cards_are_preferred_and_further_instances_taken_only_where_needed() -> None:
    on = view(node(mig_card("m"), mig_card("n"), scores={("m", "n"): 100}))
    assert chosen(topology(2, mem=8000), on) == "n m"
    allocation = first_allocation(placed(topology(4, mem=8000), on))
    assert " ".join(d.uuid for d in allocation.devices) == "n m n n"
    assert allocation.candidates == 2
    assert [d.share.mark.placement.start for d in allocation.devices] == [0, 0, 2, 4]
    assert chosen(topology(6, mem=8000), on) == "n m n n m m"
    assert record(topology(7, mem=8000), on) == ("2/2 CardMigTopologyInfeasible, 6/2 AllocatedCardsInsufficientRequest")


def test_further_instances_stay_inside_their_numa_node_and_the_quota() -> None:
    on = view(node(mig_card("m"), mig_card("n", numa=1)))
    incoming = topology(3, mem=8000, annotations=BIND)
    assert chosen(incoming, on) == "n n n"
    assert chosen(incoming, on, room(incoming, memory=30720)) == "n n n"
    assert record(incoming, on, room(incoming, memory=30719)) == (
        "2/2 AllocatedCardsInsufficientRequest, 2/2 NumaNotFit, 2/2 ResourceQuotaNotFit"
    )


def test_the_quota_is_asked_of_all_instances_together_even_if_another_numa_node_was_looked_at_since() -> None:
    on = view(node(mig_card("m"), mig_card("n", numa=1)))
    incoming = topology(2, mem=8000, annotations=BIND)
    assert record(incoming, on, room(incoming, memory=20479)) == (
        "1/2 AllocatedCardsInsufficientRequest, 1/2 NumaNotFit, 2/2 ResourceQuotaNotFit"
    )


def test_no_further_instances_compete_where_a_numa_node_has_enough_cards() -> None:
    on = view(node(card("a"), card("b"), mig_card("m", numa=1)))
    assert chosen(topology(2, mem=8000, annotations=BIND), on) == "b a"
    assert chosen(topology(3, mem=8000, annotations=BIND), on) == "m m m"


@given(st.lists(st.sampled_from("abcd"), max_size=12), st.integers(0, 12))
def test_the_largest_groups_come_first_and_stay_in_order(keys: list[str], count: int) -> None:
    """Against the reading: take the largest group left, the one met first of equals, until there are enough."""
    left, expected = dict(enumerate(keys)), []
    while left:
        met = list(dict.fromkeys(left.values()))
        largest = max(met, key=list(left.values()).count)
        expected += [position for position, key in left.items() if key == largest]
        left = {position: key for position, key in left.items() if key != largest}
    assert largest_groups_first(keys, count) == expected[:count]
