"""Replicas on an API server that has more to do than it can, in virtual time.

It works on two requests at a time, as on two cores: each write that is lost to a conflict is time that others lack.
What it does with real ones is in docs/decisions/0024-turns-of-writers.md.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from quota.objects import GPU, MEM, pod, quota
from virtual_time import run

from hami_webhook.charging.queue import ChargeResult
from hami_webhook.charging.sources import ResourceQuotas
from hami_webhook.cluster.api import JSON, Kind
from hami_webhook.cluster.memory import MemoryCluster
from hami_webhook.kube.objects import Pod, ResourceQuota
from hami_webhook.quota.account import ChargeRequest
from hami_webhook.quota.pricing import ClusterCapacity, price_pending

from .replicas import VENDORS, Watched, charger

NAMESPACES = [f"team-{number}" for number in range(20)]
CLIENTS = 100
SECONDS = 6.0
READ, WRITE, CREATE = 0.004, 0.01, 0.01
"""Seconds of work."""


class BusySource(ResourceQuotas):
    """Reads and writes that the API server has to work on."""

    def __init__(
        self, cluster: MemoryCluster, work: Callable[[float], Awaitable[None]], written: Callable[[str], None]
    ) -> None:
        super().__init__(cluster)
        self._work = work
        self._written = written

    async def get(self, scope: str, name: str) -> ResourceQuota:
        await self._work(READ)
        return await super().get(scope, name)

    async def patch_status(self, scope: str, name: str, patch: JSON) -> ResourceQuota:
        await self._work(WRITE / 2)
        try:
            return await super().patch_status(scope, name, patch)
        finally:
            await self._work(WRITE / 2)
            self._written(scope)


@dataclass
class Created:
    """Pods that were created, how often a charge was to be tried again, and writes that were lost to a conflict."""

    pods: int = 0
    refused: int = 0
    conflicts: int = 0


async def created(replicas: int, dice: random.Random) -> Created:
    """What clients create that make one pod after the other."""
    loop = asyncio.get_running_loop()
    clock = loop.time
    cores = asyncio.Semaphore(2)
    cluster = MemoryCluster(clock)
    found = Created()
    existing: set[str] = set()

    async def work(seconds: float) -> None:
        async with cores:
            await asyncio.sleep(seconds * dice.uniform(0.5, 1.5))

    def read(namespace: str) -> ResourceQuota:
        return ResourceQuota.from_object(cluster.peek(Kind.RESOURCE_QUOTAS, "q", namespace))

    def written(namespace: str) -> None:
        for each in watched:
            loop.call_later(dice.uniform(0.002, 0.008), each.show, read(namespace))

    for namespace in NAMESPACES:
        await cluster.ensure_namespace(namespace)
        made = quota("q", gpu=10**6, mem=10**9) | {"status": {"used": {MEM: "0", GPU: "0"}}}
        made["metadata"]["namespace"] = namespace
        await cluster.create(Kind.RESOURCE_QUOTAS, made)
    watched = [Watched({namespace: read(namespace) for namespace in NAMESPACES}) for _ in range(replicas)]
    chargers = [
        charger(each, BusySource(cluster, work, written), cluster, clock, dice, lambda uid: uid in existing)
        for each in watched
    ]

    async def create(number: int, name: str) -> None:
        manifest = pod(name, gpu=1, mem=5, uid=name)
        manifest["metadata"]["namespace"] = NAMESPACES[number % len(NAMESPACES)]
        asked = Pod.from_object(manifest)
        await work(CREATE / 2)
        request = ChargeRequest(asked.uid, asked, price_pending(asked, VENDORS, ClusterCapacity()))
        if isinstance(await chargers[number % replicas].charge(request), ChargeResult):
            await work(CREATE / 2)
            existing.add(asked.uid)
            found.pods += 1
        else:
            found.refused += 1

    async def client(number: int) -> None:
        tried = 0
        while clock() < SECONDS:
            await create(number, f"pod-{number}-{tried}")
            tried += 1

    await asyncio.gather(*map(client, range(CLIENTS)))
    found.conflicts = sum(charger.counts.conflicts for charger in chargers)
    return found


def test_three_replicas_do_not_spend_an_overloaded_api_server_on_conflicts() -> None:
    one, three = (run(created(replicas, random.Random(replicas))) for replicas in (1, 3))
    assert (one.conflicts, one.refused, three.refused) == (0, 0, 0)
    assert three.conflicts <= 0.35 * three.pods
    assert three.pods >= 0.7 * one.pods
