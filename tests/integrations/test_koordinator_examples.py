"""The worked examples of docs/spec/koordinator.md: section 14 by number, and 10.3."""

from __future__ import annotations

import json

import pytest
from builders import container
from devices.fit_env import NOW, pod

from hami_webhook.devices.foreign_scheduler import Part
from hami_webhook.kube.objects import ResourceQuota
from hami_webhook.quota.account import ChargeRequest, QuotaAccount
from hami_webhook.quota.batch import evaluate_batch
from hami_webhook.quota.pricing import waiting_charge

from .koords import (
    A10,
    ALLOCATED,
    ISOLATED,
    ISOLATION,
    JSON,
    Koords,
    a10s,
    box,
    card,
    named,
    pod_with_limits,
    seed_pod,
    share,
)

GIB = 2**30
HALF_A10 = A10 // 2


def charged(koords: Koords, manifest: JSON, hard: JSON, used: JSON) -> dict[str, int] | str:
    """What a quota shows as used once the pod is charged, or what the pod is told."""
    keys = {name: f"limits.{resource}" for name, resource in zip(hard, named(**hard), strict=True)}
    written = {
        "metadata": {"name": "gpu-quota", "namespace": "default"},
        "spec": {"hard": {key: str(hard[name]) for name, key in keys.items()}},
        "status": {"used": {key: str(used[name]) for name, key in keys.items()}},
    }
    before = QuotaAccount.read(ResourceQuota.from_object(written), koords.vendors)
    asked = koords.admit(manifest).pod
    charge = waiting_charge(asked, koords.vendors, koords.state)
    found = evaluate_batch(
        {before.name: before}, [ChargeRequest(asked.uid, asked, charge)], NOW, 1000, recomputed=frozenset()
    )
    refused = found.refusals.get(0)
    after = found.accounts[before.name]
    return refused.message if refused is not None else {name: after.used[key] for name, key in keys.items()}


# 1


def test_1_the_seeds_pod_is_admitted_as_it_is() -> None:
    done = a10s().admit(seed_pod())
    assert done.manifest == seed_pod()
    assert done.warnings == []


def test_1_idle_cards_tie_and_the_lowest_minor_is_taken() -> None:
    koords = a10s()
    placed, _ = koords.place(seed_pod())
    assert placed.annotations == {
        ALLOCATED: '{"gpu":[{"minor":0,"resources":{"koordinator.sh/gpu-core":"50",'
        '"koordinator.sh/gpu-memory":"11520Mi","koordinator.sh/gpu-memory-ratio":"50"},"id":"GPU-0"}]}'
    }
    assert placed.parts == {0: (Part("GPU-0", 11520, 50),)}
    assert (placed.node, placed.score, placed.failed) == ("n1", 100.0, {})
    assert koords.debits() == {"shared": 1, "core": 50, "ratio": 50, "memory": 12079595520, "gpu": 50}


def test_1_with_ten_percent_in_use_the_other_card_is_taken() -> None:
    assert a10s().busy(0, ratio=10).minors(seed_pod()) == [1]


# 2


def test_2_the_shorthand_is_spelt_out() -> None:
    done = a10s().admit(pod_with_limits(gpu=50))
    assert done.limits() == done.requests() == named(shared="1", core="50", ratio="50")
    assert done.scheduler == "koord-scheduler"
    assert [text.partition(" ")[0] for text in done.warnings] == ["[koordinator/isolation]"]


def test_2_one_card_and_a_half_is_refused() -> None:
    assert "koordinator.sh/gpu 150 in container main" in a10s().admit(pod_with_limits(gpu=150)).message


def test_2_two_whole_cards() -> None:
    koords = a10s()
    assert koords.admit(pod_with_limits(gpu=200)).limits() == named(shared="2", core="200", ratio="200")
    placed, _ = koords.place(pod_with_limits(gpu=200))
    assert placed.parts == {0: (Part("GPU-0", 23040, 100), Part("GPU-1", 23040, 100))}


def test_2_two_whole_cards_are_refused_where_one_is_in_use() -> None:
    why = a10s().busy(1, core=50).failure(pod_with_limits(gpu=200))
    assert why == "1/2 AllocatedCardsInsufficientRequest, 1/2 CardInsufficientCore"


# 3


def test_3_two_shared_cards_have_half_of_it_each() -> None:
    koords = a10s()
    placed, _ = koords.place(pod_with_limits(shared=2, core=100, ratio=100, labels=ISOLATED))
    assert placed.parts == {0: (Part("GPU-0", 11520, 50), Part("GPU-1", 11520, 50))}
    assert json.loads(placed.annotations[ALLOCATED])["gpu"] == [
        share(minor, core="50", memory="11520Mi", ratio="50", id=f"GPU-{minor}") for minor in (0, 1)
    ]
    assert koords.debits() == {"shared": 2, "core": 100, "ratio": 100, "memory": 24159191040, "gpu": 100}


@pytest.mark.parametrize(
    ("amounts", "text"),
    [
        ({"shared": 2, "core": 101, "ratio": 100}, "koordinator.sh/gpu-core 101 in container main is not a multiple"),
        ({"shared": 1, "ratio": 101}, "exceeds 100 per GPU"),
    ],
)
def test_3_what_does_not_divide_or_is_too_much_is_refused(amounts: JSON, text: str) -> None:
    assert text in a10s().admit(pod_with_limits(**amounts)).message


