"""Charging claims that no pod owns when they are created, and what claims are allocated before it is stored.

Source: docs/spec/dra.md#7. An allocation is a placement that somebody else chose: what its holder costs with it beyond
its charge so far is charged first, and what doesn't fit is refused (Q1, Q2). Nothing that a claim says of itself lowers
a charge: whether it is a pod's own is read from the pod, live. It writes no claim and no pod.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import cache, partial

from msgspec import Struct

from hami_webhook.charging.pods import PodCharger
from hami_webhook.charging.queue import ChargeResult, Outcome
from hami_webhook.charging.queues import ChargeQueues
from hami_webhook.charging.taken_names import refuse_taken_name
from hami_webhook.cluster.api import Cluster, ClusterError, Kind, NotFound
from hami_webhook.devices.registry import Vendors
from hami_webhook.dra.claim_cache import ClaimCache
from hami_webhook.dra.holders import (
    BareClaim,
    Holder,
    Key,
    controller_of,
    held_by,
    holder_of,
    holder_of_claims,
    key_of,
    meta_of,
    own_claims,
    owner_of,
    results_of,
)
from hami_webhook.kube.claims_wire import ResourceClaim
from hami_webhook.kube.objects import MalformedObject, Pod
from hami_webhook.quota.account import ChargeRequest
from hami_webhook.quota.claims import ClaimReader, OneHolder, unmet
from hami_webhook.quota.floors import floor_id
from hami_webhook.quota.placements import ClaimAllocation
from hami_webhook.quota.placing import PlacementRequest
from hami_webhook.quota.pricing import ClusterCapacity, charge_of, price_pending
from hami_webhook.quota.refusals import Refusal, refuse_now

PassingQueue = Callable[[Pod, ClusterCapacity | None], Awaitable[Refusal | None]]
"""The refusal of a claim that would pass pods that wait, priced by the lister if given; None if it passes none."""

_TOO_LATE = "no answer from the API server in time"


class ChargeTiming(Struct, frozen=True):
    """The clock, and the seconds that a charge may take, and for which a placement that isn't bound counts."""

    clock: Callable[[], float]
    timeout: float
    placement_ttl: float


