"""The worked examples of docs/spec/kunlun.md (section 14) and its quota example (10), each under its number."""

from __future__ import annotations

import pytest

from . import xpus
from .fit_env import FitEnv
from .xpus import (
    HALF,
    MEM,
    QUARTER,
    VXPU,
    WHOLE,
    XPU,
    chosen,
    kl,
    server,
    slices,
    vxpus,
    whole,
    whole_cards,
    with_limits,
)


def free(*indices: int) -> FitEnv:
    """Whole cards, all but these used."""
    return whole_cards(*(index for index in range(8) if index not in indices))


def test_1_two_whole_cards_of_an_idle_node() -> None:
    placed = whole_cards().placed(with_limits(whole(2)))
    assert placed.annotations[xpus.WHOLE_ALLOCATED] == "n1-kunlun-0,kunlun,98304,100:n1-kunlun-1,kunlun,98304,100:;"
    assert placed.annotations[xpus.INDICES] == "0,1"
    assert set(placed.annotations) == {xpus.WHOLE_ALLOCATED, xpus.INDICES, "hami.io/vgpu-node", "hami.io/vgpu-time"}
    assert placed.debits == {f"limits.{XPU}": 2}


@pytest.mark.parametrize(("count", "cards"), [(1, [4]), (2, [4, 6])])
def test_2_the_tightest_sufficient_wing(count: int, cards: list[int]) -> None:
    assert chosen(whole_cards(5).place(with_limits(whole(count)))) == cards


def test_3_a_pair_over_both_wings_is_linked() -> None:
    placed = free(3, 7).placed(with_limits(whole(2)))
    assert chosen(placed) == [3, 7]
    assert placed.annotations[xpus.INDICES] == "3,7"
    assert chosen(free(3, 6).place(with_limits(whole(2)))) == "1/8 NumaNotFit"


@pytest.mark.parametrize(
    ("cards", "answer"),
    [((0, 1, 4, 5, 6), [0, 1, 4, 5]), ((1, 2, 3, 5, 6), [1, 2, 5, 6]), ((0, 1, 2, 4), "1/8 NumaNotFit")],
)
def test_4_four_over_both_wings_are_two_linked_pairs(cards: tuple[int, ...], answer: object) -> None:
    assert chosen(free(*cards).place(with_limits(whole(4)))) == answer


def test_5_memory_is_aligned_at_admission() -> None:
    env = vxpus()
    admitted = env.admit(with_limits(slices(1, 20480)))
    assert admitted.limits() == {VXPU: "1", MEM: "24576"}
    assert admitted.requests() == {MEM: "24576"}
    assert admitted.warnings == [f"container main: {MEM} 20480 is aligned up to 24576 MiB, a quarter of a card"]
    placed = env.placed(with_limits(slices(1, 20480)))
    assert placed.annotations[xpus.ALLOCATED] == placed.annotations[xpus.TO_ALLOCATE] == "KL-UUID-00,XPU,24576,25:;"
    assert placed.debits == {f"limits.{MEM}": 24576, f"limits.{VXPU}": 1}


def test_6_without_memory_slices_are_whole_cards() -> None:
    placed = vxpus().placed(with_limits(slices(2)))
    assert placed.annotations[xpus.ALLOCATED] == "KL-UUID-00,XPU,98304,100:KL-UUID-01,XPU,98304,100:;"
    assert placed.debits == {f"limits.{MEM}": 196608, f"limits.{VXPU}": 2}


@pytest.mark.parametrize(
    ("count", "size", "answer"),
    [
        (6, QUARTER, [0, 1, 2, 3, 4, 5]),
        (8, HALF, [0, 1, 2, 3, 4, 5, 6, 7]),
    ],
)
def test_7_the_driver_has_32_handles(count: int, size: int, answer: object) -> None:
    assert chosen(vxpus().place(with_limits(slices(count, size)))) == answer


@pytest.mark.parametrize(("size", "answer"), [(QUARTER, [0]), (HALF, "1/8 NodeInsufficientHandle"), (None, [6])])
def test_8_with_six_quarter_split_cards_the_others_are_only_used_whole(size: int | None, answer: object) -> None:
    env = vxpus()
    env.place(with_limits(slices(6, QUARTER), name="six"))
    assert chosen(env.place(with_limits(slices(1, size)))) == answer


def test_9_several_slices_take_the_lowest_cards_of_the_tightest_wing() -> None:
    env = vxpus({1: (2, QUARTER), 2: (1, QUARTER), 3: (1, HALF), 6: (1, QUARTER)})
    assert chosen(env.place(with_limits(slices(2, QUARTER)))) == [0, 1]


def test_10_one_slice_prefers_a_card_that_is_split_alike() -> None:
    assert chosen(vxpus({5: (1, QUARTER)}).place(with_limits(slices(1, QUARTER)))) == [5]


def test_11_a_card_is_split_one_way() -> None:
    env = vxpus(dict.fromkeys(range(8), (1, HALF)))
    assert chosen(env.place(with_limits(slices(2, QUARTER)))) == "1/8 NumaNotFit"
    assert (
        chosen(env.place(with_limits(slices(1, HALF), **{xpus.POLICY: "mutex"})))
        == "8/8 ExclusiveDeviceAllocateConflict"
    )


def test_12_uuid_lists() -> None:
    only = with_limits(slices(1, QUARTER), **{xpus.USE: "KL-UUID-01,KL-UUID-03"})
    assert chosen(vxpus().place(only)) == [1]
    none = with_limits(slices(1, QUARTER), **{xpus.NOUSE: ",".join(kl(index) for index in range(8))})
    assert chosen(vxpus().place(none)) == "8/8 CardUuidMismatch"


def test_13_containers_follow_each_other() -> None:
    placed = whole_cards().placed(with_limits(whole(1, "a"), whole(1, "b")))
    assert placed.annotations[xpus.WHOLE_ALLOCATED] == "n1-kunlun-0,kunlun,98304,100:;n1-kunlun-1,kunlun,98304,100:;"
    assert placed.annotations[xpus.INDICES] == "0,1"


@pytest.mark.parametrize(("policy", "better"), [("binpack", 3000), ("spread", -3000)])
def test_14_the_node_whose_wing_it_fills_best_is_chosen_under_both_policies(policy: str, better: int) -> None:
    env = xpus.use_whole(FitEnv([server("n1", xpus=8), server("n2", xpus=8)]), range(3, 8), "n2")
    placed = env.placed(with_limits(whole(1), **{xpus.NODE_POLICY: policy}))
    assert (placed.node, placed.annotations[xpus.INDICES]) == ("n2", "0")
    base = 10 * (5 / 800 + 5 / 8 + 5 / 8)
    assert placed.score == pytest.approx(base + better)


# quota (10)


def test_quota_counts_slices_and_their_aligned_memory_while_waiting_and_placed() -> None:
    env = vxpus()
    manifest = with_limits(slices(2, 20480))
    placed = env.placed(manifest)
    assert env.waiting(manifest) == placed.debits == {f"limits.{MEM}": 49152, f"limits.{VXPU}": 2}


def test_quota_knows_the_memory_of_a_slice_without_any_card() -> None:
    assert FitEnv([]).waiting(with_limits(slices(1))) == {f"limits.{MEM}": WHOLE, f"limits.{VXPU}": 1}
