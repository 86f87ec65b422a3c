"""Kunlunxin: nodes (3), admission (5), extraction (6), outputs (9), costs (10) of docs/spec/kunlun.md.

The choice of cards, with the examples of section 14 that are about it, is in `test_kunlun_fit.py`.
"""

from __future__ import annotations

import pytest
from builders import container
from tables import in_one_test

from hami_webhook.devices.model import FixedMemory, Request, ShareOfCard
from hami_webhook.devices.vendor import Vendor
from hami_webhook.kube.objects import Pod

from . import xpus
from .fit_env import CHART, JSON, FitEnv, pod, registered
from .xpus import (
    HALF,
    MEM,
    QUARTER,
    VXPU,
    WHOLE,
    XPU,
    card,
    chosen,
    entry,
    server,
    slices,
    vxpus,
    whole,
    whole_cards,
    with_limits,
)

WHOLE_CARDS, VXPUS = CHART["kunlun"], CHART["XPU"]


# 3: nodes


@pytest.mark.parametrize(("count", "numa"), [(1, [1]), (3, [0, 1, 1]), (8, [0] * 4 + [1] * 4)])
def test_whole_cards_are_derived_from_capacity(count: int, numa: list[int]) -> None:
    found = registered(WHOLE_CARDS, server(xpus=count))
    assert [(c.uuid, c.numa) for c in found.devices] == [(f"n1-kunlun-{i}", node) for i, node in enumerate(numa)]
    assert {(c.vendor, c.type, c.slots, c.memory, c.cores, c.healthy) for c in found.devices} == {
        ("kunlun", "kunlun", 100, WHOLE, 100, True)
    }


def test_a_repeated_index_is_told_and_only_its_first_card_used() -> None:
    bare = [{key: value for key, value in card(index).items() if key != "index"} for index in range(2)]
    found = registered(VXPUS, server(cards=bare))
    assert found.warnings == (f"{xpus.REGISTER}: card KL-UUID-01 isn't used, as another has its index 0",)
    env = FitEnv([server(cards=bare)])
    assert chosen(env.place(with_limits(slices(2)))) == "1/2 NumaNotFit"
    assert chosen(env.place(with_limits(slices(1)))) == [0]


# 5: admission


@in_one_test(
    ("written", "aligned"),
    [
        (0, QUARTER),
        (1, QUARTER),
        (24576, QUARTER),
        (24577, HALF),
        (49152, HALF),
        (49153, WHOLE),
        (98305, WHOLE),
        ("24Gi", WHOLE),
        ("48Ki", HALF),
        ("20k", QUARTER),
    ],
)
@in_one_test("init", [False, True])
def test_memory_is_aligned_in_limits_and_requests(written: object, aligned: int, init: bool) -> None:
    incoming = slices(1, written, "asks")
    manifest = pod("p", container("other", cpu=1), init=[incoming]) if init else with_limits(incoming)
    (found,) = FitEnv([]).admit(manifest).patched["spec"]["initContainers" if init else "containers"]
    assert found["resources"] == {"limits": {VXPU: "1", MEM: str(aligned)}, "requests": {MEM: str(aligned)}}


def test_requests_that_differ_are_aligned_too() -> None:
    limits: JSON = {VXPU: 1, MEM: 30000}
    incoming = container(requests={VXPU: 1, MEM: 10}, **limits)
    assert FitEnv([]).admit(with_limits(incoming)).requests() == {VXPU: "1", MEM: "49152"}


@pytest.mark.parametrize(
    ("limits", "requests"),
    [
        ({XPU: 2}, None),
        ({XPU: 4, VXPU: 2}, None),
        ({VXPU: 1}, None),
        ({MEM: 20000}, None),
        ({VXPU: 0}, None),
        ({"cpu": 1}, {VXPU: 1}),
        ({VXPU: 1, MEM: 24576}, {MEM: 24576}),
    ],
)
def test_nothing_else_is_changed(limits: JSON, requests: JSON | None) -> None:
    manifest = with_limits(container(requests=requests, **limits))
    assert FitEnv([]).admit(manifest).pod == manifest


