"""Kunlunxin in Fit: choice (7.2, 7.3), reasons (7.4), handles (11), a node with both plugins (13, item 11), score (8).

The rules of section 7 are read literally, and their reading compared with what is chosen.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from itertools import combinations

import pytest
from builders import container, read_node
from hypothesis import given
from hypothesis import strategies as st

from hami_webhook.devices.model import IDLE, NodeView, Usage
from hami_webhook.devices.pod_fit import NodeFit, fit_pod
from hami_webhook.devices.reasons import Rejection
from hami_webhook.devices.vendors.kunlun import wings
from hami_webhook.kube.objects import ContainerKind, Pod

from . import xpus
from .fit_env import CHART, JSON, FitEnv, asked, pod
from .xpus import (
    HALF,
    MEM,
    NOUSE,
    QUARTER,
    VXPU,
    WHOLE,
    XPU,
    card,
    chosen,
    ids,
    kl,
    server,
    slices,
    vxpus,
    whole,
    whole_cards,
    with_limits,
)

FOURS = [{0, 1, 4, 5}, {2, 3, 6, 7}, {0, 2, 4, 6}, {1, 3, 5, 7}, {0, 3, 4, 7}, {1, 2, 5, 6}]
ORDER = {1: [1, 3, 2, 4], 2: [2, 3, 4], 3: [3, 4], 4: [4]}


# the rules, read literally: of all sets of the count those that may be, and of those the first


def rank(
    cards: tuple[int, ...], fitting: Collection[int], shared: Collection[int], *, sliced: bool
) -> tuple[object, ...] | None:
    """A set's place in the order of preference; None if it may not be."""
    count, mine, left = len(cards), set(cards), {i for i in fitting if i < 4}
    right = set(fitting) - left
    if count == 1 and shared and not mine <= set(shared):
        return None
    if count == 8:
        return (0,)
    if count in (1, 2, 4) or (count == 3 and sliced):
        for side, wing in enumerate((left, right)):
            if mine <= wing:
                return (0, ORDER[count].index(len(wing)), side, cards)
        if count == 2 and cards[1] == cards[0] + 4:
            return (1, cards)
        if count == 4 and mine in FOURS:
            return (1, FOURS.index(mine))
        return None
    if not sliced:
        return None
    primary, other = (left, right) if len(left) >= len(right) else (right, left)
    return (0, len(primary - mine), sorted((i ^ 4 not in primary, i) for i in mine & other))


def by_rule(
    count: int, fitting: Collection[int], shared: Collection[int] = (), *, sliced: bool = False
) -> tuple[int, ...] | None:
    """The set that the rules choose, None for none."""
    sets = combinations(sorted(fitting), count)
    ranked = [(place, cards) for cards in sets if (place := rank(cards, fitting, shared, sliced=sliced)) is not None]
    return min(ranked)[1] if ranked else None


@pytest.mark.parametrize("sliced", [False, True])
@pytest.mark.parametrize("count", range(1, 9))
def test_of_whatever_cards_fit_the_best_by_the_rule_come_first(count: int, sliced: bool) -> None:
    for size in range(9):
        for fitting in combinations(range(8), size):
            for shared in ((), fitting[1:3], fitting):
                found = next(wings.card_sets(count, fitting, shared, sliced=sliced), None)
                assert found == by_rule(count, fitting, shared, sliced=sliced), (fitting, shared)


