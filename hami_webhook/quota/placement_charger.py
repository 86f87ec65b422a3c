"""Charging a placement that costs more than the pod's charge so far, before its annotations are written.

Source: docs/spec/quota.md#8.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hami_webhook.cluster.api import Cluster, ClusterError, Conflict, Kind, NotFound
from hami_webhook.devices.registry import Vendors
from hami_webhook.kube import scopes
from hami_webhook.kube.objects import Pod, ResourceQuota
from hami_webhook.quota.account import QuotaAccount, verify
from hami_webhook.quota.budget import charged, entry_of
from hami_webhook.quota.ledger import Entry, State
from hami_webhook.quota.pricing import CapacityLister, Charge

ATTEMPTS = 6


class QuotaChanged(Exception):
    """The quota no longer has room for this placement: take the next best node."""


@dataclass(frozen=True, slots=True)
class _WrittenCharge:
    quota: str
    identity: str
    before: Entry | None
    after: Entry
    increase: Mapping[str, int]


class PlacementCharge:
    """What was charged for one placement, to be undone if its annotations can't be written."""

    def __init__(self, committer: PlacementCharger, pod: Pod) -> None:
        self._committer = committer
        self._pod = pod
        self.written: list[_WrittenCharge] = []

    async def undo(self) -> None:
        """Take the increase back where our entry still stands; best effort, the recompute settles the rest.

        Not for where the annotations may have been written all the same.
        """
        for item in self.written:
            with contextlib.suppress(ClusterError):
                await self._committer.undo(self._pod, item)


class PlacementCharger:
    """Commits placements against the cluster: `placing` entries by compare-and-swap."""

    def __init__(
        self, cluster: Cluster, vendors: Vendors, catalog: CapacityLister, *, clock: Callable[[], float], lapse: float
    ) -> None:
        self._cluster = cluster
        self._vendors = vendors
        self._catalog = catalog
        self._clock = clock
        self._lapse = lapse

    async def commit(self, pod: Pod, actual: Charge) -> PlacementCharge:
        """Charge what `actual` costs beyond the pod's present charge. Raises `QuotaChanged` or `ClusterError`."""
        commitment = PlacementCharge(self, pod)
        listing = await self._cluster.list(Kind.RESOURCE_QUOTAS, pod.namespace)
        names = sorted(item["metadata"]["name"] for item in listing.items)
        try:
            for name in names:
                await self._commit_one(pod, actual, name, commitment.written)
        except (QuotaChanged, ClusterError):
            await commitment.undo()
            raise
        return commitment

    async def _commit_one(self, pod: Pod, actual: Charge, name: str, written: list[_WrittenCharge]) -> None:
        """Charge one quota; `written` gets what was, or may have been, written."""
        for _ in range(ATTEMPTS):
            try:
                books = await self._books(pod.namespace, name)
            except NotFound:
                return
            amounts = actual.only(books.hard)
            if not amounts or not scopes.matches(books.quota, pod):
                return
            now = self._clock()
            found = entry_of(books, pod, self._vendors, self._catalog)
            before = charged(books, pod, self._vendors, self._catalog, now, self._lapse)
            present = books.counted(before)
            increase = {k: v - present.get(k, 0) for k, v in books.counted(amounts).items() if v > present.get(k, 0)}
            # a former placement's entry may expire before this placement is seen, so it is renewed in any case
            if not increase and not (found and found[1].state is State.PLACING):
                return
            if any(key not in books.used or books.used[key] + more > books.hard[key] for key, more in increase.items()):
                raise QuotaChanged(name)
            larger = {key: max(before.get(key, 0), amounts.get(key, 0)) for key in {*before, *amounts}}
            entry = Entry(State.PLACING, int(now), larger, amounts)
            target = books.without(found[0]) if found else books
            target = target.with_increase(pod.uid, entry, increase)
            patch = books.patch(target)
            if patch is None:
                return
            written.append(
                _WrittenCharge(name, found[0] if found else pod.uid, found[1] if found else None, entry, increase)
            )
            try:
                verify(await self._cluster.patch_status(Kind.RESOURCE_QUOTAS, name, patch, pod.namespace), patch)
            except (Conflict, NotFound):
                written.pop()
                continue
            return
        raise QuotaChanged(name)

    async def undo(self, pod: Pod, item: _WrittenCharge) -> None:
        """Put back one quota's books if our entry still stands there."""
        for _ in range(ATTEMPTS):
            books = await self._books(pod.namespace, item.quota)
            entry = books.ledger.get(pod.uid)
            if entry != item.after:
                return
            back = books.with_increase(pod.uid, None, {key: -more for key, more in item.increase.items()})
            if item.before is not None:
                back = back.with_increase(item.identity, item.before, {})
            patch = books.patch(back)
            if patch is None:
                return
            with contextlib.suppress(Conflict):
                await self._cluster.patch_status(Kind.RESOURCE_QUOTAS, item.quota, patch, pod.namespace)
                return

    async def _books(self, namespace: str, name: str) -> QuotaAccount:
        quota = await self._cluster.get(Kind.RESOURCE_QUOTAS, name, namespace)
        return QuotaAccount.read(ResourceQuota.from_object(quota), self._vendors)
