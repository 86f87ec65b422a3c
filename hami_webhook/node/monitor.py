"""What is really used on a node: of cards as NVML says, by containers as their regions say (docs/monitor.md), now and
over time (docs/metrics.md#showback).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from hami_webhook.cluster.object_events import ObjectEvents
from hami_webhook.loops import News
from hami_webhook.node.cards import CardActivity, CardMetrics, ProbeError
from hami_webhook.node.claim_regions import ClaimOwners, ClaimRegions
from hami_webhook.node.feedback import BLOCKED
from hami_webhook.node.node_pods import NodePod, NodePods
from hami_webhook.node.region import BadRegion, DeviceUse, Region
from hami_webhook.node.region_files import ContainerKey, FolderError, RegionFolder

logger = logging.getLogger(__name__)

_SHORTEST = 1.0
"""Seconds for which what was read is answered again, however often it is asked for."""


class ContainerMetrics(NamedTuple):
    """A container, its region, and when it last used a card (Unix seconds)."""

    pod: NodePod
    container: str
    region: Region
    last_used: float


@dataclass(frozen=True, slots=True)
class NodeMetrics:
    """What is used on a node at `now` (Unix seconds). `refused`: containers whose region can't be read.

    `used_seconds`: what was used so far, since the monitor's start.
    """

    now: float
    cards: Sequence[CardMetrics]
    containers: Sequence[ContainerMetrics]
    pods: Sequence[NodePod]
    refused: int
    used_seconds: Mapping[Owner, UsedSeconds]


class Monitor:
    """Reads what is used. `folder` is None where containers aren't monitored; `cards` may raise `ProbeError`.

    `claims` is None where those of claims aren't. `activity`: when cards computed, by their driver; None if nobody asks
    it. `clock` gives Unix seconds.
    """

    def __init__(
        self,
        pods: NodePods,
        folder: RegionFolder | None,
        cards: Callable[[], Sequence[CardMetrics]],
        events: ObjectEvents,
        clock: Callable[[], float],
        claims: ClaimRegions | None = None,
        activity: CardActivity | None = None,
    ) -> None:
        self._pods = pods
        self._folder = folder
        self._cards = cards
        self._events = events
        self._clock = clock
        self._claims = claims
        self._activity = activity or CardActivity()
        self._last: NodeMetrics | None = None
        self._over_time = UseOverTime()
        self._reading = asyncio.Lock()
        self._refused: dict[ContainerKey, bool] = {}
        self._news = News(logger)

    async def look(self) -> NodeMetrics:
        """What is used now, or was within the last second."""
        async with self._reading:
            if self._last is None or not 0 <= self._clock() - self._last.now < _SHORTEST:
                self._last = await self._read()
            return self._last

    async def _read(self) -> NodeMetrics:
        containers = dict(self._pods.containers()) if self._folder is not None else {}
        owners = self._claims.owners() if self._claims is not None else {}
        containers |= dict(owners.values())
        now = self._clock()
        cards, regions = await asyncio.gather(
            asyncio.to_thread(self._read_cards), asyncio.to_thread(self._read_regions, list(containers), owners)
        )
        bad = {key: found for key, found in regions.items() if isinstance(found, BadRegion)}
        await self._tell(bad, containers)
        good = {key: found for key, found in regions.items() if isinstance(found, Region)}
        self._over_time.follow(
            {key: (containers[key].namespace, found) for key, found in good.items()},
            cards,
            now,
            {key: pod.cards for key, pod in containers.items()},
            self._activity,
        )
        used = [
            ContainerMetrics(containers[key], key.container, found, self._over_time.last_used[key])
            for key, found in good.items()
        ]
        monitor = self._pods.hamis_monitor
        twice = f"HAMi's own monitor runs on this node too, in the pod {monitor}: what containers use is exported twice"
        self._news.say(f"{twice}; set devicePlugin.monitor.enabled=false in HAMi's chart" if monitor else "", "monitor")
        return NodeMetrics(now, cards, used, list(self._pods.pods), len(bad), self._over_time.sums)

    def _read_cards(self) -> Sequence[CardMetrics]:
        try:
            cards = self._cards()
        except ProbeError as error:
            self._news.say(
                f"no metrics of cards: NVML: {error}; NVIDIA's runtime brings it into the container", "cards"
            )
            return ()
        self._news.say("" if cards else "no metrics of cards: NVML finds no GPU", "cards")
        return cards

    def _read_regions(
        self, containers: Sequence[ContainerKey], owners: ClaimOwners
    ) -> dict[ContainerKey, Region | BadRegion]:
        """What containers have in their own folders, else in those of their claims."""
        readers: dict[str, Callable[[], dict[ContainerKey, Region | BadRegion]]] = {}
        if self._claims is not None:
            readers["claims"] = partial(self._claims.read, owners)
        if self._folder is not None:
            readers["folder"] = partial(self._folder.read, containers)
        found: dict[ContainerKey, Region | BadRegion] = {}
        for about, read in readers.items():
            try:
                found |= read()
            except FolderError as error:
                self._news.say(str(error), about)
            else:
                self._news.say("", about)
        return found

    async def _tell(self, bad: dict[ContainerKey, BadRegion], containers: dict[ContainerKey, NodePod]) -> None:
        """Record an event for a region that can't be read twice in a row, as one that is being made can't at first."""
        for key, why in bad.items():
            if self._refused.get(key) is False:
                pod = containers[key]
                text = f"the use of container {key.container} isn't known: its shared region: {why}"
                await self._events.warn(
                    "Pod", pod.namespace, pod.name, pod.uid, "SharedRegionUnreadable", text, key.container
                )
        self._refused = {key: key in self._refused for key in bad}
        self._events.keep_only({pod.uid for pod in self._pods.pods})


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
    """Follows the readings of a monitor. What was seen at a reading holds until the next one."""

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
