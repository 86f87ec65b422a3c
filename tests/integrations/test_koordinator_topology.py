"""Cards that are linked or near each other: partitions and topology scopes, the koordinator page's 7.4, 1 and 2."""

from __future__ import annotations

import json

import pytest

from .koords import ISOLATED, JSON, PARTITION_SPEC, Koords, card, hint, pod_with_limits

HONOR = {"node.koordinator.sh/gpu-partition-policy": "Honor"}
H100 = {"node.koordinator.sh/gpu-model": "H100", "node.koordinator.sh/gpu-vendor": "nvidia"}


def part(*minors: int, score: int = 1, bandwidth: str | None = None) -> JSON:
    made: JSON = {"minors": list(minors), "gpuLinkType": "NVLink", "allocationScore": score}
    return made | ({"ringBusBandwidth": bandwidth} if bandwidth else {})


def eight(
    *used: int, labels: JSON | None = None, device_labels: JSON | None = None, partitions: JSON | None = None,
    sick: tuple[int, ...] = (),
) -> Koords:  # fmt: skip
    """A node of eight cards, some of which are in use or unhealthy."""
    cards = [card(minor, health=minor not in sick) for minor in range(8)]
    koords = Koords().node("n1", *cards, labels=labels or {}, device_labels=device_labels, partitions=partitions)
    for minor in used:
        koords.busy(minor, ratio=1)
    return koords


def whole(count: int, spec: JSON | None = None) -> JSON:
    return pod_with_limits(gpu=100 * count, notes={} if spec is None else {PARTITION_SPEC: json.dumps(spec)})


# partitions


@pytest.mark.parametrize(
    ("used", "count", "minors"),
    [
        ((), 1, [0]),
        ((0,), 1, [1]),  # the pair is broken already
        ((0, 1, 2, 3, 4), 1, [5]),
        ((2,), 1, [3]),
        ((), 2, [0, 1]),
        ((0,), 2, [2, 3]),  # leaves 4-7 whole
        ((7,), 2, [4, 5]),
        ((0, 1, 4), 2, [2, 3]),
        ((), 4, [0, 1, 2, 3]),
        ((1,), 4, [4, 5, 6, 7]),
        ((), 8, [0, 1, 2, 3, 4, 5, 6, 7]),
    ],
)
def test_7_4_1_what_is_left_untouched_decides(used: tuple[int, ...], count: int, minors: list[int]) -> None:
    assert eight(*used, labels=H100).minors(whole(count)) == minors


@pytest.mark.parametrize("model", ["H100", "H800", "H20"])
@pytest.mark.parametrize("vendor", ["nvidia", None])
def test_7_4_1_models_with_a_table_of_their_own(model: str, vendor: str | None) -> None:
    labels = {"node.koordinator.sh/gpu-model": model} | ({"node.koordinator.sh/gpu-vendor": vendor} if vendor else {})
    assert eight(0, labels=labels).minors(whole(2)) == [2, 3]


@pytest.mark.parametrize(
    "labels",
    [{}, {"node.koordinator.sh/gpu-model": "A100"}, {**H100, "node.koordinator.sh/gpu-vendor": "metax"}],
)
def test_7_4_1_other_models_have_none(labels: JSON) -> None:
    assert eight(0, labels=labels).minors(whole(2)) == [1, 2]
    refused = eight(0, labels=labels).failure(whole(2, {}))
    assert refused == "1/8 CardInsufficientMemory, 7/8 AllocatedCardsInsufficientRequest"


def test_7_4_1_the_model_is_the_nodes_not_the_devices() -> None:
    assert eight(0, device_labels=H100).minors(whole(2)) == [1, 2]