@pytest.mark.parametrize("limits", [{VXPU: 1, MEM: -1}, {MEM: -1}])
def test_negative_memory_is_refused_in_the_vendors_words(limits: JSON) -> None:
    for made in (container(**limits), container(requests=limits)):
        assert FitEnv([]).admit(with_limits(made)).message == f"{MEM} must not be negative"


BYTES = "looks like bytes, but counts MiB; it is capped to 98304 MiB, a whole card"


@in_one_test(
    ("limits", "warnings"),
    [
        ({VXPU: 6, MEM: 24576}, []),
        ({VXPU: 8, MEM: 49152}, []),
        ({VXPU: 5, MEM: 49152}, []),
        *(({XPU: count}, []) for count in (0, 1, 2, 4, 8)),
        ({VXPU: 8}, []),
        ({VXPU: 1, MEM: 98304}, []),
        ({VXPU: 1, MEM: 98303}, [f"{MEM} 98303 is aligned up to 98304 MiB, a whole card"]),
        ({VXPU: 1, MEM: 30000}, [f"{MEM} 30000 is aligned up to 49152 MiB, half a card"]),
        ({VXPU: 1, MEM: 98305}, [f"{MEM} 98305 is capped to 98304 MiB, a whole card"]),
        ({VXPU: 1, MEM: 1000000}, [f"{MEM} 1000000 is capped to 98304 MiB, a whole card"]),
        ({VXPU: 1, MEM: 1000001}, [f"{MEM} 1000001 {BYTES}"]),
        ({VXPU: 1, MEM: "24Gi"}, [f"{MEM} counts MiB: for 24Gi write 24576", f"{MEM} 24Gi {BYTES}"]),
        ({MEM: 24576}, [f"{MEM} means nothing without {VXPU}"]),
        ({MEM: 24576, XPU: 1}, [f"{MEM} means nothing without {VXPU}"]),
    ],
)
def test_what_is_hardly_meant_is_told(limits: JSON, warnings: list[str]) -> None:
    told = FitEnv([]).admit(with_limits(container(**limits))).warnings
    assert told == [f"container main: {text}" for text in warnings]


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        ({XPU: 3}, f"{XPU} 3 can't be placed: whole cards are given out by 1, 2, 4 or 8"),
        ({XPU: 9}, f"{XPU} 9 can't be placed: a node has 8 cards"),
        ({VXPU: 5}, f"{VXPU} 5 can't be placed: whole cards are given out by 1, 2, 4 or 8"),
        ({VXPU: 7, MEM: 24576}, f"{VXPU} 7 can't be placed: a node's driver can split 6 cards in quarters at most"),
        ({VXPU: 8, MEM: 1}, f"{VXPU} 8 can't be placed: a node's driver can split 6 cards in quarters at most"),
        ({VXPU: 9, MEM: 49152}, f"{VXPU} 9 can't be placed: a node has 8 cards"),
    ],
)
def test_what_no_node_can_ever_give_is_refused(limits: JSON, why: str) -> None:
    assert FitEnv([]).admit(with_limits(container(**limits))).message == f"{why}, so the pod would never start"


# 6: extraction


@in_one_test(
    ("vendor", "limits", "found"),
    [
        (WHOLE_CARDS, {XPU: 3}, Request(3, ShareOfCard(100), 0)),
        (WHOLE_CARDS, {XPU: 0}, None),
        (WHOLE_CARDS, {VXPU: 1}, None),
        (VXPUS, {XPU: 1}, None),
        (VXPUS, {VXPU: 0, MEM: 5}, None),
        (VXPUS, {MEM: 24576}, None),
        (VXPUS, {VXPU: 2, MEM: 0}, Request(2, FixedMemory(QUARTER), 25)),
        (VXPUS, {VXPU: 2, MEM: 24577}, Request(2, FixedMemory(HALF), 50)),
        (VXPUS, {VXPU: 2, MEM: "24Gi"}, Request(2, FixedMemory(WHOLE), 100)),
        (VXPUS, {VXPU: 2}, Request(2, FixedMemory(WHOLE), 100)),
    ],
)
def test_extraction(vendor: Vendor, limits: JSON, found: Request | None) -> None:
    (incoming,) = Pod.from_object(pod("p", container(**limits))).containers
    assert vendor.request(incoming) == found


