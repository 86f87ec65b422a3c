"""Quota inside Fit: check 7, the cheapest-first retry, init containers' cards.

Sources: docs/spec/nvidia.md#10, docs/spec/quota.md#8.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from builders import card

from hami_webhook.devices.model import DeviceHold, NodeView

from .cards import chosen, container, debit, init, mig_card, node, one, placed, pod, record, room, used, view

UNEQUAL = node(card("x", devmem=4000), card("y", devmem=4000), card("z", devmem=12288))


class Recording:
    """A budget that admits everything, and keeps what it was asked."""

    def __init__(self) -> None:
        self.taken: list[list[DeviceHold]] = []
        self.costs = 0

    def on(self, view: NodeView) -> Recording:
        return self

    def admits(self, taken: Sequence[DeviceHold]) -> bool:
        self.taken.append(list(taken))
        return True

    def cost(self, taken: Sequence[DeviceHold]) -> tuple[int, ...]:
        self.costs += 1
        return ()


@pytest.mark.parametrize(
    ("memory", "answer"),
    [
        (15000, "y x"),
        (16288, "z y"),
        (8000, "y x"),
        (7999, "1/3 AllocatedCardsInsufficientRequest, 2/3 ResourceQuotaNotFit"),
        (3999, "3/3 ResourceQuotaNotFit"),
    ],
)
def test_cards_are_tried_once_more_cheapest_first_where_quota_left_a_container_short(memory: int, answer: str) -> None:
    incoming = pod(container(gpu=2, percent=100))
    assert chosen(incoming, view(UNEQUAL), room(incoming, memory=memory)) == answer


def test_the_labels_are_those_of_the_first_try() -> None:
    # first try: z (12288), then nothing more; second try: x and y, and then nothing more
    incoming = pod(container(gpu=3, percent=100))
    assert record(incoming, view(UNEQUAL), room(incoming, memory=15000)) == (
        "1/3 AllocatedCardsInsufficientRequest, 2/3 ResourceQuotaNotFit"
    )


def test_a_failure_for_other_reasons_is_not_tried_again() -> None:
    on = view(UNEQUAL, {"x": used(1, 1), "y": used(1, 1)})
    incoming = pod(container(gpu=2, percent=100))
    asked = Recording()
    assert record(incoming, on, asked) == "1/3 AllocatedCardsInsufficientRequest, 2/3 CardInsufficientMemory"
    assert asked.costs == 0


def test_the_cheapest_first_try_stays_inside_a_numa_node() -> None:
    cards = (card("a", devmem=4000), card("b", devmem=5000), card("c", devmem=9000), card("d", devmem=4500, numa=1))
    on = view(node(*cards))
    incoming = pod(container(gpu=2, percent=100), annotations={"nvidia.com/numa-bind": "true"})
    assert chosen(incoming, on, room(incoming, memory=9500)) == "a b"
    free = pod(container(gpu=2, percent=100))
    assert chosen(free, on, room(free, memory=8500)) == "d a"


def test_a_dropped_numa_nodes_cards_no_longer_count_against_the_quota() -> None:
    on = view(node(card("a", devmem=4000), card("b", devmem=4000), card("d", devmem=5000, numa=1)))
    incoming = pod(container(gpu=2, percent=100), annotations={"nvidia.com/numa-bind": "true"})
    assert chosen(incoming, on, room(incoming, memory=8500)) == "b a"


@pytest.mark.parametrize("policy", ["spread", "binpack", "topology-aware"])
def test_scenario_12_and_core_example_d_init_and_app_share_a_card_where_two_would_cost_too_much(policy: str) -> None:
    incoming = pod(init(gpu=1, mem=8000), container(gpu=1, mem=5000), policy=policy)
    on = view(node(card("a"), card("b")))
    fit = placed(incoming, on, room(incoming, memory=8000))
    assert len({claim.uuid for claim in fit.claims()}) == 1
    assert debit(fit, incoming.kinds) == (1, 8000, 0)
    assert debit(fit, incoming.kinds, init_finished=True) == (1, 5000, 0)


def test_scenario_12_the_init_container_moves_to_the_app_containers_card_if_that_cannot_move() -> None:
    # the app fits b only; init by itself would go to c
    on = view(node(card("b"), card("c", devmem=8400)), {"b": used(3, 30000)})
    incoming = pod(init(gpu=1, mem=8000), container(gpu=1, mem=8500))
    assert record(incoming, on) == "c,NVIDIA,8000,0:;b,NVIDIA,8500,0:;"
    assert record(incoming, on, room(incoming, memory=8500)) == "b,NVIDIA,8000,0:;b,NVIDIA,8500,0:;"
    # the labels of the first try: init found room, the app did not
    assert record(incoming, on, room(incoming, memory=8499)) == "2/2 ResourceQuotaNotFit"


def test_scenario_26_what_mig_rounds_up_is_asked_of_the_quota() -> None:
    profiles = [{"name": "2g.10gb", "memoryMB": 9984, "core": 29, "sliceCount": 2, "placements": [{"size": 2}]}]
    incoming = pod(one(mem=8000))
    on = view(node(mig_card("m", profiles)))
    assert record(incoming, on, room(incoming, memory=9000)) == "1/1 ResourceQuotaNotFit"
    assert debit(placed(incoming, on, room(incoming, memory=10000)), incoming.kinds) == (1, 9984, 29)


def test_a_budget_is_asked_with_holds_in_the_containers_rows() -> None:
    asked = Recording()
    placed(pod(init(), container("a", gpu=1, mem=5), container("b", gpu=1, mem=7)), view(node(card("x"))), asked)
    first = DeviceHold("NVIDIA", "x", 1, 5, 0)
    assert asked.taken == [[first], [first, DeviceHold("NVIDIA", "x", 2, 7, 0)]]
