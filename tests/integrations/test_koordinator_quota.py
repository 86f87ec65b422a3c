"""What Koordinator's pods cost (docs/spec/koordinator.md#10), and the worked examples of section 14 by number.

What examples 2 to 6 say of admission is in test_koordinator_admission.py, in rows that have their numbers.
"""

from __future__ import annotations

import json
from collections.abc import Set

import pytest
from builders import container
from devices.fit_env import pod

from hami_webhook.devices.foreign_scheduler import Part
from hami_webhook.kube.objects import ResourceQuota
from hami_webhook.quota.account import QuotaAccount

from .koords import (
    A10,
    ALLOCATED,
    CHART,
    ISOLATED,
    JSON,
    MEMORY,
    NPU,
    Koords,
    a10s,
    box,
    card,
    pod_with_limits,
    seed_pod,
    share,
)

GIB = 2**30
HALF_A10 = A10 // 2


# 14


def test_1_the_seeds_pod_is_admitted_as_it_is() -> None:
    done = a10s().admit(seed_pod())
    assert done.manifest == seed_pod()
    assert done.warnings == []


@pytest.mark.parametrize(
    ("manifest", "entries", "parts", "debits"),
    [
        pytest.param(
            seed_pod(), [share(0, core="50", memory="11520Mi", ratio="50", id="GPU-0")], [Part("GPU-0", 11520, 50)],
            {"shared": 1, "core": 50, "ratio": 50, "memory": 12079595520, "gpu": 50}, id="1 the lowest minor",
        ),
        pytest.param(
            pod_with_limits(gpu=200),
            [share(minor, core="100", memory="23040Mi", ratio="100", id=f"GPU-{minor}") for minor in (0, 1)],
            [Part("GPU-0", 23040, 100), Part("GPU-1", 23040, 100)],
            {"shared": 2, "core": 200, "ratio": 200, "memory": 2 * A10, "gpu": 200}, id="2 two whole cards",
        ),
        pytest.param(
            pod_with_limits(shared=2, core=100, ratio=100, labels=ISOLATED),
            [share(minor, core="50", memory="11520Mi", ratio="50", id=f"GPU-{minor}") for minor in (0, 1)],
            [Part("GPU-0", 11520, 50), Part("GPU-1", 11520, 50)],
            {"shared": 2, "core": 100, "ratio": 100, "memory": 24159191040, "gpu": 100}, id="3 half of each",
        ),
        pytest.param(
            pod_with_limits(shared=1, memory="8Gi", labels=ISOLATED),
            [share(0, memory="8Gi", ratio="35", id="GPU-0")], [Part("GPU-0", 8192, 0)],
            {"shared": 1, "ratio": 35, "memory": 8589934592, "gpu": 35}, id="4 memory without cores",
        ),
    ],
)  # fmt: skip
def test_on_idle_cards(manifest: JSON, entries: list[JSON], parts: list[Part], debits: JSON) -> None:
    koords = a10s()
    placed, _ = koords.place(manifest)
    assert (placed.node, placed.score, placed.failed) == ("n1", 100.0, {})
    assert placed.annotations.keys() == {ALLOCATED}
    assert json.loads(placed.annotations[ALLOCATED]) == {"gpu": entries}
    assert placed.parts == {0: tuple(parts)}
    assert koords.debits() == debits


def test_8_an_annotation_of_ones_own_making_counts_for_nothing() -> None:
    koords = a10s()
    forged = json.dumps({"gpu": [share(0, core="1", memory="1Mi", ratio="1")]})
    pending = koords.bind(pod_with_limits("p", shared=1, core=50, ratio=50), "", forged)
    assert pending.annotations[ALLOCATED] == forged
    assert koords.debits() == {"shared": 1, "core": 50, "ratio": 50, "memory": HALF_A10, "gpu": 50}
    assert not koords.charge("p").placed


# 10.3


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


def mixed_fleet() -> Koords:
    """An A10, a card of 80 GiB, and an unhealthy one of 1 GiB."""
    return Koords().node("n1", card(0)).node("n2", card(0, "80Gi"), card(1, "1Gi", health=False))


# 10.1


