"""The compare-and-swap loop: what it reads and writes, whoever else writes meanwhile (docs/spec/quota.md#7).

Each race is a row: what the cache shows, what happens at which step, the calls that follow, and how it ends.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from math import inf

import pytest
from quota.objects import MEM, NOON, TEAM, account_of, full, quota, vendors
from virtual_time import in_virtual_time

from hami_webhook.charging.sources import ResourceQuotas
from hami_webhook.charging.store import NotListed, QuotaStore, Retries, Snapshot, Writes, is_as_late
from hami_webhook.cluster.api import ClusterError, Conflict, Forbidden, Kind, Unavailable
from hami_webhook.cluster.memory import MemoryCluster
from hami_webhook.kube.objects import ResourceQuota
from hami_webhook.quota.account import Accounts, QuotaAccount, Rejected, Swap
from hami_webhook.quota.ledger import Entry, State

RETRIES = Retries(attempts=3, first=0.01, longest=0.02)
ENTRY = Entry(State.ADMITTED, int(NOON), full(mem=5))
LIST, GET, PATCH = "list", "get", "patch_status"


class StoreEnv:
    """Quotas `a` and `b` of 10 each, a store on them, and somebody else who writes in between."""

    def __init__(self) -> None:
        self.now = NOON
        self.cluster = MemoryCluster(lambda: self.now, pause=self.pause)
        self.deleted: list[ResourceQuota] = []
        """Those that the store found gone."""
        self.store = QuotaStore(
            ResourceQuotas(self.cluster),
            vendors(),
            clock=lambda: self.now,
            cache=self,
            sleep=self.sleep,
            jitter=lambda: 1.0,
            deleted=self.deleted.append,
        )
        self.cached: Sequence[ResourceQuota] | None = None
        self.current = True
        self.calls: list[str] = []
        self.slept: list[float] = []
        self.plan: dict[str, Callable[[], Awaitable[None]]] = {}
        """What happens at a step: `patch_status:before 2` is just before the second write."""

    async def start(self, shown: str, names: str = "ab") -> None:
        await self.cluster.ensure_namespace(TEAM)
        for name in names:
            made = quota(name, mem=10)
            await self.cluster.create(Kind.RESOURCE_QUOTAS, {**made, "status": {"used": {MEM: "0"}}})
        if shown == "stale":
            self.show()
            for name in names:
                await self.take(name, 1)
        if shown == "fresh":
            self.show()
        self.calls.clear()

    def quotas(self, scope: str) -> Sequence[ResourceQuota]:
        return self.cached or ()

    def silence(self) -> float:
        return inf if self.cached is None else 0.0 if self.current else 10.0

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    async def pause(self, step: str) -> None:
        call, _, when = step.partition(":")
        self.calls += [call] if when == "before" else []
        happens = self.plan.pop(f"{step} {self.calls.count(call)}", None)
        if happens is not None:
            calls, plan, self.plan = list(self.calls), self.plan, {}
            try:
                await happens()
            finally:
                self.calls, self.plan = calls, plan

    def show(self) -> None:
        self.cached = [ResourceQuota.from_object(item) for item in self.cluster.peek_all(Kind.RESOURCE_QUOTAS, TEAM)]

    async def take(self, name: str, mem: int) -> None:
        """Somebody else charges `mem` more."""
        used = {MEM: str(self.used(name) + mem)}
        await self.cluster.patch_status(Kind.RESOURCE_QUOTAS, name, {"status": {"used": used}}, TEAM)

    async def delete(self, name: str) -> None:
        await self.cluster.delete(Kind.RESOURCE_QUOTAS, name, TEAM)

    def account(self, name: str) -> QuotaAccount:
        item = self.cluster.peek(Kind.RESOURCE_QUOTAS, name, TEAM)
        assert item is not None
        return account_of(item)

    def used(self, name: str) -> int:
        return self.account(name).used[MEM]

    def state(self) -> Stored:
        """Used and the ledger's ids, of the quotas that exist."""
        names = [item["metadata"]["name"] for item in self.cluster.peek_all(Kind.RESOURCE_QUOTAS, TEAM)]
        return {name: (self.used(name), sorted(self.account(name).ledger)) for name in names}


