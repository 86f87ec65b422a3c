"""The last reading of the cluster, which all requests share, and when it changed."""

from __future__ import annotations

import asyncio
import gc
import time
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from hami_webhook.cluster.api import ClusterError, Unavailable
from hami_webhook.cluster.connect import ContextNames
from hami_webhook.kubectl.capacity import Capacity
from hami_webhook.kubectl.live import LiveCluster
from hami_webhook.kubectl.report import CardUse, KeyUse, PodUse, QuotaUse
from hami_webhook.kubectl.ui.metrics import Key, Metrics, Points
from hami_webhook.kubectl.workloads import RefusedReplicas

if TYPE_CHECKING:
    from hami_webhook.kubectl.fragments import FreedByMoves

_EVERY = 1.0
"""Seconds between two reads, unless reading takes long itself."""
_SHARE = 5
"""How many times as long as reading took is waited at least, so that an open page is no load."""
_SAMPLE_EVERY, _SAMPLES = 30.0, 120
"""Seconds between two points of the history, and how many are kept: an hour."""

LONGEST_SILENCE = 3.0
"""Seconds in which the API server answers the smallest request: with `_EVERY` less than the 5 that docs/ui.md has."""
_REST = 2
"""How many times as long as showing a change took is waited before the next one is shown."""
_TRY_AGAIN, _TRY_AGAIN_AT_MOST = 10.0, 600.0
"""Seconds after which watching is tried again where it failed; doubled each time that it fails at once."""
_MOST_MEASURED = 500
"""Cards, and pods, of whose use the last hour is kept: 12 KB each."""
_MOST_LABELS, _MOST_POOLS = 50, 100
"""Labels of nodes that are offered as names of pools, and how many values such a label may have."""

WAITING_SERIES: Key = ("waiting",)


@dataclass(frozen=True)
class Contents:
    """What the pages show of a reading."""

    quotas: Sequence[QuotaUse]
    cards: Sequence[CardUse]
    pods: Sequence[PodUse]
    sentences: Sequence[str]
    labels: Sequence[str]
    """Labels whose values may name pools of nodes with cards."""
    closed: Mapping[str, str]
    """The nodes on which nothing fits, with why."""
    refused: Sequence[RefusedReplicas]
    _capacities: dict[str, Sequence[Capacity]] = field(default_factory=dict, compare=False)
    _freed: list[Sequence[FreedByMoves]] = field(default_factory=list, compare=False)

    @classmethod
    def of(cls, cluster: LiveCluster) -> Contents:
        return cls(*(part(cluster) for part in _PARTS))

    def capacities(self, cluster: LiveCluster, pool: str) -> Sequence[Capacity]:
        """The fleet by model, and by the label `pool` if it is given, found once for each of `labels`."""
        found = self._capacities.get(pool)
        if found is None:
            found = cluster.overview.capacities(pool, self.closed)
            if not pool or pool in self.labels:
                self._capacities[pool] = found
        return found

    def freed_by_moves(self, cluster: LiveCluster) -> Sequence[FreedByMoves]:
        """What moves would free, found once when it is asked for first."""
        if not self._freed:
            from hami_webhook.kubectl.fragments import freed_by_moves  # imported here: few readers ask for it

            options = cluster.effective.options
            self._freed.append(freed_by_moves(cluster.simulation, options, self.capacities(cluster, ""), self.closed))
        return self._freed[0]

    @classmethod
    async def in_turns(cls, cluster: LiveCluster) -> Contents:
        """As `of`, which takes a few tenths of a second on 1,000 nodes; in between others have their turns."""
        parts: list[Any] = []
        for part in _PARTS:
            parts.append(part(cluster))
            await asyncio.sleep(0)
        return cls(*parts)


_PARTS: Sequence[Callable[[LiveCluster], Any]] = (
    lambda cluster: cluster.overview.quotas(),
    lambda cluster: cluster.overview.cards(),
    LiveCluster.pods,
    lambda cluster: [*cluster.warnings, *cluster.all_unseen],
    lambda cluster: _pool_labels(
        view.node.labels for view in cluster.simulation.core.state.views() if view.inventories
    ),
    lambda cluster: cluster.closed_nodes,
    lambda cluster: cluster.refused,
)
"""What the fields of `Contents` are of a cluster, in their order."""


def _pool_labels(of_nodes: Iterable[Mapping[str, str]]) -> list[str]:
    values: dict[str, set[str]] = defaultdict(set)
    for labels in of_nodes:
        for key, value in labels.items():
            values[key].add(value)
    return sorted(key for key, found in values.items() if len(found) <= _MOST_POOLS)[:_MOST_LABELS]


