"""The one queue through which charges reach the quotas of a store: pods, placements and allocations of claims.

Source: docs/spec/quota.md#7 and #8. What a request does to an account `evaluate_batch` says.

Each write to a quota needs the version before it, so charges to one quota can't be written side by side. Here they wait
for each other and are written together: a burst is one write for each quota. While a batch is under way, others gather;
after a conflict they join it, as it has to be evaluated again anyway.

Four things must hold whatever happens to a request in the meantime. It is answered only once the write is acknowledged
(Q2): a pod that is allowed before would run without a charge if the process ended. A request that is refused by one
quota, or that nobody waits for any longer, is taken out of all that it was written to (Q6). What can't be taken out
expires (Q3). And no member of a batch suffers for another: each is refused, dropped and taken back by itself.

What a cache shows may be stale, and a write is what proves it. So whatever comes to no write is evaluated on a live
read: refusals, dry runs, and charges that an entry in the ledger covers already.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from hami_webhook.charging.recomputer import Recomputer
from hami_webhook.charging.store import (
    NotListed,
    NotShown,
    QuotaStore,
    Retries,
    Snapshot,
    Undone,
    WriteCounts,
    Writes,
)
from hami_webhook.cluster.api import ClusterError
from hami_webhook.durations import Gauge, Histogram, durations
from hami_webhook.quota.account import Accounts, ChargeRequest, NeedsRecompute, QuotaAccount, Rejected, Swap
from hami_webhook.quota.batch import Request, evaluate_batch
from hami_webhook.quota.known_quotas import UNKNOWN, KnownQuotas
from hami_webhook.quota.ledger import IN_ADMISSION, Entry
from hami_webhook.quota.refusals import Refusal, refuse_now

RETRIES = Retries(attempts=60, first=0.002, longest=0.2)
"""About what fits into the 9 s of a charge. Six conflicts in a row are met about once in a hundred batches when three
replicas and a recompute contend."""

_GATHERING = 0.02
"""Seconds before a batch where the last one had several requests: a third fewer writes at the same rate."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ChargeResult:
    """The request is charged (or concerns no quota): the amounts by quota name, for the audit annotation.

    `warnings` are what quotas that only observe would have refused it with. `parts` are what was written of it, in
    order, for `release`.
    """

    amounts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    warnings: Sequence[str] = ()
    parts: tuple[ChargedPart, ...] = field(default=(), compare=False, repr=False)

    async def release(self) -> None:
        """Take the charge out of all its quotas again; best effort, what can't be taken out expires."""
        for part in reversed(self.parts):
            await part.queue.take_back(part)


class ChargedPart(Struct, frozen=True):
    """What a request did to the quotas of one queue, or may have done."""

    queue: ChargeQueue
    request: Request
    swaps: Sequence[Swap]


Outcome = ChargeResult | Refusal


class ChargeCounts(WriteCounts):
    """What was charged, for metrics."""

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


class _Waiting(Struct, eq=False):
    """A request whose answer is waited for until `done`; `swaps` are what was written of it."""

    request: Request
    done: asyncio.Future[Outcome]
    swaps: list[Swap] = []


class _Batch(Struct):
    """Requests that are charged together; with each attempt those join that came since.

    `recomputed` are the quotas that were recomputed for it, with their accounts where these weren't written. `parts`
    are what each attempt did to an account for each of them.
    """

    members: list[_Waiting] = []
    recomputed: dict[str, QuotaAccount | None] = {}
    parts: list[tuple[QuotaAccount, list[tuple[_Waiting, Swap]]]] = []

    def note_written(self, written: Sequence[Swap]) -> None:
        """Note for each member what was written of it."""
        for swap in written:
            # by identity: an attempt that lost its race made equal accounts, which nobody wrote
            for member, part in next(parts for account, parts in self.parts if account is swap.after):
                member.swaps.append(part)


