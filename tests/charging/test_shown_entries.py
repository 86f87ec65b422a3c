"""Entries whose pods show their charge leave the ledger with the next write, and nothing is ever counted too low."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st
from quota.objects import MEM, NOON, TEAM, account_of, pod, quota

from hami_webhook.charging.queue import ChargeQueue, ChargeResult
from hami_webhook.charging.recomputer import PodReader, Recomputer
from hami_webhook.charging.sources import ResourceQuotas
from hami_webhook.charging.store import QuotaStore
from hami_webhook.cluster.api import Conflict, Kind, WatchType
from hami_webhook.quota.account import ChargeRequest, QuotaAccount
from hami_webhook.quota.ledger import Entry
from hami_webhook.quota.pricing import NoCapacity

from .test_interleavings import VENDORS, InterleavingEnv, ask


@dataclass
class Watched(InterleavingEnv):
    """A env on which pods that were let in are created, and seen some time after that."""

    created: dict[str, int] = field(default_factory=dict)

    def look(self) -> None:
        super().look()
        for item in self.quotas():
            assert account_of(item, VENDORS).used[MEM] >= sum(self.created.values())

    def shows(self, quota: QuotaAccount, identity: str, entry: Entry) -> bool:
        return identity in self.created and self.draw() % 2 == 0

    def recomputer(self) -> Recomputer:
        store = QuotaStore(ResourceQuotas(self.cluster), VENDORS, clock=lambda: NOON)
        return Recomputer(store, PodReader(self.cluster), VENDORS, NoCapacity(), clock=lambda: NOON)

    def charger(self) -> ChargeQueue:
        return ChargeQueue(
            QuotaStore(ResourceQuotas(self.cluster), VENDORS, clock=lambda: NOON, sleep=self.claim, jitter=lambda: 0.5),
            clock=lambda: NOON,
            recomputer=self.recomputer(),
            sleep=self.claim,
            timeout=1e6,
            shows=self.shows,
        )

    async def client(self, charger: ChargeQueue, incoming: ChargeRequest, size: int) -> None:
        if isinstance(await charger.charge(incoming), ChargeResult):
            await self.claim()
            name = incoming.pod.name
            self.created[name] = size  # from here on it may be seen, and a list has it
            made = pod(name, gpu=1, mem=size, uid=name)
            self.cluster._store(Kind.PODS, (TEAM, name), made, WatchType.ADDED)

    async def recompute(self, times: int) -> None:
        for _ in range(times):
            try:
                await self.recomputer().run(TEAM, "q0")
            except Conflict:
                continue
            await self.claim()


async def played(hard: int, sizes: list[int], clients: int, recomputes: int, script: list[int]) -> Watched:
    env = Watched(script)
    await env.cluster.ensure_namespace(TEAM)
    await env.cluster.create(Kind.RESOURCE_QUOTAS, quota("q0", mem=hard) | {"status": {"used": {MEM: "0"}}})
    chargers = [env.charger() for _ in range(clients)]
    tasks = [
        asyncio.create_task(env.client(chargers[n % clients], ask(f"p{n}", size), size)) for n, size in enumerate(sizes)
    ]
    await env.play([*tasks, asyncio.create_task(env.recompute(recomputes))])
    for task in tasks:
        await task
    for charger in chargers:
        while charger._workers:
            await env.play([asyncio.create_task(asyncio.sleep(0))])
            if env.waiting:
                env.waiting.pop().set_result(None)
    last = asyncio.create_task(env.recompute(1))
    await env.play([last])
    await last
    return env


@given(
    hard=st.integers(3, 20),
    sizes=st.lists(st.integers(1, 6), min_size=2, max_size=7),
    clients=st.integers(1, 3),
    recomputes=st.integers(0, 3),
    script=st.lists(st.integers(0, 30), max_size=200),
)
def test_in_any_interleaving_used_never_falls_below_what_exists(
    hard: int, sizes: list[int], clients: int, recomputes: int, script: list[int]
) -> None:
    env = asyncio.run(played(hard, sizes, clients, recomputes, script))
    (final,) = [account_of(item, VENDORS) for item in env.quotas()]
    assert final.used[MEM] == sum(env.created.values()) <= hard
    assert not final.ledger
