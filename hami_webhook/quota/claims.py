"""The cards and ResourceClaims on which charges depend: cards from caches, claims from caches or read live.

Source: docs/spec/dra.md#6. A recompute lists claims as it lists pods; devices, classes and templates are the caches',
as the cards of nodes are.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from weakref import WeakValueDictionary

from msgspec import Struct

from hami_webhook.cluster.api import JSON, Cluster, ClusterError, Forbidden, Kind, NotFound
from hami_webhook.config.drivers import DriverDevices
from hami_webhook.devices.model import BadRequest
from hami_webhook.dra.claim_cache import ClaimCache
from hami_webhook.dra.cost import classes_of
from hami_webhook.dra.holders import BareClaim, Holder, Key, holder_of_claims, holders, requests_of
from hami_webhook.kube.claims_wire import ResourceClaim, ResourceClaimTemplate
from hami_webhook.kube.objects import MalformedObject, Pod
from hami_webhook.kube.wire import convert
from hami_webhook.quota.pricing import ClusterCapacity

_MOST_READ = 8
"""Templates of a pod that are read: one with more that nobody has seen isn't worth the requests."""

_MOST_LISTS = 8
"""Namespaces of a quota whose claims are listed one by one."""


class OneHolder(Struct, frozen=True):
    """The claims of one holder, whichever pod they are asked for."""

    holder: Holder | None

    def of(self, pod: Pod) -> Holder | None:
        return self.holder


class KnownHolders:
    """The devices that the claims of given pods hold, by pod UID. It knows no other pods."""

    def __init__(self, found: Mapping[str, Holder], cache: ClaimCache) -> None:
        self._found = found
        self._cache = cache

    def of(self, pod: Pod) -> Holder | None:
        if isinstance(pod, BareClaim):
            return holder_of_claims([pod.claim], self._cache.inventory)
        return self._found.get(pod.uid)


class TemplateReader:
    """Reads templates that no watch has shown yet, one at a time per namespace: others need the API server, too."""

    def __init__(self, cluster: Cluster, cache: ClaimCache, *, seconds: float = 0.5) -> None:
        """`seconds` are those that the templates of a pod may take."""
        self._cluster = cluster
        self._cache = cache
        self._seconds = seconds
        self._turns = WeakValueDictionary[str, asyncio.Lock]()

    async def of(self, pod: Pod) -> dict[Key, ResourceClaimTemplate]:
        """Return a pod's templates, except those that can't be read in time: their claims are charged when they are
        allocated.
        """
        found: dict[Key, ResourceClaimTemplate] = {}
        turn = self._turns.setdefault(pod.namespace, asyncio.Lock())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._seconds), turn:
                for name in sorted(self._cache.without_template(pod))[:_MOST_READ]:
                    with contextlib.suppress(ClusterError, MalformedObject):
                        obj = await self._cluster.get(Kind.RESOURCE_CLAIM_TEMPLATES, name, pod.namespace)
                        found[pod.namespace, name] = convert(obj, ResourceClaimTemplate, "resourceclaimtemplate")
        return found

    async def named(self, pod: Pod) -> list[ResourceClaim]:
        """Return the claims that a pod names.

        Read those that no watch has shown; leave out those that can't be read in time.
        """
        names = sorted({each.claim for each in pod.resource_claims if each.claim})[:_MOST_READ]
        found = [self._cache.claims.get((pod.namespace, name)) for name in names]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._seconds), self._turns.setdefault(pod.namespace, asyncio.Lock()):
                for position, name in enumerate(names):
                    if found[position] is None:
                        with contextlib.suppress(ClusterError, MalformedObject):
                            obj = await self._cluster.get(Kind.RESOURCE_CLAIMS, name, pod.namespace)
                            found[position] = convert(obj, ResourceClaim, "resourceclaim")
        return [each for each in found if each is not None]


def refuse_both_ways(
    pod: Pod,
    requests: Collection[str],
    capacity: ClusterCapacity,
    named: Iterable[ResourceClaim] = (),
    rows: Sequence[DriverDevices] = (),
) -> None:
    """Raise `BadRequest` for a pod that asks for a vendor's cards by limits and by claims: kube-scheduler and the
    extender would each choose a node for it. `named` are the claims that it names."""
    holder = capacity.claims.of(pod) if capacity.claims is not None else None
    claimed = set[str]() if holder is None else set(holder.wait.debits)
    classes = {name for claim in named for name in classes_of(requests_of(claim.spec))}
    claimed.update(row.vendor for row in rows if not classes.isdisjoint(row.device_classes))
    both = sorted(claimed & set(requests))
    if both:
        raise BadRequest(f"cards of {', '.join(both)} are asked for by limits and by ResourceClaims; use one of both")


def unmet(pod: Pod, capacity: ClusterCapacity) -> tuple[str, ...]:
    """Return warnings for the author of a pod, or of a claim without a pod: requests that no device satisfies now, and
    missing templates.
    """
    holder = capacity.claims.of(pod) if capacity.claims is not None else None
    return () if holder is None else (*holder.wait.problems, *holder.unseen)


class ClaimReader:
    """Lists claims live."""

    def __init__(self, cluster: Cluster, cache: ClaimCache) -> None:
        self._cluster = cluster
        self._cache = cache

    async def of(self, namespaces: Collection[str]) -> list[ResourceClaim]:
        """The claims of namespaces; one that can't be read is left out. Raises `ClusterError`."""
        if len(namespaces) > _MOST_LISTS:
            items = [each for each in await self._list("") if each["metadata"]["namespace"] in namespaces]
        else:
            lists = await asyncio.gather(*map(self._list, sorted(namespaces)))
            items = [each for listed in lists for each in listed]
        found = []
        for item in items:
            with contextlib.suppress(MalformedObject):
                found.append(convert(item, ResourceClaim, "resourceclaim"))
        return found

    async def held_by(
        self, pods: Iterable[Pod], claims: Iterable[ResourceClaim], now: float
    ) -> tuple[list[BareClaim], KnownHolders]:
        """Return the claims that no pod owns, and the devices that claims of counted pods hold at `now`."""
        counting, claims = [pod for pod in pods if not pod.ended(now)], list(claims)
        await self._cache.prepare_all(counting, claims)
        found = list(holders(counting, claims, self._cache.templates, self._cache.inventory))
        bare = [pod for pod, holder in found if isinstance(pod, BareClaim) and (holder.allocated or holder.waits)]
        return bare, KnownHolders({pod.uid: holder for pod, holder in found}, self._cache)

    async def _list(self, namespace: str) -> Sequence[JSON]:
        try:
            return (await self._cluster.list(Kind.RESOURCE_CLAIMS, namespace)).items
        except (NotFound, Forbidden):  # without the API, or the right, there are none for us, as the informer says
            return ()
