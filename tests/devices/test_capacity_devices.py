"""Cards made from a node's capacity (docs/spec/node-registration.md#2), and capacities no node can have."""

from __future__ import annotations

import pytest
from builders import read_node

from hami_webhook.devices.capacity_devices import split
from hami_webhook.devices.model import RegistrationError
from hami_webhook.devices.registration import MOST_CARDS


def parts(cores: object, memory: object) -> list[tuple[str, int]]:
    capacity = {"a.b/core": cores, "a.b/memory": memory}
    found = split(
        "X", read_node(capacity=capacity), "x", cores="a.b/core", memory="a.b/memory", unit=256, card_cores=100
    )
    return [(device.uuid, device.memory) for device in found]


@pytest.mark.parametrize(
    ("cores", "memory", "cards"),
    [
        (0, 5, []),
        ("1500m", 5, []),
        (-100, 5, []),
        (1, 1, [("n1-x-0", 25600)]),
        (200, 0, [("n1-x-0", 0), ("n1-x-1", 0)]),
        (200, "2.5", [("n1-x-0", 0), ("n1-x-1", 0)]),
        (300, 1000, [("n1-x-0", 85333), ("n1-x-1", 85333), ("n1-x-2", 85333)]),
    ],
)
def test_every_card_has_its_share_and_the_last_may_be_incomplete(
    cores: object, memory: object, cards: list[tuple[str, int]]
) -> None:
    assert parts(cores, memory) == cards


def test_as_many_cards_as_no_node_can_have_are_refused_before_they_are_made() -> None:
    assert len(parts(MOST_CARDS * 100, 1)) == MOST_CARDS
    for cores, memory in ((MOST_CARDS * 100 + 1, 1), ("1e18", 1), (100, 2**31)):
        with pytest.raises(RegistrationError, match="can't be"):
            parts(cores, memory)
