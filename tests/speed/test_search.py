"""The topology search stays cheap whatever the scores are."""

import random
from collections.abc import Sequence

import pytest
from builders import card
from devices.cards import Room, chosen, container, node, pod, view

from hack.bench.counting import counted_opcodes
from hami_webhook.devices.model import DeviceHold
from hami_webhook.devices.topology import best_combination

PER_HALF_SET = 100
"""Instructions for each of the 256 sets of the first eight cards; each of the 12 870 sets would take some 500."""


@pytest.mark.parametrize("values", [(10, 20, 100, 200, 300), range(-1000, 1000), (7,), (0, 1)])
@pytest.mark.parametrize("count", [2, 4, 8, 12, 15])
def test_sixteen_cards_cost_a_handful_of_operations_per_half_set(values: Sequence[int], count: int) -> None:
    chance = random.Random(count)
    scores = [[chance.choice(values) for _ in range(16)] for _ in range(16)]
    best_combination(scores, count)
    with counted_opcodes("devices/subset_search.py") as counts:
        best_combination(scores, count)
    assert 0 < counts[0] <= PER_HALF_SET * 2**8


class Counting(Room):
    """A budget that knows how often it was asked."""

    asked = 0

    def admits(self, taken: Sequence[DeviceHold]) -> bool:
        type(self).asked += 1
        return super().admits(taken)


@pytest.mark.parametrize("memory", [7999, 8000])
def test_quota_is_asked_per_card_and_once_for_sets_that_cost_the_same(memory: int) -> None:
    on = view(node(*(card(f"c{i}") for i in range(16))))
    incoming = pod(container(gpu=8, mem=1000), policy="topology-aware")
    Counting.asked = 0
    found = chosen(incoming, on, Counting(incoming.kinds, memory=memory))
    assert found == ("16/16 ResourceQuotaNotFit" if memory < 8000 else "c15 c14 c13 c12 c11 c10 c9 c8")
    assert Counting.asked <= 2 * 16 + 2  # where it refuses, the cards are tried a second time, cheapest first
