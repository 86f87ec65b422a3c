"""Which NPUs are taken of those that would do, and which node (docs/spec/ascend.md#7.4, #8)."""

from __future__ import annotations

from itertools import combinations

import pytest
from builders import container
from hypothesis import given
from hypothesis import strategies as st

from hami_webhook.scheduling.placer import SchedulingPolicies

from .cards import Room
from .fit_env import CHART, FitEnv, pod
from .npus import B3, POLICY, UNBOUND, C, P, chosen, node, npus, sick, with_limits

FEW = "AllocatedCardsInsufficientRequest"


# 7.4: HCCS groups


@pytest.mark.parametrize(
    ("groups", "bad", "count", "expected"),
    [
        ([0, 0, 0, 0, 1, 1, 1, 1], [], 2, [7, 6]),  # equal groups: the one met first
        ([0, 0, 0, 0, 1, 1, 1, 1], [7], 2, [3, 2]),
        ([0, 0, 0, 0, 1, 1, 1, 1], [7], 1, [6]),
        ([0, 0, 0, 0, 1, 1, 1, 1], [1, 2, 3, 7], 4, [6, 5, 4, 0]),  # just as many as asked
        ([0, 0, 0, 0, 1, 1, 1, 1], [0, 7, 6], 3, [3, 2, 1]),
        ([0, 0, 0, 0, 1, 1, 1, 1], [0, 7, 6], 5, [5, 4, 3, 2, 1]),
        ([0, 0, 0, 0, 1, 1], [], 2, [3, 2]),  # a free pair would do, but the four are larger
        ([0, 1, 0, 1, 0, 2], [], 4, [4, 2, 0, 3]),
        ([0, 0, None, 1, 1, 1], [], 2, [5, 4]),  # not every NPU names its group
        (None, [], 3, [5, 4, 3]),
    ],
)
def test_the_largest_group_goes_first(groups, bad, count, expected):
    cards = npus(len(groups or "123456"), groups=groups)
    assert chosen(sick(cards, *bad), count=count) == expected


def test_groups_of_a_310p_mean_nothing():
    assert chosen(npus(4, P, groups=[0, 0, 0, 1]), word=P, count=2) == [3, 2]


def test_too_few_are_told_with_how_many_passed():
    assert chosen(sick(npus(2, groups=[0, 1]), 0), count=2) == (
        "1/2 AllocatedCardsInsufficientRequest, 1/2 CardNotHealth"
    )
    assert chosen(sick(npus(2), 0, 1), count=2) == "2/2 CardNotHealth"


@st.composite
def nodes(draw):
    """The NPUs of a node as (healthy, group), and a count that the healthy ones just about have."""
    cards = draw(st.lists(st.tuples(st.sampled_from([True, True, False]), st.integers(0, 2)), min_size=4, max_size=8))
    healthy = sum(card[0] for card in cards)
    return cards, draw(st.integers(max(1, healthy - 3), healthy + 1))


@given(nodes(), st.sampled_from([B3, B3, P]))
def test_the_choice_by_group_is_the_rule_read_word_by_word(of, word):
    cards, count = of
    bad = [position for position, (healthy, _) in enumerate(cards) if not healthy]
    listed = sick(npus(len(cards), word, groups=[group for _, group in cards]), *bad)
    collected = [position for position in reversed(range(len(cards))) if position not in bad]
    result = chosen(listed, word=word, count=count)
    if len(collected) < count:
        assert isinstance(result, str)
        return
    if word == P or count == 1 or len(collected) == count:
        assert result == collected[:count]
        return
    wanted, left = [], list(collected)
    while left:
        sizes = {group: sum(cards[c][1] == group for c in left) for group in (0, 1, 2)}
        largest = next(cards[c][1] for c in left if sizes[cards[c][1]] == max(sizes.values()))
        wanted += [c for c in left if cards[c][1] == largest]
        left = [c for c in left if cards[c][1] != largest]
    assert result == wanted[:count]


