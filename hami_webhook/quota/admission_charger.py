"""Charges pods at admission: those of a namespace that wait together, in one update of its quotas.

Source: docs/spec/quota.md#7.

A burst of pods is one write for each quota, as each of its writes would meet the others'. An answer is given only when
the write of its batch is acknowledged (Q2): a pod that is allowed before would run without a charge if the process
ended. What is refused, or waited for by nobody any longer, is taken out again (Q6); where that fails, it expires (Q3).
Prices come in, and what is charged `evaluate_batch` says.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
from msgspec.structs import replace

from hami_webhook.cluster.api import ClusterError
from hami_webhook.durations import Gauge, Histogram, durations
from hami_webhook.quota.account import (
    ChargeRequest,
    NeedsRecompute,
    QuotaAccount,
    Refusal,
    Rejected,
    refuse_now,
)
from hami_webhook.quota.batch import evaluate_batch
from hami_webhook.quota.ledger import IN_ADMISSION, Entry
from hami_webhook.quota.store import (
    UNKNOWN,
    Accounts,
    KnownQuotas,
    NotListed,
    NotShown,
    QuotaStore,
    Retries,
    Snapshot,
    Swap,
    WriteCounts,
    Writes,
)

RETRIES = Retries(attempts=60, first=0.002, longest=0.2)
"""About what fits into the 9 s of a charge. Six conflicts in a row are met about once in a hundred batches when three
replicas and a recompute contend."""

_GATHERING = 0.02
"""Seconds before a batch where the last one had several pods: a third fewer writes at the same rate."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Charged:
    """The pod is charged (or concerns no quota): the amounts by quota name, for the audit annotation.

    `warnings` are what quotas that only observe would have refused it with. `writes` are those of its batch, and
    `writes_above` those to AcceleratorQuotas where it is charged to both kinds.
    """

    amounts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    warnings: Sequence[str] = ()
    writes: Writes | None = field(default=None, compare=False, repr=False)
    writes_above: Writes | None = field(default=None, compare=False, repr=False)


Outcome = Charged | Refusal


class InlineRecomputer(Protocol):
    """Recomputes one quota in the course of a charge, and writes it or not. May raise `ClusterError`."""

    async def inline(self, scope: str, name: str, write: bool) -> QuotaAccount:
        """Its account as it is then."""
        ...

    async def before_refusal(self, scope: str, name: str, write: bool) -> QuotaAccount | None:
        """The same where that may make room, else None."""
        ...


class ChargeCounts(WriteCounts):
    """What the charger did, for metrics."""

    durations: Histogram = msgspec.field(
        default_factory=lambda: durations("hami_webhook_quota_charge_seconds", "Time to charge a pod.")
    )
    waiting: Gauge = msgspec.field(
        default_factory=lambda: Gauge("hami_webhook_quota_charges_waiting", "Charges under way.", registry=None)
    )
    denied: dict[str, int] = msgspec.field(default_factory=dict)

    def deny(self, refusal: Refusal) -> None:
        reason = "exceeded" if refusal.overrun else "unknown" if refusal.code == 403 else "unavailable"
        self.denied[reason] = self.denied.get(reason, 0) + 1


