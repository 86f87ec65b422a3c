"""Koordinator's rules on random pods and fleets, each against a slow and literal reading of the page."""

from __future__ import annotations

from fractions import Fraction
from math import floor

from hypothesis import assume, example, given
from hypothesis import strategies as st

from hami_webhook.devices.foreign_scheduler import NoNode
from hami_webhook.devices.reasons import Rejection
from hami_webhook.integrations.koordinator.allocation_annotation import UNUSED, Used, decode, usage
from hami_webhook.integrations.koordinator.device_object import (
    KoordinatorCard,
    KoordinatorDevice,
    Partition,
    Spot,
    read_cards,
)
from hami_webhook.integrations.koordinator.partitions import pick
from hami_webhook.integrations.koordinator.prediction import KoordinatorConstraints, Load, choose
from hami_webhook.integrations.koordinator.request import Want, percent_of, share_of
from hami_webhook.kube.objects import Node

from .koords import ALLOCATED, ISOLATED, JSON, Koords, box, card, named, pod_with_limits

# normalisation

AMOUNT = st.sampled_from([0, 1, 2, 7, 50, 100, 150, 200, 300, "1Gi", "8Gi", "x"])
NAMES = (
    "shared",
    "core",
    "memory",
    "ratio",
    "gpu",
    "kubernetes.io/gpu",
    "kubernetes.io/gpu-memory",
    "koordinator.sh/gpu-shared",
)
AMOUNTS = st.dictionaries(st.sampled_from(NAMES), AMOUNT, max_size=4)


@given(st.lists(st.tuples(AMOUNTS, AMOUNTS), min_size=1, max_size=2), AMOUNTS)
def test_normalisation_is_idempotent_and_makes_both_sides_equal(apps: list[tuple[JSON, JSON]], init: JSON) -> None:
    made = []
    for index, (limits, requests) in enumerate(apps):
        each = box(f"c{index}", requests=named(**requests), **limits)
        made.append(each)
    done = Koords().admit(pod_with_limits("p", *made, init=[box("i", **init)]))  # admits twice, and compares
    if done.message:
        return
    for index in range(len(made)):
        limits, requests = done.limits(index), done.requests(index)
        assert limits.keys() == requests.keys()
        assert (
            not {"koordinator.sh/gpu", *(name for name in limits if name.startswith("kubernetes.io"))} & limits.keys()
        )
        assert "0" not in {*limits.values(), *requests.values()}


# exact integers


@given(st.integers(1, 2**62), st.integers(0, 100))
@example(100 * 2**30, 29)
@example(23040 * 2**20, 57)
def test_conversions_are_exact(memory: int, ratio: int) -> None:
    assert share_of(memory, ratio) == floor(Fraction(memory) * ratio / 100)
    assert percent_of(share_of(memory, ratio), memory) == floor(Fraction(share_of(memory, ratio)) / memory * 100)
    if memory % 100 == 0:
        assert percent_of(share_of(memory, ratio), memory) == ratio  # also for 29, 57 and 58 percent


# fleets

Fleet = list[list[tuple[str | None, bool, tuple[int, str] | None, int | None]]]

SIZES = st.sampled_from(["1Gi", "23040Mi", "80Gi", "1000", "1009"])
SPOTS = st.none() | st.tuples(st.integers(0, 1), st.sampled_from("ab"))
FLEET = st.lists(
    st.lists(
        st.tuples(SIZES | st.none(), st.booleans() | st.just(True), SPOTS, st.sampled_from([100, 100, None])),
        max_size=4,
    ),
    min_size=1,
    max_size=3,
)


@st.composite
def pods(draw: st.DrawFn) -> tuple[str, list[JSON]]:
    """The amounts of legal pods that go by ratio, by memory, or some by the one and some by the other."""
    kind = draw(st.sampled_from(["ratio", "memory", "mixed"]))
    made = []
    for _ in range(draw(st.integers(1, 8))):
        count = draw(st.integers(1, 3))
        asked: JSON = {"shared": count}
        if kind == "ratio" or (kind == "mixed" and draw(st.booleans())):
            asked["ratio"] = count * draw(st.integers(1, 100) | st.just(100))
        else:
            asked["memory"] = draw(st.integers(1, 2**31) | st.sampled_from(["1Gi", "8Gi", "90Gi"]))
        if draw(st.booleans()):
            asked["core"] = count * draw(st.integers(1, 100))
        made.append(asked)
    return kind, made