# 7.4: modules


@pytest.mark.parametrize(
    ("bad", "count", "bound", "unbound"),
    [
        ([], 2, [7, 6], [7, 6]),
        ([7], 2, [5, 4], [5, 4]),
        ([], 1, [7], [7]),
        ([], 3, f"2/3 {FEW}", [7, 6, 5]),
        ([7], 3, f"1/3 CardNotHealth, 2/3 {FEW}", [5, 4, 6]),
        ([0], 3, f"1/3 CardNotHealth, 2/3 {FEW}", [7, 6, 1]),  # rather than break a module
        ([2, 5], 5, f"2/5 CardNotHealth, 4/5 {FEW}", [7, 6, 1, 0, 4]),
        ([2, 5], 4, [7, 6, 1, 0], [7, 6, 1, 0]),
        ([1, 3, 5], 4, *[f"2/4 {FEW}, 3/4 CardNotHealth"] * 2),
        ([1, 3, 5, 7], 2, *[f"0/2 {FEW}, 4/2 CardNotHealth"] * 2),
        ([1, 3, 5, 7], 3, *[f"0/3 {FEW}, 4/3 CardNotHealth"] * 2),
        ([0, 1, 2, 3, 4, 5, 6], 3, *[f"0/3 {FEW}, 7/3 CardNotHealth"] * 2),
        (range(8), 2, *[f"0/2 {FEW}, 8/2 CardNotHealth"] * 2),
    ],
)
def test_modules_are_taken_whole(bad, count, bound, unbound):
    for vendors, expected in ((CHART, bound), (UNBOUND, unbound)):
        for groups in (None, [0] * 8):
            assert chosen(sick(npus(8, C, groups=groups), *bad), word=C, vendors=vendors, count=count) == expected


def test_difference_910c_says_0_of_n_where_no_module_is_whole():
    assert chosen(sick(npus(2, C), 0, 1), word=C, count=2) == f"0/2 {FEW}, 2/2 CardNotHealth"
    lone = [card for card in npus(4, C) if card.get("index", 0) in (0, 2)]
    assert chosen(lone, word=C, count=2) == "0/2 AllocatedCardsInsufficientRequest"


def test_modules_come_by_the_npu_met_first():
    cards = npus(6, C)
    cards[0], cards[5] = cards[5], cards[0]  # registered as 5, 1, 2, 3, 4, 0, met from the end
    assert chosen(cards, word=C, count=4) == [0, 1, 4, 5]


@given(nodes(), st.booleans(), st.permutations(range(8)))
def test_the_choice_of_modules_is_the_rule_read_word_by_word(of, bound, shuffle):
    healthy, count = [card[0] for card in of[0]], max(2, of[1])
    cards = npus(len(healthy), C)
    cards = [cards[i] for i in shuffle if i < len(cards)]
    cards = [card | {"health": True} if healthy[card.get("index", 0)] else {**card, "health": False} for card in cards]
    met = [card.get("index", 0) for card in reversed(cards) if card["health"]]
    vendors = CHART if bound else UNBOUND
    result = chosen(cards, word=C, vendors=vendors, count=count)

    def rank(chosen_set):
        """What is preferred, in the order of preference; None for a set that breaks a rule."""
        whole = [c for c in chosen_set if c ^ 1 in chosen_set]
        single = [c for c in chosen_set if c ^ 1 not in chosen_set]
        if len(single) != count % 2 or (bound and single):
            return None
        firsts = sorted(min(met.index(c), met.index(c ^ 1)) for c in whole)
        return firsts, [single[0] ^ 1 in met, met.index(single[0])] if single else []

    ranks = [(rank(s), s) for s in combinations(met, count) if rank(s) is not None]
    if not ranks:
        assert isinstance(result, str)
        return
    assert sorted(result) == sorted(min(ranks)[1])
    whole = [c for c in result if c ^ 1 in result]
    assert result[: len(whole)] == whole, "the single one comes last"
    assert all(whole[i] ^ 1 == whole[i + 1] for i in range(0, len(whole), 2))


