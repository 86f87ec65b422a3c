"""The objects of a cluster as watches show them, for pages that are open for long (docs/ui.md)."""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import suppress
from functools import partial

from hami_webhook.cluster.api import ClusterError, Gone, Kind, Listing, NotFound, WatchEvent, WatchType
from hami_webhook.cluster.informer import Change, Informer, ListedAndWatched, Replaced
from hami_webhook.simulate.simulation import Simulation

KINDS = (
    *(Kind.NAMESPACES, Kind.NODES, Kind.DEVICES, Kind.RESOURCE_QUOTAS, Kind.ACCELERATOR_QUOTAS),
    *(Kind.POD_DISRUPTION_BUDGETS, Kind.DEVICE_CLASSES, Kind.PODS),
)
"""In the order in which what was heard is taken over: a node before the pods on it."""
CLAIM_KINDS = (Kind.RESOURCE_SLICES, Kind.RESOURCE_CLAIM_TEMPLATES, Kind.RESOURCE_CLAIMS)
"""Where claims are charged, besides."""
_QUOTAS = (Kind.RESOURCE_QUOTAS, Kind.ACCELERATOR_QUOTAS)
_LOOK_AGAIN = 5.0
"""Seconds after which a kind that the cluster doesn't have is looked for again."""
_TOGETHER = 0.1
"""Seconds after a change in which further ones are waited for."""
_TURN = 50
"""Changes that are taken over before other tasks run."""


class WatchedObjects:
    """Fills a simulation with all objects of `KINDS`, with `claims` also of `CLAIM_KINDS`, and keeps them as watches
    show them.
    """

    def __init__(self, cluster: ListedAndWatched, simulation: Simulation, *, claims: bool = False) -> None:
        self._cluster = cluster
        self._simulation = simulation
        kinds = (*KINDS, *(CLAIM_KINDS if claims else ()))
        self._heard: dict[Kind, deque[Change]] = {kind: deque() for kind in kinds}
        self._news = asyncio.Event()
        self._failed = False

    async def changes(self, longest: float) -> AsyncGenerator[None, None]:
        """Each time that the simulation is another: first once it has all, later at the latest after `longest` seconds.

        Ends as soon as a list or a watch fails, for lack of rights or otherwise.
        """
        source = _Noting(self._cluster, self._fail)
        informers = [_informer(source, kind) for kind in self._heard]
        tasks = [asyncio.create_task(each.run(partial(self._hear, each.kind))) for each in informers]
        for task in tasks:
            task.add_done_callback(lambda _: self._fail())
        try:
            while True:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._news.wait(), longest)
                    await asyncio.sleep(_TOGETHER)
                self._news.clear()
                if self._failed:
                    return
                if all(informer.synced.is_set() for informer in informers):
                    await self._take_over()
                    yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _fail(self) -> None:
        self._failed = True
        self._news.set()

    def _hear(self, kind: Kind, change: Change) -> None:
        self._heard[kind].append(change)
        self._news.set()

    async def _take_over(self) -> None:
        taken = 0
        recompute = any(self._heard[kind] for kind in _QUOTAS)
        for kind, heard in self._heard.items():
            while heard:
                change = heard.popleft()
                events = (
                    (WatchEvent(WatchType.ADDED, obj) for obj in change.items)
                    if isinstance(change, Replaced)
                    else [change]
                )
                for event in events:
                    self._simulation.follow(kind, event)
                    taken += 1
                    if taken % _TURN == 0:
                        await asyncio.sleep(0)
        if recompute:
            await self._simulation.recompute_quotas(trust_used=True)


def _informer(cluster: ListedAndWatched, kind: Kind) -> Informer:
    return Informer(
        cluster,
        kind,
        clock=time.monotonic,
        sleep=asyncio.sleep,
        random=random.random,
        look_again=_LOOK_AGAIN if kind.optional else None,
        expected=False,
    )


class _Noting:
    """A cluster that calls `failed` when a list or a watch fails in a way that isn't usual for a watched kind."""

    def __init__(self, cluster: ListedAndWatched, failed: Callable[[], None]) -> None:
        self._cluster = cluster
        self._failed = failed

    async def list(self, kind: Kind, namespace: str = "", *, node: str = "") -> Listing:
        try:
            return await self._cluster.list(kind, namespace, node=node)
        except ClusterError as error:
            if not (kind.optional and isinstance(error, NotFound)):
                self._failed()
            raise

    async def watch(self, kind: Kind, resource_version: str, *, node: str = "") -> AsyncIterator[WatchEvent]:
        try:
            async for event in self._cluster.watch(kind, resource_version, node=node):
                yield event
        except Gone:
            raise
        except ClusterError:
            self._failed()
            raise
