"""AMD GPUs, placement and quota: docs/spec/amd-biren-vastai.md#A7 to #A9, and the worked examples (A11)."""

from __future__ import annotations

import pytest
from builders import container

from hami_webhook.devices.model import BadRequest
from hami_webhook.kube.objects import Node, Pod
from hami_webhook.quota.pricing import charge_of

from .amd_cards import (
    ALLOCATED,
    AMD,
    BOTH,
    CORES,
    COUNT,
    MEM,
    MODEL,
    TO_ALLOCATE,
    amd,
    limits,
    record,
    with_limits,
)
from .fit_env import CHART, JSON, NOW, FitEnv, Placed, placed_pod, pod

# A11


def test_example_1_a_share_of_the_last_registered_card() -> None:
    placed = FitEnv([BOTH]).place(with_limits(1, 49152, 25))
    assert isinstance(placed, Placed)
    expected = "G1,AMD Instinct MI300X VF,49152,76:;"
    assert {key: text for key, text in placed.annotations.items() if "amd" in key.partition("/")[2]} == {
        TO_ALLOCATE: expected,
        ALLOCATED: expected,
    }


@pytest.mark.parametrize(
    ("manifest", "answer"),
    [
        pytest.param(with_limits(2), f"G1,{MODEL},196288,304:G0,{MODEL},196288,304:;", id="example 2"),
        pytest.param(with_limits(**{"amd.com/use-gputype": "MI250"}), "2/2 CardTypeMismatch", id="example 5"),
        pytest.param(
            pod("p", container("side"), container("main", **limits(1, 49152, 25))), f";G1,{MODEL},49152,76:;",
            id="example 6",
        ),
    ],
)  # fmt: skip
def test_examples_on_two_idle_cards(manifest: JSON, answer: str) -> None:
    assert record(FitEnv([BOTH]), manifest) == answer


@pytest.mark.parametrize("cores", [0, 101, "12.5", "x", "-1"])
def test_example_3_a_percentage_out_of_bounds_is_refused(cores: object) -> None:
    message = "amd.com/gpucores must be an integer percentage between 1 and 100"
    assert FitEnv([]).admit(with_limits(1, None, cores)).message == message
    incoming = Pod.from_object(with_limits(1, None, cores)).containers[0]
    with pytest.raises(BadRequest, match=message):
        AMD.request(incoming)


def test_example_4_half_of_a_card_is_taken() -> None:
    def half_used(on: Node) -> FitEnv:
        env = FitEnv([on])
        assert record(env, with_limits(1, 98144, 50, "first")) == f"G1,{MODEL},98144,152:;"
        return env

    assert record(half_used(amd("G1")), with_limits(1, 98145, 1)) == "1/1 CardInsufficientMemory"
    assert record(half_used(amd("G1")), with_limits(1, 1, 51)) == "1/1 CardInsufficientCore"
    assert record(half_used(amd("G1")), with_limits(1, 98144, 50)) == f"G1,{MODEL},98144,152:;"
    assert record(half_used(BOTH), with_limits(1, 98145, 50)) == f"G0,{MODEL},98145,152:;"
    assert record(half_used(BOTH), with_limits(1, 1, 51)) == f"G0,{MODEL},1,155:;"


# A7


@pytest.mark.parametrize(
    ("percent", "total", "units"),
    [(25, 304, 76), (33, 304, 100), (67, 304, 203), (1, 304, 3), (100, 304, 304), (1, 64, 1), (33, 100, 33)],
)
def test_compute_units(percent: int, total: int, units: int) -> None:
    assert record(FitEnv([amd("G", devcore=total)]), with_limits(1, 5, percent)) == f"G,{MODEL},5,{units}:;"


def test_no_exclusiveness_beyond_the_units() -> None:
    env = FitEnv([amd("G0")])
    assert record(env, with_limits(1, 5, 100, "first")) == f"G0,{MODEL},5,304:;"
    assert record(env, with_limits(1, 5, 1)) == "1/1 CardInsufficientCore"
    assert record(env, with_limits(2)) == "NodeInsufficientDevice"


# A8


@pytest.mark.parametrize(
    ("model", "word"),
    [
        (MODEL, MODEL),
        ("amd radeon", "amd radeon"),
        ("", "AMD"),
        ("Instinct MI300X", "AMD"),
        ("AMD, MI300X", "AMD"),
        ("AMD:MI300X", "AMD"),
        ("AMD;MI300X", "AMD"),
    ],
)
def test_the_second_field_is_the_product_name(model: str, word: str) -> None:
    env = FitEnv([amd("G0", type=model)])
    assert record(env, with_limits(1, 5, 25, "a")) == f"G0,{word},5,76:;"
    assert env.used("AMD", "G0", "amd-1") == (1, 5, 76)