def charge(snapshot: Snapshot) -> tuple[Accounts, list[str]]:
    """Charge 5 under the id `u` to every quota, once."""
    after = {}
    for name, account in snapshot.accounts.items():
        if "u" not in account.ledger:
            if account.used[MEM] + 5 > account.hard[MEM]:
                raise Rejected(name)
            after[name] = account.with_entry("u", ENTRY)
    return after, sorted(snapshot.accounts)


def revert(account: QuotaAccount, swap: Swap) -> QuotaAccount:
    return account.with_entry("u", swap.before.ledger.get("u")) if account.ledger.get("u") == ENTRY else account


Stored = dict[str, tuple[int, list[str]]]
Row = tuple[str, dict[str, str], list[str], object, Stored]
ONE_EACH: Stored = {"a": (1, []), "b": (1, [])}
BOTH: Stored = {"a": (5, ["u"]), "b": (5, ["u"])}
BOTH_AND_ONE = {"a": (6, ["u"]), "b": (6, ["u"])}

RACES: dict[str, Row] = {
    "the cache is as the quotas are": ("fresh", {}, [PATCH, PATCH], ["a", "b"], BOTH),
    "there is no cache": ("none", {}, [LIST, PATCH, PATCH], ["a", "b"], BOTH),
    "the cache is stale": ("stale", {}, [PATCH, GET, PATCH, PATCH, GET, PATCH], ["a", "b"], BOTH_AND_ONE),
    "another writes before the first write": (
        *("fresh", {"patch_status:before 1": "take a 1"}, [PATCH, GET, PATCH, PATCH], ["a", "b"]),
        {"a": (6, ["u"]), "b": (5, ["u"])},
    ),
    "another writes between the two writes: the first isn't made again": (
        *("fresh", {"patch_status:after 1": "take b 1"}, [PATCH, PATCH, GET, PATCH], ["a", "b"]),
        {"a": (5, ["u"]), "b": (6, ["u"])},
    ),
    "another writes between the read after a conflict and the write": (
        *("fresh", {"patch_status:before 1": "take a 1", "patch_status:before 2": "take a 1"}),
        *([PATCH, GET, PATCH, GET, PATCH, PATCH], ["a", "b"], {"a": (7, ["u"]), "b": (5, ["u"])}),
    ),
    "others write each time": (
        *("fresh", {f"patch_status:before {number}": "take b 1" for number in (2, 3, 4)}),
        *([PATCH, PATCH, GET, PATCH, GET, PATCH], Conflict, {"a": (5, ["u"]), "b": (3, [])}),
    ),
    "the room is taken after the second quota was read": (
        *("fresh", {"patch_status:before 2": "take b 6"}, [PATCH, PATCH, GET]),
        *(Rejected, {"a": (5, ["u"]), "b": (6, [])}),
    ),
    "a quota is deleted before it is written": (
        *("fresh", {"patch_status:before 1": "delete a"}, [PATCH, GET, LIST, PATCH], ["b"], {"b": (5, ["u"])}),
    ),
    "a quota is deleted between the write and the read after a conflict": (
        *("stale", {"get:before 1": "delete a"}, [PATCH, GET, LIST, PATCH], ["b"], {"b": (6, ["u"])}),
    ),
    "a quota is deleted after it was listed": (
        *("none", {"patch_status:before 1": "delete a"}, [LIST, PATCH, GET, LIST, PATCH], ["b"], {"b": (5, ["u"])}),
    ),
    "the write is refused": (
        *("fresh", {"patch_status:before 2": "forbid"}, [PATCH, PATCH], Forbidden, {"a": (5, ["u"]), "b": (0, [])}),
    ),
    "the write is lost": (
        *("fresh", {"patch_status:before 2": "lose"}, [PATCH, PATCH], Unavailable, {"a": (5, ["u"]), "b": (0, [])}),
    ),
    "the answer is lost": ("fresh", {"patch_status:after 2": "lose"}, [PATCH, PATCH], Unavailable, BOTH),
    "the read after a conflict is lost": ("stale", {"get:before 1": "lose"}, [PATCH, GET], Unavailable, ONE_EACH),
}


