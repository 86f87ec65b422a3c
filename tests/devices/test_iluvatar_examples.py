"""The worked examples of docs/spec/iluvatar.md#14, each under its own number; Fit, outputs and quota (7, 9, 10)."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from builders import container

from .fit_env import CHART, JSON, FitEnv, Placed, configured, pod
from .iluvatars import (
    ALLOCATED,
    OLD,
    OLD_CORE,
    OLD_MEM,
    OLD_SECTION,
    VCORE,
    VGPU,
    VMEM,
    A,
    B,
    chip_node,
    old_node,
    where_it_goes,
    with_limits,
)
from .iluvatars import env as both

BUSY = pod("busy", with_limits(n=1, mem=64, core=50))
MR_V100: JSON = {"iluvatar.ai/MR-V100-vgpu": 1}
BINPACK = {"hami.io/gpu-scheduler-policy": "binpack"}


def env(*taken: JSON, cards: str = A + B) -> FitEnv:
    """`ilu-1`, with these pods on it."""
    where = FitEnv([chip_node(cards)], vendors=CHART)
    for each in taken:
        where.placed(each)
    return where


def debits(result: Placed) -> list[int]:
    return [result.debits.get(f"limits.{name}", 0) for name in (VGPU, VMEM, VCORE)]


def test_1_half_a_card() -> None:
    result = env().placed(pod("p", with_limits(n=1, mem=64, core=50)))
    assert result.annotations[ALLOCATED] == "GPU-2222,BI-V150,16384,50:;"
    assert debits(result) == [1, 64, 50]


def test_2_two_cards_are_whole() -> None:
    where = env()
    admitted = where.admit(pod("p", with_limits(n=2, core=30, requests={"n": 2, "core": 30})))
    assert (admitted.limits()[VCORE], admitted.requests()[VCORE]) == ("200", "200")
    result = where.placed(admitted.patched)
    assert result.annotations[ALLOCATED] == "GPU-2222,BI-V150,32768,100:GPU-1111,BI-V150,32768,100:;"
    assert debits(result) == [2, 256, 200]


@pytest.mark.parametrize(("notes", "card"), [({}, "GPU-1111"), (BINPACK, "GPU-2222")])
def test_3_spread_takes_the_idle_card_and_binpack_the_busy_one(notes: dict[str, str], card: str) -> None:
    incoming = pod("p", with_limits(n=1, mem=32, core=20), annotations=notes)
    assert where_it_goes(env(BUSY), incoming) == f"{card},BI-V150,8192,20:;"


@pytest.mark.parametrize(
    ("taken", "amounts", "label"),
    [
        ({"mem": 16}, {"mem": 16, "core": 100}, "ExclusiveDeviceAllocateConflict"),
        ({"mem": 16, "core": 60}, {"mem": 16, "core": 50}, "CardInsufficientCore"),
        ({"mem": 16, "core": 100}, {"mem": 16}, "CardComputeUnitsExhausted"),
    ],
)
def test_4_cores_on_the_only_card(taken: JSON, amounts: JSON, label: str) -> None:
    where = env(pod("taken", with_limits(n=1, **taken)), cards=A)
    assert where_it_goes(where, pod("p", with_limits(n=1, **amounts))) == f"1/1 {label}"


def test_5_two_cards_where_one_is_in_use() -> None:
    answer = "1/2 AllocatedCardsInsufficientRequest, 1/2 CardInsufficientMemory"
    assert where_it_goes(env(BUSY), pod("p", with_limits(n=2))) == answer


def test_6_a_container_without_cards_keeps_its_slot() -> None:
    incoming = pod("p", container("side"), with_limits("main", n=1, mem=64, core=50))
    assert where_it_goes(env(), incoming) == ";GPU-2222,BI-V150,16384,50:;"


def test_7_an_init_container_shares_the_card_and_is_charged_by_its_peak() -> None:
    result = env().placed(
        pod("p", with_limits("main", n=1, mem=32, core=20), init=[with_limits("prep", n=1, mem=64, core=50)])
    )
    assert result.annotations[ALLOCATED] == "GPU-2222,BI-V150,16384,50:;GPU-2222,BI-V150,8192,20:;"
    assert debits(result) == [1, 64, 50]


def test_8_bytes_are_no_units() -> None:
    message = env().admit(pod("p", with_limits(n=1, mem="16Gi"))).message
    assert message == (
        f"invalid {VMEM} value 16Gi in container main: "
        "must be a whole number of 256 MiB units (16 GiB is 64) between 0 and 8388607; for 16Gi write 64"
    )


def test_9_another_chip() -> None:
    assert env().place(pod("p", container(**MR_V100))) == {"ilu-1": "NodeInsufficientDevice"}


def test_10_the_old_family() -> None:
    where = FitEnv([old_node()], vendors=configured(OLD_SECTION))
    admitted = where.admit(pod("p", with_limits(old=True, n=2)))
    assert admitted.limits() == {OLD: "2", OLD_CORE: "200"}
    result = where.placed(admitted.patched)
    assert result.annotations["iluvatar.ai/predicate-gpu-idx-0"] == "1,0"
    assert result.annotations["hami.io/iluvatar-vgpu-devices-allocated"] == (
        "old-1-iluvatar-1,Iluvatar,32768,100:old-1-iluvatar-0,Iluvatar,32768,100:;"
    )


# 7: Fit


@pytest.mark.parametrize(
    ("limits", "answer"),
    [
        ({"n": 2, "mem": 64}, "GPU-2222,BI-V150,32768,100:GPU-3333,BI-V150,16384,100:;"),
        ({"n": 2, "mem": 65}, "GPU-2222,BI-V150,32768,100:GPU-1111,BI-V150,32768,100:;"),
        ({"n": 3, "mem": 65}, "1/3 CardInsufficientMemory, 2/3 AllocatedCardsInsufficientRequest"),
        ({"n": 4}, "NodeInsufficientDevice"),
    ],
)
def test_several_whole_cards_have_at_least_the_memory_written(limits: JSON, answer: str) -> None:
    three = both(chip_node(A + B + "GPU-3333,100,16384,100,BI-V150,0,true:"))
    assert where_it_goes(three, pod("p", with_limits(**limits))) == answer


def test_a_card_without_cores_serves_pods_that_ask_for_none() -> None:
    where = both(chip_node("a,9,4096,0,x,0,true:"))
    for name in ("p", "q"):
        assert where_it_goes(where, pod(name, with_limits(n=1, mem=1))) == "a,BI-V150,256,0:;"


def test_the_families_never_see_each_others_cards() -> None:
    where = both(chip_node(), old_node())
    assert where_it_goes(where, pod("new", with_limits(n=1, mem=1))).startswith("GPU-")
    assert where.place(pod("p", with_limits(old=True, n=3))) == {
        "ilu-1": "NodeInsufficientDevice",
        "old-1": "NodeInsufficientDevice",
    }
    found = where.place(pod("p", with_limits("x", n=1), with_limits("y", old=True, n=1)))
    assert found == {"ilu-1": "NodeInsufficientDevice", "old-1": "NodeInsufficientDevice"}


# 9: outputs


def test_old_placement_tells_gpu_manager_the_index_of_every_app_container() -> None:
    apps = [with_limits("a", old=True, n=1, mem=64, core=50), container("b"), with_limits("c", old=True, n=1, mem=96)]
    result = both(old_node()).placed(pod("p", *apps, init=[with_limits("prep", old=True, n=1, mem=32)]))
    text = "old-1-iluvatar-1,Iluvatar,8192,0:;old-1-iluvatar-1,Iluvatar,16384,50:;;old-1-iluvatar-0,Iluvatar,24576,0:;"
    assert dict(result.annotations) == {
        "hami.io/vgpu-node": "old-1",
        "hami.io/vgpu-time": "1767225600",
        "hami.io/iluvatar-vgpu-devices-allocated": text,
        "hami.io/iluvatar-vgpu-devices-to-allocate": text,
        "iluvatar.ai/gpu-assigned": "false",
        "iluvatar.ai/predicate-time": "1767225600000000000",
        "iluvatar.ai/predicate-gpu-idx-0": "1",
        "iluvatar.ai/predicate-gpu-idx-2": "0",
    }
    assert result.debits == {f"limits.{OLD}": 2, f"limits.{OLD_MEM}": 160, f"limits.{OLD_CORE}": 50}


# 10: quota

KEYS = [f"limits.{name}" for name in (VMEM, VCORE)]
FOUR = "".join(A.replace("1111", str(i)) for i in range(4))


def amounts(sums: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(sums.get(key, 0) for key in KEYS)


def test_the_pages_quota_table() -> None:
    a, b, c = (
        pod("a", with_limits(n=1, mem=64, core=50)),
        pod("b", with_limits(n=1)),
        pod("c", with_limits(n=2)),
    )
    where = both(chip_node(FOUR), hard=dict(zip(KEYS, (256, 250), strict=True)))
    where.placed(a)
    assert amounts(where.charged()) == (64, 50)
    where.placed(b)
    assert amounts(where.charged()) == (192, 50)
    assert where_it_goes(where, c) == "4/4 ResourceQuotaNotFit"
    where.remove("b")
    assert where_it_goes(where, c) == "1/4 AllocatedCardsInsufficientRequest, 3/4 ResourceQuotaNotFit"
    where.remove("a")
    where.placed(c)
    assert amounts(where.charged()) == (256, 200)
