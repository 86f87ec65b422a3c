"""The last reading of the cluster, which all requests share, and when it changed."""

from __future__ import annotations

import asyncio
import gc
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from hami_webhook.cluster.api import ClusterError
from hami_webhook.kubectl.live import LiveCluster
from hami_webhook.kubectl.report import CardUse, PodUse, QuotaUse

_EVERY = 1.0
"""Seconds between two reads, unless reading takes long itself."""
_SHARE = 5
"""How many times as long as reading took is waited at least, so that an open page is no load."""
_SAMPLE_EVERY, _SAMPLES = 30.0, 120
"""Seconds between two points of the history, and how many are kept: an hour."""

Key = tuple[str, str, str]
"""Namespace, quota and key."""


@dataclass(frozen=True)
class Contents:
    """What the pages show of a reading."""

    quotas: Sequence[QuotaUse]
    cards: Sequence[CardUse]
    pods: Sequence[PodUse]
    sentences: Sequence[str]

    @classmethod
    def of(cls, cluster: LiveCluster) -> Contents:
        overview = cluster.overview
        return cls(overview.quotas(), overview.cards(), overview.pods(), [*cluster.warnings, *cluster.all_unseen])


class Readings:
    """Reads the cluster again and again; `version` counts the changes of what the pages show."""

    def __init__(self, read: Callable[[], Awaitable[LiveCluster]], cluster: LiveCluster) -> None:
        self.read = read
        self.cluster = cluster
        self.contents = Contents.of(cluster)
        self.error = ""
        self.version = 1
        self.history: dict[Key, deque[int]] = {}
        self._sampled = float("-inf")
        self._changed = asyncio.Condition()
        self._sample()

    async def keep_reading(self) -> None:
        """Read until cancelled."""
        while True:
            began = time.monotonic()
            await self.refresh()
            await asyncio.sleep(max(_EVERY, _SHARE * (time.monotonic() - began)))

    async def refresh(self) -> None:
        """Read once; a failure is shown, and the last reading stays."""
        before = (self.contents, self.error)
        try:
            self.cluster = await self.read()
        except ClusterError as error:
            self.error = str(error)
        else:
            self.error = ""
            self.contents = await asyncio.to_thread(Contents.of, self.cluster)
            # a cluster refers to itself, and the last one may be 50 MB
            await asyncio.to_thread(gc.collect)
        self._sample()
        if (self.contents, self.error) != before:
            async with self._changed:
                self.version += 1
                self._changed.notify_all()

    async def change(self, version: int) -> int:
        """The version, once it is another."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.version != version)
            return self.version

    def _sample(self) -> None:
        if self.cluster.now < self._sampled + _SAMPLE_EVERY:
            return
        self._sampled = self.cluster.now
        used = {(q.namespace, q.name, key.key): key.used or 0 for q in self.contents.quotas for key in q.keys}
        kept = {key: self.history.get(key) or deque(maxlen=_SAMPLES) for key in used}
        for key, amount in used.items():
            kept[key].append(amount)
        self.history = kept