# 4


def test_4_memory_without_cores() -> None:
    koords = a10s()
    placed, _ = koords.place(pod_with_limits(shared=1, memory="8Gi", labels=ISOLATED))
    assert json.loads(placed.annotations[ALLOCATED])["gpu"] == [share(0, memory="8Gi", ratio="35", id="GPU-0")]
    assert koords.debits() == {"shared": 1, "ratio": 35, "memory": 8589934592, "gpu": 35}


@pytest.mark.parametrize(
    ("amounts", "text"),
    [
        ({"memory": "8Gi", "ratio": 30}, "mutually exclusive"),
        ({"core": 50}, "needs koordinator.sh/gpu-memory or koordinator.sh/gpu-memory-ratio"),
    ],
)
def test_4_two_memories_and_none_are_refused(amounts: JSON, text: str) -> None:
    assert text in a10s().admit(pod_with_limits(**amounts)).message


# 5


def test_5_the_label_as_older_documents_have_it() -> None:
    written = pod_with_limits(ratio=50, labels={ISOLATION: "hami-core"})
    done = a10s().admit(written)
    assert done.labels == ISOLATED
    assert Koords().node("n1", card(0), labels={}).failure(written) == "1/1 ModeNotFit"


# 6


@pytest.mark.parametrize(
    "containers",
    [
        (container("a", **{"nvidia.com/gpu": 1}), box("b", shared=1, ratio=50)),
        (box("a", memory="8Gi"), box("b", ratio=50)),
    ],
)
def test_6_what_the_scheduler_would_not_take_together_is_refused(containers: tuple[JSON, ...]) -> None:
    assert "invalid resource device requests" in a10s().admit(pod_with_limits("p", *containers)).message


# 7


def test_7_what_koordinator_wrote_is_the_debit() -> None:
    koords = a10s()
    entry = share(1, core="50", memory="11520Mi", ratio="50")
    koords.bind(seed_pod("running"), "n1", json.dumps({"gpu": [entry]}))
    debits = koords.debits("running")
    assert debits == {"memory": 12079595520, "ratio": 50, "core": 50, "shared": 1, "gpu": 50}
    hard, used = {"memory": "20Gi"}, {"memory": debits["memory"]}
    assert charged(koords, pod_with_limits("new", memory="8Gi"), hard, used) == {"memory": 20669530112}
    refused = charged(koords, pod_with_limits("new", memory="9Gi"), hard, used)
    assert isinstance(refused, str)
    assert refused.startswith("exceeding resource quota: ")
    assert "limited: limits.koordinator.sh/gpu-memory=21474836480" in refused


# 8


def test_8_an_annotation_of_ones_own_making_counts_for_nothing() -> None:
    koords = a10s()
    forged = json.dumps({"gpu": [share(0, core="1", memory="1Mi", ratio="1")]})
    pending = koords.bind(pod_with_limits("p", shared=1, core=50, ratio=50), "", forged)
    assert pending.annotations[ALLOCATED] == forged
    assert koords.debits() == {"shared": 1, "core": 50, "ratio": 50, "memory": HALF_A10, "gpu": 50}
    assert not koords.charge("p").placed


# 10.3


def test_10_3_a_quota_fills_up() -> None:
    koords = Koords().node("big", *(card(minor, "80Gi") for minor in range(4)))
    koords.node("n1", card(0))
    hard = {"memory": "60Gi", "ratio": 300}
    used: JSON = {"memory": 0, "ratio": 0}

    a = pod_with_limits("a", shared=4, memory="40Gi")
    after = charged(koords, a, hard, used)
    assert after == {"memory": 42949672960, "ratio": 48}
    placed, _ = koords.place(a)
    assert placed.parts == {0: tuple(Part(f"GPU-{minor}", 10240, 0) for minor in range(4))}
    assert koords.debits("a") == {"shared": 4, "memory": 42949672960, "ratio": 48, "gpu": 48}

    koords.bind(
        koords.admit(pod_with_limits("b", ratio=50)).manifest, "n1", json.dumps({"gpu": [share(0, ratio="50")]})
    )
    assert koords.debits("b") == {"shared": 1, "memory": 12079595520, "ratio": 50, "gpu": 50}

    used = {"memory": 42949672960 + 12079595520, "ratio": 98}
    refused = charged(koords, pod_with_limits("c", gpu=200), hard, used)
    assert isinstance(refused, str)
    assert f"requested: limits.koordinator.sh/gpu-memory={45 * GIB} (smallest eligible card)" in refused
    assert "gpu-memory-ratio" not in refused  # 298 of 300


def test_a_pod_of_nvidias_that_koordinator_placed_is_debited_as_well() -> None:
    """10.2: it isn't Koordinator's at admission, but its allocation counts."""
    koords = a10s()
    manifest = pod("whole", **{"nvidia.com/gpu": 1})
    entry = share(0, core="100", memory="23040Mi", ratio="100")
    koords.bind(manifest, "n1", json.dumps({"gpu": [entry]}))
    debits = koords.debits("whole")
    assert {name: debits[name] for name in ("shared", "core", "ratio", "memory", "gpu")} == {
        "shared": 1, "core": 100, "ratio": 100, "memory": A10, "gpu": 100,
    }  # fmt: skip
