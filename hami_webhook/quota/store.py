"""The one compare-and-swap loop: a pure function says what becomes of a namespace's quotas (docs/spec/quota.md#7)."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar
from weakref import WeakValueDictionary

import msgspec

from hami_webhook.cluster.api import ClusterError, Conflict, NotFound
from hami_webhook.cluster.shared_reads import SharedReads
from hami_webhook.devices.registry import Vendors
from hami_webhook.kube.objects import Pod, ResourceQuota
from hami_webhook.quota.account import QuotaAccount, Rejected, verify
from hami_webhook.quota.pricing import Charge
from hami_webhook.quota.sources import QuotaSource

CURRENT_SECONDS = 2.0
"""Seconds without a sign of life from the watch for which its cache, or a list, is taken to show every quota."""

LONGEST_TURN = 0.25
"""Seconds for which a change of a namespace's quotas keeps the others of this process waiting."""

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.002, 0.25
"""Seconds between two updates of quotas to which others write too."""

_BUSY_SECONDS = 0.25
"""Seconds after an update for which the next one pauses: a lone charge never waits."""

_KEPT_SECONDS = 60.0
"""Seconds for which versions are kept that the cache doesn't show yet; a watch silent for as long isn't used."""

T = TypeVar("T")
Accounts = Mapping[str, QuotaAccount]
"""Accounts by the names of their quotas."""


class QuotaCache(Protocol):
    """A synced view of quotas, if there is one."""

    def quotas(self, namespace: str) -> Sequence[ResourceQuota] | None:
        """The namespace's quotas; None while the cache isn't synced or its watch is taken for dead."""
        ...

    def current_within(self, seconds: float) -> bool:
        """Whether the cache is known to have been complete that many seconds ago."""
        ...


class NoCache:
    """Every read of the quotas is live."""

    def quotas(self, namespace: str) -> Sequence[ResourceQuota] | None:
        return None

    def current_within(self, seconds: float) -> bool:
        return False


class NotListed(Rejected):
    """A change depends on quotas that the cache may not show yet: they have to be listed."""


@dataclass(frozen=True, slots=True)
class Snapshot:
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

Pure: it is called anew after each conflict. May raise `Rejected`.
"""


@dataclass(frozen=True, slots=True)
class Retries:
    """How often an update is tried, and the pauses after conflicts in seconds: random up to a bound that doubles."""

    attempts: int
    first: float
    longest: float

    def bound(self, conflicts: int) -> float:
        return min(self.longest, self.first * 2.0**conflicts)


@dataclass(frozen=True, slots=True)
class Swap:
    """One compare-and-swap that succeeded, or may have: the account before and after."""

    before: QuotaAccount
    after: QuotaAccount


@dataclass(slots=True)
class WriteCounts:
    """How many writes were sent, and how many of them met another writer's."""

    writes: int = 0
    conflicts: int = 0


@dataclass(slots=True)
class Writes:
    """What an update wrote, in order, including writes whose answer was lost; they are added to `counts`."""

    swaps: list[Swap] = field(default_factory=list)
    counts: WriteCounts = field(default_factory=WriteCounts)


@dataclass(slots=True)
class _Seen:
    """Versions of a namespace's quotas that were read or written here; `listed` is when all were listed.

    `written` are the versions of the last writes, and `took` is how long the last one took. `pause` are seconds
    before the next update, as long as others write to the quotas too: it gives them their turn, and gathers more
    charges for each write.
    """

    at: float
    listed: float = float("-inf")
    accounts: dict[str, QuotaAccount] = field(default_factory=dict)
    written: dict[str, str] = field(default_factory=dict)
    took: float = 0.0
    pause: float = 0.0
    raced: bool = False

    def adapt(self) -> None:
        """Set the pause after an update: the time of two writes, less with each update that met no other writer."""
        self.pause = min(_LONGEST_PAUSE, 2 * self.took) if self.raced else 0.8 * self.pause
        self.raced = False