@pytest.mark.parametrize(
    ("partitions", "spec", "text"),
    [
        (None, {}, "8/8 AllocatedCardsInsufficientRequest"),  # no table
        ({"4": [part(0, 1, 2, 3)]}, {}, "8/8 AllocatedCardsInsufficientRequest"),  # none of two
        (
            {"2": [part(0, 1, bandwidth="100Gi")]},
            {"ringBusBandwidth": "101Gi"},
            "8/8 AllocatedCardsInsufficientRequest",
        ),
        ({"2": [part(0, 1)]}, {"ringBusBandwidth": "1"}, "8/8 AllocatedCardsInsufficientRequest"),
        ({"2": [part(0, 1, 2)]}, {}, "8/8 AllocatedCardsInsufficientRequest"),
        ({"2": [part(0, 9)]}, {}, "8/8 AllocatedCardsInsufficientRequest"),
    ],
)
def test_7_4_1_a_table_that_binds_refuses(partitions: JSON | None, spec: JSON, text: str) -> None:
    assert eight(partitions=partitions).failure(whole(2, spec)) == text
    if "ringBusBandwidth" not in spec:
        assert eight(partitions=partitions, device_labels=HONOR).failure(whole(2)) == text
        assert eight(partitions=partitions, labels=HONOR).failure(whole(2)) == text
    assert eight(partitions=partitions).minors(whole(2)) == [0, 1]  # it doesn't bind


def test_7_4_1_a_partition_must_be_healthy_and_entirely_unused() -> None:
    table = {"2": [part(0, 1), part(2, 3), part(4, 5)]}
    assert eight(0, partitions=table, sick=(3,)).minors(whole(2)) == [4, 5]
    refused = eight(0, 4, partitions=table, sick=(3,)).failure(whole(2, {}))
    assert refused == "1/8 CardNotHealth, 2/8 CardInsufficientMemory, 5/8 AllocatedCardsInsufficientRequest"


