"""The full recompute of a quota from its namespace's pods, which is always right (docs/spec/quota.md#9)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from hami_webhook.cluster.api import Cluster, Conflict, Kind
from hami_webhook.devices.placement_annotations import TIME, placement_counts
from hami_webhook.devices.registry import Vendors
from hami_webhook.kube import scopes
from hami_webhook.kube.objects import MalformedObject, Pod, ResourceQuota
from hami_webhook.quota.account import QuotaAccount, verify
from hami_webhook.quota.durations import durations
from hami_webhook.quota.ledger import RESERVATION, Entry, State, find_entry
from hami_webhook.quota.pricing import NODE_LOCK_TIMEOUT, CapacityLister, Charge, admission_charge, charge_of, overrun

ATTEMPTS = 6

_PAUSE, _LONGEST_PAUSE = 0.1, 1.0
"""Seconds after the first lost race, at most, and after the last: each attempt costs a list of the namespace's pods."""


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds: how long an entry without a pod is believed, and after which an unbound placement lapses."""

    ttl: float = 45.0
    lapse: float = NODE_LOCK_TIMEOUT


@dataclass(frozen=True)
class Recomputed:
    """The books before and after, and what is worth an event: pods with sentences.

    `overruns` are pods that another scheduler gave more than admission charged, with the keys that are above hard now.
    `confirmed` are the ids of entries whose pod exists, `expired` is how many went because no pod came, and `wake` is
    when the result is next another one though nothing happens (Unix seconds).
    """

    before: QuotaAccount
    after: QuotaAccount
    problems: Sequence[tuple[Pod, tuple[str, ...]]] = ()
    confirmed: frozenset[str] = frozenset()
    expired: int = 0
    wake: float | None = None
    overruns: Sequence[tuple[Pod, tuple[str, ...]]] = ()


def recompute(
    books: QuotaAccount,
    pods: Iterable[Pod],
    vendors: Vendors,
    catalog: CapacityLister,
    now: float,
    times: Times,
    lost: Mapping[str, Entry] | None = None,
    gone: Container[str] = (),
) -> Recomputed:
    """The books as the namespace's pods make them at `now`.

    `lost` are entries that were wiped from the annotation and count until their time is up. `gone` are the ledger
    ids of pods that existed and don't any longer: nobody comes for their entries.
    """
    pods = list(pods)
    entries = {**(lost or {}), **books.ledger}
    used = dict.fromkeys(books.hard, 0)
    ledger: dict[str, Entry] = {}
    problems: list[tuple[Pod, tuple[str, ...]]] = []
    wakes: list[float] = []
    counted: list[tuple[Pod, Charge]] = []
    own, orphans = _sorted_out(pods, entries, lambda pod: admission_charge(pod, vendors, catalog).only(books.hard))
    for pod in pods:
        if pod.ended(now) or not scopes.matches(books.quota, pod):
            continue
        charge = charge_of(pod, vendors, catalog, now, times.lapse)
        if charge.problems:
            problems.append((pod, charge.problems))
        counted.append((pod, charge))
        amounts, kept = _settle(charge, books.hard, own.get(pod.uid), now, times)
        if kept is not None:
            ledger[pod.uid] = kept
            wakes += [kept.time + times.ttl] if kept.state is State.PLACING else []
        for key, amount in books.counted(amounts).items():
            used[key] += amount
        if amounts:
            ends = (pod.deletion_deadline, assumption_expires_at(pod, times.lapse), charge.until)
            wakes += [at for at in ends if at is not None and at >= now]
    expired = 0
    for key, entry in orphans.items():
        if entry.state is not State.ADMITTED or key in gone or entry.expired(now, times.ttl):
            expired += entry.state is State.ADMITTED and key not in gone
            continue
        ledger[key] = replace(entry, amounts=entry.only(books.hard))
        wakes.append(entry.time + times.ttl)
        for name, amount in books.counted(ledger[key].amounts).items():
            used[name] += amount
    after = replace(books, used=used, ledger=ledger)
    confirmed = frozenset(entries.keys() - orphans.keys())
    over = {key for key, limit in books.hard.items() if used[key] > limit}
    larger = ((pod, overrun(pod, charge, over, vendors, catalog)) for pod, charge in counted) if over else ()
    overruns = [(pod, tuple(keys)) for pod, keys in larger if keys]
    return Recomputed(books, after, problems, confirmed, expired, min(wakes, default=None), overruns)


def _sorted_out(
    pods: Sequence[Pod], entries: Mapping[str, Entry], admission: Callable[[Pod], Mapping[str, int]]
) -> tuple[dict[str, Entry], dict[str, Entry]]:
    """The entries of pods, by UID, and those of no pod, by id. Each is one pod's at most."""
    orphans = dict(entries)
    own: dict[str, Entry] = {}
    for pod in sorted(pods, key=lambda pod: pod.uid not in entries):
        found = find_entry(orphans, pod.uid, pod.annotations.get(RESERVATION, ""), partial(admission, pod))
        if found:
            identity, entry = found
            del orphans[identity]
            # a reservation of less than the pod costs doesn't lower its charge
            own[pod.uid] = entry if identity == pod.uid else replace(entry, amounts=entry.raised_to(admission(pod)))
    return own, orphans


