"""The worked examples of docs/spec/cambricon.md (section 14), those of quota (10), and HAMi's defects (13)."""

from __future__ import annotations

import pytest
from builders import node, read_node

from hami_webhook.kube.objects import Pod
from hami_webhook.quota.budget import PodBudget
from hami_webhook.scheduling.fit import fit_pod, read_pod_request

from .fit_env import CHART, JSON, FitEnv, Names, Placed, pod
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


def test_2_a_count_alone_is_the_whole_card_and_a_warning() -> None:
    assert got(env().place(with_limits())) == ("-1,MLU,23296,100:;", "1_100_91")
    assert [warning[:29] for warning in env().admit(with_limits()).warnings] == ["container main: without cambr"]


def test_3_memory_alone_is_exclusive() -> None:
    assert got(env().place(with_limits("p", 1, 20))) == ("-1,MLU,5120,100:;", "1_100_20")
    used = env()
    for index in (0, 1):
        used.place(with_limits(f"small{index}", 1, 1, 10, notes=on(index)))
    assert got(used.place(with_limits("p", 1, 20))) == "2/2 CardInsufficientCore"


@pytest.mark.parametrize(
    ("mem", "answer"),
    [(91, ("-1,MLU,23296,10:;", "1_10_91")), (92, "2/2 CardInsufficientMemory")],
)
def test_4_more_than_a_card_has(mem: int, answer: object) -> None:
    assert got(env().place(with_limits("p", 1, mem, 10))) == answer


def test_5_bytes_are_refused_with_the_unit() -> None:
    assert env().admit(with_limits("p", 1, "16Gi")).message == (
        "invalid cambricon.com/mlu.smlu.vmemory value 16Gi in container main: must be an integer number of units of "
        "256 MiB (16 GiB is 64, not 16Gi) between 0 and 8388607"
    )


def test_6_several_cards_come_whole() -> None:
    assert got(env().place(with_limits("p", 2, 20, 10))) == ("-1,MLU,23296,100:-0,MLU,23296,100:;", "1_100_91")
    shared = env()
    shared.place(with_limits("small", 1, 1, 1, notes=on(0)))
    assert got(shared.place(with_limits("p", 2, 20, 10))) == (
        "1/2 AllocatedCardsInsufficientRequest, 1/2 CardInsufficientMemory"
    )


def test_7_an_empty_slot_for_a_container_without_an_mlu() -> None:
    side = {"name": "side", "image": "x"}
    assert got(env().place(pod("p", side, one(1, 20, 10)))) == (";-1,MLU,5120,10:;", "1_10_20")


@pytest.mark.parametrize(
    ("model", "notes", "answer"),
    [
        (None, on(0), "-0,MLU,5120,10:;"),
        (None, {"cambricon.com/use-gpuuuid": f" {UUID}0 , x"}, "-0,MLU,5120,10:;"),
        (None, {"cambricon.com/use-gpuuuid": " "}, "-1,MLU,5120,10:;"),
        (None, {"cambricon.com/nouse-gpuuuid": f"{UUID}1"}, "-0,MLU,5120,10:;"),
        (None, {"cambricon.com/nouse-gpuuuid": f"{UUID}1", **on(1)}, "2/2 CardUuidMismatch"),
        ("MLU370-X8", {"cambricon.com/nouse-mlutype": "mlu370"}, "2/2 CardTypeMismatch"),
        ("MLU370-X8", {"cambricon.com/use-mlutype": "MLU590,mlu370"}, "-1,MLU,5120,10:;"),
        ("MLU370-X8", {"cambricon.com/use-mlutype": "MLU590"}, "2/2 CardTypeMismatch"),
        (
            "MLU370-X8",
            {"cambricon.com/use-mlutype": "MLU", "cambricon.com/nouse-mlutype": "X8"},
            "2/2 CardTypeMismatch",
        ),
        (None, {"cambricon.com/use-mlutype": "MLU370"}, "2/2 CardTypeMismatch"),
        (None, {"cambricon.com/nouse-mlutype": "MLU370"}, "-1,MLU,5120,10:;"),
        (None, {"cambricon.com/nouse-mlutype": ""}, "-1,MLU,5120,10:;"),
    ],
)
def test_8_lists_of_ids_and_models(model: str | None, notes: dict[str, str], answer: str) -> None:
    found = got(env(model=model).place(with_limits("p", 1, 20, 10, notes=notes)))
    assert found == (answer if "Mismatch" in answer else (answer, f"{answer[1]}_10_20"))


def test_9_no_cores_asked_where_none_are_left() -> None:
    used = env()
    for index in (0, 1):
        used.place(with_limits(f"full{index}", 1, 20, 100, notes=on(index)))
    assert got(used.place(with_limits("p", 1, 20, 0))) == "2/2 CardComputeUnitsExhausted"