class AdmissionCharger:
    """Charges pods to the quotas of a store. Any number of chargers may work on one cluster.

    `shows` says whether a pod with this id is known to exist, and costs the quota what its entry says, by itself.
    """

    def __init__(
        self,
        store: QuotaStore,
        *,
        clock: Callable[[], float],
        recomputer: InlineRecomputer,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        timeout: float = 3.0,
        max_ledger: int = 1000,
        counts: ChargeCounts | None = None,
        shows: Callable[[QuotaAccount, str, Entry], bool] = lambda account, identity, entry: False,
    ) -> None:
        self.store = store
        self._clock = clock
        self._recomputer = recomputer
        self._sleep = sleep
        self._timeout = timeout
        self._max_ledger = max_ledger
        self._shows = shows
        self._waiting: dict[str, list[tuple[ChargeRequest, asyncio.Future[Outcome]]]] = {}
        self._workers: dict[str, asyncio.Task[None]] = {}
        self.counts = counts or ChargeCounts()

    async def charge(
        self, request: ChargeRequest, seconds: float | None = None, known: KnownQuotas | None = None
    ) -> Outcome:
        """Charge one pod, together with the others of its scope that wait.

        `seconds` are left to answer in; `known` is what was found just now of the scope's quotas.
        """
        if not (request.charge.amounts or any(each.charge.amounts for each in request.others)):
            return Charged()
        scope, began = self.store.scope_of(request.pod), self._clock()
        known = known or self.known(scope)
        if not request.dry_run and not limits(known, request):
            self.counts.durations.observe(self._clock() - began)
            return Charged()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Outcome] = loop.create_future()
        self._waiting.setdefault(scope, []).append((request, future))
        if scope not in self._workers:
            self._workers[scope] = asyncio.create_task(self._work(scope))
        timeout = self._timeout if seconds is None else min(self._timeout, seconds)
        giving_up = loop.call_later(timeout, _give_up, future, request.pod.namespace)
        try:
            with self.counts.waiting.track_inprogress():
                outcome = await future  # cancelled with the review that waits, so that nothing is charged
        finally:
            giving_up.cancel()
        self.counts.durations.observe(self._clock() - began)
        if isinstance(outcome, Refusal):
            self.counts.deny(outcome)
        return outcome

    def known(self, scope: str) -> KnownQuotas:
        """The quotas of a scope as the cache shows them."""
        with contextlib.suppress(Exception):  # what is wrong with the cache is answered with the batch
            return self.store.known(scope) or UNKNOWN
        return UNKNOWN

    def refuses(self, request: ChargeRequest, known: KnownQuotas) -> bool:
        """Whether one of the known quotas has no room for the pod."""
        accounts = known.accounts
        names = frozenset(accounts)
        return bool(evaluate_batch(accounts, [request], self._clock(), self._max_ledger, recomputed=names).refusals)

    async def release(self, request: ChargeRequest, charged: Charged) -> None:
        """Take a charge out again; best effort, what can't be taken out expires."""
        if charged.writes is not None:
            await self._undo(self.store.scope_of(request.pod), charged.writes, _identities([request]))

    async def _work(self, scope: str) -> None:
        """Charge batch after batch until nobody waits. Who gave up before his batch began isn't charged."""
        batch: list[tuple[ChargeRequest, asyncio.Future[Outcome]]] = []
        try:
            while scope in self._waiting:
                if len(batch) > 1:
                    await self._sleep(_GATHERING)
                async with self.store.turn(scope):
                    batch = await self._charge_waiting(scope)
        finally:
            del self._workers[scope]

    async def _charge_waiting(self, scope: str) -> list[tuple[ChargeRequest, asyncio.Future[Outcome]]]:
        """Charge the requests that wait, and after a conflict also those that came meanwhile; all of these."""
        batch: list[tuple[ChargeRequest, asyncio.Future[Outcome]]] = []

        def joining() -> list[ChargeRequest]:
            waiting = [each for each in self._waiting.pop(scope, ()) if not each[1].done()]
            batch.extend(waiting)
            return [request for request, _ in waiting]

        writes = Writes(counts=self.counts, attempt=self.store.new_attempt())
        outcomes = await self._charge(scope, joining(), writes, joining)
        # one pod may wait twice, as reviews are repeated: it stays charged if either of them has its answer
        abandoned: set[str] = set()
        taken: set[str] = set()
        for (request, future), outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, Charged):
                (abandoned if future.done() else taken).update(_identities([request]))
            if not future.done():
                future.set_result(outcome)
        if abandoned - taken:
            await self._undo(scope, writes, abandoned - taken)
        return batch

    async def _charge(
        self,
        scope: str,
        requests: list[ChargeRequest],
        writes: Writes,
        joining: Callable[[], list[ChargeRequest]],
    ) -> list[Outcome]:
        """The outcomes of a batch, to which each attempt adds the requests that are `joining`.

        Nothing is left of what is refused, as far as that can be undone.
        """
        outcomes: list[Outcome]
        try:
            async with asyncio.timeout(self._timeout):
                outcomes = await self._update(scope, requests, writes, joining)
        except TimeoutError:
            outcomes = [_too_late(request.pod.namespace) for request in requests]
        except ClusterError as error:
            outcomes = [refuse_now(request.pod.namespace, str(error)) for request in requests]
        except Exception:
            logger.exception("charging a batch failed", extra={"namespace": scope})
            outcomes = [refuse_now(request.pod.namespace, "an internal error") for request in requests]
        refused = [r for r, outcome in zip(requests, outcomes, strict=True) if isinstance(outcome, Refusal)]
        if refused:
            charged = [r for r, outcome in zip(requests, outcomes, strict=True) if isinstance(outcome, Charged)]
            await self._undo(scope, writes, _identities(refused) - _identities(charged))
        return outcomes

    async def _update(
        self,
        scope: str,
        requests: list[ChargeRequest],
        writes: Writes,
        joining: Callable[[], list[ChargeRequest]],
    ) -> list[Outcome]:
        recomputed: dict[str, QuotaAccount | None] = {}

        def change(snapshot: Snapshot) -> tuple[Accounts, list[Outcome]]:
            if scope in self._waiting:  # who came during a lost race is in the next attempt
                requests.extend(joining())
            return self._evaluated(snapshot, requests, recomputed, writes)

        while True:
            try:
                return await self.store.update(scope, change, retries=RETRIES, writes=writes)
            except NeedsRecompute as need:
                recomputed[need.quota] = None  # it is tried once, whatever comes of it
                for_real = not all(request.dry_run for request in requests)
                try:
                    recompute = self._recomputer.before_refusal if need.full else self._recomputer.inline
                    made = await recompute(scope, need.quota, for_real)
                    recomputed[need.quota] = None if for_real else made
                except NotShown:
                    raise
                except ClusterError:  # then the evaluation says that the status is unknown
                    continue

    def _evaluated(
        self,
        snapshot: Snapshot,
        requests: Sequence[ChargeRequest],
        recomputed: Mapping[str, QuotaAccount | None],
        writes: Writes,
    ) -> tuple[Accounts, list[Outcome]]:
        """The accounts after a batch, and the outcome of each request; raises `Rejected` for what needs a live read.

        That is a refusal, whether an entry is still there, and what a dry run comes to, as no write proves it. A pod
        that consumes a key of no known quota takes a list unless the known ones were all of them just now.
        """
        read = {name: recomputed.get(name) or account for name, account in snapshot.accounts.items()}
        if not snapshot.current and not all(_all_limited(request, read) for request in requests):
            raise NotListed
        if not snapshot.live and any(request.dry_run for request in requests):
            raise NotListed
        identities = _identities(requests)
        before = {name: self._without_shown(account, identities) for name, account in read.items()}
        result = evaluate_batch(
            before,
            requests,
            self._clock(),
            self._max_ledger,
            recomputed=frozenset(recomputed),
            attempt=writes.attempt,
        )
        after = {name: account for name, account in result.accounts.items() if account is not before[name]}
        # where an entry makes a write needless no conflict would show that it is gone by now
        known = any(not identities.isdisjoint(before[name].ledger) for name in before.keys() - after.keys())
        if not snapshot.live and (result.refusals or known):
            raise Rejected
        outcomes: list[Outcome] = [
            result.refusals.get(index)
            or Charged(
                result.charged[index],
                tuple(f"quota is observed, not enforced: {each.message}" for each in result.observed[index]),
                writes,
            )
            for index in range(len(requests))
        ]
        return after, outcomes

    def _without_shown(self, account: QuotaAccount, requested: Set[str]) -> QuotaAccount:
        """The account without entries whose pods show the same by now (docs/spec/quota.md#6).

        Not those that are requested, as such a pod may be a second one, which the recompute has to see. That drops them
        all, but in a burst a ledger would grow to hundreds of entries until then, and each write has to carry it.
        """
        shown = {
            key
            for key, entry in account.ledger.items()
            if entry.state in IN_ADMISSION and key not in requested and self._shows(account, key, entry)
        }
        return (
            replace(account, ledger={k: e for k, e in account.ledger.items() if k not in shown}) if shown else account
        )

    async def _undo(self, scope: str, writes: Writes, identities: Set[str]) -> None:
        """Take what was written for these ids out again, where it still stands and no other attempt relies on it.

        Best effort: what can't be undone expires.
        """

        def changed(swap: Swap) -> list[str]:
            return [key for key in sorted(identities) if swap.before.ledger.get(key) != swap.after.ledger.get(key)]

        def revert(account: QuotaAccount, swap: Swap) -> QuotaAccount:
            for identity in changed(swap):
                entry = account.ledger.get(identity)
                if entry is not None and entry.state in IN_ADMISSION and entry.attempt == writes.attempt:
                    account = account.with_entry(identity, _no_more_than(swap.before.ledger.get(identity), entry))
            return account

        own = Writes([swap for swap in writes.swaps if changed(swap)], self.counts)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._timeout):
                await self.store.undo(scope, own, revert, RETRIES)


def limits(quotas: KnownQuotas, request: ChargeRequest) -> bool:
    """Whether one of the quotas may limit what the request's pods cost."""
    found = quotas.limit(request.pod, request.charge)
    return found or any(quotas.limit(each.pod, each.charge) for each in request.others)


def _identities(requests: Iterable[ChargeRequest]) -> set[str]:
    """The ids that the requests' pods are charged under."""
    return {each.identity for request in requests for each in (request, *request.others)}


def _all_limited(request: ChargeRequest, accounts: Accounts) -> bool:
    """Whether each key that a pod consumes is in some quota that it is in the scope of and that counts all cards."""
    for each in (request, *request.others):
        matching = (a for a in accounts.values() if a.cards is None and a.covers(each.pod))
        if not frozenset[str]().union(*(account.hard for account in matching)).issuperset(each.charge.amounts):
            return False
    return True


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
