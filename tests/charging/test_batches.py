"""Pods that wait together are charged in one write, and each as if it came alone (docs/spec/quota.md#7)."""

from __future__ import annotations

import asyncio

import virtual_time
from hypothesis import given
from hypothesis import strategies as st
from quota.objects import MEM, NOON, TEAM, account_of, pod, quota, vendors

from hami_webhook.charging.queue import ChargeQueue
from hami_webhook.charging.recomputer import PodReader, Recomputer
from hami_webhook.charging.sources import ResourceQuotas
from hami_webhook.charging.store import QuotaStore
from hami_webhook.cluster.api import Kind
from hami_webhook.cluster.memory import MemoryCluster
from hami_webhook.kube.objects import Pod
from hami_webhook.quota.account import ChargeRequest, QuotaAccount
from hami_webhook.quota.pricing import ClusterCapacity, price_pending

VENDORS = vendors()


def request(name: str, mem: int) -> ChargeRequest:
    asked = Pod.from_object(pod(name, gpu=1, mem=mem, uid=name))
    return ChargeRequest(name, asked, price_pending(asked, VENDORS, ClusterCapacity()))


@given(
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=8),
    hards=st.lists(st.integers(0, 15), min_size=1, max_size=2),
)
def test_a_batch_admits_what_single_requests_in_its_order_admit(sizes: list[int], hards: list[int]) -> None:
    requests = [request(f"p{n}", size) for n, size in enumerate(sizes)]

    async def charged(*, together: bool) -> tuple[list[type], list[QuotaAccount]]:
        cluster = MemoryCluster(lambda: NOON)
        await cluster.ensure_namespace(TEAM)
        for number, hard in enumerate(hards):
            await cluster.create(
                Kind.RESOURCE_QUOTAS, {**quota(f"q{number}", mem=hard), "status": {"used": {MEM: "0"}}}
            )
        store = QuotaStore(ResourceQuotas(cluster), VENDORS, clock=lambda: NOON, new_attempt=lambda: "any")
        recomputer = Recomputer(store, PodReader(cluster), VENDORS, ClusterCapacity(), clock=lambda: NOON)
        charger = ChargeQueue(store, clock=lambda: NOON, recomputer=recomputer)
        if together:
            outcomes = await asyncio.gather(*map(charger.charge, requests))
            assert charger.counts.writes <= len(hards)
        else:
            outcomes = [await charger.charge(each) for each in requests]
        left = [account_of(each, VENDORS) for each in cluster.peek_all(Kind.RESOURCE_QUOTAS)]
        return [type(outcome) for outcome in outcomes], left

    together, left = virtual_time.run(charged(together=True))
    singly, right = virtual_time.run(charged(together=False))
    assert together == singly
    assert [(each.used, each.ledger) for each in left] == [(each.used, each.ledger) for each in right]
