"""Charging a placement before its annotations are written, and taking that back (docs/spec/quota.md#8)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
import virtual_time
from builders import card, node
from msgspec.structs import replace
from quota.objects import LARGE, MEM, NOON, SMALL, full, pod, quota
from quota.quota_env import QuotaEnv

from hami_webhook.charging.placements import NoRoom, PlacementCharger
from hami_webhook.charging.queue import ChargeQueue
from hami_webhook.charging.queues import ChargeQueues
from hami_webhook.charging.sources import ResourceQuotas
from hami_webhook.charging.store import QuotaStore
from hami_webhook.cluster.api import Kind
from hami_webhook.kube.objects import RESERVATION, Pod
from hami_webhook.quota.ledger import LEDGER, Entry, State, encode, reservation_id
from hami_webhook.quota.pricing import Charge

L, S = node("n1", card("GPU-L", LARGE)), node("n2", card("GPU-S", SMALL))


def committer(env: QuotaEnv, attempt: str = "") -> PlacementCharger:
    """That of a scheduler; `attempt` is the mark of its attempts, instead of one each."""
    queue = env.core.queues.own
    if attempt:
        store = QuotaStore(
            ResourceQuotas(env.cluster),
            env.vendors,
            clock=lambda: env.now,
            cache=env.core.caches,
            new_attempt=lambda: attempt,
        )
        queue = ChargeQueue(store, clock=lambda: env.now, recomputer=env.core.recomputer)
    queues = ChargeQueues(queue)
    return PlacementCharger(queues, env.vendors, env.core.state.capacity, clock=lambda: env.now, placement_ttl=300)


def actual(mem: int) -> Charge:
    return Charge(full(gpu=1, mem=mem), placed=True)


def committed(
    message: Callable[[QuotaEnv, Pod], Awaitable[None]],
    *entries: tuple[str, Entry],
    used: int = 8192,
    hard: int = 20000,
    seen: bool = True,
) -> None:
    """A story with a pod of half a card (floor 8192) in a namespace with this ledger and used.

    Without `seen` the cache shows the quota as it was before.
    """

    async def run() -> None:
        made = quota(mem=hard)
        made["metadata"]["annotations"] = {LEDGER: encode(dict(entries))} if entries else {}
        made["status"] = {"hard": {MEM: str(hard)}, "used": {MEM: str(used)}}
        waiting = pod(gpu=1, percent=50, uid="u", annotations={RESERVATION: "stamp"})
        async with QuotaEnv(L, S, made, waiting, replicas=2) as env:
            before = env.quota()
            if not seen:
                await env.silence(0)
            await env.cluster.replace(
                Kind.RESOURCE_QUOTAS,
                {**before, "metadata": {**before["metadata"], **made["metadata"]}, "status": made["status"]},
            )
            if seen:
                await env.drain()
            await message(env, env.pod("p"))

    virtual_time.run(run())


def e(state: State, mem: int, actual: int | None = None, time: int = int(NOON)) -> Entry:
    return Entry(state, time, full(mem=mem), None if actual is None else full(mem=actual))


PLACED = replace(e(State.PLACING, 12288, 12288), attempt="mine")


@pytest.mark.parametrize(
    ("before", "mem", "after", "used"),
    [
        ((), 12288, {"u": PLACED}, 12288),
        ((("u", e(State.WAITING, 8192)),), 12288, {"u": PLACED}, 12288),
        ((("u", e(State.ADMITTED, 8192)),), 12288, {"u": PLACED}, 12288),
        ((("stamp", e(State.ADMITTED, 8192)),), 12288, {"stamp": e(State.ADMITTED, 8192), "u": PLACED}, 12288),
        (((reservation_id("stamp"), e(State.ADMITTED, 8192)),), 12288, {"u": PLACED}, 12288),
        ((("u", e(State.WAITING, 8192)),), 8192, {"u": e(State.WAITING, 8192)}, 8192),
        ((("u", e(State.WAITING, 8192)),), 5000, {"u": e(State.WAITING, 8192)}, 8192),
        # an entry of a former placement is renewed, though nothing more is charged
        (
            (("u", e(State.PLACING, 8192, 8192, 5)),),
            5000,
            {"u": replace(e(State.PLACING, 8192, 5000), attempt="mine")},
            8192,
        ),
    ],
)
def test_what_a_placement_costs_more_is_charged_first(
    before: tuple[tuple[str, Entry], ...], mem: int, after: dict[str, Entry], used: int
) -> None:
    async def message(env: QuotaEnv, waiting: Pod) -> None:
        commitment = await committer(env, "mine").charge(waiting, actual(mem))
        assert (env.ledger(), env.mem()) == (after, used)
        await commitment.release()
        assert (env.ledger(), env.mem()) == (dict(before), 8192)

    committed(message, *before)


@pytest.mark.parametrize(
    ("entries", "mem", "used", "steps"),
    [
        ((), 12288, 8192 + 4096, ["patch_status:before", "get:before", "patch_status:before", "patch_status:after"]),
        ((("u", e(State.WAITING, 8192)),), 8192, 8192, []),
        # somebody else's entry, by which the cache is older than the quota
        ((("x", e(State.ADMITTED, 8192)),), 5000, 8192, []),
    ],
)
def test_what_the_cache_does_not_show_yet_is_read_after_a_conflict(
    entries: tuple[tuple[str, Entry], ...], mem: int, used: int, steps: list[str]
) -> None:
    async def message(env: QuotaEnv, waiting: Pod) -> None:
        taken = noted(env)
        await committer(env).charge(waiting, actual(mem))
        assert (env.mem(), taken) == (used, steps)

    committed(message, *entries, seen=False)


def noted(env: QuotaEnv) -> list[str]:
    """The steps that the cluster takes from now on."""
    steps: list[str] = []

    async def note(step: str) -> None:
        steps.append(step)

    env.cluster.pause = note
    return steps


async def test_a_namespace_without_quotas_costs_no_call() -> None:
    async with QuotaEnv(L, pod(gpu=1, percent=50, uid="u")) as env:
        steps = noted(env)
        env.now += 50  # the watch is silent
        charge = await committer(env).charge(env.pod("p"), actual(12288))
        await charge.release()
        assert steps == []


@pytest.mark.parametrize(("silent", "steps"), [(1.9, []), (2.1, ["get:before"])])
def test_an_entry_that_makes_a_write_needless_is_read_if_the_watch_is_silent(silent: float, steps: list[str]) -> None:
    async def message(env: QuotaEnv, waiting: Pod) -> None:
        taken = noted(env)
        env.now += silent
        await committer(env).charge(waiting, actual(12288))
        assert (env.mem(), taken) == (12288, steps)

    committed(message, ("u", e(State.WAITING, 12288)), used=12288)


def test_a_placement_that_costs_no_more_than_the_pod_by_itself_is_not_read_though_the_watch_is_silent() -> None:
    async def message(env: QuotaEnv, waiting: Pod) -> None:
        taken = noted(env)
        env.now += 2.1
        await committer(env).charge(waiting, actual(8192))
        assert (env.mem(), taken) == (8192, [])

    committed(message)


@pytest.mark.parametrize("seconds", [0, 1])
def test_of_two_attempts_the_first_takes_nothing_of_the_second_back(seconds: int) -> None:
    """Two schedulers place a pod within a second: the one whose Binding fails undoes nothing that the other relies on.

    `python -m hack.explore` found it.
    """

    async def message(env: QuotaEnv, waiting: Pod) -> None:
        first = await committer(env).charge(waiting, actual(12288))
        env.now += seconds
        second = await committer(env).charge(waiting, actual(12288))
        third = await committer(env).charge(waiting, actual(12288))
        await first.release()
        await second.release()
        assert env.mem() == 12288
        await third.release()
        assert env.mem() == 12288  # it raised nothing; the recompute goes by the pod

    committed(message)


async def test_of_charges_in_one_write_each_is_refused_undone_and_given_up_by_itself() -> None:
    waiting = [pod(name, gpu=1, percent=50, uid=f"uid-{name}") for name in ("refused", "undone", "given-up", "kept")]
    async with QuotaEnv(L, S, quota(mem=4 * 8192 + 3 * 4096), *waiting) as env:
        await env.run(2)
        charger = committer(env)
        writing = asyncio.Event()

        async def note(step: str) -> None:
            if step == "patch_status:after":
                writing.set()
                await asyncio.sleep(0)

        env.cluster.pause = note
        amounts = {"refused": 8192 + 5 * 4096, "undone": 12288, "given-up": 12288, "kept": 12288}
        charges = {
            name: asyncio.create_task(charger.charge(env.pod(name), actual(mem))) for name, mem in amounts.items()
        }
        await writing.wait()
        charges["given-up"].cancel()
        await asyncio.wait(charges.values())
        assert isinstance(charges["refused"].exception(), NoRoom)
        assert charges["given-up"].cancelled()
        await env.drain()
        assert [*env.ledger()][1:] == ["uid-kept", "uid-undone"]  # the first one is what they cost while they wait
        await charges["undone"].result().release()
        assert ([*env.ledger()][1:], env.mem()) == (["uid-kept"], 4 * 8192 + 4096)