def handles(usages: Iterable[Usage], cards: int) -> int:
    """What the driver has given out."""
    splits = [used.memory // used.slots for used in usages if used.slots]
    return cards + sum(4 if size <= QUARTER else 2 if size <= HALF else 0 for size in splits)


def by_rule_within_handles(count: int, size: int, usage: Mapping[int, Usage]) -> Sequence[int] | str:
    """The set, or the label of the refusal; usage of all cards by index."""
    idle = {i for i in usage if not usage[i].slots}
    fitting = {
        i
        for i, used in usage.items()
        if used.memory + size <= WHOLE and (i in idle or used.memory // used.slots == size)
    }
    first = by_rule(count, fitting, fitting - idle, sliced=size < WHOLE)
    if first is None or size == WHOLE:
        return first or "NumaNotFit"
    each, taken = (4 if size == QUARTER else 2), handles(usage.values(), len(usage))
    new = each * len(idle.intersection(first))
    if new == 0 or taken + new <= 32:
        return first
    allowed = sorted(fitting & idle)[: max(0, (32 - taken) // each)]
    reduced = (fitting - idle) | set(allowed)
    return by_rule(count, reduced, fitting - idle, sliced=True) or "NodeInsufficientHandle"


# random nodes

some_usage = st.one_of(
    st.just(Usage()),
    st.just(Usage()),
    st.builds(lambda n: Usage(n, n * QUARTER, n * 25), st.integers(1, 4)),
    st.builds(lambda n: Usage(n, n * HALF, n * 50), st.integers(1, 2)),
    st.just(Usage(1, WHOLE, 100)),
    st.builds(lambda n, memory: Usage(n, memory, 50), st.integers(1, 3), st.integers(1, WHOLE)),
)
eight_usages = st.one_of(
    st.lists(some_usage, min_size=8, max_size=8),
    st.lists(st.sampled_from([Usage(), *[Usage(1, QUARTER, 25)] * 6]), min_size=8, max_size=8),
)


def view_of(
    whole_count: int = 0, cards: Iterable[JSON] = (), usage: Mapping[tuple[str, str], Usage] | None = None
) -> NodeView:
    node = server(xpus=whole_count, cards=cards)
    found = {key: CHART[key].inventory(node) for key in ("XPU", "kunlun")}
    return NodeView(node, {key: inventory for key, inventory in found.items() if inventory}, usage or {})


def fitted(view: NodeView, manifest: JSON) -> NodeFit | Rejection:
    request = asked(manifest)
    return fit_pod(view, request, CHART, None)


@given(
    st.integers(1, 8),
    st.sampled_from([QUARTER, QUARTER, HALF, WHOLE]),
    st.one_of(st.just(list(range(8))), st.lists(st.integers(0, 7), unique=True, min_size=1)),
    eight_usages,
)
def test_slices_are_chosen_by_the_rule_within_the_handles(
    count: int, size: int, registered: list[int], usages: list[Usage]
) -> None:
    usage = {i: usages[i] for i in registered}
    view = view_of(cards=[card(i) for i in registered], usage={("XPU", kl(i)): used for i, used in usage.items()})
    found = fitted(view, with_limits(slices(count, size)))
    if count > len(registered):
        assert str(found) == "NodeInsufficientDevice"
        return
    expected = by_rule_within_handles(count, size, usage)
    if isinstance(found, Rejection):
        assert isinstance(expected, str)
        assert (found.counts[expected], found.cards) == (1, len(registered))
    else:
        assert tuple(int(device.uuid[-1]) for device in found.rows[0]["XPU"].devices) == expected


# several containers, both plugins


def made(name: str, asked: JSON, *, sidecar: bool = False) -> JSON:
    return container(name, sidecar=sidecar, **(asked or {"cpu": 1}))


requests = st.builds(
    lambda whole_count, sliced: {**whole_count, **sliced},
    st.sampled_from([{}, *({XPU: count} for count in (1, 1, 2, 4))]),
    st.just({})
    | st.builds(lambda n, size: {VXPU: n, MEM: size}, st.integers(1, 4), st.sampled_from([QUARTER, HALF, WHOLE])),
)
pods = st.builds(
    lambda inits, apps: pod(
        "p",
        *(made(f"a{n}", asked) for n, asked in enumerate(apps)),
        slices(1, QUARTER, "asks"),
        init=[made(f"i{n}", asked, sidecar=sidecar) for n, (asked, sidecar) in enumerate(inits)],
    ),
    st.lists(st.tuples(requests, st.booleans()), max_size=2),
    st.lists(requests, max_size=3),
)


@given(eight_usages, st.sets(st.integers(0, 7), max_size=4), st.booleans(), pods)
def test_no_card_is_split_two_ways_nor_used_through_both_plugins_nor_are_handles_exceeded(
    usages: list[Usage], taken_whole: Set[int], twins: bool, manifest: JSON
) -> None:
    """On a node with both plugins, or with vXPU cards and whole cards of other indices."""
    usage = {("XPU", kl(i)): used for i, used in enumerate(usages) if used.slots and i not in taken_whole}
    usage |= {("kunlun", f"n1-kunlun-{i}"): Usage(1, WHOLE, 100) for i in taken_whole}
    view = view_of(8, cards=[card(i) for i in range(8) if twins or i not in taken_whole], usage=usage)
    fit = fitted(view, manifest)
    if isinstance(fit, Rejection):
        return
    index = {(key, d.uuid): d.index for key, inventory in view.inventories.items() for d in inventory.devices}
    cards = [key for key in index if key[0] == "XPU"]
    before = handles([view.used(*key) for key in cards], len(cards))
    running = dict(view.usage)
    for kind, row in zip(Pod.from_object(manifest).kinds, fit.rows, strict=True):
        then = dict(running)
        for key, allocation in row.items():
            for device in allocation.devices:
                used = then.get((key, device.uuid), IDLE)
                assert used.slots == 0 or (key, used.memory // used.slots) == ("XPU", device.share.memory)
                then[key, device.uuid] = used.plus(device.share)
        in_use = [index[key] for key, used in then.items() if used.slots]
        assert len(set(in_use)) == len(in_use)
        assert handles([then[key] for key in cards if key in then], len(cards)) <= max(32, before)
        if kind is not ContainerKind.INIT:
            running = then


# several containers and pods


def test_slices_of_one_pod_come_from_one_card() -> None:
    """Left has two fitting cards, right three, one of them in use: by the wings alone that one would come first."""
    env = vxpus(dict.fromkeys((2, 3, 4), (1, WHOLE)) | {7: (1, QUARTER)})
    assert chosen(env.place(with_limits(slices(1, QUARTER)), keep=False)) == [7]
    both_sizes = with_limits(slices(2, QUARTER, name="a"), slices(1, QUARTER, name="b"))
    assert chosen(env.place(both_sizes)) == [0, 1, 0]


def test_a_card_outside_the_wings_is_no_candidate() -> None:
    env = FitEnv([server(xpus=9, cards=[card(8)])])
    assert chosen(env.place(with_limits(slices(1)))) == "1/1 NumaNotFit"
    five = FitEnv([server(cards=[card(index) for index in (0, 1, 2, 3, 8)])])
    assert chosen(five.place(with_limits(slices(5, HALF)))) == "1/5 NumaNotFit"
    full = xpus.use_whole(env, range(8))
    assert chosen(full.place(with_limits(whole()))) == "1/9 NumaNotFit, 8/9 ExclusiveDeviceAllocateConflict"


def test_no_card_is_left_within_the_handles_for_a_pod_that_has_slices_already() -> None:
    """8 + 6 × 4 = 32 handles: the first container shares a card, and for the second none of the idle ones is left."""
    sizes = dict.fromkeys(range(6), (1, QUARTER))
    pair = with_limits(slices(1, QUARTER, "a"), slices(1, HALF, "b"))
    assert chosen(vxpus(sizes).place(pair)) == "1/8 NodeInsufficientHandle"
    assert chosen(vxpus(sizes).place(with_limits(slices(1, QUARTER, "a"), slices(1, QUARTER, "b")))) == [0, 0]


def test_whole_cards_in_a_number_that_no_links_serve_fit_nowhere_though_admission_was_passed_by() -> None:
    for count in (3, 5):
        assert chosen(whole_cards().place(with_limits(whole(count)), admit=False)) == "1/8 NumaNotFit"
        assert chosen(vxpus({}).place(with_limits(slices(count)), admit=False)) == "1/8 NumaNotFit"
    assert chosen(vxpus({}).place(with_limits(slices(3, HALF)), admit=False)) == [0, 1, 2]


# reasons


def test_mutex_counts_cards_that_would_fit_if_they_need_not_be_idle() -> None:
    """Cards 0 to 3 would fit, 0 also if it weren't excluded; 4 and 5 are split otherwise, 6 and 7 are full."""
    sizes = dict.fromkeys(range(4), (1, HALF)) | dict.fromkeys((4, 5), (1, QUARTER)) | dict.fromkeys((6, 7), (1, WHOLE))
    one = with_limits(slices(1, HALF), **{xpus.POLICY: "binpack,mutex", NOUSE: kl(0)})
    assert chosen(vxpus(sizes).place(one)) == (
        "1/8 CardUuidMismatch, 2/8 CardInsufficientMemory, 4/8 ExclusiveDeviceAllocateConflict"
    )


def test_mutex_means_nothing_more_to_whole_cards() -> None:
    env = xpus.use_whole(FitEnv([server(xpus=2)]), [0, 1])
    for notes in ({}, {xpus.POLICY: "mutex"}):
        answer = chosen(env.place(with_limits(whole(), **notes)))
        assert answer == "1/2 NumaNotFit, 2/2 ExclusiveDeviceAllocateConflict"


def test_an_excluded_card_does_not_hide_what_else_is_wrong() -> None:
    env = xpus.use_whole(FitEnv([server(xpus=4)]), [1, 2])
    assert chosen(env.place(with_limits(whole(2), **{NOUSE: ids([0])}))) == (
        "1/4 CardUuidMismatch, 2/4 ExclusiveDeviceAllocateConflict"
    )
    apart = with_limits(whole(2), **{NOUSE: ids([0, 1, 2, 4, 5, 7])})
    assert chosen(whole_cards().place(apart)) == "1/8 NumaNotFit, 6/8 CardUuidMismatch"


# quota in Fit


@pytest.mark.parametrize(("left", "answer"), [(5, [3, 4, 5, 6, 7]), (4, [4, 4, 5, 6, 7])])
def test_an_init_container_takes_its_pods_cards_where_quota_demands(left: int, answer: list[int]) -> None:
    """By the rule it would take the last free card of the left wing, which would cost a fifth card."""
    env = whole_cards(0, 1, 2)
    env.hard = {f"limits.{XPU}": 3 + left}
    assert chosen(env.place(pod("p", whole(4, "app"), init=[whole(1, "init")]))) == answer


@pytest.mark.parametrize(("left", "answer"), [(3, [5, 0, 1]), (2, [5, 4, 5])])
def test_an_app_container_takes_the_slices_of_its_init_container_where_quota_demands(
    left: int, answer: list[int]
) -> None:
    env = vxpus({5: (1, QUARTER)})
    env.hard = {f"limits.{MEM}": (1 + left) * QUARTER}
    assert chosen(env.place(pod("p", slices(2, QUARTER, "app"), init=[slices(1, QUARTER, "init")]))) == answer


# a node with both plugins


def both() -> FitEnv:
    return FitEnv([server(xpus=8, cards=[card(index) for index in range(8)])])


def test_a_whole_card_blocks_slices_of_its_index_and_vice_versa() -> None:
    env = xpus.use_whole(both(), [0])
    assert chosen(env.place(with_limits(slices(1, QUARTER), name="a"))) == [1]
    assert chosen(env.place(with_limits(whole(), name="b"))) == [2]
    for incoming, taken in ((slices(1, QUARTER), kl(0)), (whole(), ids([1]))):
        answer = chosen(env.place(with_limits(incoming, **{xpus.USE: taken})))
        assert answer == "1/8 ExclusiveDeviceAllocateConflict, 7/8 CardUuidMismatch"


def test_both_kinds_in_one_container_get_different_cards() -> None:
    placed = both().placed(with_limits(made("main", {XPU: 4, VXPU: 4, MEM: HALF})))
    assert placed.annotations["BAIDU_COM_DEVICE_IDX"] == "4,5,6,7"
    assert chosen(placed) == [0, 1, 2, 3]


# node score


@pytest.mark.parametrize(
    ("before", "given", "score"),
    [
        ((), range(8), 3000),
        ((), (0, 1, 2, 3), 2000),
        ((), (0, 1), 1000),
        ((), (0,), 0),
        ((0,), (1,), 3000),
        ((0, 4), (1, 5), 3000),
        (range(4), (4,), 1000),
        ((0, 1), (2,), 2000),
        ((0, 1, 2, 4, 5, 6), (3, 7), 3000),
    ],
)
def test_the_score_compares_the_node_before_and_after(before: Iterable[int], given: Iterable[int], score: int) -> None:
    assert wings.score(frozenset(before), frozenset(before) | frozenset(given)) == score


def test_vxpu_scores_nothing_and_other_cards_silence_the_score() -> None:
    assert vxpus().placed(with_limits(slices(4))).score == 0
    assert whole_cards().placed(with_limits(whole(8))).score == 3000
    assert both().placed(with_limits(whole(8))).score == 0
    gpu = '[{"id":"G","count":1,"devmem":9,"devcore":9,"type":"A10","health":true}]'
    mixed = read_node(capacity={XPU: 8}, **{"hami.io/node-nvidia-register": gpu})
    assert FitEnv([mixed]).placed(with_limits(whole(8), **{xpus.NODE_POLICY: "spread"})).score == 0
