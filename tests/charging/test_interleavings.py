"""Concurrent charges in any order of their steps: the sum never passes a limit, and the ledger says who was let in."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

import virtual_time
from hypothesis import given
from hypothesis import strategies as st
from quota.objects import MEM, NOON, TEAM, account_of, full, pod, quota, vendors

from hami_webhook.charging.queue import RETRIES, ChargeQueue, ChargeResult, Outcome
from hami_webhook.charging.recomputer import PodReader, Recomputer
from hami_webhook.charging.sources import ResourceQuotas
from hami_webhook.charging.store import QuotaStore
from hami_webhook.cluster.api import JSON, ClusterError, Kind
from hami_webhook.cluster.memory import MemoryCluster
from hami_webhook.kube.objects import Pod, ResourceQuota
from hami_webhook.quota.account import ChargeRequest, QuotaAccount, Refusal
from hami_webhook.quota.card_selection import COUNTED
from hami_webhook.quota.ledger import LEDGER
from hami_webhook.quota.pricing import NoCapacity, price_pending

VENDORS = vendors()


@dataclass
class InterleavingEnv:
    """Holds every step of every client until the script lets it go, and looks at each write."""

    script: list[int]
    waiting: list[asyncio.Future[None]] = field(default_factory=list)
    history: list[list[JSON]] = field(default_factory=list)
    cluster: MemoryCluster = field(init=False)
    before: dict[str, JSON] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.cluster = MemoryCluster(lambda: NOON, pause=self.pause)

    def quotas(self) -> list[JSON]:
        return list(self.cluster.peek_all(Kind.RESOURCE_QUOTAS, TEAM))

    def draw(self) -> int:
        return self.script.pop() if self.script else 0

    async def claim(self, _: object = None) -> None:
        gate = asyncio.get_running_loop().create_future()
        self.waiting.append(gate)
        await gate

    async def pause(self, step: str) -> None:
        if step == "patch_status:after":
            self.look()
        await self.claim()
        if step == "patch_status:before":
            self.before = {item["metadata"]["name"]: item for item in self.quotas()}

    def look(self) -> None:
        """Q1, Q8 and Q13 after a write."""
        self.history.append(self.quotas())
        task = asyncio.current_task()
        foreign = task is not None and task.get_name() == "foreign"
        for item in self.quotas():
            old = self.before[item["metadata"]["name"]]
            was, now = account_of(old, VENDORS), account_of(item, VENDORS)
            for key, amount in now.used.items():
                assert amount >= 0
                assert amount <= was.used.get(key, 0) or amount <= now.hard[key], (key, amount)
            if foreign:
                assert was.used == now.used
                assert was.ledger == now.ledger
            else:
                assert rest_of(old) == rest_of(item)

    async def play(self, tasks: Sequence[asyncio.Task[object]]) -> None:
        while not all(task.done() for task in tasks):
            for _ in range(12):
                await asyncio.sleep(0)
            if self.waiting:
                self.waiting.pop(self.draw() % len(self.waiting)).set_result(None)


def rest_of(item: JSON) -> JSON:
    """What of a quota isn't ours."""
    meta = {k: v for k, v in item["metadata"].items() if k not in ("resourceVersion", "annotations")}
    notes = {k: v for k, v in item["metadata"].get("annotations", {}).items() if k not in (LEDGER, COUNTED)}
    used = {k: v for k, v in item.get("status", {}).get("used", {}).items() if k not in VENDORS.quota_keys}
    return {"meta": meta, "notes": notes, "spec": item["spec"], "used": used}


class LaggingCache:
    """Quotas as they were some writes ago, or not known at all."""

    def __init__(self, env: InterleavingEnv) -> None:
        self._stage = env

    def quotas(self, scope: str) -> Sequence[ResourceQuota]:
        lag = self._stage.draw() % 4
        return [
            ResourceQuota.from_object(item) for item in self._stage.history[-1 - min(lag, len(self._stage.history) - 1)]
        ]

    def silence(self) -> float:
        return (0.0, 0.0, 10.0, 10.0, inf)[self._stage.draw() % 5]


def ask(name: str, mem: int, **how: Any) -> ChargeRequest:
    asked = Pod.from_object(pod(name, gpu=1, mem=mem, uid=name))
    return ChargeRequest(name, asked, price_pending(asked, VENDORS, NoCapacity()), **how)


def charger_on(env: InterleavingEnv, cache: LaggingCache | None = None) -> ChargeQueue:
    store = QuotaStore(
        ResourceQuotas(env.cluster), VENDORS, clock=lambda: NOON, cache=cache, sleep=env.claim, jitter=lambda: 0.5
    )
    recomputer = Recomputer(store, PodReader(env.cluster), VENDORS, NoCapacity(), clock=lambda: NOON)
    return ChargeQueue(store, clock=lambda: NOON, recomputer=recomputer, sleep=env.claim, timeout=1e6)


async def foreign_writer(env: InterleavingEnv, count: int) -> None:
    """Kubernetes' own writers: native keys and labels, by compare-and-swap."""
    for number in range(count):
        read = await env.cluster.get(Kind.RESOURCE_QUOTAS, "q0", TEAM)
        patch = {
            "metadata": {"resourceVersion": read["metadata"]["resourceVersion"], "labels": {"n": str(number)}},
            "status": {"used": {"pods": str(number)}},
        }
        try:
            await env.cluster.patch_status(Kind.RESOURCE_QUOTAS, "q0", patch, TEAM)
        except ClusterError:
            continue


