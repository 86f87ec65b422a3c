"""What containers used over time: when each used a card last, and sums for showback (docs/metrics.md#showback).

It goes by what is seen whenever the monitor reads: what was seen then holds until the next reading.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hami_webhook.node.card_activity import CardActivity
from hami_webhook.node.cards import CardMetrics
from hami_webhook.node.feedback import BLOCKED
from hami_webhook.node.region import DeviceUse, Region
from hami_webhook.node.region_files import ContainerKey

_LONGEST = 300.0
"""Seconds after a reading for which what was seen is counted: nobody scrapes the node, so nothing is known."""
_KEPT = 3600.0
"""Seconds for which a sum is kept that nothing is added to: so long a counter may be looked at again."""
_COMPUTES_WITHIN, _CLAIMED_WITHIN = 10.0, 20.0
"""Seconds since the driver last saw a card compute, and since a container says that it did, that go together."""
_MEBIBYTE = 1 << 20
_LARGEST = 1 << 20
"""MiB of a device that count at most: what a container says of itself may be anything."""


class Owner(NamedTuple):
    """Whose a sum is: a namespace, on cards of a model; that is empty where NVML doesn't say it."""

    namespace: str
    model: str


@dataclass(slots=True)
class UsedSeconds:
    """Seconds in which containers computed on a card, MiB that they used times seconds, and when one was last there."""

    cards: float = 0.0
    memory: float = 0.0
    at: float = 0.0


class UseOverTime:
    """Follows the readings of a monitor."""

    def __init__(self) -> None:
        self.last_used: dict[ContainerKey, float] = {}
        self._first: dict[ContainerKey, float] = {}
        """When each container was there first, which it can't change by making its region again."""
        self.sums: dict[Owner, UsedSeconds] = {}
        self._seen: Mapping[ContainerKey, tuple[str, Region]] = {}
        self._at = 0.0

    def follow(
        self,
        seen: Mapping[ContainerKey, tuple[str, Region]],
        cards: Sequence[CardMetrics],
        now: float,
        there: Mapping[ContainerKey, Collection[str]] = {},
        activity: CardActivity | None = None,
    ) -> None:
        """Take in a reading at `now` (Unix seconds): the namespace and the region of each container.

        `there` has the UUIDs of the cards of all containers, those without a region too. `activity`: when cards
        computed, by their driver.
        """
        activity = activity or CardActivity()
        self._first = {key: self._first.get(key, now) for key in (*seen, *there)}
        self.last_used = {
            key: self._last_used(key, region, activity.last(there.get(key, ()), now), now)
            for key, (_, region) in seen.items()
        }
        self._excuse(there, activity, now)
        models = {card.uuid: f"NVIDIA-{card.name}" for card in cards}
        seconds = min(max(0.0, now - self._at), _LONGEST) if self._at else 0.0
        for key, (namespace, region) in seen.items():
            before = self._seen.get(key)
            if before is None:
                self._add(namespace, region.devices, models, 0.0, now)
            else:
                self._add(namespace, before[1].devices, models, seconds, now)
        self.sums = {owner: used for owner, used in self.sums.items() if now - used.at < _KEPT}
        self._seen, self._at = seen, now

    def _add(
        self, namespace: str, devices: Sequence[DeviceUse], models: Mapping[str, str], seconds: float, now: float
    ) -> None:
        for device in devices:
            used = self.sums.setdefault(Owner(namespace, models.get(device.uuid, "")), UsedSeconds())
            used.cards += seconds if device.utilisation else 0.0
            used.memory += seconds * min(device.total // _MEBIBYTE, _LARGEST)
            used.at = now

    def _excuse(self, there: Mapping[ContainerKey, Collection[str]], activity: CardActivity, now: float) -> None:
        """On a card that computes for nobody who says so, all compute: somebody does without HAMi-core."""
        claimed = {
            uuid for key, at in self.last_used.items() if now - at <= _CLAIMED_WITHIN for uuid in there.get(key, ())
        }
        for key in self.last_used:
            for uuid in set(there.get(key, ())) - claimed:
                last = activity.last({uuid}, now)
                if last is not None and now - last <= _COMPUTES_WITHIN:
                    self.last_used[key] = now

    def _last_used(self, key: ContainerKey, region: Region, computed: float | None, now: float) -> float:
        """When it last computed; where the region doesn't say it, since when it is seen not to.

        The region is in the container's hand: while none of its cards computed, it didn't.
        """
        said = now
        if region.recent_kernel != BLOCKED and not any(device.utilisation for device in region.devices):
            said = max(min(region.last_kernel, now), self.last_used.get(key, 0.0 if region.last_kernel else now))
        return said if computed is None else min(said, max(computed, self._first[key]))
