"""Where Koordinator would place a pod: checks, scores, partitions and topology (docs/spec/koordinator.md#7 and #8)."""

from __future__ import annotations

import json

import pytest
from builders import container

from hami_webhook.devices.foreign_scheduler import NoNode, Part
from hami_webhook.integrations.koordinator.allocation_annotation import Used
from hami_webhook.integrations.koordinator.device_object import KoordinatorCard
from hami_webhook.integrations.koordinator.prediction import KoordinatorConstraints, Load, score
from hami_webhook.integrations.koordinator.request import Want

from .koords import (
    ALLOCATED,
    ISOLATED,
    ISOLATION,
    JSON,
    NPU,
    PARTITION_SPEC,
    Koords,
    a10s,
    box,
    card,
    configured,
    hint,
    pod_with_limits,
    share,
)

HALF: JSON = {"ratio": 50, "labels": ISOLATED}
TIER_A = hint(selector={"matchLabels": {"tier": "a"}})

# 7.1


def test_7_1_usage_is_what_koordinator_wrote_on_bound_pods_that_live() -> None:
    koords = a10s(1)
    whole = json.dumps({"gpu": [share(0, core="100", ratio="100")]})
    koords.bind(pod_with_limits("pending"), "", whole)
    koords.bind(pod_with_limits("elsewhere"), "n2", whole)
    koords.bind(pod_with_limits("unreadable"), "n1", "{")
    ended = pod_with_limits("ended")
    ended["status"] = {"phase": "Succeeded"}
    koords.bind(ended, "n1", whole)
    assert koords.minors(pod_with_limits(gpu=100)) == [0]
    koords.bind(pod_with_limits("there"), "n1", whole)
    assert koords.failure(pod_with_limits(gpu=100)) == "1/1 CardInsufficientCore"


def test_7_1_what_is_not_written_is_completed_from_the_card() -> None:
    koords = a10s(1)
    koords.bind(pod_with_limits("by-ratio"), "n1", json.dumps({"gpu": [share(0, ratio="50")]}))
    assert koords.failure(pod_with_limits(memory="11521Mi", labels=ISOLATED)) == "1/1 CardInsufficientMemory"
    assert koords.minors(pod_with_limits(memory="11520Mi", labels=ISOLATED)) == [0]
    koords.bind(pod_with_limits("by-memory"), "n1", json.dumps({"gpu": [share(0, memory="5760Mi")]}))
    assert koords.failure(pod_with_limits(ratio=26, labels=ISOLATED)) == "1/1 CardInsufficientMemory"
    assert koords.minors(pod_with_limits(ratio=25, labels=ISOLATED)) == [0]


def test_7_1_a_card_that_is_overbooked_has_nothing_left() -> None:
    koords = a10s(1).busy(0, ratio=150, name="a").busy(0, core=150, name="b")
    assert koords.failure(pod_with_limits(**HALF)) == "1/1 CardInsufficientMemory"
    assert koords.failure(pod_with_limits(core=1, **HALF)) == "1/1 CardInsufficientCore"


# 7.2


@pytest.mark.parametrize(
    ("node_labels", "asked", "text"),
    [
        (ISOLATED, HALF, ""),
        ({}, HALF, "1/2 ModeNotFit"),
        ({ISOLATION: "hami-core"}, HALF, "1/2 ModeNotFit"),
        ({}, {"ratio": 50}, ""),
        ({}, {"ratio": 50, "labels": {ISOLATION: ""}}, ""),
        ({}, {"gpu": 100, "labels": ISOLATED}, ""),
        ({}, {"memory": "23040Mi", "labels": ISOLATED}, "1/2 ModeNotFit"),
        ({"x": "y", ISOLATION: "other"}, {"ratio": 50, "labels": {ISOLATION: "other"}}, ""),
    ],
)
def test_7_2_parts_of_cards_need_the_nodes_label(node_labels: JSON, asked: JSON, text: str) -> None:
    koords = Koords().node("n1", card(0), card(1), labels=node_labels)
    found = koords.predict(pod_with_limits(**asked))
    assert (found.failed if isinstance(found, NoNode) else {}) == ({"n1": text} if text else {})


def test_7_2_a_node_without_a_device_has_no_cards() -> None:
    koords = Koords().node("bare", labels={}).node("n1", card(0))
    found = koords.predicted(pod_with_limits(**HALF))
    assert (found.node, found.failed) == ("n1", {"bare": "NodeInsufficientDevice"})
    koords.state.remove_device("n1")
    assert koords.failed(pod_with_limits(**HALF))["n1"] == "NodeInsufficientDevice"


# 7.3