async def concurrently(
    hards: list[int], sizes: list[int], clients: int, script: list[int], *, known: bool, foreign: int
) -> tuple[InterleavingEnv, list[ChargeRequest], list[Outcome]]:
    env = InterleavingEnv(script)
    await env.cluster.ensure_namespace(TEAM)
    for number, hard in enumerate(hards):
        made = quota(f"q{number}", mem=hard, pods="9")
        made["status"] = {"used": {MEM: "0", "pods": "0"} if known else {"pods": "0"}}
        await env.cluster.create(Kind.RESOURCE_QUOTAS, made)
    env.history.append(env.quotas())
    chargers = [charger_on(env, LaggingCache(env)) for _ in range(clients)]
    with_limits = [ask(f"p{n}", size) for n, size in enumerate(sizes)]
    tasks = [asyncio.create_task(chargers[n % clients].charge(item)) for n, item in enumerate(with_limits)]
    writer = asyncio.create_task(foreign_writer(env, foreign), name="foreign")
    await env.play([*tasks, writer])
    for charger in chargers:
        while charger._workers:
            await env.play([asyncio.create_task(asyncio.sleep(0))])
            if env.waiting:
                env.waiting.pop().set_result(None)
    return env, with_limits, [await task for task in tasks]


@given(
    hards=st.lists(st.integers(0, 12), min_size=1, max_size=2),
    sizes=st.lists(st.integers(1, 6), min_size=2, max_size=8),
    clients=st.integers(2, 4),
    script=st.lists(st.integers(0, 30), max_size=200),
    known=st.booleans(),
    foreign=st.integers(0, 3),
)
def test_charges_in_any_interleaving_keep_the_limits(
    hards: list[int], sizes: list[int], clients: int, script: list[int], known: bool, foreign: int
) -> None:
    env, with_limits, outcomes = virtual_time.run(
        concurrently(hards, sizes, clients, script, known=known, foreign=foreign)
    )
    final = [account_of(item, VENDORS) for item in env.quotas()]
    versions = [[account_of(item, VENDORS) for item in version] for version in env.history]
    admitted = {
        a.identity for a, outcome in zip(with_limits, outcomes, strict=True) if isinstance(outcome, ChargeResult)
    }
    for read in final:
        assert set(read.ledger) == admitted  # Q5, Q6, Q10
        assert read.used.get(MEM, 0) == sum(a.charge.amounts[MEM] for a in with_limits if a.identity in admitted)
    for item, outcome in zip(with_limits, outcomes, strict=True):
        if not isinstance(outcome, Refusal):
            continue
        if outcome.code == 403:  # Q12: it didn't fit into some quota at some time, because of the entries there
            assert any(
                item.identity not in b.ledger and b.overrun(item.charge) for version in versions for b in version
            )
            if len(hards) == 1:
                assert final[0].used.get(MEM, 0) + item.charge.amounts[MEM] > hards[0]
        else:
            assert f"{RETRIES.attempts} conflicting writes" in outcome.message


@given(
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=8),
    hards=st.lists(st.integers(0, 15), min_size=1, max_size=2),
)
def test_a_batch_admits_what_single_requests_in_its_order_admit(sizes: list[int], hards: list[int]) -> None:
    with_limits = [ask(f"p{n}", size) for n, size in enumerate(sizes)]

    async def judged(*, together: bool) -> tuple[list[type], list[QuotaAccount]]:
        cluster = MemoryCluster(lambda: NOON)
        await cluster.ensure_namespace(TEAM)
        for number, hard in enumerate(hards):
            await cluster.create(
                Kind.RESOURCE_QUOTAS, {**quota(f"q{number}", mem=hard), "status": {"used": {MEM: "0"}}}
            )
        store = QuotaStore(ResourceQuotas(cluster), VENDORS, clock=lambda: NOON, new_attempt=lambda: "any")
        recomputer = Recomputer(store, PodReader(cluster), VENDORS, NoCapacity(), clock=lambda: NOON)
        charger = ChargeQueue(store, clock=lambda: NOON, recomputer=recomputer)
        if together:
            outcomes = await asyncio.gather(*map(charger.charge, with_limits))
            assert charger.counts.writes <= len(hards)
        else:
            outcomes = [await charger.charge(item) for item in with_limits]
        return [type(outcome) for outcome in outcomes], [
            account_of(q, VENDORS) for q in cluster.peek_all(Kind.RESOURCE_QUOTAS)
        ]

    together, left = virtual_time.run(judged(together=True))
    singly, right = virtual_time.run(judged(together=False))
    assert together == singly
    assert [(b.used, b.ledger) for b in left] == [(b.used, b.ledger) for b in right]


def test_one_id_through_two_clients_is_charged_once() -> None:
    for script in ([], [1, 0, 1], [0, 1, 1, 0, 2, 1], [3, 2, 1, 0]):

        async def main(script: list[int] = script) -> None:
            env = InterleavingEnv(list(script))
            await env.cluster.ensure_namespace(TEAM)
            await env.cluster.create(Kind.RESOURCE_QUOTAS, {**quota("q0", mem=10), "status": {"used": {MEM: "0"}}})
            env.history.append(env.quotas())
            tasks = [asyncio.create_task(charger_on(env).charge(ask("p", 6))) for _ in range(2)]
            await env.play(tasks)
            assert [await task for task in tasks] == [ChargeResult({"q0": full(mem=6)})] * 2
            assert account_of(env.quotas()[0]).used == full(mem=6)

        virtual_time.run(main())
