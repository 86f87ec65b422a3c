"""Selectors of claims that take long to evaluate, while the claims are charged (docs/spec/dra.md#6)."""

from __future__ import annotations

import asyncio

from dra.objects import exactly, resource_slice, share
from quota.objects import quota

from hami_webhook.dra.cost import is_known
from hami_webhook.dra.holders import BareClaim
from hami_webhook.kube.claims_wire import ResourceClaim
from hami_webhook.kube.wire import convert

from .claim_env import Cluster, got, publish, spec


async def test_who_writes_slow_selectors_waits_for_them_when_a_claim_is_allocated_too() -> None:
    """The attack: many claims are allocated at once by a replica that didn't review them when they were made."""
    slow = "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]"
    deep = "".join(f"{slow}.all({name}, " for name in "abcd") + "true))))"
    async with Cluster(quota(mem=50000), replicas=2) as team:
        await publish(team, resource_slice("n1", *(share(f"a{number}") for number in range(40))))
        made = await team.make("c", spec(exactly(cel=deep, memory="1000Mi")))
        former = convert(made, ResourceClaim, "claim")
        cache, order = team.cores[1].caches.claims, list[str]()
        other = BareClaim.of(convert({**made, "spec": spec(exactly(cel=f"1 > 0 && {deep}"))}, ResourceClaim, "claim"))
        assert not is_known(BareClaim.of(former).requests, cache.inventory)

        async def prepared() -> None:
            await cache.prepare(other)
            order.append("prepared")

        async def allocated() -> None:
            after = {**made, "status": {"allocation": {"devices": {"results": [got("1000Mi")]}}}}
            await team.cores[1].claims.review(team.claim_review("UPDATE", made, after))
            order.append("allocated")

        await asyncio.gather(prepared(), allocated())
        assert order == ["prepared", "allocated"]
