"""Where Koordinator would place a pod: gates, checks, scores and the choice of the koordinator page's 7.1 to 8."""

from __future__ import annotations

import json

import pytest
from builders import container

from hami_webhook.devices.foreign_scheduler import NoNode, Part, Prediction
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
    Koords,
    a10s,
    box,
    card,
    configured,
    hint,
    pod_with_limits,
    share,
)

HALF = {"ratio": 50, "labels": ISOLATED}
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


@pytest.mark.parametrize(("count", "text"), [(2, "1/2 AllocatedCardsInsufficientRequest, 1/2 CardNotHealth"),
                                             (3, "NodeInsufficientDevice")])  # fmt: skip
def test_7_2_all_cards_are_counted_healthy_or_not(count: int, text: str) -> None:
    koords = Koords().node("n1", card(0), card(1, health=False))
    assert koords.failure(pod_with_limits(gpu=100 * count)) == text


def test_7_2_a_node_without_a_device_has_no_cards() -> None:
    koords = Koords().node("bare", labels={}).node("n1", card(0))
    found = koords.predict(pod_with_limits(**HALF))
    assert isinstance(found, Prediction)
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
    ("used", "want", "least", "most"),
    [
        (Used(), Want(1, None, 50), (50 + 100) // 2, (50 + 0) // 2),
        (Used(0, 100, 10), Want(1, None, 50), (40 + 90) // 2, (60 + 10) // 2),
        (Used(0, 333, 33), Want(1, None, None, 250), (67 + 41) // 2, (33 + 58) // 2),
        (Used(0, 900, 90), Want(1, None, 50), (0 + 10) // 2, (100 + 90) // 2),
        (Used(100), Want(1, 100, 50), 75, 25),
    ],
)
def test_7_4_the_score_of_a_card(used: Used, want: Want, least: int, most: int) -> None:
    load = Load(CARD, used)
    assert load.score(KoordinatorConstraints(want)) == least
    assert load.score(KoordinatorConstraints(want, most_allocated=True)) == most


@pytest.mark.parametrize(
    ("made", "points"),
    [
        (KoordinatorCard(0, memory=1000), 75),
        (KoordinatorCard(0, ratio=100), 100),
        (KoordinatorCard(0), 0),
        (KoordinatorCard(0, memory=0, ratio=0), 0),
        (KoordinatorCard(0, healthy=False, memory=1000, ratio=100), 0),
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


@pytest.mark.parametrize(
    ("scoring", "used", "count", "minors"),
    [
        ("LeastAllocated", {}, 1, [0]),
        ("LeastAllocated", {0: 10, 1: 30, 2: 20}, 1, [3]),
        ("LeastAllocated", {0: 10, 1: 30, 2: 20}, 3, [3, 0, 2]),
        ("LeastAllocated", {0: 51, 1: 30, 2: 51}, 2, [3, 1]),
        ("MostAllocated", {}, 1, [0]),
        ("MostAllocated", {0: 10, 1: 30, 2: 20}, 1, [1]),
        ("MostAllocated", {0: 10, 1: 30, 2: 20}, 3, [1, 2, 0]),
        ("MostAllocated", {0: 51, 1: 20, 2: 20}, 2, [1, 2]),
    ],
)
def test_7_4_3_cards_by_score_then_by_minor(scoring: str, used: dict[int, int], count: int, minors: list[int]) -> None:
    koords = a10s(4, configured(scoring=scoring))
    for minor, ratio in used.items():
        koords.busy(minor, ratio=ratio)
    assert koords.minors(pod_with_limits(shared=count, ratio=50 * count, labels=ISOLATED)) == minors


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
    found = koords.predict(pod_with_limits(**HALF))
    assert isinstance(found, Prediction)
    assert (found.node, found.score, found.failed) == (node, 100.0, {})


def test_8_a_node_without_any_points() -> None:
    koords = a10s(1)
    found = koords.predict(pod_with_limits(memory="23040Mi", labels=ISOLATED))
    assert isinstance(found, Prediction)
    assert found.score == 100.0  # (100 + 0) / 2, scaled
    koords = Koords().node("n1", card(0, ratio=None))
    found = koords.predict(pod_with_limits(memory="23040Mi", labels=ISOLATED))
    assert isinstance(found, Prediction)
    assert found.score == 0.0


# 7 and 9: what a prediction says


def test_9_the_cards_are_listed_under_the_first_container_that_asks() -> None:
    made = pod_with_limits(
        "p", container("web"), box("a", ratio=20), box("b", ratio=40), init=[container("i")], labels=ISOLATED
    )
    found = a10s().predict(made)
    assert isinstance(found, Prediction)
    assert found.parts == {2: (Part("GPU-0", 6912, 0), Part("GPU-1", 6912, 0))}


def test_9_a_card_without_an_id_goes_by_its_minor() -> None:
    nameless = {**card(7), "id": ""}
    found = Koords().node("n1", nameless).predict(pod_with_limits(ratio=33, core=10, labels=ISOLATED))
    assert isinstance(found, Prediction)
    assert found.parts == {0: (Part("minor-7", 7603, 10),)}  # 7603.2 MiB
    assert json.loads(found.annotations[ALLOCATED]) == {
        "gpu": [share(7, core="10", memory=str(23040 * 2**20 * 33 // 100), ratio="33")]
    }


def test_slices_of_ascend_cards_are_not_predicted() -> None:
    asked = pod_with_limits(shared=1, memory="8Gi", **NPU)
    assert a10s().failed(asked) == {"n1": "slices of Ascend cards aren't predicted"}