class _Turn:
    """Who changes a namespace's quotas has the lock; `until` (of the loop's clock) the others wait for it."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.until = 0.0


class QuotaStore:
    """The quotas of a cluster, read from the cache where that is enough, and changed by compare-and-swap.

    Any number of stores may work on one cluster. `deleted` is called with the last version that was read or written
    here of a quota that turns out to be gone.
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
    ) -> None:
        self._deleted = deleted
        self._source = source
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
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(turn.until if turn.lock.locked() else loop.time() + LONGEST_TURN):
                await turn.lock.acquire()
                acquired = True
        try:
            turn.until = loop.time() + LONGEST_TURN if acquired else turn.until
            seen = self._seen.get(scope)
            if seen is not None and seen.pause >= _SHORTEST_PAUSE and self._clock() - seen.at < _BUSY_SECONDS:
                await self._sleep(seen.pause * (0.5 + self._jitter()))
            yield
        finally:
            if acquired:
                turn.lock.release()

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
        read live. Staleness shows as a conflict, after which the quota is read anew and the change is called again. A
        quota that is gone no longer counts; as another may stand in its place, all are listed then, unless `names` are
        given. `writes` gets what was written, or may have been, also if this raises: `Rejected` from the change,
        `Conflict` when the last attempt met another writer, any other `ClusterError`.
        """
        writes = writes if writes is not None else Writes()
        known = self._known(scope) if names is None else None
        if known is not None:
            accounts, current = known
            live = set[str]()
        else:
            current = names is None
            accounts, fresh = await self._list(scope) if names is None else (await self._get(scope, names), True)
            live = set(accounts) if fresh else set()
        conflicts = 0
        while True:
            pods = () if list_pods is None else await list_pods(accounts)
            snapshot = Snapshot(accounts, live >= accounts.keys(), current, pods)
            try:
                after, result = change(snapshot)
            except NotListed:
                (accounts, fresh), current = await self._list(scope), True
                live |= accounts.keys() if fresh else set()
                continue
            except Rejected:
                if snapshot.live:
                    raise
                accounts = await self._reread(scope, accounts, accounts.keys() - live, live, names)
                continue
            for name in sorted(after):
                try:
                    written = await self._swap(scope, accounts[name], after[name], writes)
                except (Conflict, NotFound) as error:
                    writes.counts.conflicts += 1
                    conflicts += 1
                    self._note(scope, {}).raced = True
                    if conflicts >= retries.attempts:
                        raise Conflict(f"{conflicts} conflicting writes") from error
                    await self.back_off(conflicts, retries)
                    accounts = await self._reread(scope, accounts, {name}, live, names)
                    break
                if written is not None:
                    accounts = {**accounts, name: written}
                    live.add(name)
            else:
                if after:
                    self._note(scope, {}).adapt()
                return result

    async def back_off(self, conflicts: int, retries: Retries) -> None:
        """The pause after so many conflicts in a row."""
        await self._sleep(self._jitter() * retries.bound(conflicts))

    def concerns_none(self, scope: str, pod: Pod, charge: Charge) -> bool:
        """Whether the cache shows, as of just now, that no quota of the namespace limits what a pod costs."""
        if self.has_none(scope):
            return True
        known = self._known(scope)
        return known is not None and known[1] and not any(each.concerns(pod, charge) for each in known[0].values())

    def has_none(self, scope: str) -> bool:
        """Whether the cache shows, as of just now or of the last list, that there is no quota."""
        if self._cache.quotas(scope) != []:
            return False
        if self._was_listed(scope):
            return not self._seen[scope].accounts
        return self._cache.current_within(CURRENT_SECONDS)

    def refresh(self, scope: str) -> None:
        """Begin to list the quotas where what is known of them is about to be too old for the next charge."""
        if not self._is_current(scope, CURRENT_SECONDS / 2):
            self._lists.begin(scope)

    async def look(self, scope: str, *, anew: bool = False) -> None:
        """List the quotas unless they are known as of just now; `anew`: with a list that begins now.

        Raises `ClusterError`.
        """
        if anew or not self._is_current(scope):
            await (self._list_anew(scope) if anew else self._list(scope))

    async def listed(self, scope: str) -> Sequence[ResourceQuota]:
        """All quotas of a scope, read live. Raises `ClusterError`."""
        return await self._source.list(scope)

    def known(self, scope: str) -> Accounts:
        """The accounts as the cache shows them; none where it can't be believed."""
        known = self._known(scope)
        return {} if known is None else known[0]

    async def undo(
        self, scope: str, writes: Writes, revert: Callable[[QuotaAccount, Swap], QuotaAccount], retries: Retries
    ) -> None:
        """Take back what an update wrote, as far as `revert` finds it standing in the account as read live.

        Best effort: the recompute and the TTL of entries settle the rest.
        """
        for name in sorted({swap.before.name for swap in writes.swaps}):

            def reverted(snapshot: Snapshot) -> tuple[Accounts, None]:
                after = dict(snapshot.accounts)
                for swap in reversed(writes.swaps):
                    if swap.before.name in after:
                        after[swap.before.name] = revert(after[swap.before.name], swap)
                return after, None

            with contextlib.suppress(ClusterError):
                await self.update(scope, reverted, retries=retries, writes=Writes(counts=writes.counts), names=[name])

    def _was_listed(self, scope: str, seconds: float = CURRENT_SECONDS) -> bool:
        """Whether all quotas were listed in the last seconds."""
        seen = self._seen.get(scope)
        return seen is not None and self._clock() - seen.listed < seconds

    def _is_current(self, scope: str, seconds: float = CURRENT_SECONDS) -> bool:
        """Whether the cache or a list shows all quotas that there were so many seconds ago."""
        return self._was_listed(scope, seconds) or self._cache.current_within(seconds)

    def _known(self, scope: str) -> tuple[dict[str, QuotaAccount], bool] | None:
        """The accounts without a live read, or None; and whether they are known to be all.

        They are the cache's, or later versions that were read or written here. A write to a quota proves that its
        cached version was the latest, and nothing about other quotas.
        """
        quotas = self._cache.quotas(scope)
        if quotas is None:
            return None
        seen = self._seen.get(scope) or _Seen(0.0)
        listed = self._was_listed(scope)
        accounts, ahead = {}, False
        for quota in quotas:
            account = seen.accounts.get(quota.name)
            if account is not None and not is_as_late(account.quota, quota):
                del seen.accounts[quota.name]
                account = None
            ahead |= account is not None and account.quota.resource_version != quota.resource_version
            if account is not None and account.quota.namespaces != quota.namespaces:  # they were labelled anew
                account = replace(account, quota=msgspec.structs.replace(account.quota, namespaces=quota.namespaces))
            accounts[quota.name] = account or QuotaAccount.read(quota, self._vendors)
        if listed:
            accounts = {**seen.accounts, **accounts}
        # a watch that doesn't show yet what was written here is late
        current = self._is_current(scope)
        return None if ahead and not current else (accounts, current)

    async def _list(self, scope: str) -> tuple[dict[str, QuotaAccount], bool]:
        """All accounts, and whether the list began just now: a refusal isn't given from an earlier one."""
        return await self._lists.get(scope)

    async def _list_anew(self, scope: str) -> dict[str, QuotaAccount]:
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
        """The accounts with the stale ones read anew, which are added to `live`; `only` as `names` in `update`."""
        read = await self._get(scope, stale)
        kept = {name: account for name, account in accounts.items() if name not in stale}
        if only is None and len(read) < len(stale):
            read, kept = await self._list_anew(scope), {}
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
                gone = self._note(scope, {}).accounts.pop(name, None)
                if gone is not None:
                    self._deleted(gone.quota)
                continue
            accounts[name] = QuotaAccount.read(quota, self._vendors)
        self._note(scope, accounts)
        return accounts

    async def _swap(self, scope: str, before: QuotaAccount, after: QuotaAccount, writes: Writes) -> QuotaAccount | None:
        """Write a change; the account as it is then, or None if nothing changes."""
        patch = before.patch(after) if after is not before else None
        if patch is None:
            return None
        writes.swaps.append(Swap(before, after))
        writes.counts.writes += 1
        began = self._clock()
        try:
            answer = await self._source.patch_status(scope, before.name, patch)
        except (Conflict, NotFound):
            writes.swaps.pop()  # for these alone it is certain that nothing was written
            raise
        verify(answer, patch)
        written = QuotaAccount.read(answer, self._vendors)
        seen = self._note(scope, {written.name: written})
        version = before.quota.resource_version
        seen.raced |= seen.written.get(written.name, version) != version
        seen.written[written.name] = written.quota.resource_version
        seen.took = self._clock() - began
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
