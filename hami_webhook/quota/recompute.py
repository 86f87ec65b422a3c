"""The full recompute of a quota from its namespace's pods, which is always right (docs/spec/quota.md#9)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from prometheus_client import Histogram

from hami_webhook.cluster.api import JSON, Cluster, Kind, NotFound
from hami_webhook.devices.placement_annotations import TIME, placement_counts
from hami_webhook.devices.registry import Vendors
from hami_webhook.kube.objects import MalformedObject, Pod
from hami_webhook.quota import durations as histograms
from hami_webhook.quota.accelerator_report import NamespaceUse, with_report
from hami_webhook.quota.account import QuotaAccount
from hami_webhook.quota.ledger import RESERVATION, Entry, State, find_entry
from hami_webhook.quota.pricing import NODE_LOCK_TIMEOUT, CapacityLister, Charge, admission_charge, charge_of, overrun
from hami_webhook.quota.store import Accounts, QuotaStore, Retries, Snapshot

_MOST_LISTS = 8
"""Namespaces of a quota whose pods are listed one by one."""

_RETRIES = Retries(attempts=6, first=0.05, longest=1.0)
"""Fewer and with longer pauses than those of a charge: each attempt costs a list of the namespace's pods."""


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds: how long an entry without a pod counts, and after which an unbound placement expires."""

    ttl: float = 45.0
    placement_ttl: float = NODE_LOCK_TIMEOUT


@dataclass(frozen=True)
class Recomputed:
    """The account before and after, and what is worth an event: pods with sentences.

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
    account: QuotaAccount,
    pods: Iterable[Pod],
    vendors: Vendors,
    capacity: CapacityLister,
    now: float,
    times: Times,
    lost: Mapping[str, Entry] | None = None,
    gone: Container[str] = (),
) -> Recomputed:
    """The account as the namespace's pods make it at `now`.

    `lost` are entries that were wiped from the annotation and count until their time is up. `gone` are the ledger
    ids of pods that existed and don't any longer: nobody comes for their entries.
    """
    pods = list(pods)
    entries = {**(lost or {}), **account.ledger}
    used = dict.fromkeys(account.hard, 0)
    ledger: dict[str, Entry] = {}
    problems: list[tuple[Pod, tuple[str, ...]]] = []
    wakes: list[float] = []
    counted: list[tuple[Pod, Charge]] = []
    uses: dict[str, NamespaceUse] = {}
    own, orphans = _match_entries(
        pods, entries, lambda pod: admission_charge(pod, vendors, capacity, account.cards).only(account.hard)
    )
    for pod in pods:
        if pod.ended(now) or not account.covers(pod):
            continue
        charge = charge_of(pod, vendors, capacity, now, times.placement_ttl, account.cards)
        if charge.problems:
            problems.append((pod, charge.problems))
        counted.append((pod, charge))
        amounts, kept = _charge_and_entry(charge, account.hard, own.get(pod.uid), now, times)
        if kept is not None:
            ledger[pod.uid] = kept
            wakes += [kept.time + times.ttl] if kept.state is State.PLACING else []
        costs = account.counted(amounts)
        for key, amount in costs.items():
            used[key] += amount
        if account.quota.namespaces is not None:
            uses.setdefault(pod.namespace, NamespaceUse()).add(costs, waiting=not charge.placed)
        if amounts:
            ends = (pod.deletion_deadline, assumption_expires_at(pod, times.placement_ttl), charge.until)
            wakes += [at for at in ends if at is not None and at >= now]
    expired = 0
    for key, entry in orphans.items():
        if entry.state is not State.ADMITTED or key in gone or entry.expired(now, times.ttl):
            expired += entry.state is State.ADMITTED and key not in gone
            continue
        ledger[key] = replace(entry, amounts=entry.only(account.hard))
        wakes.append(entry.time + times.ttl)
        for name, amount in account.counted(ledger[key].amounts).items():
            used[name] += amount
    after = replace(account, used=used, ledger=ledger, quota=with_report(account, used, uses, now))
    confirmed = frozenset(entries.keys() - orphans.keys())
    over = {key for key, limit in account.hard.items() if used[key] > limit}
    larger = ((pod, overrun(pod, charge, over, vendors, capacity)) for pod, charge in counted) if over else ()
    overruns = [(pod, tuple(keys)) for pod, keys in larger if keys]
    return Recomputed(account, after, problems, confirmed, expired, min(wakes, default=None), overruns)