def vanished(before: QuotaAccount, after: QuotaAccount) -> dict[str, Entry]:
    """The admitted entries of `before` that `after` lacks though nothing took their amounts out of used.

    That is what replacing the object does. An undo, and a recompute that drops an entry, lower used in the same write;
    an entry that got another id is there under that.
    """
    fell = {key for key, amount in before.used.items() if after.used.get(key, amount) < amount}
    new = [entry.amounts for key, entry in after.ledger.items() if key not in before.ledger]
    return {
        key: entry
        for key, entry in before.ledger.items()
        if entry.state is State.ADMITTED
        and key not in after.ledger
        and fell.isdisjoint(entry.amounts)
        and entry.amounts not in new
    }


def _settle(
    charge: Charge, hard: Mapping[str, int], entry: Entry | None, now: float, times: Times
) -> tuple[Mapping[str, int], Entry | None]:
    """What a live pod is charged, exact, and the entry that stays for it (the table of docs/spec/quota.md#6)."""
    amounts = charge.only(hard)
    kept = entry.only(hard) if entry is not None else {}
    if entry is not None and entry.state is State.PLACING:
        actual = {key: amount for key, amount in (entry.actual or {}).items() if key in hard}
        # a key that joined hard after the commit isn't in the entry
        shown = charge.placed and all(amounts.get(key, 0) == actual.get(key, 0) for key in {*kept, *actual})
        if not shown and not entry.expired(now, times.ttl):
            larger = {key: max(kept.get(key, 0), amounts.get(key, 0)) for key in {*kept, *amounts}}
            return larger, replace(entry, amounts=kept, actual=actual)
        kept = {}
    if charge.placed or charge.derivable:
        return amounts, None
    if kept and entry is not None:
        kept = {**amounts, **kept}
        return kept, Entry(State.WAITING, entry.time, kept)
    return amounts, Entry(State.WAITING, int(now), amounts) if amounts else None


def assumption_expires_at(pod: Pod, lapse: float) -> float | None:
    """When the pod's placement stops counting unless it is bound; None if it has none, or is bound."""
    if pod.node_name or not placement_counts(pod, 0, lapse):
        return None
    return int(pod.annotations[TIME][:18]) + lapse


def read_pods(items: Sequence[Any], told: Callable[[str], Pod | None] = lambda uid: None) -> list[Pod]:
    """The pods of a listing; one that can't be read is left out.

    `told` has pods read before, by UID: one of the same version needn't be read again.
    """
    pods = []
    for item in items:
        try:
            known, version = _known(item, told)
            same = known is not None and version and known.resource_version == version
            pods.append(known if known is not None and same else Pod.from_object(item))
        except MalformedObject:
            continue
    return pods


def _known(item: Any, told: Callable[[str], Pod | None]) -> tuple[Pod | None, str]:
    meta = item.get("metadata") if isinstance(item, dict) else None
    uid, version = (meta.get("uid"), meta.get("resourceVersion")) if isinstance(meta, dict) else (None, None)
    return (told(uid), version) if isinstance(uid, str) and isinstance(version, str) else (None, "")


class Recomputer:
    """Recomputes quotas against the cluster, each step on the wire: get, list, compute, patch."""

    def __init__(
        self,
        cluster: Cluster,
        vendors: Vendors,
        catalog: CapacityLister,
        *,
        clock: Callable[[], float],
        times: Times,
        told: Callable[[str], Pod | None] = lambda uid: None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._cluster = cluster
        self._vendors = vendors
        self._catalog = catalog
        self._clock = clock
        self._times = times
        self.durations = durations("hami_webhook_quota_recompute_seconds", "Time to recompute a quota.")
        self._told = told
        self._sleep = sleep
        self._jitter = jitter

    async def run(
        self,
        namespace: str,
        name: str,
        lost: Callable[[QuotaAccount], Mapping[str, Entry]] = lambda books: {},
        gone: Container[str] = (),
        *,
        write: bool = True,
    ) -> Recomputed:
        """Put one quota's books right, or only say how they are; `ClusterError`: `Conflict` after six lost races.

        `lost` says which entries were wiped from the ledger of the books as read; `gone` as in `recompute`.
        """
        began = self._clock()
        for attempt in range(ATTEMPTS):
            quota = ResourceQuota.from_object(await self._cluster.get(Kind.RESOURCE_QUOTAS, name, namespace))
            pods = read_pods((await self._cluster.list(Kind.PODS, namespace)).items, self._told)
            books = QuotaAccount.read(quota, self._vendors)
            now = self._clock()
            result = recompute(books, pods, self._vendors, self._catalog, now, self._times, lost(books), gone)
            patch = books.patch(result.after)
            if patch is None or not write:
                self.durations.observe(self._clock() - began)
                return result
            try:
                verify(await self._cluster.patch_status(Kind.RESOURCE_QUOTAS, name, patch, namespace), patch)
            except Conflict:
                if attempt == ATTEMPTS - 1:
                    raise
                await self._sleep(self._jitter() * min(_LONGEST_PAUSE, _PAUSE * 2**attempt))
                continue
            self.durations.observe(self._clock() - began)
            return result
        raise AssertionError("unreachable")

    async def inline(self, namespace: str, name: str, write: bool = True) -> QuotaAccount:
        """The recompute in the course of a charge: the books as they are then to be."""
        return (await self.run(namespace, name, write=write)).after
