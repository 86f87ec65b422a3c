"""Recomputes quotas against the cluster, each step on the wire: get, list, compute, patch (docs/spec/quota.md#9).

Only a recompute lowers `used`, so it must never miss a pod. It reads the quota first, and lists the pods afterwards.
What left the ledger before that read had been seen by somebody, so the list shows it. What is charged after the read
makes the patch fail. With a list from before the read, a pod could be in neither, and no conflict would show it. So
quota and pods are read live: a cache may be late in either order.

An attempt takes as long as a list of the namespace's pods, while charges write every few milliseconds. In a burst a
recompute would lose each race. So charges of this process wait while one runs (`QuotaStore.turn`). It takes a turn for
each attempt, not for all of them, so that charges go on during its pauses.

Three ask for it. The controller does as pods change. A charge does where `used` is unknown, or the ledger is full. And
a charge does before an AcceleratorQuota refuses it, as the quota may still count pods that have gone. That last one is
a lever for tenants, who could make a replica list all pods with each refusal: so it takes a fifth of the time at most.

`quota.recompute` decides what the account becomes; this module only reads and writes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from msgspec.structs import replace

from hami_webhook import durations as histograms
from hami_webhook.charging.store import QuotaStore, Retries, Snapshot
from hami_webhook.cluster.api import Cluster, Conflict, Kind, NotFound
from hami_webhook.devices.registry import Vendors
from hami_webhook.kube.objects import MalformedObject, Pod
from hami_webhook.kube.placeholder_label import is_placeholder
from hami_webhook.quota.account import Accounts, QuotaAccount
from hami_webhook.quota.claims import ClaimReader
from hami_webhook.quota.deleted_ledgers import DeletedLedgers, may_follow
from hami_webhook.quota.holdings import PastHoldings, with_sums
from hami_webhook.quota.ledger import Entry
from hami_webhook.quota.pricing import ClusterCapacity
from hami_webhook.quota.recompute import LedgerBounds, Recomputed, recompute

_MOST_LISTS = 8
"""Namespaces of a quota whose pods are listed one by one."""

_RETRIES = Retries(attempts=6, first=0.05, longest=1.0)
"""Fewer and with longer pauses than those of a charge: each attempt costs a list of the namespace's pods."""

_ONCE = Retries(attempts=1, first=0.0, longest=0.0)

_PAUSE_PER_SECOND = 4
"""Seconds between two recomputes before refusals for each second that one takes."""

_LONGEST_PAUSE = 0.5
"""Seconds that a refusal waits for its recompute, beside what that takes: a charge has three."""


class KnownPods(Protocol):
    """The pods that a watch has shown. `gone` are the ledger ids of those that are gone."""

    @property
    def gone(self) -> Container[str]: ...
    @property
    def departures(self) -> int:
        """How many pods were seen to end or to go."""
        ...

    def observed(self, uid: str) -> Pod | None: ...


class NoPods:
    """No watch shows any."""

    gone: Container[str] = ()
    departures = 0

    def observed(self, uid: str) -> Pod | None:
        return None


class PodReader:
    """Lists pods live; one of the version that is `known` needn't be read again. Placeholders of `own_namespace` are
    left out.
    """

    def __init__(self, cluster: Cluster, known: KnownPods | None = None, own_namespace: str = "") -> None:
        self._cluster = cluster
        self.known = known or NoPods()
        self._own_namespace = own_namespace

    async def of(self, namespaces: Collection[str]) -> list[Pod]:
        """The pods of namespaces, listed one by one where they are few, else all at once. Raises `ClusterError`."""
        if len(namespaces) > _MOST_LISTS:
            listing = await self._cluster.list(Kind.PODS)
            items = [item for item in listing.items if item["metadata"]["namespace"] in namespaces]
        else:
            lists = (self._cluster.list(Kind.PODS, namespace) for namespace in sorted(namespaces))
            items = [item for listing in await asyncio.gather(*lists) for item in listing.items]
        if self._own_namespace in namespaces:
            items = [item for item in items if not is_placeholder(item, self._own_namespace)]
        return read_pods(items, self.known.observed)


def read_pods(items: Sequence[Any], cached: Callable[[str], Pod | None] = lambda uid: None) -> list[Pod]:
    """The pods of a listing; one that can't be read is left out.

    `cached` has pods read before, by UID: one of the same version needn't be read again.
    """
    pods = []
    for item in items:
        with contextlib.suppress(MalformedObject):
            pods.append(_same_version(item, cached) or Pod.from_object(item))
    return pods


def _same_version(item: Any, cached: Callable[[str], Pod | None]) -> Pod | None:
    meta = item.get("metadata") if isinstance(item, dict) else None
    uid, version = (meta.get("uid"), meta.get("resourceVersion")) if isinstance(meta, dict) else (None, None)
    pod = cached(uid) if isinstance(uid, str) else None
    return pod if pod is not None and version and pod.resource_version == version else None


Shares = Callable[[QuotaAccount], QuotaAccount]


def recompute_durations() -> histograms.Histogram:
    """How long recomputes take."""
    return histograms.durations("hami_webhook_quota_recompute_seconds", "Time to recompute a quota.")


class _BeforeRefusal(NamedTuple):
    """When a recompute before a refusal ended, how many seconds it took, and how many pods had departed before."""

    departures: int
    ended: float
    took: float


