"""The one place that drives charges: batches per namespace, compare-and-swap against the port.

Source: docs/spec/quota.md#7.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Protocol

from prometheus_client import Histogram

from hami_webhook.cluster.api import Cluster, ClusterError, Conflict, Kind, NotFound
from hami_webhook.devices.registry import Vendors
from hami_webhook.kube import scopes
from hami_webhook.kube.objects import ResourceQuota
from hami_webhook.quota.account import (
    ChargeRequest,
    NeedsRecompute,
    QuotaAccount,
    Refusal,
    evaluate_batch,
    refuse_now,
    verify,
)
from hami_webhook.quota.durations import durations
from hami_webhook.quota.ledger import Entry, State

ATTEMPTS = 20
"""Lost races until a charge gives up: about what fits into its 3 s with the pauses between them.

Six are lost about once in a hundred batches when three replicas and a recompute contend.
"""

_GATHERING = 0.02
"""Seconds before a batch where the last one had several pods."""

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.02, 0.1
"""Seconds between two batches of a namespace to whose quotas others write too."""

_LONGEST_HOLD = 0.5
"""Seconds charges let a recompute of their namespace go first."""

_TRUSTED = 2.0
"""Seconds without a sign of life from the watch for which the cache is believed that no other quota concerns a pod."""

_FORGOTTEN_AFTER = 0.25
"""Seconds without a batch after which the next one is as the first."""

logger = logging.getLogger(__name__)


class QuotaCache(Protocol):
    """A synced view of quotas, if there is one."""

    def quotas(self, namespace: str) -> Sequence[ResourceQuota] | None:
        """The namespace's quotas; None while the cache isn't synced or hasn't been alive within 60 s."""
        ...

    def current_within(self, seconds: float) -> bool:
        """Whether the cache is known to have been complete that many seconds ago."""
        ...


class NoCache:
    """Every look at the quotas is live."""

    def quotas(self, namespace: str) -> Sequence[ResourceQuota] | None:
        return None

    def current_within(self, seconds: float) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class Charged:
    """The pod is charged (or concerns no quota): the amounts by quota name, for the audit annotation."""

    amounts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


Outcome = Charged | Refusal
Recompute = Callable[[str, str, bool], Awaitable[QuotaAccount]]
"""Recompute one quota inline, by namespace and name, and write it or not; its books. May raise `ClusterError`."""

_Written = dict[str, dict[str, Entry | None]]
"""What a batch wrote, or may have written: by quota, by id, the entry that stood there before."""


@dataclass(slots=True)
class ChargeCounts:
    """What the charger did, for metrics."""

    conflicts: int = 0
    writes: int = 0
    durations: Histogram = field(
        default_factory=lambda: durations("hami_webhook_quota_charge_seconds", "Time to charge a pod.")
    )
    denied: dict[str, int] = field(default_factory=dict)

    def deny(self, refusal: Refusal) -> None:
        reason = "exceeded" if refusal.overrun else "unknown" if refusal.code == 403 else "unavailable"
        self.denied[reason] = self.denied.get(reason, 0) + 1


@dataclass(slots=True)
class _Pace:
    """How long to pause before a batch of a namespace, in seconds; it holds until `until` (of the loop's clock).

    A pause lets others who write to the same quotas have their turn, and gathers more pods for each write. There is
    none after a time without charges: a lone pod never waits.
    """

    pause: float = 0.0
    until: float = 0.0
    raced: bool = False
    """Whether somebody else wrote to the quotas during the last batch, or since the one before."""
    versions: dict[str, str] = field(default_factory=dict)
    """What the last own writes made of the quotas."""

    def adapt(self, pods: int, now: float) -> None:
        least = _GATHERING if pods > 1 else 0.0
        if self.raced:
            self.pause = min(_LONGEST_PAUSE, max(_SHORTEST_PAUSE, self.pause * 3))
        else:
            self.pause = least if self.pause < _SHORTEST_PAUSE else self.pause * 0.8
        self.until = now + _FORGOTTEN_AFTER


@dataclass(frozen=True, slots=True)
class _Pause:
    """Somebody goes before the charges of a namespace, until `over` or `until` (of the loop's clock)."""

    until: float
    over: asyncio.Event = field(default_factory=asyncio.Event)


