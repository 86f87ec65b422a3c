"""The one compare-and-swap loop: a pure function says what becomes of a namespace's quotas (docs/spec/quota.md#7).

Admission, placement and recompute change quotas by `QuotaStore.update` and in no other way, so conflicts, pauses,
several quotas, undoing and lost answers have one rule. The store decides nothing about charges. It promises four things
to them, and each is hard for a reason of its own:

- What a change began from was the latest version when it was written (Q1). The write carries the resourceVersion, so a
  stale cache costs a conflict, never a wrong number. That is why an update may begin from the cache.
- A refusal stands on a live read. No write proves that a cache was right to say no, so a change that refuses is called
  again on what the API server says.
- No quota is overlooked. A write proves its own quota's version, and nothing about a quota that the cache doesn't show
  yet. So the cache is believed to be complete for 2 s only, and after a quota has gone all are listed again.
- What may have been written is reported, also if the answer was lost or the caller was cancelled (Q6). So a write is
  noted before it is sent, and only a conflict takes the note away.

Writers of one process take turns (`turn`), and those of several do, too (`WriterFairness`). Both only save conflicts.
If either fails, charges are slower, and still right.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence, Set
from math import inf
from typing import Any, Protocol, TypeVar
from weakref import WeakValueDictionary

from msgspec import Struct, field, structs
from msgspec.structs import replace

from hami_webhook.charging.sources import QuotaSource
from hami_webhook.charging.writer_fairness import WriterFairness
from hami_webhook.cluster.api import LONGEST_SILENCE, ClusterError, Conflict, NotFound
from hami_webhook.cluster.shared_reads import SharedReads
from hami_webhook.devices.registry import Vendors
from hami_webhook.kube.objects import Pod, ResourceQuota
from hami_webhook.quota.account import Accounts, QuotaAccount, Rejected, Swap
from hami_webhook.quota.known_quotas import CURRENT_SECONDS, KnownQuotas
from hami_webhook.quota.ledger import LEDGER, new_attempt

_KEPT_SECONDS = 60.0
"""Seconds for which versions are kept that the cache doesn't show yet; a watch silent for as long isn't used."""

LONGEST_TURN = 0.25
"""Seconds for which a change of a namespace's quotas keeps others of this process waiting."""

_UNTIL_SHOWN, _LOOKS = 1.0, 20
"""Seconds for which a watch is waited for to show a new quota, and how often it is looked at meanwhile."""

T = TypeVar("T")


class QuotaCache(Protocol):
    """A view of quotas, and how old it may be."""

    def quotas(self, scope: str) -> Sequence[ResourceQuota]:
        """The quotas of a scope."""
        ...

    def silence(self) -> float:
        """How many seconds ago the quotas are known to have been complete; infinite if they never were."""
        ...


class NoCache:
    """Every read of the quotas is live."""

    def quotas(self, scope: str) -> Sequence[ResourceQuota]:
        return ()

    def silence(self) -> float:
        return inf


class NotListed(Rejected):
    """A change depends on quotas that the cache may not show yet: they have to be listed."""


class NotShown(ClusterError):
    """The watch doesn't show a new quota yet, nor what its predecessor had in flight."""


class Snapshot(Struct, frozen=True):
    """The accounts of a namespace that a change begins from.

    `live`: all were read from the API server, or written, since the update began. `current`: no other quota existed
    `CURRENT_SECONDS` ago, as far as the watch or a list shows. `pods` are the namespace's, listed after the accounts
    were read, where an update lists them.
    """

    accounts: Accounts
    live: bool
    current: bool
    pods: Sequence[Pod] = ()


Change = Callable[[Snapshot], tuple[Accounts, T]]
"""From a snapshot, the accounts as they are to be (those left out stay) and the result of the update.

Pure: it is called again after each conflict. May raise `Rejected`.
"""


class Retries(Struct, frozen=True):
    """How often an update is tried, and the pauses after conflicts in seconds: random up to a bound that doubles."""

    attempts: int
    first: float
    longest: float

    def bound(self, conflicts: int) -> float:
        return min(self.longest, self.first * 2.0**conflicts)


class WriteCounts(Struct):
    """How many writes were sent, and how many of them met another writer's."""

    writes: int = 0
    conflicts: int = 0


class Writes(Struct):
    """What an update wrote, in order, including writes whose answer was lost; they are added to `counts`."""

    swaps: list[Swap] = []
    counts: WriteCounts = field(default_factory=WriteCounts)


Undone = tuple[Swap, Callable[[QuotaAccount, Swap], QuotaAccount]]
"""A part of what was written, and how an account is made to be without it."""