class ChargeQueue:
    """Charges requests to the quotas of a store, batch after batch in each scope. Any number may work on one cluster.

    `shows` says whether a pod with this id is known to exist, and costs the quota what its entry says, by itself.
    """

    def __init__(
        self,
        store: QuotaStore,
        *,
        clock: Callable[[], float],
        recomputer: Recomputer,
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
        self._waiting: dict[str, list[_Waiting]] = {}
        self._workers: dict[str, asyncio.Task[None]] = {}
        self.counts = counts or ChargeCounts()

    async def charge(self, request: Request, seconds: float | None = None, known: KnownQuotas | None = None) -> Outcome:
        """Charge one request, together with the others of its scope that wait.

        `seconds` are left to answer in; `known` is what was found just now of the scope's quotas. If it is cancelled,
        nothing stays charged.
        """
        began, scope = self._clock(), self.store.scope_of(request.pod)
        if isinstance(request, ChargeRequest) and not self._may_concern(request, scope, known):
            return ChargeResult()
        loop = asyncio.get_running_loop()
        each = _Waiting(request.marked(self.store.new_attempt()), loop.create_future())
        self._waiting.setdefault(scope, []).append(each)
        if scope not in self._workers:
            self._workers[scope] = asyncio.create_task(self._work(scope))
        timeout = self._timeout if seconds is None else min(self._timeout, seconds)
        # not a timeout around the wait: the batch goes on for its other members, and finds that this one gave up
        giving_up = loop.call_later(timeout, _give_up, each.done, request.pod.namespace)
        try:
            with self.counts.waiting.track_inprogress():
                outcome = await each.done
        finally:
            giving_up.cancel()
        self.counts.durations.observe(self._clock() - began)
        if isinstance(outcome, Refusal):
            self.counts.deny(outcome)
        return outcome

    def _may_concern(self, request: ChargeRequest, scope: str, known: KnownQuotas | None) -> bool:
        """Whether a quota may limit what the request's pods cost."""
        if not request.has_cost:
            return False
        if request.dry_run or (known or self.known(scope)).concern(request):
            return True
        self.counts.durations.observe(0.0)
        return False

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

    async def take_back(self, part: ChargedPart) -> None:
        """Take out what a request was charged."""
        scope = self.store.scope_of(part.request.pod)
        await self._take_back(scope, [(swap, part.request.taken_back) for swap in part.swaps])

    async def _work(self, scope: str) -> None:
        """Charge batch after batch until nobody waits. Who gave up before his batch began isn't charged."""
        members = 0
        try:
            while scope in self._waiting:
                if members > 1:  # a lone request never waits
                    await self._sleep(_GATHERING)
                async with self.store.turn(scope):
                    members = await self._charge_waiting(scope)
        finally:
            del self._workers[scope]

    async def _charge_waiting(self, scope: str) -> int:
        """Charge those that wait, and after a conflict also those that came meanwhile; how many these are.

        Nothing is left of what is refused or given up, as far as that can be undone.
        """
        batch = _Batch()
        self._join(scope, batch)
        outcomes = await self._outcomes(scope, batch)
        answered = list(zip(batch.members, outcomes, strict=True))
        refused = [member for member, outcome in answered if isinstance(outcome, Refusal) and member.swaps]
        if refused:  # before they are answered: a client that tries again mustn't find its own charge in its way
            await self._undo(scope, refused)
        given_up: list[_Waiting] = []
        for member, outcome in answered:
            if not member.done.done():
                member.done.set_result(outcome)
            # it gave up while the batch was written, and its review was answered with a refusal
            elif isinstance(outcome, ChargeResult):
                given_up.append(member)
        if given_up:
            await self._undo(scope, given_up)
        return len(batch.members)

    def _join(self, scope: str, batch: _Batch) -> None:
        batch.members += [each for each in self._waiting.pop(scope, ()) if not each.done.done()]

    async def _outcomes(self, scope: str, batch: _Batch) -> list[Outcome]:
        """What becomes of each member of a batch, to which each attempt adds those that wait by then."""
        writes = Writes(counts=self.counts)
        fault = ""
        try:
            async with asyncio.timeout(self._timeout):
                return await self._update(scope, batch, writes)
        except TimeoutError:
            fault = _TOO_LATE
        except ClusterError as error:
            fault = str(error)
        except Exception:
            logger.exception("charging a batch failed", extra={"namespace": scope})
            fault = "an internal error"
        finally:  # also when it is too late: a write without an answer may have taken effect
            batch.note_written(writes.swaps)
        return [refuse_now(member.request.pod.namespace, fault) for member in batch.members]

    async def _update(self, scope: str, batch: _Batch, writes: Writes) -> list[Outcome]:
        def change(snapshot: Snapshot) -> tuple[Accounts, list[Outcome]]:
            if scope in self._waiting:  # who came during a lost race is in the next attempt
                self._join(scope, batch)
            return self._evaluated(snapshot, batch)

        while True:
            try:
                return await self.store.update(scope, change, retries=RETRIES, writes=writes)
            except NeedsRecompute as need:
                batch.recomputed[need.quota] = None  # it is tried once, whatever comes of it
                for_real = not all(member.request.dry_run for member in batch.members)
                try:
                    recompute = self._recomputer.before_refusal if need.full else self._recomputer.inline
                    made = await recompute(scope, need.quota, for_real)
                    batch.recomputed[need.quota] = None if for_real else made
                except NotShown:  # nobody knows what is in flight under this quota, so nothing is charged to it now
                    raise
                except ClusterError:  # then the evaluation says that the status is unknown
                    continue

    def _evaluated(self, snapshot: Snapshot, batch: _Batch) -> tuple[Accounts, list[Outcome]]:
        """The accounts after a batch, and each outcome; raises `Rejected` for what needs a live read.

        That is a refusal, whether an entry is still there, and what a dry run comes to, as no write proves it. A pod
        that consumes a key of no known quota takes a list unless the known ones were all of them just now.
        """
        requests = [member.request for member in batch.members]
        pods = [request for request in requests if isinstance(request, ChargeRequest)]
        read = {name: batch.recomputed.get(name) or account for name, account in snapshot.accounts.items()}
        if not snapshot.current and any(request.may_exceed(read.values()) for request in pods):
            raise NotListed
        if not snapshot.live and any(request.dry_run for request in requests):
            raise NotListed
        requested = frozenset[str]().union(*(request.identities for request in requests))
        before = {name: self._without_shown(account, requested) for name, account in read.items()}
        result = evaluate_batch(
            before,
            requests,
            self._clock(),
            self._max_ledger,
            recomputed=frozenset(batch.recomputed),
            are_latest=snapshot.live or snapshot.current,
        )
        # entries that are shown go with a write that is due anyway: no write is made for them alone
        after = {name: account for name, account in result.accounts.items() if account is not before[name]}
        if not snapshot.live and (result.refusals or _rely_on_entries(pods, before, after)):
            raise Rejected
        for name, account in after.items():
            swaps = [(batch.members[index], made[name]) for index, made in result.swaps.items() if name in made]
            batch.parts.append((account, swaps))
        outcomes: list[Outcome] = [
            result.refusals.get(index)
            or ChargeResult(
                result.charged[index],
                tuple(f"quota is observed, not enforced: {each.message}" for each in result.observed[index]),
                (ChargedPart(self, member.request, member.swaps),),
            )
            for index, member in enumerate(batch.members)
        ]
        return after, outcomes

    def _without_shown(self, account: QuotaAccount, requested: Set[str]) -> QuotaAccount:
        """The account without entries whose pods show the same by now (docs/spec/quota.md#6).

        Not those that are requested, as such a pod may be a second one, which the recompute has to see. That drops them
        all, but in a burst a ledger would grow to hundreds of entries until then, and each write has to carry it.
        """
        # those of placements may count more than their pods show: only a recompute takes that out of used as well
        shown = {
            key
            for key, entry in account.ledger.items()
            if entry.state in IN_ADMISSION and key not in requested and self._shows(account, key, entry)
        }
        return (
            replace(account, ledger={k: e for k, e in account.ledger.items() if k not in shown}) if shown else account
        )

    async def _undo(self, scope: str, members: Sequence[_Waiting]) -> None:
        """Take back what was written of members."""
        await self._take_back(scope, [(swap, member.request.taken_back) for member in members for swap in member.swaps])

    async def _take_back(self, scope: str, undone: Sequence[Undone]) -> None:
        """Take back what was written; best effort, what can't be undone expires."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._timeout):
                await self.store.undo(scope, undone, RETRIES, self.counts)


def _rely_on_entries(requests: Sequence[ChargeRequest], before: Accounts, after: Accounts) -> bool:
    """Whether an entry of an account that needs no write covers a request: no conflict would show that it is gone."""
    unwritten = [account for name, account in before.items() if name not in after]
    return any(not request.identities.isdisjoint(account.ledger) for request in requests for account in unwritten)


_TOO_LATE = "no answer from the API server in time"


def _give_up(future: asyncio.Future[Outcome], namespace: str) -> None:
    if not future.done():
        future.set_result(refuse_now(namespace, _TOO_LATE))