@pytest.mark.parametrize("race", RACES)
async def test_races(race: str) -> None:
    shown, plan, calls, ends, state = RACES[race]
    env = StoreEnv()
    await env.start(shown)

    async def happens(what: str) -> None:
        words = what.split()
        if words[0] == "take":
            await env.take(words[1], int(words[2]))
        elif words[0] == "delete":
            await env.delete(words[1])
        else:
            raise {"lose": Unavailable, "forbid": Forbidden}[words[0]]("no answer")

    env.plan = {step: partial(happens, what) for step, what in plan.items()}
    writes = Writes()
    if isinstance(ends, type):
        with pytest.raises(ends):
            await env.store.update(TEAM, charge, retries=RETRIES, writes=writes)
    else:
        assert await env.store.update(TEAM, charge, retries=RETRIES, writes=writes) == ends
    assert (env.calls, env.state()) == (calls, state)
    gone = {"a", "b"} - state.keys()
    assert {each.name for each in env.deleted} == (gone if shown == "none" else set())  # a watch tells of the others
    # whatever was written, or may have been, can be taken back
    assert env.plan == {}
    others: Stored = {name: (used - 5 * len(ids), []) for name, (used, ids) in state.items()}
    await env.store.undo(TEAM, [(swap, revert) for swap in writes.swaps], RETRIES, writes.counts)
    assert env.state() == others


async def test_a_rejection_is_final_only_for_what_was_read_live() -> None:
    env = StoreEnv()
    await env.start("none")
    await env.take("b", 6)
    env.show()
    await env.take("b", -6)
    env.calls.clear()
    assert await env.store.update(TEAM, charge, retries=RETRIES) == ["a", "b"]
    assert env.calls == [GET, GET, PATCH, PATCH]


async def test_a_change_that_depends_on_quotas_that_the_cache_may_lack_has_them_listed() -> None:
    env = StoreEnv()
    await env.start("none", "a")
    env.show()
    env.current = False
    await env.cluster.create(Kind.RESOURCE_QUOTAS, {**quota("b", mem=10), "status": {"used": {MEM: "0"}}})
    env.calls.clear()

    def all_of_them(snapshot: Snapshot) -> tuple[Accounts, list[str]]:
        if not snapshot.current:
            raise NotListed
        return charge(snapshot)

    assert await env.store.update(TEAM, all_of_them, retries=RETRIES) == ["a", "b"]
    assert env.calls == [LIST, PATCH, PATCH]
    env.calls.clear()
    assert await env.store.update(TEAM, all_of_them, retries=RETRIES) == ["a", "b"]
    env.now += 2.0
    assert await env.store.update(TEAM, all_of_them, retries=RETRIES) == ["a", "b"]
    await env.store.look(TEAM)
    assert env.calls == []  # the list is good for two seconds
    env.now += 0.1
    assert await env.store.update(TEAM, all_of_them, retries=RETRIES) == ["a", "b"]
    assert env.calls == [LIST]


async def test_pauses_between_attempts_grow_to_a_bound() -> None:
    env = StoreEnv()
    await env.start("fresh", "a")
    used = [0]

    async def other() -> None:
        used[0] += 1
        patch = {"metadata": {"labels": {"n": str(used[0])}}}
        await env.cluster.patch_status(Kind.RESOURCE_QUOTAS, "a", patch, TEAM)

    env.plan = dict.fromkeys(("patch_status:before 1", "patch_status:before 2"), other)
    writes = Writes()
    await env.store.update(TEAM, charge, retries=RETRIES, writes=writes)
    assert env.slept == [0.02, 0.02]
    assert (writes.counts.writes, writes.counts.conflicts) == (3, 2)


async def test_an_api_server_that_drops_the_ledger_is_an_error() -> None:
    env = StoreEnv()
    await env.start("fresh", "a")
    patch = env.cluster.patch_status

    async def dropping(kind: Kind, name: str, patch_: dict[str, object], namespace: str = "") -> dict[str, object]:
        answer = await patch(kind, name, patch_, namespace)
        return {**answer, "metadata": {**answer["metadata"], "annotations": {}}}

    env.cluster.patch_status = dropping  # type: ignore[method-assign, assignment]  # only for this test
    writes = Writes()
    with pytest.raises(ClusterError, match="didn't keep the ledger"):
        await env.store.update(TEAM, charge, retries=RETRIES, writes=writes)
    await env.store.undo(TEAM, [(swap, revert) for swap in writes.swaps], RETRIES, writes.counts)
    assert env.state() == {"a": (0, [])}