@pytest.mark.parametrize(
    ("asked", "charge"),
    [
        ({"gpu": 50}, {"shared": 1, "core": 50, "ratio": 50, "gpu": 50, "memory": A10 // 2}),
        ({"gpu": 200}, {"shared": 2, "core": 200, "ratio": 200, "gpu": 200, "memory": 2 * A10}),
        ({"ratio": 33}, {"shared": 1, "ratio": 33, "gpu": 33, "memory": A10 * 33 // 100}),
        ({"core": 90, "ratio": 33}, {"shared": 1, "core": 90, "ratio": 33, "gpu": 90, "memory": A10 * 33 // 100}),
        ({"shared": 2, "core": 20, "ratio": 66},
         {"shared": 2, "core": 20, "ratio": 66, "gpu": 66, "memory": 2 * (A10 * 33 // 100)}),
        ({"memory": "8Gi"}, {"shared": 1, "memory": 8 * GIB, "ratio": 10, "gpu": 10}),
        ({"core": 40, "memory": "8Gi"}, {"shared": 1, "core": 40, "memory": 8 * GIB, "ratio": 10, "gpu": 40}),
        ({"shared": 3, "memory": 10}, {"shared": 3, "memory": 9}),
        ({"shared": 2, "memory": "160Gi"}, {"shared": 2, "memory": 160 * GIB, "ratio": 200, "gpu": 200}),
        ({"shared": 1, "memory": "8Gi", **NPU}, {"shared": 1, "memory": 8 * GIB, "ratio": 10, "gpu": 10}),
    ],
)  # fmt: skip
def test_10_1_a_pod_that_waits_is_charged_the_least_it_can_get(asked: JSON, charge: JSON) -> None:
    assert mixed_fleet().waiting(pod_with_limits(**asked)) == charge


@pytest.mark.parametrize(
    "koords",
    [
        Koords().node("n1"),
        Koords().node("n1", card(0, health=False)),
        Koords().node("n1", card(0)).node("n3", card(0, None)),  # it hides its memory, so it could be any
    ],
)
def test_10_1_no_card_is_known(koords: Koords) -> None:
    assert koords.waiting(pod_with_limits(ratio=50)) == {"shared": 1, "ratio": 50, "gpu": 50}
    assert koords.waiting(pod_with_limits(memory="8Gi")) == {"shared": 1, "memory": 8 * GIB}


def test_10_1_effective_requests_are_charged() -> None:
    made = pod_with_limits("p", box("a", ratio=10), box("b", ratio=20), init=[box("i", ratio=50)])
    assert a10s().waiting(made) == {"shared": 2, "ratio": 50, "gpu": 50, "memory": 2 * (A10 * 25 // 100)}


@pytest.mark.parametrize(
    ("asked", "floors"),
    [({"ratio": 50}, {"limits.koordinator.sh/gpu-memory"}),
     ({"memory": "8Gi"}, {"limits.koordinator.sh/gpu-memory-ratio", "limits.koordinator.sh/gpu"})],
)  # fmt: skip
def test_10_1_what_depends_on_the_card_is_a_floor(asked: JSON, floors: Set[str]) -> None:
    koords = a10s()
    koords.bind(koords.admit(pod_with_limits(**asked)).manifest, "", None)
    charge = koords.charge("p")
    assert (charge.floors, charge.derivable, charge.placed) == (floors, False, False)


def test_10_1_a_pod_that_was_there_before_us_is_read_as_it_stands() -> None:
    koords = a10s()
    koords.bind(pod_with_limits("old", gpu=50), "", None)
    assert koords.debits("old") == {"shared": 1, "core": 50, "ratio": 50, "gpu": 50, "memory": A10 // 2}


# 10.2

DECLARED = {"shared": 1, "core": 50, "ratio": 50, "gpu": 50}
"""What the seed's pod says itself, whatever card it gets."""


@pytest.mark.parametrize(
    ("entries", "debits"),
    [
        ([share(0, core="50", memory="11520Mi", ratio="50")],
         {"shared": 2, "core": 50, "memory": A10 // 2, "ratio": 50, "gpu": 50}),
        ([share(0, core="80", memory="8Gi", ratio="30"), share(1, core=10, memory=1, ratio=40)],
         {"shared": 2, "core": 90, "memory": 8 * GIB + 1, "ratio": 70, "gpu": 120}),
        ([share(0, ratio="29")], {"shared": 2, "core": 2, "memory": A10 * 29 // 100, "ratio": 29, "gpu": 29}),
        ([share(1, memory="8Gi")], {"shared": 2, "core": 2, "memory": 8 * GIB, "ratio": 35, "gpu": 35}),
        ([share(0, memory="6681Mi", ratio="28")],
         {"shared": 2, "core": 2, "memory": 6681 * 2**20, "ratio": 28, "gpu": 28}),
    ],
)  # fmt: skip
def test_10_2_what_was_written_is_the_debit_but_for_what_the_pod_declares_above_it(
    entries: list[JSON], debits: JSON
) -> None:
    koords = a10s()
    koords.bind(seed_pod("p", shared=2, core=2, ratio=2), "n1", json.dumps({"gpu": entries}))
    assert koords.debits() == debits
    charge = koords.charge("p")
    assert (charge.placed, charge.derivable, charge.problems, charge.exact) == (True, True, (), charge.amounts)


@pytest.mark.parametrize(
    ("entry", "debits", "lacking"),
    [
        (share(9, core="60", ratio="55"), {"shared": 1, "core": 60, "ratio": 55, "gpu": 60}, "gpu-memory for minor 9"),
        (share(9, memory="1Gi"), {**DECLARED, "memory": GIB}, "gpu-memory-ratio for minor 9"),
        (share(0, core="10"), DECLARED, "gpu-memory and koordinator.sh/gpu-memory-ratio"),
    ],
)
def test_10_2_what_can_not_be_completed_counts_as_declared_and_is_told(entry: JSON, debits: JSON, lacking: str) -> None:
    koords = a10s()
    koords.bind(seed_pod(), "n1", json.dumps({"gpu": [entry]}))
    assert koords.debits() == debits
    (problem,) = koords.charge("p").problems
    assert lacking in problem
    if entry["minor"] == 9:  # the next version of the Device has the card
        koords.node("n1", card(9))
        assert koords.debits().keys() >= {"memory", "ratio"}
        assert koords.charge("p").problems == ()


@pytest.mark.parametrize(
    "entry", [share(0, core=1, memory=1, ratio=1), share(0, core=0, memory="5Gi", ratio=0), share(0, ratio="1")]
)
def test_a_placed_pod_never_costs_less_than_it_declares(entry: JSON) -> None:
    """Of each amount that the pod states itself; what the card decides is as Koordinator wrote it."""
    koords = a10s()
    koords.bind(seed_pod(), "n1", json.dumps({"gpu": [entry]}))
    assert {key: amount for key, amount in koords.debits().items() if key != "memory"} == DECLARED
    by_memory = pod_with_limits("q", memory="8Gi", core=40)
    koords.bind(by_memory, "n1", json.dumps({"gpu": [{**entry, "id": "GPU-1", "minor": 1}]}))
    assert koords.debits("q").items() >= {"shared": 1, "core": 40, "memory": 8 * GIB}.items()


def test_a_ratio_that_koordinator_rounds_down_is_never_corrected() -> None:
    """6: in floating point, an exact 29 percent of a card becomes 28, which is below the estimate of admission."""
    koords = a10s()
    exact = A10 * 29 // 100
    koords.bind(pod_with_limits("p", memory=exact), "n1", json.dumps({"gpu": [share(0, memory=exact, ratio="27")]}))
    assert koords.waiting(pod_with_limits("q", memory=exact))["ratio"] == 28
    assert koords.debits() == {"shared": 1, "memory": exact, "ratio": 27, "gpu": 27}


@pytest.mark.parametrize("text", ["{", '{"gpu": 7}'])
def test_10_2_an_annotation_that_can_not_be_read_leaves_the_charge(text: str) -> None:
    koords = a10s()
    waiting = koords.waiting(seed_pod())
    koords.bind(seed_pod(), "n1", text)
    charge = koords.charge("p")
    assert (koords.debits(), charge.placed) == (waiting, False)
    (problem,) = charge.problems
    assert problem.startswith(f"{ALLOCATED} can't be read, so the amounts that the pod declares count: ")


@pytest.mark.parametrize("allocated", [None, "{}", '{"rdma": [{"minor": 1}]}', '{"gpu": []}'])
def test_10_2_a_bound_pod_without_gpus_keeps_its_charge(allocated: str | None) -> None:
    koords = a10s()
    koords.bind(seed_pod(), "n1", allocated)
    assert koords.debits() == koords.waiting(seed_pod("q"))
    assert koords.charge("p").problems == ()


def test_10_2_the_label_for_hamis_monitor_makes_no_placement_of_ours() -> None:
    """9: with DevicePluginAdaption Koordinator writes that label, and two more annotations."""
    koords = a10s()
    notes = {
        "scheduling.koordinator.sh/bind-timestamp": "1767225600000000000",
        "scheduling.koordinator.sh/gpu-minors": "0",
    }
    manifest = seed_pod(notes=notes)
    manifest["metadata"]["labels"]["hami.io/vgpu-node"] = "n1"
    koords.bind(manifest, "n1", json.dumps({"gpu": [share(0, core="50", ratio="50")]}))
    assert koords.debits() == {"shared": 1, "core": 50, "ratio": 50, "gpu": 50, "memory": A10 // 2}
    view = koords.state.view("n1")
    assert view is not None
    assert view.usage == {}


def test_10_2_a_pod_that_asked_for_nothing_and_got_nothing_costs_nothing() -> None:
    koords = a10s()
    koords.bind(pod_with_limits("p", container()), "n1", "{")
    assert koords.debits() == {}


# units


@pytest.mark.parametrize("written", ["40Gi", "42949672960"])
def test_10_a_quota_in_gibibytes_counts_bytes(written: str) -> None:
    key = f"limits.{MEMORY}"
    quota = ResourceQuota.from_object({"metadata": {"name": "q"}, "spec": {"hard": {key: written}}})
    account = QuotaAccount.read(quota, CHART)
    assert account.hard == {key: 42949672960}
    assert account.in_bytes == frozenset()
    assert account.counted({key: 7}) == {key: 7}