# 9: outputs


def test_each_backend_pads_its_own_list() -> None:
    env = FitEnv([server(xpus=8, cards=[card(index) for index in range(8)])])
    placed = env.placed(pod("p", slices(1, HALF, "a"), whole(1, "b"), init=[container("c", cpu=1)]))
    assert placed.annotations[xpus.ALLOCATED] == ";" + entry(0, HALF) + ";;"
    assert placed.annotations[xpus.WHOLE_ALLOCATED] == ";;n1-kunlun-1,kunlun,98304,100:;"
    assert placed.debits == {f"limits.{XPU}": 1, f"limits.{VXPU}": 1, f"limits.{MEM}": HALF}


def test_the_indices_of_all_containers_are_written_once_each() -> None:
    placed = xpus.whole_cards(6).placed(pod("p", whole(2, "a"), whole(1, "b"), init=[whole(1, "i")]))
    assert placed.annotations[xpus.WHOLE_ALLOCATED].count("n1-kunlun-4,") == 2
    assert placed.annotations[xpus.INDICES] == "4,5,7"


def test_card_policies_other_than_mutex_change_nothing() -> None:
    for policy in ("binpack", "spread", "numa", "numa-first", "topology-aware", "binpack,numa"):
        assert chosen(xpus.whole_cards(5).place(with_limits(whole(2), **{xpus.POLICY: policy}))) == [4, 6]


# 10 and 14: what a pod costs, and the examples beyond the choice of cards


def test_1_two_whole_cards_of_an_idle_node() -> None:
    placed = whole_cards().placed(with_limits(whole(2)))
    assert placed.annotations[xpus.WHOLE_ALLOCATED] == "n1-kunlun-0,kunlun,98304,100:n1-kunlun-1,kunlun,98304,100:;"
    assert placed.annotations[xpus.INDICES] == "0,1"
    assert set(placed.annotations) == {xpus.WHOLE_ALLOCATED, xpus.INDICES, "hami.io/vgpu-node", "hami.io/vgpu-time"}
    assert placed.debits == {f"limits.{XPU}": 2}


def test_6_without_memory_slices_are_whole_cards() -> None:
    placed = vxpus().placed(with_limits(slices(2)))
    assert placed.annotations[xpus.ALLOCATED] == "KL-UUID-00,XPU,98304,100:KL-UUID-01,XPU,98304,100:;"
    assert placed.debits == {f"limits.{MEM}": 196608, f"limits.{VXPU}": 2}


@pytest.mark.parametrize(("policy", "better"), [("binpack", 3000), ("spread", -3000)])
def test_14_the_node_whose_wing_it_fills_best_is_chosen_under_both_policies(policy: str, better: int) -> None:
    env = xpus.use_whole(FitEnv([server("n1", xpus=8), server("n2", xpus=8)]), range(3, 8), "n2")
    placed = env.placed(with_limits(whole(1), **{xpus.NODE_POLICY: policy}))
    assert (placed.node, placed.annotations[xpus.INDICES]) == ("n2", "0")
    base = 10 * (5 / 800 + 5 / 8 + 5 / 8)
    assert placed.score == pytest.approx(base + better)


def test_quota_counts_slices_and_their_aligned_memory_while_waiting_and_placed() -> None:
    env = vxpus()
    manifest = with_limits(slices(2, 20480))
    placed = env.placed(manifest)
    assert env.waiting(manifest) == placed.debits == {f"limits.{MEM}": 49152, f"limits.{VXPU}": 2}


def test_quota_knows_the_memory_of_a_slice_without_any_card() -> None:
    assert FitEnv([]).waiting(with_limits(slices(1))) == {f"limits.{MEM}": WHOLE, f"limits.{VXPU}": 1}
