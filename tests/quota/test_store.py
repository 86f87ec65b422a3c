"""The compare-and-swap loop: what it reads and writes, whoever else writes meanwhile (docs/spec/quota.md#7).

Each race is a row: what the cache shows, what happens at which step, the calls that follow, and how it ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from math import inf

import pytest

from hami_webhook.cluster.api import ClusterError, Conflict, Forbidden, Kind, Unavailable
from hami_webhook.cluster.memory import MemoryCluster
from hami_webhook.kube.objects import ResourceQuota
from hami_webhook.quota.account import QuotaAccount, Rejected
from hami_webhook.quota.ledger import Entry, State
from hami_webhook.quota.sources import ResourceQuotas
from hami_webhook.quota.store import Accounts, NotListed, QuotaStore, Retries, Snapshot, Swap, Writes, is_as_late

from .objects import MEM, NOON, TEAM, account_of, full, quota, vendors

RETRIES = Retries(attempts=3, first=0.01, longest=0.02)
ENTRY = Entry(State.ADMITTED, int(NOON), full(mem=5))
LIST, GET, PATCH = "list", "get", "patch_status"


class StoreEnv:
    """Quotas `a` and `b` of 10 each, a store on them, and somebody else who writes in between."""

    def __init__(self) -> None:
        self.now = NOON
        self.cluster = MemoryCluster(lambda: self.now, pause=self.pause)
        self.store = QuotaStore(
            ResourceQuotas(self.cluster),
            vendors(),
            clock=lambda: self.now,
            cache=self,
            sleep=self.sleep,
            jitter=lambda: 1.0,
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
NOTHING: Stored = {"a": (0, []), "b": (0, [])}
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
    # whatever was written, or may have been, can be taken back
    assert env.plan == {}
    others: Stored = {name: (used - 5 * len(ids), []) for name, (used, ids) in state.items()}
    await env.store.undo(TEAM, writes, revert, RETRIES)
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


async def test_a_rejection_of_what_was_read_live_is_the_updates_end() -> None:
    env = StoreEnv()
    await env.start("stale")
    await env.take("b", 5)
    env.calls.clear()
    with pytest.raises(Rejected, match="b"):
        await env.store.update(TEAM, charge, retries=RETRIES)
    assert env.state()["b"] == (6, [])


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
    assert env.calls == []  # the list is good for two seconds
    env.now += 2.1
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


async def test_a_write_that_is_broken_off_can_be_taken_back() -> None:
    env = StoreEnv()
    await env.start("fresh")

    async def forever() -> None:
        await asyncio.Event().wait()

    env.plan = {"patch_status:after 1": forever}
    writes = Writes()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await env.store.update(TEAM, charge, retries=RETRIES, writes=writes)
    assert env.state()["a"] == (5, ["u"])
    await env.store.undo(TEAM, writes, revert, RETRIES)
    assert env.state() == NOTHING


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
    await env.store.undo(TEAM, writes, revert, RETRIES)
    assert env.state() == {"a": (0, [])}


async def test_updates_pause_while_somebody_else_writes_too() -> None:
    env = StoreEnv()
    await env.start("none", "a")
    number = [0]

    async def takes_time() -> None:
        env.now += 0.02

    async def pauses(*, raced: bool) -> list[float]:
        """Make a change, with another's write just before or not; the pauses before it."""
        number[0] += 1
        if raced:
            await env.take("a", 0)
            await env.cluster.patch(Kind.RESOURCE_QUOTAS, "a", {"metadata": {"labels": {"n": str(number[0])}}}, TEAM)
        env.show()
        env.slept.clear()
        entry = Entry(State.ADMITTED, number[0], full(mem=1))
        env.calls.clear()
        env.plan = {"patch_status:after 1": takes_time}
        async with env.store.turn(TEAM):
            await env.store.update(
                TEAM,
                lambda s: ({name: account.with_entry("u", entry) for name, account in s.accounts.items()}, None),
                retries=RETRIES,
            )
        return env.slept

    assert await pauses(raced=False) == []
    assert await pauses(raced=True) == []
    assert await pauses(raced=True) == [pytest.approx(0.06)]
    assert await pauses(raced=False) == [pytest.approx(0.06)]
    assert await pauses(raced=False) == [pytest.approx(0.048)]
    env.now += 0.25
    assert await pauses(raced=False) == []


async def test_a_turn_that_is_cancelled_while_it_pauses_is_over() -> None:
    env = StoreEnv()
    await env.start("fresh", "a")
    env.plan = {"patch_status:before 1": lambda: env.take("a", 1), "patch_status:after 2": lambda: later(env)}

    async def later(env: StoreEnv) -> None:
        env.now += 0.02

    async def forever(seconds: float) -> None:
        await asyncio.Event().wait()

    await env.store.update(TEAM, charge, retries=RETRIES)
    env.store._sleep = forever
    pausing = asyncio.create_task(env.store.turn(TEAM).__aenter__())
    await asyncio.sleep(0)
    next_one = env.store.turn(TEAM)
    waiting = asyncio.create_task(next_one.__aenter__())
    await asyncio.sleep(0)
    pausing.cancel()
    env.now += 1  # nothing has to pause any more
    await asyncio.wait_for(waiting, 0.4)
    await next_one.__aexit__(None, None, None)
    with pytest.raises(asyncio.CancelledError):
        await pausing


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