def test_the_second_field_is_not_read() -> None:
    found = AMD.decode(placed_pod(**{ALLOCATED: "G0,whatever,5,76:;"}))
    assert found is not None
    assert [(entry.uuid, entry.memory, entry.cores) for row in found for entry in row] == [("G0", 5, 76)]


# A9


@pytest.mark.parametrize(
    ("asked", "on", "debits"),
    [
        (limits(1, 49152, 25), BOTH, (1, 49152, 25)),
        (limits(2), BOTH, (2, 392576, 200)),
        (limits(1, None, 33), amd("G0", devcore=100), (1, 196288, 33)),
        (limits(1, 5, 1), amd("G0", devcore=64), (1, 5, 1)),
    ],
)
def test_debits(asked: JSON, on: Node, debits: tuple[int, int, int]) -> None:
    """What is placed; and since every card here is alike, what waits is charged the same."""
    env = FitEnv([on])
    expected = dict(zip((f"limits.{COUNT}", f"limits.{MEM}", f"limits.{CORES}"), debits, strict=True))
    assert env.waiting(pod(**asked)) == expected
    placed = env.place(pod(**asked))
    assert isinstance(placed, Placed)
    assert placed.debits == expected


def test_whole_cards_are_charged_the_smallest_eligible_card_while_they_wait() -> None:
    small = amd("S", name="amd-2", devmem=65536)
    assert FitEnv([BOTH, small]).waiting(with_limits(2)) == {
        f"limits.{COUNT}": 2,
        f"limits.{MEM}": 2 * 65536,
        f"limits.{CORES}": 200,
    }
    assert FitEnv([]).waiting(with_limits())[f"limits.{MEM}"] == 1


def test_quotas_count_percent_where_cards_count_units() -> None:
    env = FitEnv([BOTH], hard={f"limits.{CORES}": 150})
    env.place(with_limits(1, None, None, "whole"))
    assert record(env, with_limits(1, 5, 51, "much")) == "2/2 ResourceQuotaNotFit"
    assert record(env, with_limits(1, 5, 25, "quarter")) == f"G0,{MODEL},5,76:;"
    assert record(env, with_limits(1, 5, 25, "another")) == f"G0,{MODEL},5,76:;"
    assert record(env, with_limits(1, 5, 1, "no more")) == "2/2 ResourceQuotaNotFit"


SIDE = container("side")
HALF, QUARTER = container("half", **limits(1, 5, 50)), container("quarter", **limits(1, 5, 25))


@pytest.mark.parametrize(
    ("text", "containers", "cores"),
    [
        (";G0,AMD,5,76:;", (HALF, QUARTER), 25),
        ("G0,AMD,5,76:;", (HALF, QUARTER), 50),
        ("G0,AMD,5,76:;G1,AMD,5,3:;;", (HALF, QUARTER), 100),
        ("G0,AMD,5,76:;", (SIDE, QUARTER), 25),
        ("G0,AMD,5,76:;", (SIDE,), 100),
    ],
)
def test_entries_are_charged_what_their_container_asks_or_the_most_one_of_the_pods_does(
    text: str, containers: tuple[JSON, ...], cores: int
) -> None:
    """HAMi 2.10 loses the slots of containers without cards, so an entry's own container may not be known."""
    bound = placed_pod("u", *containers, **{ALLOCATED: text})
    assert charge_of(bound, CHART, FitEnv([BOTH]).state, NOW).amounts[f"limits.{CORES}"] == cores


def test_init_containers_and_sidecars_are_peaks_in_both_units() -> None:
    env = FitEnv([amd("G0")])
    incoming = pod(
        "p",
        container("app", **limits(1, 10, 10)),
        init=[container("init", **limits(1, 5, 90)), container("side", sidecar=True, **limits(1, 7, 20))],
    )
    placed = env.place(incoming)
    assert isinstance(placed, Placed)
    assert placed.annotations[ALLOCATED] == f"G0,{MODEL},5,273:;G0,{MODEL},7,60:;G0,{MODEL},10,30:;"
    assert placed.debits == {f"limits.{COUNT}": 2, f"limits.{MEM}": 17, f"limits.{CORES}": 90}
    assert env.used("AMD", "G0", "amd-1") == (2, 17, 273)