# the quota in the choice


def within(**limits):
    return lambda kinds: Room(kinds, **limits)


def test_the_quota_bears_on_the_whole_choice():
    six = npus(6, groups=[0, 0, 1, 1, 1, 1])
    assert chosen(six, count=2, budget=within(memory=131072)) == [5, 4]
    assert chosen(six, count=2, budget=within(memory=131071)) == "6/6 ResourceQuotaNotFit"
    assert chosen(npus(4, C), word=C, count=2, budget=within(memory=131071)) == (f"0/2 {FEW}, 4/2 ResourceQuotaNotFit")
    assert chosen(npus(6, P), word=P, count=2, budget=within(memory=21527)) == (
        "1/6 AllocatedCardsInsufficientRequest, 5/6 ResourceQuotaNotFit"
    )


def test_cheaper_npus_are_taken_where_the_quota_asks_for_it():
    mixed = npus(4, groups=[0, 1, 1, 1])
    mixed[3]["devmem"] = 40000
    mixed[0]["devmem"] = 30000
    assert chosen(mixed, count=2, budget=within(memory=110000)) == [3, 2], "the rest of the largest group is dearer"
    assert chosen(mixed, count=2, budget=within(memory=100000)) == [3, 0]


# 8: the node


def scored(groups, count, policy, word=B3):
    env = FitEnv([node(npus(len(groups), word, groups=groups), word)])
    notes = {"hami.io/node-scheduler-policy": policy}
    return env.place(pod(annotations=notes, **with_limits(count, word=word)), keep=False).score


@pytest.mark.parametrize(
    ("groups", "count", "word", "score"),
    [
        ([0, 0, 1, 1], 1, B3, 10),
        ([0, 0, 1, 1], 2, B3, 10),
        ([0, 0, 1, 1], 3, B3, 10 * 2 / 3),
        ([0, 0, 1, 1], 4, B3, 5),
        ([0, 0, None, 1], 2, B3, 0),
        ([0, 0], 2, P, 0),
        ([0, 0], 2, C, 10),
    ],
)
def test_npus_of_one_group_raise_the_score_and_lower_it_under_spread(groups, count, word, score):
    assert scored(groups, count, "binpack", word) == pytest.approx(score)
    assert scored(groups, count, "spread", word) == pytest.approx(-score)


def test_an_npu_without_group_that_was_not_chosen_does_not_matter_and_containers_add_up():
    env = FitEnv([node(npus(3, groups=[None, 0, 0]))])
    two = pod(
        "p", container("a", **with_limits(1)), container("b", **with_limits(1)), init=[container("i", **with_limits(2))]
    )
    result = env.place(two, keep=False)
    assert result.score == pytest.approx(30)
    one_each = pod("p", container("a", **with_limits(2)), container("b", **with_limits(1)))
    assert env.place(one_each, keep=False).score == 0


@pytest.mark.parametrize("policy", ["binpack", "spread"])
def test_the_better_connected_node_wins_whatever_the_policy(policy):
    torn, joined = npus(2, groups=[0, 1]), npus(2, groups=[0, 0])
    env = FitEnv([node(torn, name="a"), node(joined, name="b")], policies=SchedulingPolicies(node=policy))
    assert env.place(pod(**with_limits(2))).node == "b"


def test_a_topology_aware_pod_takes_the_smallest_node_that_has_enough():
    env = FitEnv([node(4, P, name="a"), node(sick(npus(4, P), 0), P, name="b")])
    for count in (1, 2):
        incoming = pod(annotations={POLICY: "topology-aware"}, **with_limits(count, word=P))
        assert env.place(incoming, keep=False).node == "b", "three fit there, and four on the other"
