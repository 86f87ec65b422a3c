"""The full recompute of a quota from its namespace's pods, which is always right (quota chapter 9)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from hami_webhook.cluster.api import Cluster, Conflict, Kind
from hami_webhook.devices.registry import Vendors
from hami_webhook.kube import scopes
from hami_webhook.kube.objects import MalformedObject, Pod, ResourceQuota
from hami_webhook.quota.books import Books
from hami_webhook.quota.charge import NODE_LOCK_TIMEOUT, Catalog, Charge, charge_of
from hami_webhook.quota.ledger import RESERVATION, Entry, State

ATTEMPTS = 6


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds: how long an entry without a pod is believed, and after which an unbound placement lapses."""

    ttl: float = 45.0
    lapse: float = NODE_LOCK_TIMEOUT


@dataclass(frozen=True)
class Recomputed:
    """The books before and after, and what is worth an event: sentences by pod key."""

    before: Books
    after: Books
    problems: Mapping[str, tuple[str, ...]]
    expired: int = 0

    @property
    def changed(self) -> bool:
        return self.before.patch(self.after) is not None


def recompute(
    books: Books,
    pods: Iterable[Pod],
    vendors: Vendors,
    catalog: Catalog,
    now: float,
    times: Times,
    seen: Mapping[str, Entry] | None = None,
) -> Recomputed:
    """The books as the namespace's pods make them at `now`.

    `seen` are unexpired entries the caller saw earlier and that count until their time is up, if the annotation they
    stood in was wiped.
    """
    entries = dict(books.ledger)
    if not entries and seen:
        entries = {key: entry for key, entry in seen.items() if not entry.expired(now, times.ttl)}
    used = dict.fromkeys(books.hard, 0)
    ledger: dict[str, Entry] = {}
    problems: dict[str, tuple[str, ...]] = {}
    for pod in pods:
        identity = pod.annotations.get(RESERVATION, "")
        entry = entries.pop(pod.uid, None) or entries.pop(identity, None)
        if pod.ended(now) or not scopes.matches(books.quota, pod):
            continue
        charge = charge_of(pod, vendors, catalog, now, times.lapse)
        if charge.problems:
            problems[pod.key] = charge.problems
        amounts, kept = _settle(charge, charge.only(books.hard), entry, now, times)
        if kept is not None:
            ledger[pod.uid] = Entry(kept.state, kept.time, _only(kept.amounts, books.hard), kept.actual)
        for key, amount in amounts.items():
            if key in used:
                used[key] += amount
    expired = 0
    for key, entry in entries.items():
        if entry.state is not State.ADMITTED or entry.expired(now, times.ttl):
            expired += entry.state is State.ADMITTED
            continue
        ledger[key] = Entry(entry.state, entry.time, _only(entry.amounts, books.hard))
        for name, amount in ledger[key].amounts.items():
            used[name] += amount
    return Recomputed(books, replace(books, used=used, ledger=ledger), problems, expired)


def _settle(
    charge: Charge, amounts: Mapping[str, int], entry: Entry | None, now: float, times: Times
) -> tuple[Mapping[str, int], Entry | None]:
    """What a live pod is charged, and the entry that stays for it (the table of chapter 6)."""
    if entry is not None and entry.state is State.PLACING:
        settled = charge.placed and entry.actual is not None and dict(entry.actual) == dict(amounts)
        if not settled and not entry.expired(now, times.ttl):
            larger = {key: max(entry.amounts.get(key, 0), amounts.get(key, 0)) for key in {*entry.amounts, *amounts}}
            return larger, entry
        entry = None
    if charge.placed or charge.derivable:
        return amounts, None
    if entry is not None:
        kept = {**amounts, **entry.amounts}
        return kept, Entry(State.WAITING, entry.time, kept)
    return amounts, Entry(State.WAITING, int(now), amounts) if amounts else None


def _only(amounts: Mapping[str, int], keys: Mapping[str, int]) -> dict[str, int]:
    return {key: amount for key, amount in amounts.items() if key in keys}


def read_pods(items: Sequence[object]) -> list[Pod]:
    """The pods of a listing; one that can't be read is left out."""
    pods = []
    for item in items:
        try:
            pods.append(Pod.from_object(item))
        except MalformedObject:
            continue
    return pods


class Recomputer:
    """Recomputes quotas against the cluster, each step on the wire: get, list, compute, patch."""

    def __init__(
        self, cluster: Cluster, vendors: Vendors, catalog: Catalog, *, clock: Callable[[], float], times: Times
    ) -> None:
        self._cluster = cluster
        self._vendors = vendors
        self._catalog = catalog
        self._clock = clock
        self._times = times

    async def run(self, namespace: str, name: str, seen: Mapping[str, Entry] | None = None) -> Recomputed:
        """Put one quota's books right; raises `ClusterError` (`Conflict` after six lost races)."""
        for attempt in range(ATTEMPTS):
            quota = ResourceQuota.from_object(await self._cluster.get(Kind.RESOURCE_QUOTAS, name, namespace))
            pods = read_pods((await self._cluster.list(Kind.PODS, namespace)).items)
            books = Books.read(quota, self._vendors)
            result = recompute(books, pods, self._vendors, self._catalog, self._clock(), self._times, seen)
            patch = books.patch(result.after)
            if patch is None:
                return result
            try:
                await self._cluster.patch_status(Kind.RESOURCE_QUOTAS, name, patch, namespace)
            except Conflict:
                if attempt == ATTEMPTS - 1:
                    raise
                continue
            return result
        raise AssertionError("unreachable")

    async def inline(self, namespace: str, name: str) -> None:
        await self.run(namespace, name)