@pytest.mark.parametrize(
    ("made", "asked", "text"),
    [
        (card(0, health=False), {"ratio": 1}, "CardNotHealth"),
        (card(0, health=False, labels={"tier": "b"}), {"ratio": 1, "notes": TIER_A}, "CardNotHealth"),
        (card(0, labels={"tier": "b"}), {"ratio": 1, "notes": TIER_A}, "CardTypeMismatch"),
        (card(0, labels={"tier": "b"}, core=10), {"core": 11, "ratio": 1,
         "notes": hint(selector={"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["b"]}]})},
         "CardTypeMismatch"),
        (card(0, core=10, ratio=10), {"core": 11, "ratio": 11}, "CardInsufficientCore"),
        (card(0, ratio=10), {"ratio": 11}, "CardInsufficientMemory"),
        (card(0, "1Gi"), {"memory": 2**30 + 1}, "CardInsufficientMemory"),
    ],
)  # fmt: skip
def test_7_3_the_first_check_that_fails_is_told(made: JSON, asked: JSON, text: str) -> None:
    assert Koords().node("n1", made).failure(pod_with_limits(**asked)) == f"1/1 {text}"


@pytest.mark.parametrize(
    ("made", "asked"),
    [
        (card(0, core=None), {"core": 100, "ratio": 50}),
        (card(0, ratio=None), {"ratio": 50}),
        (card(0, None), {"memory": "100Gi"}),
        (card(0, "1Gi"), {"memory": 2**30}),
        (card(0, labels={"tier": "a"}), {"ratio": 100, "notes": TIER_A}),
    ],
)
def test_7_3_what_is_not_reported_is_not_compared(made: JSON, asked: JSON) -> None:
    assert Koords().node("n1", made).minors(pod_with_limits(**asked)) == [0]


def test_7_3_any_number_of_pods_may_share_a_card() -> None:
    koords = a10s(1)
    for number in range(100):
        koords.place(pod_with_limits(f"p{number}", ratio=1, labels=ISOLATED))
    assert koords.failure(pod_with_limits(ratio=1, labels=ISOLATED)) == "1/1 CardInsufficientMemory"


# card score

CARD = KoordinatorCard(0, core=100, memory=1000, ratio=100)


@pytest.mark.parametrize(
    ("made", "points"),
    [
        (KoordinatorCard(0, memory=1000), 75),
        (KoordinatorCard(0, ratio=100), 100),
        (KoordinatorCard(0), 0),
        (KoordinatorCard(0, memory=0, ratio=0), 0),
    ],
)
def test_7_4_only_what_is_reported_counts(made: KoordinatorCard, points: int) -> None:
    assert Load(made).score(KoordinatorConstraints(Want(1, None, None, 250))) == points


def test_8_a_node_is_scored_by_its_sums_with_the_request_of_one_card() -> None:
    loads = [
        Load(CARD, Used(0, 500, 50)),
        Load(KoordinatorCard(1, memory=3000, ratio=100)),
        Load(KoordinatorCard(2, healthy=False, memory=1)),
    ]
    # ratio: (200 - 50 - 50) * 100 / 200 = 50; memory: (4000 - 500) * 100 / 4000 = 87
    assert score(loads, KoordinatorConstraints(Want(2, None, 50))) == (50 + 87) // 2


# 7.4, step 3


def test_7_4_3_too_few_cards_are_told_by_label() -> None:
    koords = Koords().node("n1", card(0), card(1), card(2, health=False), card(3), card(4))
    koords.busy(0, core=1).busy(1, ratio=1)
    assert koords.failure(pod_with_limits(gpu=300)) == (
        "1/5 CardInsufficientCore, 1/5 CardInsufficientMemory, 1/5 CardNotHealth, 2/5 AllocatedCardsInsufficientRequest"
    )


# 8


@pytest.mark.parametrize(("scoring", "node"), [("LeastAllocated", "c"), ("MostAllocated", "b")])
def test_8_the_best_node_has_a_hundred_points(scoring: str, node: str) -> None:
    koords = Koords(vendors=configured(scoring=scoring))
    for name in ("d", "c", "b", "a"):
        koords.node(name, card(0), card(1))
    koords.busy(0, node="a", ratio=10).busy(1, node="a", ratio=100).busy(0, node="b", ratio=40).busy(
        1, node="b", ratio=100
    )
    found = koords.predicted(pod_with_limits(**HALF))
    assert (found.node, found.score, found.failed) == (node, 100.0, {})


def test_8_a_node_without_any_points() -> None:
    koords = a10s(1)
    found = koords.predicted(pod_with_limits(memory="23040Mi", labels=ISOLATED))
    assert found.score == 100.0  # (100 + 0) / 2, scaled
    koords = Koords().node("n1", card(0, ratio=None))
    found = koords.predicted(pod_with_limits(memory="23040Mi", labels=ISOLATED))
    assert found.score == 0.0


# 7 and 9: what a prediction says


def test_9_the_cards_are_listed_under_the_first_container_that_asks() -> None:
    made = pod_with_limits(
        "p", container("web"), box("a", ratio=20), box("b", ratio=40), init=[container("i")], labels=ISOLATED
    )
    found = a10s().predicted(made)
    assert found.parts == {2: (Part("GPU-0", 6912, 0), Part("GPU-1", 6912, 0))}


def test_9_a_card_without_an_id_goes_by_its_minor() -> None:
    nameless = {**card(7), "id": ""}
    found = Koords().node("n1", nameless).predicted(pod_with_limits(ratio=33, core=10, labels=ISOLATED))
    assert found.parts == {0: (Part("minor-7", 7603, 10),)}  # 7603.2 MiB
    assert json.loads(found.annotations[ALLOCATED]) == {
        "gpu": [share(7, core="10", memory=str(23040 * 2**20 * 33 // 100), ratio="33")]
    }


def test_slices_of_ascend_cards_are_not_predicted() -> None:
    asked = pod_with_limits(shared=1, memory="8Gi", **NPU)
    assert a10s().failed(asked) == {"n1": "slices of Ascend cards aren't predicted"}


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
        ((2,), 1, [3]),
        ((0,), 2, [2, 3]),  # leaves 4-7 whole
        ((7,), 2, [4, 5]),
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
        ({"2": [part(0, 1, 2)]}, {}, "8/8 AllocatedCardsInsufficientRequest"),
        ({"2": [part(0, 1)]}, {"ringBusBandwidth": "1"}, "8/8 AllocatedCardsInsufficientRequest"),
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


def test_7_4_2_scopes_come_by_number_and_by_text() -> None:
    spots = [(10, "b"), (10, "a"), (9, "z"), (9, "y")]
    assert tree(spots=spots).minors(whole(1)) == [3]


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