class TwoWriters:
    """A store whose updates meet those of another writer, which takes 20 ms for a write."""

    def __init__(self) -> None:
        self.env = StoreEnv()
        self.entries = itertools.count()

    async def start(self) -> None:
        await self.env.start("fresh", "a")
        for _ in range(2):  # each writes twice, in turn
            await self.other()
            await self.enter().write()

    async def other(self) -> None:
        """The other's write, and the watch shows it."""
        labels = {"metadata": {"labels": {"n": str(next(self.entries))}}}
        await self.env.cluster.patch(Kind.RESOURCE_QUOTAS, "a", labels, TEAM)
        self.env.show()
        (shown,) = self.env.quotas(TEAM)
        self.env.store.shown(shown)

    def enter(self) -> WaitingUpdate:
        return WaitingUpdate(self.env, Entry(State.ADMITTED, next(self.entries), full(mem=1)))


class WaitingUpdate:
    """An update that waits for its turn."""

    def __init__(self, env: StoreEnv, entry: Entry) -> None:
        self.env = env
        self.entry = entry
        self.begun = False
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        async with self.env.store.turn(TEAM):
            self.begun = True
            self.env.calls.clear()
            self.env.plan = {"patch_status:after 1": self._takes_time}
            await self.env.store.update(TEAM, self._change, retries=RETRIES)

    def _change(self, snapshot: Snapshot) -> tuple[Accounts, None]:
        return {name: account.with_entry("u", self.entry) for name, account in snapshot.accounts.items()}, None

    async def _takes_time(self) -> None:
        self.env.now += 0.02

    async def write(self) -> None:
        await self.task

    async def waits(self) -> bool:
        for _ in range(10):
            await asyncio.sleep(0)
        return not self.begun


@in_virtual_time
async def test_writers_take_turns() -> None:
    writers = TwoWriters()
    await writers.start()
    own = writers.enter()
    assert await own.waits()
    await writers.other()
    await own.write()
    # who doesn't write any more is waited for once
    late = writers.enter()
    assert await late.waits()
    await late.write()
    assert not await writers.enter().waits()


@in_virtual_time
async def test_a_lone_update_waits_for_nobody() -> None:
    writers = TwoWriters()
    await writers.start()
    writers.env.now += 0.25
    assert not await writers.enter().waits()


@in_virtual_time
async def test_who_wrote_very_often_is_waited_for_a_second_at_most() -> None:
    """Three times as long as a write takes, and again after each that is seen."""
    for goes_on, seconds in ((False, 0.06), (True, 1.0)):
        writers = TwoWriters()
        await writers.start()
        for _ in range(100):
            await writers.other()
        await writers.enter().write()
        await writers.other()
        began = asyncio.get_running_loop().time()
        update = writers.enter()
        while goes_on and await update.waits():
            await asyncio.sleep(0.05)
            await writers.other()
        await update.write()
        assert asyncio.get_running_loop().time() - began == pytest.approx(seconds)


@in_virtual_time
async def test_a_turn_that_is_cancelled_while_it_waits_is_over() -> None:
    writers = TwoWriters()
    await writers.start()
    first, second = writers.enter(), writers.enter()
    assert await first.waits()
    first.task.cancel()
    await writers.other()
    await second.write()


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (("u", "10"), ("u", "9"), True),
        (("u", "9"), ("u", "9"), True),
        (("u", "9"), ("u", "10"), False),
        (("u", "x"), ("u", "x"), True),
        (("u", "x"), ("u", "9"), False),
        (("u", ""), ("u", ""), False),
        (("u", "10"), ("v", "9"), False),
    ],
)
def test_versions_are_compared_of_one_object_only(one: tuple[str, str], other: tuple[str, str], expected: bool) -> None:
    first, second = (
        ResourceQuota("team", "q", uid, {}, {}, {}, {}, resource_version=version) for uid, version in (one, other)
    )
    assert is_as_late(first, second) is expected


async def test_what_was_written_last_is_taken_back_first() -> None:
    env = StoreEnv()
    await env.start("fresh", "a")
    writes = Writes()
    await env.store.update(TEAM, charge, retries=RETRIES, writes=writes)
    (first,) = writes.swaps
    swaps = [first, Swap(first.after, first.before)]
    taken: list[Swap] = []

    def noted(account: QuotaAccount, swap: Swap) -> QuotaAccount:
        taken.append(swap)
        return account

    await env.store.undo(TEAM, [(swap, noted) for swap in swaps], RETRIES, writes.counts)
    assert taken == [*reversed(swaps)]