def test_10_an_incomplete_card_is_one() -> None:
    fit = env(250, 250)
    assert got(fit.place(with_limits("p", 3))) == ("-2,MLU,25600,100:-1,MLU,25600,100:-0,MLU,25600,100:;", "2_100_100")


# 7: what isn't among the examples


def test_whole_cards_need_at_least_the_memory_that_was_written() -> None:
    assert got(env().place(with_limits("p", 2, 92))) == "2/2 CardInsufficientMemory"
    assert got(env().place(with_limits("p", 2, 91))) == ("-1,MLU,23296,100:-0,MLU,23296,100:;", "1_100_91")
    assert got(env().place(with_limits("p", 3))) == "NodeInsufficientDevice"
    assert got(env(0, 0).place(with_limits("p"))) == "node unregistered"


def test_four_equal_pods_spread_over_four_cards() -> None:
    """HAMi 2.5.0 put them all on the last card (#946)."""
    four = env(400, 364)
    records = [got(four.place(with_limits(f"p{number}", 1, 20, 10)))[0] for number in range(4)]
    assert records == [f"-{index},MLU,5120,10:;" for index in (3, 2, 1, 0)]


def test_binpack_fills_the_card_in_use() -> None:
    used = env()
    used.place(with_limits("first", 1, 20, 10, notes=on(0)))
    binpack = {"hami.io/gpu-scheduler-policy": "binpack"}
    assert got(used.place(with_limits("p", 1, 20, 10, notes=binpack))) == ("-0,MLU,5120,10:;", "0_10_20")


def test_a_card_in_use_is_neither_given_whole_nor_to_a_mutex_pod() -> None:
    used = env(100, 91)
    used.place(with_limits("idle", 1, 20, 0))
    assert got(used.place(with_limits("p", 1, 20))) == "1/1 ExclusiveDeviceAllocateConflict"
    mutex = {"hami.io/gpu-scheduler-policy": "mutex"}
    assert got(used.place(with_limits("p", 1, 20, 10, notes=mutex))) == "1/1 ExclusiveDeviceAllocateConflict"


def test_a_hundred_slices_are_the_most() -> None:
    single = env(100, 200)
    for number in range(100):
        assert got(single.place(with_limits(f"p{number}", 1, 1, 0))) == ("-0,MLU,256,0:;", "0_0_1")
    assert got(single.place(with_limits("p", 1, 1, 0))) == "1/1 CardTimeSlicingExhausted"


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


def test_quota_b_where_admission_knew_of_no_card() -> None:
    fit_yard = FitEnv([read_node("m1", capacity={CORES: 400, MEM: 640})])
    incoming = Pod.from_object(with_limits("b", 1, None, 10))
    ask, view = read_pod_request(incoming, CHART, "spread"), fit_yard.state.view("m1")
    assert ask is not None
    assert view is not None
    for left, answer in ((159, "4/4 ResourceQuotaNotFit"), (160, "NodeFit")):
        found = fit_pod(view, ask, CHART, PodBudget({f"limits.{MEM}": left}, incoming.kinds, CHART))
        assert answer in (str(found), type(found).__name__)


def test_quota_e_the_product_is_declared() -> None:
    result = run(FOUR, hard(60), [with_limits("e", 2, 40), with_limits("f", 1, 40)])
    assert f"requested: limits.{MEM}=80, used: limits.{MEM}=0, limited: limits.{MEM}=60" in str(amounts(result)[0])
    assert amounts(result)[1] == debits(1, 40, 100)


def test_quota_f_whole_cards_are_charged_as_placed() -> None:
    result = run(FOUR, hard(None, 250), [with_limits("f", 2), with_limits("g", 1, 1, 60)])
    assert amounts(result)[0] == debits(2, 320, 200)
    assert f"limits.{CORES}=60, used: limits.{CORES}=200, limited: limits.{CORES}=250" in str(amounts(result)[1])


def test_several_cards_with_memory_are_charged_whole_when_placed() -> None:
    result = run(FOUR, hard(319), [with_limits("p", 2, 40)])
    assert amounts(result) == ["1/4 AllocatedCardsInsufficientRequest, 3/4 ResourceQuotaNotFit"]
    assert amounts(run(FOUR, hard(320), [with_limits("p", 2, 40)])) == [debits(2, 320, 200)]


def test_units_are_rounded_up_once_for_the_pod() -> None:
    thirds = [node("m1", capacity={CORES: 300, MEM: 1000})]
    assert amounts(run(thirds, {}, [with_limits("p", 1), with_limits("q", 2)])) == [
        debits(1, 334, 100),
        debits(2, 667, 200),
    ]
