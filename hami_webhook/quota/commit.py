"""Charging a placement that costs more than the pod is charged so far, before its annotations are written (chapter 8)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hami_webhook.cluster.api import Cluster, ClusterError, Conflict, Kind, NotFound
from hami_webhook.devices.registry import Vendors
from hami_webhook.kube import scopes
from hami_webhook.kube.objects import Pod, ResourceQuota
from hami_webhook.quota.books import Books
from hami_webhook.quota.budget import charged
from hami_webhook.quota.charge import Catalog, Charge
from hami_webhook.quota.ledger import Entry, State

ATTEMPTS = 6


class QuotaMoved(Exception):
    """The quota no longer has room for this placement: take the next best node."""


@dataclass(frozen=True, slots=True)
class _Written:
    quota: str
    before: Entry | None
    increase: Mapping[str, int]


class Commitment:
    """What was charged for one placement, to be undone if its annotations can't be written."""

    def __init__(self, committer: Committer, pod: Pod) -> None:
        self._committer = committer
        self._pod = pod
        self.written: list[_Written] = []

    async def undo(self) -> None:
        """Take the increase back where our entry still stands; best effort, the recompute settles the rest."""
        for item in self.written:
            with contextlib.suppress(ClusterError):
                await self._committer.undo(self._pod, item)


class Committer:
    """Commits placements against the cluster: `placing` entries by compare-and-swap."""

    def __init__(
        self, cluster: Cluster, vendors: Vendors, catalog: Catalog, *, clock: Callable[[], float], lapse: float
    ) -> None:
        self._cluster = cluster
        self._vendors = vendors
        self._catalog = catalog
        self._clock = clock
        self._lapse = lapse

    async def commit(self, pod: Pod, actual: Charge) -> Commitment:
        """Charge what `actual` costs beyond the pod's present charge. Raises `QuotaMoved` or `ClusterError`."""
        commitment = Commitment(self, pod)
        listing = await self._cluster.list(Kind.RESOURCE_QUOTAS, pod.namespace)
        names = sorted(item["metadata"]["name"] for item in listing.items)
        try:
            for name in names:
                written = await self._commit_one(pod, actual, name)
                if written is not None:
                    commitment.written.append(written)
        except (QuotaMoved, ClusterError):
            await commitment.undo()
            raise
        return commitment

    async def _commit_one(self, pod: Pod, actual: Charge, name: str) -> _Written | None:
        for _ in range(ATTEMPTS):
            try:
                books = await self._books(pod.namespace, name)
            except NotFound:
                return None
            amounts = actual.only(books.hard)
            if not amounts or not scopes.matches(books.quota, pod):
                return None
            now = self._clock()
            before = charged(books, pod, self._vendors, self._catalog, now, self._lapse)
            increase = {k: v - before.get(k, 0) for k, v in amounts.items() if v > before.get(k, 0)}
            if not increase:
                return None
            if any(books.used.get(key, 0) + more > books.hard[key] for key, more in increase.items()):
                raise QuotaMoved(name)
            larger = {key: max(before.get(key, 0), amounts.get(key, 0)) for key in {*before, *amounts}}
            entry = Entry(State.PLACING, int(now), larger, amounts)
            patch = books.patch(books.with_increase(pod.uid, entry, increase))
            assert patch is not None
            try:
                await self._cluster.patch_status(Kind.RESOURCE_QUOTAS, name, patch, pod.namespace)
            except Conflict:
                continue
            return _Written(name, books.ledger.get(pod.uid), increase)
        raise QuotaMoved(name)

    async def undo(self, pod: Pod, item: _Written) -> None:
        """Put back one quota's books if our entry still stands there."""
        for _ in range(ATTEMPTS):
            books = await self._books(pod.namespace, item.quota)
            entry = books.ledger.get(pod.uid)
            if entry is None or entry.state is not State.PLACING:
                return
            back = books.with_increase(pod.uid, item.before, {key: -more for key, more in item.increase.items()})
            patch = books.patch(back)
            assert patch is not None
            with contextlib.suppress(Conflict):
                await self._cluster.patch_status(Kind.RESOURCE_QUOTAS, item.quota, patch, pod.namespace)
                return

    async def _books(self, namespace: str, name: str) -> Books:
        quota = await self._cluster.get(Kind.RESOURCE_QUOTAS, name, namespace)
        return Books.read(ResourceQuota.from_object(quota), self._vendors)
