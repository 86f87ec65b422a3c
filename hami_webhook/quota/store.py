"""The one compare-and-swap loop: a pure function says what becomes of a namespace's quotas (docs/spec/quota.md#7)."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar
from weakref import WeakValueDictionary

import msgspec

from hami_webhook.cluster.api import ClusterError, Conflict, NotFound
from hami_webhook.devices.registry import Vendors
from hami_webhook.kube.objects import Pod, ResourceQuota
from hami_webhook.quota.account import QuotaAccount, Rejected, verify
from hami_webhook.quota.pricing import Charge
from hami_webhook.quota.sources import QuotaSource

CURRENT_SECONDS = 2.0
"""Seconds without a sign of life from the watch for which its cache, or a list, is taken to show every quota."""

LONGEST_TURN = 0.5
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

    Any number of stores may work on one cluster.
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
    ) -> None:
        self._source = source
        self._vendors = vendors
        self._clock = clock
        self._cache = cache or NoCache()
        self._sleep = sleep
        self._jitter = jitter
        self._seen: dict[str, _Seen] = {}
        self._turns: WeakValueDictionary[str, _Turn] = WeakValueDictionary()

    @contextlib.asynccontextmanager
    async def turn(self, scope: str) -> AsyncIterator[None]:
        """Wait for other changes of the namespace's quotas in this process, for half a second at most.

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
        list_pods: Callable[[], Awaitable[Sequence[Pod]]] | None = None,
    ) -> T:
        """Make a change to a namespace's quotas: one write for each that it changes, in the order of their names.

        It begins from the cache, or from a list where there is no cache, or, if `names` are given, from these quotas
        read live. Staleness shows as a conflict, after which the quota is read anew and the change is called again. A
        quota that is gone no longer counts. `writes` gets what was written, or may have been, also if this raises:
        `Rejected` from the change, `Conflict` when the last attempt met another writer, any other `ClusterError`.
        """
        writes = writes if writes is not None else Writes()
        known = self._known(scope) if names is None else None
        if known is not None:
            accounts, current = known
            live = set[str]()
        else:
            current = names is None
            accounts = await (self._list(scope) if names is None else self._get(scope, names))
            live = set(accounts)
        conflicts = 0
        while True:
            pods = () if list_pods is None else await list_pods()
            snapshot = Snapshot(accounts, live >= accounts.keys(), current, pods)
            try:
                after, result = change(snapshot)
            except NotListed:
                accounts, current = await self._list(scope), True
                live |= accounts.keys()
                continue
            except Rejected:
                if snapshot.live:
                    raise
                read = await self._get(scope, accounts.keys() - live)
                accounts = {name: account for name, account in accounts.items() if name in live} | read
                live |= read.keys()
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
                    await self._sleep(self._jitter() * retries.bound(conflicts))
                    read = await self._get(scope, [name])
                    accounts = {other: account for other, account in accounts.items() if other != name} | read
                    live |= read.keys()
                    break
                if written is not None:
                    accounts = {**accounts, name: written}
                    live.add(name)
            else:
                if after:
                    self._note(scope, {}).adapt()
                return result

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
        seen = self._seen.get(scope)
        if seen is not None and self._clock() - seen.listed < CURRENT_SECONDS:
            return not seen.accounts
        return self._cache.current_within(CURRENT_SECONDS)

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

    def _known(self, scope: str) -> tuple[dict[str, QuotaAccount], bool] | None:
        """The accounts without a live read, or None; and whether they are known to be all.

        They are the cache's, or later versions that were read or written here. A write to a quota proves that its
        cached version was the latest, and nothing about other quotas.
        """
        quotas = self._cache.quotas(scope)
        if quotas is None:
            return None
        seen = self._seen.get(scope) or _Seen(0.0)
        listed = self._clock() - seen.listed < CURRENT_SECONDS
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
        current = listed or self._cache.current_within(CURRENT_SECONDS)
        return None if ahead and not current else (accounts, current)

    async def _list(self, scope: str) -> dict[str, QuotaAccount]:
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
                self._note(scope, {}).accounts.pop(name, None)
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
