"""The worked examples of docs/spec/cambricon.md (section 14), those of quota (10), and HAMi's defects (13)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from builders import container, node, read_node

from .fit_env import JSON, FitEnv, Names, Placed, pod
from .simulated_quota import amounts, run

COUNT, MEM, CORES = "cambricon.com/vmlu", "cambricon.com/mlu.smlu.vmemory", "cambricon.com/mlu.smlu.vcore"
ALLOCATED, PROFILE = "hami.io/cambricon-mlu-devices-allocated", "CAMBRICON_DSMLU_PROFILE"
UUID = "m1-cambricon-mlu-"


NAMES = Names(COUNT, MEM, CORES)
with_limits, one = NAMES.pod, NAMES.container


def env(cores: int = 200, memory: int = 182, model: str | None = None) -> FitEnv:
    """Node `m1`: two cards of 23296 MiB unless told otherwise."""
    return FitEnv([read_node("m1", labels={"Model": model} if model else {}, capacity={CORES: cores, MEM: memory})])


def got(placed: Placed | dict[str, str]) -> tuple[str, str] | str:
    """The record, its UUIDs short, and the profile; or why the only node refused."""
    if not isinstance(placed, Placed):
        return placed["m1"]
    return placed.annotations[ALLOCATED].replace(UUID, "-"), placed.annotations[PROFILE]


def on(index: int) -> dict[str, str]:
    return {"cambricon.com/use-gpuuuid": f"{UUID}{index}"}


def test_1_a_slice_of_the_last_card() -> None:
    placed = env().place(with_limits("p", 1, 20, 10))
    assert isinstance(placed, Placed)
    assert got(placed) == ("-1,MLU,5120,10:;", "1_10_20")
    assert placed.annotations["CAMBRICON_DSMLU_ASSIGHED"] == placed.annotations["CAMBRICON_DSMLU_ASSIGNED"] == "false"
    assert placed.debits == {f"limits.{COUNT}": 1, f"limits.{MEM}": 20, f"limits.{CORES}": 10}


WHOLE = ("-1,MLU,23296,100:;", "1_100_91")
BOTH = ("-1,MLU,23296,100:-0,MLU,23296,100:;", "1_100_91")
SLICES = {0: ("-0,MLU,5120,10:;", "0_10_20"), 1: ("-1,MLU,5120,10:;", "1_10_20")}
MISMATCH = "2/2 CardTypeMismatch"


def slice_with(key: str, text: str) -> JSON:
    return with_limits("p", 1, 20, 10, notes={f"cambricon.com/{key}": text})


@pytest.mark.parametrize(
    ("on_node", "incoming", "answer"),
    [
        pytest.param(env(), with_limits(), WHOLE, id="2 a count alone is the whole card"),
        pytest.param(env(), with_limits("p", 1, 20), ("-1,MLU,5120,100:;", "1_100_20"), id="3 memory alone"),
        pytest.param(env(), with_limits("p", 1, 91, 10), ("-1,MLU,23296,10:;", "1_10_91"), id="4 what a card has"),
        pytest.param(env(), with_limits("p", 1, 92, 10), "2/2 CardInsufficientMemory", id="4 more than a card has"),
        pytest.param(env(), with_limits("p", 2, 20, 10), BOTH, id="6 several cards come whole"),
        pytest.param(env(), with_limits("p", 2, 91), BOTH, id="whole cards have what was written"),
        pytest.param(env(), with_limits("p", 2, 92), "2/2 CardInsufficientMemory", id="whole cards have too little"),
        pytest.param(
            env(), pod("p", container("side"), one(1, 20, 10)), (";-1,MLU,5120,10:;", "1_10_20"), id="7 an empty slot"
        ),
        pytest.param(env(), slice_with("use-gpuuuid", f"{UUID}0"), SLICES[0], id="8 allowed id"),
        pytest.param(env(), slice_with("nouse-gpuuuid", f"{UUID}1"), SLICES[0], id="8 denied id"),
        pytest.param(env(model="MLU370-X8"), slice_with("nouse-mlutype", "mlu370"), MISMATCH, id="8 denied model"),
        pytest.param(env(model="MLU370-X8"), slice_with("use-mlutype", "MLU590,mlu370"), SLICES[1], id="8 two models"),
        pytest.param(env(), slice_with("use-mlutype", "MLU370"), MISMATCH, id="8 a model that isn't known"),
        pytest.param(
            env(250, 250), with_limits("p", 3),
            ("-2,MLU,25600,100:-1,MLU,25600,100:-0,MLU,25600,100:;", "2_100_100"), id="10 an incomplete card is one",
        ),
        pytest.param(env(0, 0), with_limits(), "node unregistered", id="no capacity"),
    ],
)  # fmt: skip
def test_on_idle_cards(on_node: FitEnv, incoming: JSON, answer: object) -> None:
    assert got(on_node.place(incoming, keep=False)) == answer


@pytest.mark.parametrize(
    ("held", "asked", "answer"),
    [
        pytest.param((1, 10), (1, 20), "2/2 CardInsufficientCore", id="3 memory alone is exclusive"),
        pytest.param((20, 100), (1, 20, 0), "2/2 CardComputeUnitsExhausted", id="9 no cores where none are left"),
        pytest.param((20, 0), (1, 20), "2/2 ExclusiveDeviceAllocateConflict", id="all cores of a card in use"),
    ],
)
def test_where_both_cards_are_in_use(held: Sequence[int], asked: Sequence[int], answer: str) -> None:
    used = env()
    for index in (0, 1):
        used.place(with_limits(f"used{index}", 1, *held, notes=on(index)))
    assert got(used.place(with_limits("p", *asked))) == answer


def test_5_bytes_are_refused_with_the_unit() -> None:
    assert env().admit(with_limits("p", 1, "16Gi")).message == (
        "invalid cambricon.com/mlu.smlu.vmemory value 16Gi in container main: must be an integer number of units of "
        "256 MiB (16 GiB is 64, not 16Gi) between 0 and 8388607"
    )


def test_6_several_cards_of_which_one_is_in_use() -> None:
    shared = env()
    shared.place(with_limits("small", 1, 1, 1, notes=on(0)))
    assert got(shared.place(with_limits("p", 2, 20, 10))) == (
        "1/2 AllocatedCardsInsufficientRequest, 1/2 CardInsufficientMemory"
    )


def test_four_equal_pods_spread_over_four_cards() -> None:
    """HAMi 2.5.0 put them all on the last card (#946)."""
    four = env(400, 364)
    records = [got(four.place(with_limits(f"p{number}", 1, 20, 10)))[0] for number in range(4)]
    assert records == [f"-{index},MLU,5120,10:;" for index in (3, 2, 1, 0)]


# 10: quota

FOUR = [node("m1", capacity={CORES: 400, MEM: 640})]
"""Four cards of 40960 MiB, 160 units."""


def hard(mem: int | None = None, cores: int | None = None) -> JSON:
    return {name: limit for name, limit in ((MEM, mem), (CORES, cores)) if limit is not None}


def debits(count: int, mem: int, cores: int) -> JSON:
    return {COUNT: count, MEM: mem, CORES: cores}


def test_quota_a_to_d() -> None:
    """B is refused at admission already: docs/spec/quota.md#5 charges a whole card the smallest one while it waits."""
    pods = [
        with_limits("a", 1, 20, 10),
        with_limits("b", 1, None, 10),
        with_limits("c", 1, 50),
        with_limits("d", 1, 200),
    ]
    result = run(FOUR, hard(100, 150), pods)
    found = amounts(result)
    assert found[0] == debits(1, 20, 10)
    assert f"requested: limits.{MEM}=160 (smallest eligible card), used: limits.{MEM}=20," in str(found[1])
    assert found[2] == debits(1, 50, 100)
    assert f"limits.{MEM}=200, used: limits.{CORES}=110,limits.{MEM}=70," in str(found[3])
    assert result.quotas[0]["used"] == {f"limits.{MEM}": 70, f"limits.{CORES}": 110}


def test_quota_e_the_product_is_declared() -> None:
    result = run(FOUR, hard(60), [with_limits("e", 2, 40), with_limits("f", 1, 40)])
    assert f"requested: limits.{MEM}=80, used: limits.{MEM}=0, limited: limits.{MEM}=60" in str(amounts(result)[0])
    assert amounts(result)[1] == debits(1, 40, 100)


def test_quota_f_whole_cards_are_charged_as_placed() -> None:
    result = run(FOUR, hard(None, 250), [with_limits("f", 2), with_limits("g", 1, 1, 60)])
    assert amounts(result)[0] == debits(2, 320, 200)
    assert f"limits.{CORES}=60, used: limits.{CORES}=200, limited: limits.{CORES}=250" in str(amounts(result)[1])


def test_units_are_rounded_up_once_for_the_pod() -> None:
    thirds = [node("m1", capacity={CORES: 300, MEM: 1000})]
    assert amounts(run(thirds, {}, [with_limits("p", 1), with_limits("q", 2)])) == [
        debits(1, 334, 100),
        debits(2, 667, 200),
    ]