class AdmissionCharger:
    """Charges pods to their namespace's quotas. Any number of chargers may work on one cluster.

    `shows` says whether a pod with this id is known to exist, and costs the quota what its entry says, by itself.
    """

    def __init__(
        self,
        cluster: Cluster,
        vendors: Vendors,
        *,
        clock: Callable[[], float],
        recompute: Recompute,
        cache: QuotaCache | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        jitter: Callable[[], float] = random.random,
        timeout: float = 3.0,
        max_ledger: int = 1000,
        shows: Callable[[QuotaAccount, str, Entry], bool] = lambda books, identity, entry: False,
    ) -> None:
        self._cluster = cluster
        self._vendors = vendors
        self._clock = clock
        self._recompute = recompute
        self._cache = cache or NoCache()
        self._sleep = sleep
        self._jitter = jitter
        self._timeout = timeout
        self._max_ledger = max_ledger
        self._shows = shows
        self._waiting: dict[str, list[tuple[ChargeRequest, asyncio.Future[Outcome]]]] = {}
        self._workers: dict[str, asyncio.Task[None]] = {}
        self._own: dict[str, dict[str, ResourceQuota]] = {}
        self._listed: dict[str, tuple[float, Sequence[ResourceQuota]]] = {}
        self._paces: dict[str, _Pace] = {}
        self._held: dict[str, _Pause] = {}
        self.counts = ChargeCounts()

    async def charge(self, ask: ChargeRequest, seconds: float | None = None) -> Outcome:
        """Charge one pod, together with whoever else of its namespace waits. `seconds` are left to answer in."""
        if not ask.charge.amounts:
            return Charged()
        namespace, began = ask.pod.namespace, self._clock()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Outcome] = loop.create_future()
        self._waiting.setdefault(namespace, []).append((ask, future))
        if namespace not in self._workers:
            self._workers[namespace] = asyncio.create_task(self._work(namespace))
        patience = self._timeout if seconds is None else min(self._timeout, seconds)
        giving_up = loop.call_later(patience, _give_up, future, namespace)
        try:
            outcome = await future  # cancelled with whoever waits for it, so that nothing is charged
        finally:
            giving_up.cancel()
        self.counts.durations.observe(self._clock() - began)
        if isinstance(outcome, Refusal):
            self.counts.deny(outcome)
        return outcome

    @contextlib.contextmanager
    def held(self, namespace: str) -> Iterator[None]:
        """Let no batch of the namespace begin in the block, though not for longer than half a second.

        For a recompute, which would lose every race in a burst: it has to list pods between its read and its write.
        """
        hold = self._held[namespace] = _Pause(asyncio.get_running_loop().time() + _LONGEST_HOLD)
        try:
            yield
        finally:
            hold.over.set()
            if self._held.get(namespace) is hold:
                del self._held[namespace]

    async def _work(self, namespace: str) -> None:
        """Charge batch after batch until nobody waits. Who gave up before his batch began isn't charged."""
        loop = asyncio.get_running_loop()
        pace = self._paces.get(namespace)
        if pace is None or loop.time() > pace.until:
            pace = self._paces[namespace] = _Pace()
        try:
            while namespace in self._waiting:
                if pace.pause:
                    await self._sleep(pace.pause * (0.5 + self._jitter()))
                hold = self._held.get(namespace)
                if hold is not None and loop.time() < hold.until:
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(hold.over.wait(), hold.until - loop.time())
                waiting = self._waiting.pop(namespace)
                batch = [(ask, future) for ask, future in waiting if not future.done()]
                if batch:
                    pace.raced = False
                    await self._work_on(namespace, batch)
                    pace.adapt(len(batch), loop.time())
        finally:
            del self._workers[namespace]
            idle = self._paces.keys() - self._workers.keys()
            for name in [name for name in idle if loop.time() > self._paces[name].until]:
                del self._paces[name]
                self._own.pop(name, None)  # the cache has seen it by now, and the namespace may be gone
            over = self._clock() - _TRUSTED
            for name in [name for name, (at, _) in self._listed.items() if at < over]:
                del self._listed[name]

    async def _work_on(self, namespace: str, batch: Sequence[tuple[ChargeRequest, asyncio.Future[Outcome]]]) -> None:
        asks = [ask for ask, _ in batch]
        written: _Written = {}
        outcomes: Sequence[Outcome]
        try:
            async with asyncio.timeout(self._timeout):
                outcomes = await self._charge_or_refuse(namespace, asks, written)
        except TimeoutError:
            outcomes = [_too_late(namespace)] * len(asks)
        except Exception:
            logger.exception("charging a batch of namespace %s failed", namespace)
            outcomes = [refuse_now(namespace, "an internal error")] * len(asks)
        kept = set()
        for (ask, future), outcome in zip(batch, outcomes, strict=True):
            if not future.done():
                future.set_result(outcome)
                if isinstance(outcome, Charged):
                    kept.add(ask.identity)
        # left over: what a timeout broke off, and the charges of those who gave up meanwhile
        left = {ask.identity for ask in asks} - kept
        if left and written:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._timeout):
                    await self._undo(namespace, written, left)

    async def charge_batch(self, namespace: str, asks: Sequence[ChargeRequest]) -> list[Outcome]:
        """Judge the asks in order and write what they add, one compare-and-swap per quota in name order."""
        return await self._charge_or_refuse(namespace, asks, {})

    async def _charge_or_refuse(
        self, namespace: str, asks: Sequence[ChargeRequest], written: _Written
    ) -> list[Outcome]:
        try:
            return await self._charge(namespace, asks, written)
        except ClusterError as error:
            await self._undo(namespace, written, {ask.identity for ask in asks})
            return [refuse_now(namespace, str(error))] * len(asks)

    async def _charge(self, namespace: str, asks: Sequence[ChargeRequest], written: _Written) -> list[Outcome]:
        identities = {ask.identity for ask in asks}
        for_real = not all(ask.dry_run for ask in asks)
        recomputed: dict[str, QuotaAccount | None] = {}
        # a verdict that no write will prove is never given from a cache
        cached = None if any(ask.dry_run for ask in asks) else self._cached(namespace, asks)
        conflicts = 0
        while True:
            live = cached is None
            quotas = await self._live(namespace) if cached is None else cached
            cached = None
            books = {q.name: b for q in quotas if (b := QuotaAccount.read(q, self._vendors)).hard}
            books |= {name: made for name, made in recomputed.items() if made is not None and name in books}
            try:
                judged = evaluate_batch(books, asks, self._clock(), self._max_ledger, recomputed=frozenset(recomputed))
            except NeedsRecompute as need:
                if live:
                    recomputed[need.quota] = None
                    with contextlib.suppress(ClusterError):  # then the judgement says that the status is unknown
                        made = await self._recompute(namespace, need.quota, for_real)
                        recomputed[need.quota] = None if for_real else made
                continue
            if not live and (judged.refusals or any(not identities.isdisjoint(b.ledger) for b in books.values())):
                continue
            try:
                await self._write(namespace, books, judged.books, written)
            except (Conflict, NotFound):
                conflicts += 1
                self.counts.conflicts += 1
                self._pace(namespace).raced = True
                if conflicts == ATTEMPTS:
                    await self._undo(namespace, written, identities)
                    return [refuse_now(namespace, f"{ATTEMPTS} conflicting writes")] * len(asks)
                await self._sleep(self._jitter() * min(0.2, 0.01 * 2**conflicts))
                continue
            kept = {ask.identity for index, ask in enumerate(asks) if index not in judged.refusals}
            await self._undo(namespace, written, identities - kept)
            return [
                judged.refusals.get(index)
                or Charged(
                    {n: b.counted(ask.charge.exact) for n, b in books.items() if b.concerns(ask.pod, ask.charge)}
                )
                for index, ask in enumerate(asks)
            ]

    def _pace(self, namespace: str) -> _Pace:
        return self._paces.setdefault(namespace, _Pace())

    def _cached(self, namespace: str, asks: Sequence[ChargeRequest]) -> Sequence[ResourceQuota] | None:
        """The cache's quotas, or later versions that our own writes and lists saw; None where only a live list will do.

        A write to a quota proves that its cached version was the latest, and nothing about other quotas. If the watch
        gave no sign of life lately, there may be new ones: so it takes a live list if a pod consumes a key that no
        known quota has, or if the watch is silent about a write of our own.
        """
        quotas = self._cache.quotas(namespace)
        if quotas is None:
            return None
        known = {quota.name: quota for quota in quotas}
        listed_at, listed = self._listed.get(namespace, (0.0, ()))
        fresh = self._clock() - listed_at < _TRUSTED
        for quota in listed if fresh else ():
            if quota.name not in known or _later(quota, known[quota.name]):
                known[quota.name] = quota
        own = self._own.pop(namespace, {})
        ahead = {name: quota for name, quota in own.items() if name in known and _later(quota, known[name])}
        if ahead:
            self._own[namespace] = ahead
            known |= ahead
        found = list(known.values())
        if not fresh and not self._cache.current_within(_TRUSTED):
            return None if ahead or not all(_all_limited(ask, found) for ask in asks) else found
        return found

    async def _live(self, namespace: str) -> list[ResourceQuota]:
        now = self._clock()
        listing = await self._cluster.list(Kind.RESOURCE_QUOTAS, namespace)
        quotas = [ResourceQuota.from_object(item) for item in listing.items]
        self._listed[namespace] = now, quotas
        return quotas

    async def _write(
        self, namespace: str, before: Mapping[str, QuotaAccount], after: Mapping[str, QuotaAccount], written: _Written
    ) -> None:
        """Write each quota that changes; `written` gets what is written, or may be."""
        for name in sorted(before):
            patch = before[name].patch(after[name]) if after[name] is not before[name] else None
            if patch is None:
                continue
            patch = before[name].patch(self._without_shown(after[name], before[name].ledger)) or patch
            noted = written.setdefault(name, {})
            stood = before[name].ledger
            fresh = {k: stood.get(k) for k, e in after[name].ledger.items() if stood.get(k) != e and k not in noted}
            noted.update(fresh)
            self.counts.writes += 1
            pace = self._pace(namespace)
            pace.raced |= pace.versions.get(name, version := before[name].quota.resource_version) != version
            try:
                answer = await self._cluster.patch_status(Kind.RESOURCE_QUOTAS, name, patch, namespace)
                verify(answer, patch)
                own = self._own.setdefault(namespace, {})[name] = ResourceQuota.from_object(answer)
                pace.versions[name] = own.resource_version
            except (Conflict, NotFound):
                for identity in fresh:
                    del noted[identity]
                raise

    def _without_shown(self, books: QuotaAccount, stood: Mapping[str, Entry]) -> QuotaAccount:
        """The books without admitted entries whose pods show the same by now: they have done their work.

        Source: docs/spec/quota.md#6.

        Only such as stood there before: a new one may be a pod's second, which the recompute has to see. That drops
        them too, but in a burst a ledger would grow to hundreds of entries until then, and each write has to carry it.
        """
        old = [(key, e) for key, e in books.ledger.items() if e.state is State.ADMITTED and stood.get(key) == e]
        shown = {key for key, entry in old if self._shows(books, key, entry)}
        return replace(books, ledger={k: e for k, e in books.ledger.items() if k not in shown}) if shown else books

    async def _undo(self, namespace: str, written: _Written, identities: Set[str]) -> None:
        """Take what was written for these ids out again, where it still stands as admitted.

        Best effort: what can't be undone expires.
        """
        for name in sorted(written):
            former = {identity: written[name].pop(identity) for identity in identities & written[name].keys()}
            if former:
                with contextlib.suppress(ClusterError):
                    await self._undo_one(namespace, name, former)

    async def _undo_one(self, namespace: str, name: str, former: Mapping[str, Entry | None]) -> None:
        for _ in range(ATTEMPTS):
            quota = ResourceQuota.from_object(await self._cluster.get(Kind.RESOURCE_QUOTAS, name, namespace))
            before = after = QuotaAccount.read(quota, self._vendors)
            for identity in sorted(former):
                entry = before.ledger.get(identity)
                if entry is not None and entry.state is State.ADMITTED:
                    after = after.with_entry(identity, _no_more_than(former[identity], entry))
            patch = before.patch(after) if after is not before else None
            if patch is None:
                return
            try:
                self.counts.writes += 1
                await self._cluster.patch_status(Kind.RESOURCE_QUOTAS, name, patch, namespace)
            except Conflict:
                self.counts.conflicts += 1
                continue
            return


def _all_limited(ask: ChargeRequest, quotas: Sequence[ResourceQuota]) -> bool:
    """Whether each key that a pod consumes is in some quota that it is in the scope of."""
    keys = frozenset[str]().union(*(quota.hard for quota in quotas if scopes.matches(quota, ask.pod)))
    return keys.issuperset(ask.charge.amounts)


def _later(one: ResourceQuota, other: ResourceQuota) -> bool:
    """Whether `one` is a later version of the same object."""
    versions = one.resource_version, other.resource_version
    return one.uid == other.uid and all(v.isdecimal() for v in versions) and int(versions[0]) > int(versions[1])


def _no_more_than(former: Entry | None, entry: Entry) -> Entry | None:
    """The former entry, cut down to what stands there now: what was given up may have been taken by somebody else."""
    if former is None:
        return None
    return replace(former, amounts={k: min(v, entry.amounts.get(k, 0)) for k, v in former.amounts.items()})


def _give_up(future: asyncio.Future[Outcome], namespace: str) -> None:
    if not future.done():
        future.set_result(_too_late(namespace))


def _too_late(namespace: str) -> Refusal:
    return refuse_now(namespace, "no answer from the API server in time")