class Recomputer:
    """Recomputes the quotas of a store.

    `deleted` are ledgers whose charges in flight a new quota takes over. `claims`: ResourceClaims count too.
    """

    def __init__(
        self,
        store: QuotaStore,
        pods: PodReader,
        vendors: Vendors,
        capacity: ClusterCapacity,
        *,
        clock: Callable[[], float],
        bounds: LedgerBounds | None = None,
        deleted: DeletedLedgers | None = None,
        durations: histograms.Histogram | None = None,
        claims: ClaimReader | None = None,
    ) -> None:
        self._claims = claims
        self._store = store
        self._pods = pods
        self._vendors = vendors
        self._capacity = capacity
        self._clock = clock
        self._bounds = bounds = bounds or LedgerBounds()
        self._before_refusals: dict[str, _BeforeRefusal] = {}
        self._deleted = deleted or DeletedLedgers(bounds.ttl, clock)
        self.durations = durations or recompute_durations()

    async def run(
        self,
        scope: str,
        name: str,
        lost: Callable[[QuotaAccount], Mapping[str, Entry]] = lambda account: {},
        gone: Container[str] | None = None,
        past: Callable[[], PastHoldings] | None = None,
        *,
        shares: Shares | None = None,
    ) -> Recomputed:
        """Correct one quota's account. Raises `ClusterError`; `Conflict` after six conflicts.

        `lost` returns the entries that were wiped from the ledger of the account as read. `gone` is as in `recompute`,
        by default what the caches show. `past` is given by the caller that sums up what was held, `shares` by the one
        that writes what percents amount to: it returns the account with that. Each attempt has a turn of its own, so
        that charges of this process don't wait for the pauses between them.
        """
        conflicts = 0
        while True:
            try:
                async with self._store.turn(scope):
                    return await self._attempt(scope, name, lost, gone, past, shares)
            except Conflict:
                conflicts += 1
                if conflicts == _RETRIES.attempts:
                    raise  # the controller comes again later
                await self._store.back_off(conflicts, _RETRIES)

    async def inline(self, scope: str, name: str, write: bool = True) -> QuotaAccount:
        """The recompute in the course of a charge, which has the turn: the account as it is then to be."""
        return (await self._attempt(scope, name, write=write, retries=_RETRIES)).after

    async def before_refusal(self, scope: str, name: str, write: bool = True) -> QuotaAccount | None:
        """Recompute as `inline`, before a quota refuses what may fit. None if it counts no pod that is gone.

        It takes at most a fifth of the time: it waits for its turn, and skips a slow quota that others recomputed
        lately.
        """
        last = self._before_refusals.get(name)
        departures = self._pods.known.departures
        if last is not None:
            # only pods that went since can make room that the last recompute didn't find
            if last.departures == departures:
                return None
            pause = last.ended + _PAUSE_PER_SECOND * last.took - self._clock()
            if pause > _LONGEST_PAUSE:  # a refusal by what was found lately is better than one that comes too late
                return None
            if pause > 0:
                await self._store.pause(pause)
        # read before the list: a pod that goes during it must count as one that went since
        began, departures = self._clock(), self._pods.known.departures
        account = await self.inline(scope, name, write)
        ended = self._clock()
        self._before_refusals[name] = _BeforeRefusal(departures, ended, ended - began)
        return account

    async def _attempt(
        self,
        scope: str,
        name: str,
        lost: Callable[[QuotaAccount], Mapping[str, Entry]] = lambda account: {},
        gone: Container[str] | None = None,
        past: Callable[[], PastHoldings] | None = None,
        shares: Shares | None = None,
        *,
        write: bool = True,
        retries: Retries = _ONCE,
    ) -> Recomputed:
        began = listing = self._clock()
        capacity = self._capacity

        async def list_pods(accounts: Accounts) -> Sequence[Pod]:
            nonlocal listing, capacity
            account = accounts.get(name)
            if account is not None and not account.is_known:
                # a new quota: charges of the one before it may be of pods that are still being stored
                await self._store.until_shown(scope, account.quota, partial(may_follow, account))
                await self._store.pause(self._deleted.settled_in(account))
            listing = self._clock()
            selected = account.quota.namespaces if account is not None else None
            namespaces = [scope] if selected is None else selected
            if self._claims is None:
                return await self._pods.of(namespaces)
            # at once: both have to begin after the quota was read, and the order between them says nothing
            pods, claims = await asyncio.gather(self._pods.of(namespaces), self._claims.of(namespaces))
            bare, held = await self._claims.held_by(pods, claims, self._clock())
            capacity = ClusterCapacity(self._capacity.cards, held)
            return [*pods, *bare]

        def change(snapshot: Snapshot) -> tuple[Accounts, Recomputed]:
            found = snapshot.accounts.get(name)
            if found is None:
                raise NotFound(f'resourcequotas "{name}" not found')
            now = self._clock()
            wiped = {**self._deleted.entries(found), **lost(found)}
            account = found if shares is None else shares(found)
            departed = self._pods.known.gone if gone is None else gone
            held = None if past is None else replace(past(), listed_at=listing)
            done = recompute(account, snapshot.pods, self._vendors, capacity, now, self._bounds, wiped, departed)
            summed = with_sums(done, snapshot.pods, self._vendors, capacity, self._bounds, held)
            result = summed if account is found else replace(summed, before=found)
            return {name: result.after} if write else {}, result

        result = await self._store.update(scope, change, retries=retries, names=[name], list_pods=list_pods)
        ended = self._clock()
        self.durations.observe(ended - began)
        return replace(result, took=ended - listing)
