"""What is really used on a node: of cards as NVML says, by containers as their regions say (docs/monitor.md)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from hami_webhook.cluster.object_events import ObjectEvents
from hami_webhook.node.card_activity import CardActivity
from hami_webhook.node.cards import CardMetrics, ProbeError
from hami_webhook.node.claim_regions import ClaimOwners, ClaimRegions
from hami_webhook.node.node_pods import NodePod, NodePods
from hami_webhook.node.region import BadRegion, Region
from hami_webhook.node.region_files import ContainerKey, FolderError, RegionFolder
from hami_webhook.node.use_over_time import Owner, UsedSeconds, UseOverTime

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
        self._said: dict[str, str] = {}

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
        self._say("monitor", f"{twice}; set devicePlugin.monitor.enabled=false in HAMi's chart" if monitor else "")
        return NodeMetrics(now, cards, used, list(self._pods.pods), len(bad), self._over_time.sums)

    def _read_cards(self) -> Sequence[CardMetrics]:
        try:
            cards = self._cards()
        except ProbeError as error:
            self._say("cards", f"no metrics of cards: NVML: {error}; NVIDIA's runtime brings it into the container")
            return ()
        self._say("cards", "" if cards else "no metrics of cards: NVML finds no GPU")
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
                self._say(about, str(error))
            else:
                self._say(about, "")
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

    def _say(self, about: str, text: str) -> None:
        """Log what is new of a matter, not what was said before."""
        if text and text != self._said.get(about):
            logger.warning("%s", text)
        self._said[about] = text