def test_7_4_1_a_card_that_the_hint_excludes_is_in_no_partition() -> None:
    cards = [card(0), card(1, labels={"tier": "b"}), card(2), card(3)]
    koords = Koords().node("n1", *cards, partitions={"2": [part(0, 1), part(2, 3)]})
    notes = hint(selector={"matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]})
    assert koords.minors(pod_with_limits(gpu=200, notes=notes)) == [2, 3]


CLASSES = {"2": [part(0, 1, score=1), part(2, 3, score=5), part(4, 5, score=3), part(6, 7, score=5)]}


@pytest.mark.parametrize(
    ("used", "policy", "minors"),
    [
        ((), "BestEffort", [2, 3]),
        ((2,), "BestEffort", [6, 7]),
        ((2, 6), "BestEffort", [4, 5]),
        ((2, 6, 4), "BestEffort", [0, 1]),
        ((2,), "Restricted", [6, 7]),
        ((2, 6), "Restricted", None),
    ],
)
def test_7_4_1_the_best_class_that_has_any(used: tuple[int, ...], policy: str, minors: list[int] | None) -> None:
    koords, asked = eight(*used, partitions=CLASSES), whole(2, {"allocatePolicy": policy})
    if minors is None:
        assert "6/8 AllocatedCardsInsufficientRequest" in koords.failure(asked)
    else:
        assert koords.minors(asked) == minors


def test_7_4_1_bandwidth_that_suffices() -> None:
    table = {"2": [part(0, 1, bandwidth="100Gi"), part(2, 3, bandwidth="400Gi")]}
    assert eight(partitions=table).minors(whole(2, {"ringBusBandwidth": "400Gi"})) == [2, 3]


def test_7_4_1_shared_cards_know_no_partitions() -> None:
    koords = eight(labels={**H100, **ISOLATED}, device_labels=HONOR)
    assert koords.busy(0, ratio=1).minors(pod_with_limits(shared=2, ratio=100, labels=ISOLATED)) == [1, 2]


# topology

TREE = [(0, "a"), (0, "a"), (0, "b"), (0, "b"), (1, "c"), (1, "c"), (1, "d"), (1, "d")]


def tree(*used: int, spots: list[tuple[int, str]] | None = None, ratio: int = 1) -> Koords:
    """Eight cards, two on each switch, two switches on each NUMA node."""
    cards = [card(minor, spot=spot) for minor, spot in enumerate(spots or TREE)]
    koords = Koords().node("n1", *cards)
    for minor in used:
        koords.busy(minor, ratio=ratio)
    return koords


@pytest.mark.parametrize(
    ("used", "count", "minors"),
    [
        ((), 1, [0]),
        ((0,), 1, [1]),  # that switch is in use
        ((4,), 1, [5]),
        ((4,), 2, [6, 7]),  # its NUMA node is in use
        ((0, 2), 2, [4, 5]),  # only there two are free on one switch
        ((0, 2, 4, 6), 2, [1, 3]),  # on one NUMA node
        ((0, 2, 3, 4, 6), 2, [5, 7]),
        ((0, 2, 3, 4, 6, 7), 2, [1, 5]),  # anywhere
        ((), 3, [0, 1, 2]),
        ((5,), 3, [4, 6, 7]),  # a NUMA node in use with enough left
        ((), 5, [0, 1, 2, 3, 4]),
    ],
)
def test_7_4_2_whole_cards_near_each_other(used: tuple[int, ...], count: int, minors: list[int]) -> None:
    assert tree(*used).minors(whole(count)) == minors


def test_7_4_2_scopes_come_by_number_and_by_text() -> None:
    spots = [(10, "b"), (10, "a"), (9, "z"), (9, "y")]
    assert tree(spots=spots).minors(whole(1)) == [3]


def test_7_4_2_a_switch_of_that_name_on_another_numa_node_is_another() -> None:
    spots = [(0, "a"), (1, "a"), (1, "a")]
    assert tree(spots=spots).minors(whole(2)) == [1, 2]


@pytest.mark.parametrize(
    ("used", "minors"),
    [
        ((), [0]),
        ((3,), [2]),  # the switch in use, and of its cards the one with more left
        ((2, 3, 7), [6]),  # of two paths as much in use, the one with a card that has more left
        ((2, 3, 6, 7), [2]),  # of equals the first
        ((4, 5, 6, 7), [4]),
    ],
)
def test_7_4_2_one_shared_card(used: tuple[int, ...], minors: list[int]) -> None:
    assert tree(*used).minors(pod_with_limits(ratio=50, labels=ISOLATED)) == minors


def test_7_4_2_several_shared_cards_go_by_score_alone() -> None:
    assert tree(0).minors(pod_with_limits(shared=2, ratio=100, labels=ISOLATED)) == [1, 2]


def test_7_4_2_without_every_cards_place_there_is_no_topology() -> None:
    cards = [card(0, spot=(0, "a")), card(1, spot=(1, "b")), card(2, spot=(1, "b")), card(3)]
    assert Koords().node("n1", *cards).minors(whole(2)) == [0, 1]


@pytest.mark.parametrize(
    ("scope", "used", "count", "result"),
    [
        ("Node", (), 5, [0, 1, 2, 3, 4]),
        ("NUMANode", (), 3, [0, 1, 2]),
        ("NUMANode", (), 2, [0, 1]),
        ("NUMANode", (), 5, "8/8 NumaNotFit"),
        ("PCIe", (0, 2, 4), 2, [6, 7]),
        ("PCIe", (0, 2, 4, 6), 2, "4/8 CardInsufficientMemory, 4/8 NumaNotFit"),
        ("Device", (0,), 1, [1]),
        ("Device", (), 2, "8/8 NumaNotFit"),
        ("Rack", (), 1, "8/8 NumaNotFit"),
    ],
)
def test_7_4_2_a_required_scope(scope: str, used: tuple[int, ...], count: int, result: list[int] | str) -> None:
    koords, asked = tree(*used), pod_with_limits(gpu=100 * count, notes=hint(requiredTopologyScope=scope))
    if isinstance(result, str):
        assert koords.failure(asked) == result
    else:
        assert koords.minors(asked) == result


def test_7_4_2_a_required_scope_needs_every_cards_place() -> None:
    asked = pod_with_limits(gpu=100, notes=hint(requiredTopologyScope="Node"))
    assert Koords().node("n1", card(0, spot=(0, "a")), card(1)).failure(asked) == "2/2 NumaNotFit"


def test_11_several_shared_cards_in_one_scope_are_impossible() -> None:
    asked = pod_with_limits(shared=2, ratio=50, labels=ISOLATED, notes=hint(requiredTopologyScope="Node"))
    assert tree().failure(asked) == "8/8 NumaNotFit"


def test_7_4_a_partition_that_does_not_bind_falls_through_to_the_topology() -> None:
    cards = [card(minor, spot=spot) for minor, spot in enumerate(TREE)]
    koords = Koords().node("n1", *cards, partitions={"2": [part(1, 2)]}).busy(1, ratio=1)
    assert koords.minors(whole(2)) == [2, 3]
