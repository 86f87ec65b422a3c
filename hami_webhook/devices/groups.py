"""Cards that belong together, such as the dies of one board: which to choose, and how well a placement keeps to one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence

from hami_webhook.devices.model import Device, Rows
from hami_webhook.devices.topology import largest_groups_first
from hami_webhook.devices.trial import Candidate, Choice, Trial


class LargestGroups:
    """Of the cards that passed those of the largest groups; `key` tells a card's group.

    If no more passed than are asked, all of them in scan order. A card that the quota doesn't allow on top of those
    chosen before it is passed over.
    """

    looks_at_all = True

    def __init__(self, key: Callable[[Device], Hashable]) -> None:
        self._key = key

    def choose(self, trial: Trial, passed: Sequence[Candidate]) -> Choice | None:
        count = trial.request.count
        ordered = passed
        if len(passed) > count:
            keys = [self._key(card.device) for card in passed]
            ordered = [passed[position] for position in largest_groups_first(keys, len(passed))]
        chosen: list[Candidate] = []
        for card in ordered:
            if len(chosen) < count and trial.admits([*chosen, card]):
                chosen.append(card)
        return Choice(chosen, len(passed)) if len(chosen) == count else None


def togetherness(vendor: str, rows: Rows, group_of: Mapping[str, Hashable]) -> float:
    """Over the containers with cards of the vendor, the sum of: the most of its cards in one group, over all of them.

    `group_of` gives each card's group by UUID.
    """
    shares = []
    for row in rows:
        if vendor in row:
            groups = Counter(group_of[device.uuid] for device in row[vendor].devices)
            shares.append(max(groups.values()) / groups.total())
    return sum(shares)
