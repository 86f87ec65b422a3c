"""Replicas that charge one quota take turns, in virtual time.

Clients create pods one after another, spread over the replicas; a write takes some milliseconds, and the watch shows it
some later.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass

import pytest
from quota.objects import GPU, MEM, TEAM, pod, quota
from virtual_time import run

from hami_webhook.charging.queue import ChargeResult
from hami_webhook.charging.sources import ResourceQuotas
from hami_webhook.cluster.api import Kind
from hami_webhook.cluster.memory import MemoryCluster
from hami_webhook.kube.objects import Pod, ResourceQuota
from hami_webhook.quota.account import ChargeRequest
from hami_webhook.quota.pricing import ClusterCapacity, price_pending

from .replicas import VENDORS, Watched, charger

CLIENTS = 24
PODS = 360


@dataclass(frozen=True)
class Burst:
    """Pods a second, and writes and conflicts for each pod."""

    rate: float
    writes: float
    conflicts: float


async def charged(replicas: int, write: float, between: float, dice: random.Random) -> Burst:
    """A burst; a write takes about `write` seconds, and a client's next pod comes about `between` seconds later."""

    def about(seconds: float) -> float:
        return seconds * dice.uniform(0.5, 1.5)

    def read() -> ResourceQuota:
        return ResourceQuota.from_object(cluster.peek(Kind.RESOURCE_QUOTAS, "q", TEAM))

    async def pause(step: str) -> None:
        await asyncio.sleep(about(write / (2 if step.startswith("patch_status") else 8)))
        if step == "patch_status:after":
            for each in watched:
                asyncio.get_running_loop().call_later(about(0.005), each.show, read())

    async def client() -> None:
        while waiting:
            number = waiting.pop()
            asked = Pod.from_object(pod(f"p{number}", gpu=1, mem=5, uid=f"u{number}"))
            request = ChargeRequest(asked.uid, asked, price_pending(asked, VENDORS, ClusterCapacity()))
            assert isinstance(await chargers[number % replicas].charge(request), ChargeResult)
            await asyncio.sleep(about(between))
            created.add(asked.uid)

    clock = asyncio.get_running_loop().time
    cluster = MemoryCluster(clock)
    await cluster.ensure_namespace(TEAM)
    status = {"used": {MEM: "0", GPU: "0"}}
    await cluster.create(Kind.RESOURCE_QUOTAS, {**quota("q", gpu=10**6, mem=10**9), "status": status})
    cluster.pause = pause
    watched = [Watched({TEAM: read()}) for _ in range(replicas)]
    created: set[str] = set()
    source = ResourceQuotas(cluster)
    chargers = [charger(each, source, cluster, clock, dice, lambda uid: uid in created) for each in watched]
    waiting = list(range(PODS))
    began = clock()
    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    seconds = clock() - began
    assert read().used[MEM] == str(5 * PODS)
    writes = sum(charger.counts.writes for charger in chargers)
    return Burst(PODS / seconds, writes / PODS, sum(charger.counts.conflicts for charger in chargers) / PODS)


def burst(replicas: int, write: float, between: float) -> Burst:
    return run(charged(replicas, write, between, random.Random(replicas)))


@pytest.mark.parametrize(
    ("write", "between", "rate", "writes"), [(0.01, 0.08, 0.85, 0.4), (0.01, 0.02, 0.8, 0.2), (0.1, 0.2, 0.7, 0.25)]
)
def test_three_replicas_charge_nearly_as_fast_as_one(write: float, between: float, rate: float, writes: float) -> None:
    one, three = burst(1, write, between), burst(3, write, between)
    assert one.conflicts == 0
    assert one.writes <= 0.2
    assert three.rate >= rate * one.rate
    assert three.writes <= writes
    assert three.conflicts <= 0.2 * three.writes
