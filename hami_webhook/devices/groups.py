"""Cards that belong together, such as the dies of one board: which to choose, and how well a placement keeps to one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence

from hami_webhook.devices.fit_request import Candidate, TakeInOrder
from hami_webhook.devices.model import Device, Rows
from hami_webhook.devices.topology import largest_groups_first


class LargestGroups(TakeInOrder):
    """Select, among the cards that passed, those of the largest groups; `key` returns a card's group.

    If no more passed than are requested, all of them in scan order.
    """

    def __init__(self, key: Callable[[Device], Hashable]) -> None:
        self._key = key

    def preferred(self, passed: Sequence[Candidate], count: int) -> Sequence[Candidate]:
        if len(passed) <= count:
            return passed
        keys = [self._key(card.device) for card in passed]
        return [passed[position] for position in largest_groups_first(keys, len(passed))]


def togetherness(vendor: str, rows: Rows, group_of: Mapping[str, Hashable]) -> float:
    """Return the sum, over containers with the vendor's cards, of the largest share of a container's cards in one
    group.

    `group_of` gives each card's group by UUID.
    """
    shares = []
    for row in rows:
        if vendor in row:
            groups = Counter(group_of[device.uuid] for device in row[vendor].devices)
            shares.append(max(groups.values()) / groups.total())
    return sum(shares)