def stand_up(fleet: Fleet) -> Koords:
    koords = Koords()
    for number, cards in enumerate(fleet):
        made = [
            card(minor, memory, health=health, spot=spot, core=percent)
            for minor, (memory, health, spot, percent) in enumerate(cards)
        ]
        koords.node(f"n{number}", *made)
    return koords


@given(FLEET, pods())
def test_no_card_is_oversold_and_no_debit_is_below_the_charge(fleet: Fleet, asked: tuple[str, list[JSON]]) -> None:
    """By 7.3 a ratio is compared with ratios only, so a pod by memory, whose ratio is rounded down, can leave less of
    the memory than of the ratio: where both kinds meet on a card, its memory is oversold by less than 1 % for each.
    """
    koords, (kind, listed) = stand_up(fleet), asked
    for number, amounts in enumerate(listed):
        manifest = pod_with_limits(f"p{number}", labels=ISOLATED, **amounts)
        waiting = koords.waiting(manifest)
        if isinstance(koords.predict(manifest), NoNode):
            continue
        placed, _ = koords.place(manifest)
        debits = koords.debits(f"p{number}")
        assert all(debits.get(name, 0) >= amount for name, amount in waiting.items()), (waiting, debits)
        shares = decode(placed.annotations[ALLOCATED])
        assert len({share.minor for share in shares}) == len(shares) == amounts["shared"]
    by_memory = sum("memory" in amounts for amounts in listed) if kind == "mixed" else 0
    for number in range(len(fleet)):
        device = koords.state.device(f"n{number}")
        if device is None:
            continue
        cards = read_cards(device)
        for minor, used in usage(koords.state.foreign_pods_on(f"n{number}"), cards).items():
            found = cards.card(minor)
            assert found is not None
            assert found.healthy
            assert found.core is None or used.core <= found.core
            assert found.ratio is None or used.ratio <= found.ratio or found.memory is None
            assert found.memory is None or used.memory <= found.memory * (100 + by_memory) // 100


# the choice on a node

State = tuple[bool, int, int, tuple[int, str]]
"""Of a card: whether it is healthy, the ratio and the cores in use, and where it is."""

STATES = st.lists(
    st.tuples(
        st.booleans() | st.just(True),
        st.sampled_from([0, 0, 10, 50, 90]),
        st.sampled_from([0, 0, 20, 60]),
        st.tuples(st.integers(0, 1), st.sampled_from("ab")),
    ),
    min_size=1,
    max_size=6,
)
WANTS = st.one_of(
    st.builds(lambda n: Want(n, 100, 100), st.integers(1, 4)),
    st.builds(Want, st.integers(1, 3), st.sampled_from([None, 30]), st.integers(1, 99)),
    st.builds(lambda n, memory: Want(n, None, None, memory), st.integers(1, 3), st.integers(1, 1000)),
)
TOTAL = 1000
NODE = Node("n1", {}, {}, {}, {})