class ClaimCharger:
    """Charges claims to the quotas that pods of their namespaces are charged to; an allocation within `timeout` s."""

    def __init__(
        self,
        cluster: Cluster,
        vendors: Vendors,
        capacity: ClusterCapacity,
        cache: ClaimCache,
        charger: PodCharger,
        queues: ChargeQueues,
        passing: PassingQueue,
        timing: ChargeTiming,
    ) -> None:
        self._cluster = cluster
        self._vendors = vendors
        self._capacity = capacity
        self._cache = cache
        self._charger = charger
        self._queues = queues
        self._refuse_passing = passing
        self._clock = timing.clock
        self._timing = timing
        self._reader = ClaimReader(cluster, cache)

    async def created(self, claim: ResourceClaim, *, dry_run: bool, time_left: float | None) -> Outcome:
        """Charge a new claim that no pod owns.

        One that names a pod as its owner costs nothing until it is allocated: if the owner is right, the pod's charge
        covers it.
        """
        bare = BareClaim.of(claim)
        if owner_of(claim) is not None:
            return ChargeResult()
        await self._cache.prepare(bare)
        charge = price_pending(bare, self._vendors, self._capacity)
        if not charge.amounts or (self._charger.known(bare).unlimited and not dry_run):
            return ChargeResult()
        taken = await self._taken(bare)
        if taken is not None:
            return taken
        passing = await self._refuse_passing(bare, None)
        if passing is not None:
            return passing
        request = ChargeRequest(
            bare.charge_id,
            bare,
            charge,
            dry_run,
            on_cards=partial(price_pending, bare, self._vendors, self._capacity),
            floor_id=partial(floor_id, bare, self._vendors),
            claim=bare.uid,
        )
        outcome = await self._charger.charge(request, time_left)
        if isinstance(outcome, ChargeResult):
            outcome = replace(outcome, warnings=[*outcome.warnings, *unmet(bare, self._capacity)])
        return outcome

    async def _taken(self, claim: BareClaim) -> Refusal | None:
        """The API server's own refusal of a claim whose name another one has, as the cache and a live read show."""
        known = self._cache.claims.get((claim.namespace, claim.name))
        if known is None or meta_of(known).uid == claim.uid:
            return None
        return await refuse_taken_name(self._cluster, Kind.RESOURCE_CLAIMS, claim.namespace, claim.name, claim.uid)

    async def allocated(
        self, former: ResourceClaim, claim: ResourceClaim, *, dry_run: bool, time_left: float | None
    ) -> Outcome:
        """Charge what a claim is allocated now, and wasn't before.

        The recompute releases devices that the claim no longer has.
        """
        results, bare = results_of(claim), BareClaim.of(claim)
        if results is None or results == results_of(former) or self._charger.known(bare).unlimited:
            return ChargeResult()
        try:
            held = held_by(claim, self._cache.inventory.devices)
        except MalformedObject as error:
            return Refusal(422, str(error))
        if held.unpriced:
            return Refusal(403, f"quota: can't charge namespace {bare.namespace}: {'; '.join(held.unpriced)}")
        if held.unseen:
            return refuse_now(bare.namespace, "; ".join(held.unseen))
        if dry_run or not held.devices:
            return ChargeResult()
        try:
            async with self._within(time_left):
                allocation, after = await self._allocation(former, claim)
                passing = await self._passing(allocation, after)
                if passing is not None:
                    return passing
                return await self._charge(allocation, claim)
        except (ClusterError, TimeoutError) as error:
            return refuse_now(bare.namespace, str(error) or _TOO_LATE)

    def _within(self, time_left: float | None) -> asyncio.Timeout:
        most = self._timing.timeout
        return asyncio.timeout(most if time_left is None else min(most, time_left))

    async def _pod_of(self, claim: ResourceClaim) -> Pod | None:
        """The pod that controls a claim, read live; None if there is none that counts."""
        owner = owner_of(claim)
        if owner is None:
            return None
        try:
            pod = Pod.from_object(await self._cluster.get(Kind.PODS, owner.name or "", key_of(claim)[0]))
        except (NotFound, MalformedObject):
            return None
        return pod if pod.uid == owner.uid and not pod.ended(self._clock()) else None

    async def _others(self, pod: Pod, claim: ResourceClaim) -> dict[Key, ResourceClaim]:
        """The other claims that a pod controls, read live where one may be its own."""
        name = key_of(claim)[1]
        templates = sum(bool(each.template) for each in pod.resource_claims)
        if name == pod.extended_claim and not templates:
            return {}
        if name in pod.generated_claims.values() and templates == 1 and not pod.extended_claim:
            return {}
        claims = await self._reader.of([pod.namespace])
        return {key_of(each): each for each in claims if controller_of(each) == pod.uid and key_of(each)[1] != name}

    async def _allocation(self, former: ResourceClaim, claim: ResourceClaim) -> tuple[ClaimAllocation, ClusterCapacity]:
        """Whose claim it is with what that costs before and after, and the lister with its claims as they are then."""
        key, inventory, templates = key_of(claim), self._cache.inventory, self._cache.templates
        bare = BareClaim.of(claim)
        pod = await self._pod_of(claim)
        await self._cache.prepare(bare)
        if pod is not None:
            await self._cache.prepare(pod)
            others = await self._others(pod, claim)
            before, after = {**others, key: former}, {**others, key: claim}
            if key in own_claims(pod, after):
                holder = holder_of(pod, after, templates, inventory)
                was = holder_of(pod, before, templates, inventory)
                return self._priced(pod, was, holder, bare.uid)
        was = Holder() if owner_of(claim) is not None else holder_of_claims([former], inventory)
        return self._priced(bare, was, holder_of_claims([claim], inventory), bare.uid)

    def _priced(
        self, pod: Pod, before: Holder | None, after: Holder | None, uid: str
    ) -> tuple[ClaimAllocation, ClusterCapacity]:
        was, will = (ClusterCapacity(self._capacity.cards, OneHolder(holder)) for holder in (before, after))
        more = (self._clock(), self._timing.placement_ttl)
        # kept, as each quota and each try asks again
        of_former, of_claim = (cache(partial(charge_of, pod, self._vendors, each, *more)) for each in (was, will))
        return ClaimAllocation(pod, uid, of_former, of_claim, self._vendors, was), will

    async def _passing(self, allocation: ClaimAllocation, after: ClusterCapacity) -> Refusal | None:
        """The refusal of an allocation whose holder cost nothing so far, and would pass pods that wait."""
        if price_pending(allocation.pod, self._vendors, allocation.capacity).amounts:
            return None
        return await self._refuse_passing(allocation.pod, after)

    async def _charge(self, allocation: ClaimAllocation, claim: ResourceClaim) -> Outcome:
        """Charge an allocation to all quotas, or to none.

        What was charged to its pod before is in used as long as the pod is there, which is seen afterwards: if it goes
        later, the entry says what the claim costs by itself.
        """
        pod = allocation.pod
        request = PlacementRequest(pod, allocation.placing)
        outcome = await self._queues.charge(self._queues.limiting(pod, allocation.after(None)), request)
        if isinstance(outcome, Refusal):
            return outcome
        stays = False
        try:
            stays = isinstance(pod, BareClaim) or await self._pod_of(claim) is not None
        finally:
            if not stays:
                await asyncio.shield(outcome.release())
        return outcome if stays else refuse_now(pod.namespace, f"pod {pod.name} no longer exists")