class _Seen(Struct):
    """Versions of a namespace's quotas that were read or written here; `listed` is when all were listed."""

    at: float
    listed: float = float("-inf")
    accounts: dict[str, QuotaAccount] = {}
    turns: WriterFairness = field(default_factory=WriterFairness)


_NEVER_SEEN = _Seen(0.0)


class _Turn:
    """Who changes a namespace's quotas has the lock; `until` (of the loop's clock) the others wait for it."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.until = 0.0


class QuotaStore:
    """The quotas of a cluster, read from the cache where that is enough, and changed by compare-and-swap.

    Any number of stores may work on one cluster. If a quota turns out to be gone, `deleted` is called with the last
    version that this store read or wrote. `new_attempt` gives the marks of attempts to charge.
    """

    def __init__(
        self,
        source: QuotaSource,
        vendors: Vendors,
        *,
        clock: Callable[[], float],
        cache: QuotaCache | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        jitter: Callable[[], float] = random.random,
        deleted: Callable[[ResourceQuota], None] = lambda quota: None,
        new_attempt: Callable[[], str] = new_attempt,
    ) -> None:
        self._deleted = deleted
        self.new_attempt = new_attempt
        self._source = source
        self.scope_of = source.scope_of
        """Of a pod the scope of the quotas that it is charged to."""
        self._vendors = vendors
        self._clock = clock
        self._cache = cache or NoCache()
        self._sleep = sleep
        self._jitter = jitter
        self._seen: dict[str, _Seen] = {}
        self._turns: WeakValueDictionary[str, _Turn] = WeakValueDictionary()
        self._lists = SharedReads(self._read_list)

    @contextlib.asynccontextmanager
    async def turn(self, scope: str) -> AsyncIterator[None]:
        """Wait for other changes of the namespace's quotas in this process, for a quarter of a second at most.

        So they meet no conflicts from each other, and a recompute, which lists pods between its read and its write,
        comes through in a burst of charges.
        """
        loop = asyncio.get_running_loop()
        turn = self._turns.setdefault(scope, _Turn())
        acquired = False
        # who doesn't get the lock in time goes on without it: it only saves conflicts, and its holder may take long;
        # all wait until the holder's time is over, so the last of many waits for no longer than the first
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(turn.until if turn.lock.locked() else loop.time() + LONGEST_TURN):
                await turn.lock.acquire()
                acquired = True
        try:
            turn.until = loop.time() + LONGEST_TURN if acquired else turn.until
            seen = self._seen.get(scope)
            if seen is not None:
                await seen.turns.wait(self._clock)
            yield
        finally:
            if acquired:
                turn.lock.release()

    def shown(self, quota: ResourceQuota | None) -> None:
        """A watch shows a version of a quota; None where it is gone."""
        # the namespace is empty for an AcceleratorQuota, as their scope is
        seen = None if quota is None else self._seen.get(quota.namespace)
        if quota is not None and seen is not None:
            seen.turns.note(quota, self._clock())

    async def update(
        self,
        scope: str,
        change: Change[T],
        *,
        retries: Retries,
        writes: Writes | None = None,
        names: Iterable[str] | None = None,
        list_pods: Callable[[Accounts], Awaitable[Sequence[Pod]]] | None = None,
    ) -> T:
        """Make a change to a namespace's quotas: one write for each that it changes, in the order of their names.

        It begins from the cache, or from a list where there is no cache, or, if `names` are given, from these quotas
        read live. Staleness shows as a conflict, after which the quota is read again and the change is called again. A
        quota that is gone no longer counts; as another may stand in its place, all are listed then, unless `names` are
        given. `writes` gets what was written, or may have been, also if this raises: `Rejected` from the change,
        `Conflict` when the last attempt met another writer, any other `ClusterError`.
        """
        writes = writes if writes is not None else Writes()
        accounts, current, live = await self._begin(scope, names)
        conflicts = 0
        while True:
            pods = () if list_pods is None else await list_pods(accounts)
            snapshot = Snapshot(accounts, live >= accounts.keys(), current, pods)
            try:
                after, result = change(snapshot)
            except NotListed:
                (accounts, fresh), current = await self._list(scope), True
                live |= accounts.keys() if fresh else set()  # one that others asked for may be older
                continue
            except Rejected:
                if snapshot.live:
                    raise
                # a cache may be late, and a refusal is final for its pod
                accounts = await self._reread(scope, accounts, accounts.keys() - live, live, names)
                continue
            for name in sorted(after):  # all writers go by name: two that write to several meet at the first
                try:
                    written = await self._swap(scope, accounts[name], after[name], writes)
                except (Conflict, NotFound) as error:
                    writes.counts.conflicts += 1
                    conflicts += 1
                    if conflicts >= retries.attempts:
                        raise Conflict(f"{conflicts} conflicting writes") from error
                    await self.back_off(conflicts, retries)
                    accounts = await self._reread(scope, accounts, {name}, live, names)
                    break
                # written quotas count as read: after a conflict at a later one the change finds its own charge there
                if written is not None:
                    accounts = {**accounts, name: written}
                    live.add(name)
            else:
                if after and scope in self._seen:  # only a whole update ends a turn: a lost race isn't one
                    self._seen[scope].turns.end()
                return result

    async def _begin(self, scope: str, names: Iterable[str] | None) -> tuple[Accounts, bool, set[str]]:
        """The accounts that an update begins from, whether there is no other just now, and which were read live."""
        if names is not None:
            accounts = await self._get(scope, names)
            return accounts, False, set(accounts)
        known = self.known(scope)
        if known is not None:
            return known.accounts, known.current, set()
        accounts, fresh = await self._list(scope)
        return accounts, True, set(accounts) if fresh else set()

    async def until_shown(self, scope: str, new: ResourceQuota, may_follow: Callable[[ResourceQuota], bool]) -> None:
        """Wait until the watch shows a new quota, if it shows one that may be its predecessor.

        By then it has shown that one's deletion.

        A watch that is silent for long isn't waited for. Raises `NotShown`.
        """
        for _ in range(_LOOKS):
            shown = self._cache.quotas(scope)
            if self._cache.silence() > LONGEST_SILENCE or any(each.uid == new.uid for each in shown):
                return
            if not any(map(may_follow, shown)):
                return
            await self._sleep(_UNTIL_SHOWN / _LOOKS)
        raise NotShown(f"quota {new.name} was made just now, and no watch shows it yet")

    async def pause(self, seconds: float) -> None:
        await self._sleep(seconds)

    async def back_off(self, conflicts: int, retries: Retries) -> None:
        """The pause after so many conflicts in a row."""
        await self._sleep(self._jitter() * retries.bound(conflicts))

    def refresh(self, scope: str) -> None:
        """Begin to list the quotas, for the next charge, unless they were listed just now."""
        if self._listed_ago(scope) > CURRENT_SECONDS / 2:
            self._lists.begin(scope)

    async def look(self, scope: str, *, fresh: bool = False) -> None:
        """List the quotas unless they were listed just now; `fresh`: with a list that begins now.

        Raises `ClusterError`.
        """
        if fresh or self._listed_ago(scope) > CURRENT_SECONDS:
            await (self._list_fresh(scope) if fresh else self._list(scope))

    async def listed(self, scope: str) -> Sequence[ResourceQuota]:
        """All quotas of a scope, read live. Raises `ClusterError`."""
        return await self._source.list(scope)

    async def undo(self, scope: str, undone: Sequence[Undone], retries: Retries, counts: WriteCounts) -> None:
        """Undo writes, the last one first, as far as the live account still has them.

        Best effort: the recompute and the TTL of entries settle the rest.
        """
        for name in sorted({swap.before.name for swap, _ in undone}):

            def reverted(snapshot: Snapshot) -> tuple[Accounts, None]:
                after = dict(snapshot.accounts)
                for swap, revert in reversed(undone):
                    if swap.before.name in after:
                        after[swap.before.name] = revert(after[swap.before.name], swap)
                return after, None

            with contextlib.suppress(ClusterError):
                await self.update(scope, reverted, retries=retries, writes=Writes(counts=counts), names=[name])

    def _listed_ago(self, scope: str) -> float:
        """Seconds since all quotas were listed; infinite if they never were."""
        return self._clock() - self._seen.get(scope, _NEVER_SEEN).listed

    def known(self, scope: str) -> KnownQuotas | None:
        """The accounts without a live read; None where the cache can't be believed.

        They are the cache's, or later versions that were read or written here. A write to a quota proves that its
        cached version was the latest, and nothing about other quotas.
        """
        age = self._cache.silence()
        if age > LONGEST_SILENCE:
            return None
        accounts, ahead = {}, False
        seen = self._seen.get(scope)
        if seen is None:
            accounts = {quota.name: QuotaAccount.read(quota, self._vendors) for quota in self._cache.quotas(scope)}
        else:
            for quota in self._cache.quotas(scope):
                account = seen.accounts.get(quota.name)
                if account is None:
                    account = QuotaAccount.read(quota, self._vendors)
                elif account.quota is not quota and not is_as_late(account.quota, quota):
                    account = seen.accounts[quota.name] = QuotaAccount.read(quota, self._vendors)
                ahead |= account.quota.resource_version != quota.resource_version
                if account.quota.namespaces != quota.namespaces:  # their labels changed
                    account = replace(account, quota=structs.replace(account.quota, namespaces=quota.namespaces))
                accounts[quota.name] = account
            listed = self._clock() - seen.listed
            if listed <= CURRENT_SECONDS:  # a list shows quotas before the watch does
                accounts = {**seen.accounts, **accounts}
            age = min(age, listed)
        current = age <= CURRENT_SECONDS
        # a watch that doesn't show yet what was written here is late
        return None if ahead and not current else KnownQuotas(accounts, age, current, current and not accounts)

    async def _list(self, scope: str) -> tuple[dict[str, QuotaAccount], bool]:
        """All accounts, and whether the list began just now: a refusal isn't given from an earlier one."""
        return await self._lists.get(scope)

    async def _list_fresh(self, scope: str) -> dict[str, QuotaAccount]:
        """All accounts, by a list that begins now."""
        accounts, fresh = await self._list(scope)
        return accounts if fresh else (await self._list(scope))[0]

    async def _reread(
        self,
        scope: str,
        accounts: Mapping[str, QuotaAccount],
        stale: Set[str],
        live: set[str],
        only: Iterable[str] | None,
    ) -> dict[str, QuotaAccount]:
        """The accounts, with the stale ones read again, which are added to `live`; `only` as `names` in `update`."""
        read = await self._get(scope, stale)  # by name: a list waits for the API server's watch cache, 50 to 100 ms
        kept = {name: account for name, account in accounts.items() if name not in stale}
        if only is None and len(read) < len(stale):
            read, kept = await self._list_fresh(scope), {}
        live.update(read)
        return kept | read

    async def _read_list(self, scope: str) -> dict[str, QuotaAccount]:
        now = self._clock()
        quotas = await self._source.list(scope)
        accounts = {quota.name: QuotaAccount.read(quota, self._vendors) for quota in quotas}
        self._note(scope, accounts).listed = now
        return accounts

    async def _get(self, scope: str, names: Iterable[str]) -> dict[str, QuotaAccount]:
        """The accounts of the quotas that exist, read live."""
        accounts = {}
        for name in sorted(names):
            try:
                quota = await self._source.get(scope, name)
            except NotFound:
                # what it had in flight is still on its way, and another quota may be made in its place
                gone = self._note(scope, {}).accounts.pop(name, None)
                if gone is not None:
                    self._deleted(gone.quota)
                continue
            accounts[name] = QuotaAccount.read(quota, self._vendors)
        seen = self._note(scope, accounts)
        for account in accounts.values():
            seen.turns.note(account.quota, seen.at)
        return accounts

    async def _swap(self, scope: str, before: QuotaAccount, after: QuotaAccount, writes: Writes) -> QuotaAccount | None:
        """Write a change; the account as it is then, or None if nothing changes."""
        patch = before.patch(after) if after is not before else None
        if patch is None:
            return None
        name = before.quota.name
        writes.swaps.append(Swap(before, after))  # before the request: it may be cancelled, and written all the same
        writes.counts.writes += 1
        began = self._clock()
        try:
            answer = await self._source.patch_status(scope, name, patch)
        except (Conflict, NotFound):
            writes.swaps.pop()  # for these alone it is certain that nothing was written
            raise
        # a charge without its entry would look like one that leaked
        verify(answer, patch)
        written = QuotaAccount.read(answer, self._vendors)
        seen = self._note(scope, {name: written})
        seen.turns.wrote(written.quota, self._clock() - began)
        return written

    def _note(self, scope: str, accounts: Accounts) -> _Seen:
        """Keep versions for later updates, and forget those of namespaces without updates."""
        now = self._clock()
        seen = self._seen.pop(scope, None) or _Seen(now)
        seen.at = now
        self._seen[scope] = seen  # in the order of their times
        for name, account in accounts.items():
            former = seen.accounts.get(name)
            if former is not None and former.quota.uid != account.quota.uid:
                self._deleted(former.quota)
        seen.accounts.update(accounts)
        for other in list(self._seen):
            if now - self._seen[other].at < _KEPT_SECONDS:
                break
            del self._seen[other]
        return seen


def is_as_late(one: ResourceQuota, other: ResourceQuota) -> bool:
    """Whether `one` is the same version of the same object as `other`, or a later one."""
    versions = one.resource_version, other.resource_version
    later = all(v.isdecimal() for v in versions) and int(versions[0]) > int(versions[1])
    return one.uid == other.uid and (later or versions[0] == versions[1] != "")


def verify(answer: ResourceQuota, patch: Mapping[str, Any]) -> None:
    """The answer must carry the ledger as written: an API server that drops metadata on `/status` would lose it.

    Raises `ClusterError`.
    """
    written = patch["metadata"].get("annotations") or {}
    if LEDGER in written and answer.annotations.get(LEDGER) != written[LEDGER]:
        raise ClusterError("the API server didn't keep the ledger annotation")