class Readings:
    """Reads the cluster again and again; `version` counts the changes of what the pages show.

    `probe` asks the API server for the least, and raises `Unavailable` if it doesn't answer: reading a large cluster
    takes too long to find that out.
    """

    def __init__(
        self,
        read: Callable[[], Awaitable[LiveCluster]],
        cluster: LiveCluster,
        names: ContextNames,
        metrics: Metrics | None = None,
        clock: Callable[[], float] = time.monotonic,
        probe: Callable[[], Awaitable[None]] | None = None,
        follow: Callable[[LiveCluster], AsyncGenerator[LiveCluster, None]] | None = None,
    ) -> None:
        self.metrics = metrics
        self.probe = probe
        self._follow = follow
        self.read = read
        self.cluster = cluster
        self.names = names
        self._clock = clock
        self.contents = Contents.of(cluster)
        self.error = ""
        self._silence = ""
        self.version = 1
        self.history: dict[Key, deque[tuple[float, int]]] = {}
        self._sampled = float("-inf")
        self._changed = asyncio.Condition()
        self._sample()

    async def keep_reading(self) -> None:
        """Read until cancelled: what changes, where all may be watched, else everything again and again."""
        pause, due = _TRY_AGAIN, 0.0
        while True:
            began = self._clock()
            if self._follow is not None and began >= due and not self.cluster.unseen:
                await self.follow(self._follow)
                lasted = self._clock() - began
                pause = _TRY_AGAIN if lasted > pause else min(2 * pause, _TRY_AGAIN_AT_MOST)
                due = self._clock() + pause
            began = time.monotonic()
            await self.refresh()
            await asyncio.sleep(max(_EVERY, _SHARE * (time.monotonic() - began)))

    async def follow(self, follow: Callable[[LiveCluster], AsyncGenerator[LiveCluster, None]]) -> None:
        """Show what changes until that can't be seen any more."""
        last = None
        with suppress(ClusterError):
            async with aclosing(follow(self.cluster)) as changes:
                async for cluster in changes:
                    began, before = time.monotonic(), (self.contents, self.error)
                    self.cluster, self.error = self._measured(cluster), ""
                    self.contents = await Contents.in_turns(self.cluster)
                    await self._tell_changes(before)
                    if last is not cluster.simulation:
                        last = cluster.simulation
                        await asyncio.to_thread(_collect)
                    await asyncio.sleep(_REST * (time.monotonic() - began))

    async def keep_probing(self, probe: Callable[[], Awaitable[None]]) -> None:
        """Ask for a sign of life until cancelled."""
        while True:
            before, self._silence = self._silence, await _silence(probe)
            if before != self._silence:
                await self.tell()
            await asyncio.sleep(_EVERY)

    async def refresh(self) -> None:
        """Read once; a failure is shown, and the last reading stays."""
        before = (self.contents, self.error)
        try:
            cluster = self._measured(await self.read())
            contents = await asyncio.to_thread(Contents.of, cluster)
        except ClusterError as error:
            self.error = str(error)
        else:
            self.cluster, self.contents, self.error = cluster, contents, ""
            await asyncio.to_thread(_collect)
        await self._tell_changes(before)

    def _measured(self, cluster: LiveCluster) -> LiveCluster:
        """The cluster with what Prometheus measured last, if that is asked."""
        return replace(cluster, measured=self.metrics.measured) if self.metrics else cluster

    async def _tell_changes(self, before: tuple[Contents, str]) -> None:
        self._sample()
        if (self.contents, self.error) != before:
            await self.tell()

    async def tell(self) -> None:
        """Let the pages that are open know that there is something else to show."""
        async with self._changed:
            self.version += 1
            self._changed.notify_all()

    @property
    def stale(self) -> str:
        """Why what is shown may not be so any longer, a sentence; empty if it is as it was read last."""
        if self.error:
            return f"the cluster can't be read: {self.error}"
        return self._silence

    @property
    def sentences(self) -> Sequence[str]:
        """What wasn't seen or read."""
        measured = self.cluster.measured
        unknown = [measured.why if not measured.absent else "", self.metrics.why_not if self.metrics else ""]
        return [*self.contents.sentences, *filter(None, unknown)]

    def points(self, key: Key) -> Points:
        """The last hour of a series: what Prometheus has, else what was kept here."""
        known = self.metrics.history.get(key) if self.metrics else None
        return known or [*self.history.get(key, ())]

    async def change(self, version: int) -> int:
        """The version, once it is another."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.version != version)
            return self.version

    def _sample(self) -> None:
        if self.cluster.now < self._sampled + _SAMPLE_EVERY:
            return
        self._sampled = self.cluster.now
        amounts = dict(self._amounts())
        kept = {key: self.history.get(key) or deque(maxlen=_SAMPLES) for key in amounts}
        for key, amount in amounts.items():
            kept[key].append((self.cluster.now, amount))
        self.history = kept

    def _amounts(self) -> Iterator[tuple[Key, int]]:
        """What is kept of each reading: used of quotas, MiB that are promised of models, MiB that cards and pods really
        use, and how many pods wait.
        """
        for quota in self.contents.quotas:
            for key in quota.keys:
                yield quota_series(quota, key), key.used or 0
        promised: dict[str, int] = defaultdict(int)
        for card in self.contents.cards:
            promised[card.model] += card.used_memory
        for model, memory in promised.items():
            yield model_series(model), memory
        cards = ((card_series(each.node, each.uuid), each.in_use) for each in self.contents.cards if each.in_use)
        pods = ((pod_series(each.namespace, each.name), each.in_use) for each in self.contents.pods if each.in_use)
        for series, in_use in (*islice(cards, _MOST_MEASURED), *islice(pods, _MOST_MEASURED)):
            yield series, in_use.memory
        yield WAITING_SERIES, sum(pod.waits for pod in self.contents.pods)


def _collect() -> None:
    """Let go of what was read before, and have nobody look through what is known now, which stays.

    A cluster refers to itself, and may be 50 MB; to look through one took a third of the time of a pod's page.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()


async def _silence(probe: Callable[[], Awaitable[None]]) -> str:
    """Why the API server isn't heard; empty if it is."""
    try:
        await probe()
    except Unavailable as error:
        return str(error)
    return ""


def quota_series(quota: QuotaUse, key: KeyUse) -> Key:
    return "quota", quota.namespace, quota.name, key.key


def card_series(node: str, uuid: str) -> Key:
    """The MiB that are really used of a card."""
    return "card", node, uuid


def pod_series(namespace: str, name: str) -> Key:
    """The MiB of cards that a pod really uses."""
    return "pod", namespace, name


def model_series(model: str) -> Key:
    return "model", model