def state_of(rows: list[State], *, places: bool) -> tuple[KoordinatorDevice, dict[int, Used]]:
    cards = tuple(
        KoordinatorCard(minor, f"GPU-{minor}", healthy, {}, 100, TOTAL, 100, Spot(*spot) if places else None)
        for minor, (healthy, _, _, spot) in enumerate(rows)
    )
    used = {
        minor: Used(core, ratio * TOTAL // 100, ratio)
        for minor, (_, ratio, core, _) in enumerate(rows)
        if ratio or core
    }
    return KoordinatorDevice(cards), used


def fits(load: Load, want: Want) -> bool:
    """7.3, read literally."""
    free_core, free_ratio, free_memory = 100 - load.used.core, 100 - load.used.ratio, TOTAL - load.used.memory
    memory = free_ratio >= want.ratio if want.ratio is not None else free_memory >= (want.memory or 0)
    return load.card.healthy and (want.core is None or free_core >= want.core) and memory


def points(load: Load, want: Want, most: bool) -> int:
    """The card score, read literally."""
    used, wanted = (load.used.ratio, load.used.memory), (want.ratio or 0, want.memory or 0)
    each = [
        (min(u + w, total) if most else max(0, total - u - w)) * 100 // total
        for u, w, total in zip(used, wanted, (100, TOTAL), strict=True)
    ]
    return sum(each) // 2


@given(STATES, WANTS, st.booleans())
def test_7_4_3_is_the_first_that_suit_by_score_and_minor(rows: list[State], want: Want, most: bool) -> None:
    cards, used = state_of(rows, places=False)
    loads = [Load(each, used.get(each.minor, UNUSED)) for each in cards.cards]
    ordered = sorted(loads, key=lambda load: (-points(load, want, most) if load.card.healthy else 1, load.card.minor))
    expected = [load.card.minor for load in ordered if fits(load, want)][: want.count]
    found = choose(NODE, cards, used, KoordinatorConstraints(want, most_allocated=most))
    if len(expected) < want.count:
        assert isinstance(found, Rejection)
        suiting = sum(fits(load, want) for load in loads)
        if want.count <= len(rows):
            assert sum(found.counts.values()) == found.cards == len(rows)
            assert found.counts.get("AllocatedCardsInsufficientRequest", 0) == suiting
        else:
            assert found.bare == "NodeInsufficientDevice"
    else:
        assert isinstance(found, list)
        assert [load.card.minor for load in found] == expected


def by_topology(loads: list[Load], want: Want, most: bool) -> list[int] | None:
    """7.4, step 2, read literally: every scope of the tree, depth first."""
    numas = sorted({load.card.spot.numa for load in loads if load.card.spot})
    candidates = []
    for depth in (2, 1, 0):
        level: list[tuple[tuple[int | str, ...], list[list[Load]]]] = []
        if depth == 0:
            level = [((), [loads])]
        for numa in numas if depth else ():
            of_numa = [load for load in loads if load.card.spot and load.card.spot.numa == numa]
            if depth == 1:
                level.append(((numa,), [loads, of_numa]))
            for switch in sorted({load.card.spot.pcie for load in of_numa if load.card.spot}) if depth == 2 else ():
                level.append(
                    (
                        (numa, switch),
                        [loads, of_numa, [x for x in of_numa if x.card.spot and x.card.spot.pcie == switch]],
                    )
                )
        for place, path in level:
            serving = [load for load in path[-1] if fits(load, want)]
            if len(path[-1]) >= want.count and len(serving) >= want.count:
                in_use = sum(any(load.used != UNUSED for load in scope) for scope in path)
                best = max(points(load, want, most) for load in serving) if want.fractional else 0
                candidates.append((-depth, -in_use, -best, place, serving))
    if not candidates:
        return None
    serving = min(candidates, key=lambda each: each[:4])[4]
    if want.fractional:
        serving = sorted(serving, key=lambda load: (-points(load, want, most), load.card.minor))
    else:
        serving = sorted(serving, key=lambda load: load.card.minor)
    return [load.card.minor for load in serving[: want.count]]


@given(STATES, WANTS, st.booleans())
def test_7_4_2_is_the_deepest_and_fullest_scope(rows: list[State], want: Want, most: bool) -> None:
    assume(not (want.fractional and want.count > 1))
    cards, used = state_of(rows, places=True)
    loads = [Load(each, used.get(each.minor, UNUSED)) for each in cards.cards]
    expected = by_topology(loads, want, most)
    found = choose(NODE, cards, used, KoordinatorConstraints(want, most_allocated=most))
    if expected is None:
        assert isinstance(found, Rejection)
    else:
        assert isinstance(found, list)
        assert [load.card.minor for load in found] == expected


PARTITIONS = st.builds(
    Partition, st.lists(st.integers(0, 5), min_size=2, max_size=2, unique=True).map(tuple), st.integers(0, 3)
)
FOURS = st.builds(
    Partition, st.lists(st.integers(0, 5), min_size=4, max_size=4, unique=True).map(tuple), st.integers(0, 3)
)


@given(st.lists(PARTITIONS, max_size=5), st.lists(FOURS, max_size=3), st.sets(st.integers(0, 5)))
def test_7_4_1_no_other_partition_of_the_best_class_leaves_more(
    pairs: list[Partition], fours: list[Partition], idle: set[int]
) -> None:
    table = {2: tuple(pairs), 4: tuple(fours)}
    found = pick(table, 2, None, lambda minor: True, idle.__contains__)
    free = [pair for pair in pairs if idle.issuperset(pair.minors)]
    if not free:
        assert found is None
        return

    def left(taken: Partition) -> int:
        rest = idle.difference(taken.minors)
        return sum(
            {2: 1, 4: 100}[size] * each.score
            for size, listed in table.items()
            for each in listed
            if rest.issuperset(each.minors)
        )

    best = [pair for pair in free if pair.score == max(each.score for each in free)]
    most = max(map(left, best))
    assert found == next(pair for pair in best if left(pair) == most)