def _match_entries(
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


def _charge_and_entry(
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


def assumption_expires_at(pod: Pod, placement_ttl: float) -> float | None:
    """When the pod's placement stops counting unless it is bound; None if it has none, or is bound."""
    if pod.node_name or not placement_counts(pod, 0, placement_ttl):
        return None
    return int(pod.annotations[TIME][:18]) + placement_ttl


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


async def pods_of_namespaces(cluster: Cluster, namespaces: Collection[str]) -> list[JSON]:
    """The pods of many namespaces, listed live: by namespace where they are few, else all at once."""
    if len(namespaces) > _MOST_LISTS:
        return [pod for pod in (await cluster.list(Kind.PODS)).items if pod["metadata"]["namespace"] in namespaces]
    listings = await asyncio.gather(*(cluster.list(Kind.PODS, namespace) for namespace in sorted(namespaces)))
    return [pod for listing in listings for pod in listing.items]


def recompute_durations() -> Histogram:
    """How long recomputes take."""
    return histograms.durations("hami_webhook_quota_recompute_seconds", "Time to recompute a quota.")


class Recomputer:
    """Recomputes quotas against the cluster, each step on the wire: get, list, compute, patch.

    `namespaces` are those that a quota selects, by its name; None where they are of their scope's namespace.
    """

    def __init__(
        self,
        store: QuotaStore,
        cluster: Cluster,
        vendors: Vendors,
        capacity: CapacityLister,
        *,
        clock: Callable[[], float],
        times: Times,
        cached: Callable[[str], Pod | None] = lambda uid: None,
        namespaces: Callable[[str], Collection[str]] | None = None,
        durations: Histogram | None = None,
    ) -> None:
        self._namespaces = namespaces
        self._store = store
        self._cluster = cluster
        self._vendors = vendors
        self._capacity = capacity
        self._clock = clock
        self._times = times
        self._cached = cached
        self.durations = durations or recompute_durations()

    async def run(
        self,
        scope: str,
        name: str,
        lost: Callable[[QuotaAccount], Mapping[str, Entry]] = lambda account: {},
        gone: Container[str] = (),
        *,
        write: bool = True,
    ) -> Recomputed:
        """Put one quota's account right, or only say how it is; `ClusterError`: `Conflict` after six of them.

        `lost` says which entries were wiped from the ledger of the account as read; `gone` as in `recompute`.
        """
        began = self._clock()

        async def list_pods() -> Sequence[Pod]:
            names = [scope] if self._namespaces is None else self._namespaces(name)
            return read_pods(await pods_of_namespaces(self._cluster, names), self._cached)

        def change(snapshot: Snapshot) -> tuple[Accounts, Recomputed]:
            account = snapshot.accounts.get(name)
            if account is None:
                raise NotFound(f'resourcequotas "{name}" not found')
            now = self._clock()
            result = recompute(
                account, snapshot.pods, self._vendors, self._capacity, now, self._times, lost(account), gone
            )
            return {name: result.after} if write else {}, result

        result = await self._store.update(scope, change, retries=_RETRIES, names=[name], list_pods=list_pods)
        self.durations.observe(self._clock() - began)
        return result

    async def inline(self, scope: str, name: str, write: bool = True) -> QuotaAccount:
        """The recompute in the course of a charge: the account as it is then to be."""
        return (await self.run(scope, name, write=write)).after
