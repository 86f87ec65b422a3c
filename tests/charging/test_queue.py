"""The loop that drives charges against a cluster that fails, lags and changes under it.

Source: docs/spec/quota.md#7, #10, #11.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext, suppress
from math import inf
from typing import Any

import pytest
from quota.objects import GPU, MEM, NOON, TEAM, account_of, full, pod, quota, read_pod, vendors
from virtual_time import in_virtual_time

from hami_webhook.charging import store
from hami_webhook.charging.queue import ChargeQueue, ChargeResult
from hami_webhook.charging.recomputer import NoPods, PodReader, Recomputer
from hami_webhook.charging.sources import ResourceQuotas
from hami_webhook.charging.store import QuotaStore
from hami_webhook.cluster.api import ClusterError, Conflict, Forbidden, Kind, Unavailable
from hami_webhook.cluster.memory import MemoryCluster
from hami_webhook.core_options import Options
from hami_webhook.kube.objects import ResourceQuota
from hami_webhook.quota.account import ChargeRequest
from hami_webhook.quota.pricing import ClusterCapacity, price_pending
from hami_webhook.quota.refusals import Refusal

Notified = Callable[["Desk"], Awaitable[None]]


def ask(identity: str = "u", *, dry_run: bool = False, reservation: str = "", **amounts: Any) -> ChargeRequest:
    asked = read_pod("p", uid=identity, **(amounts or {"gpu": 1, "mem": 5}))
    return ChargeRequest(identity, asked, price_pending(asked, vendors(), ClusterCapacity()), dry_run, reservation)


class Desk:
    """A cluster with quotas `a` and `b` and a charger on it; what the cluster is asked is noted."""

    def __init__(self, **how: Any) -> None:
        self.now = NOON
        self.cluster = MemoryCluster(lambda: self.now, pause=self.pause)
        self.steps: list[str] = []
        self.slept: list[float] = []
        self.trouble: Callable[[str], Awaitable[None]] | None = None
        self.cached: Sequence[ResourceQuota] | None = None
        self.silent_since = float("inf")
        common: dict[str, Any] = {"clock": lambda: self.now, "sleep": self.sleep}
        self.store = QuotaStore(ResourceQuotas(self.cluster), vendors(), cache=self, jitter=lambda: 1.0, **common)
        others = QuotaStore(ResourceQuotas(self.cluster), vendors(), **common, jitter=lambda: 1.0)
        self.recomputer = Recomputer(
            others, PodReader(self.cluster), vendors(), ClusterCapacity(), clock=lambda: self.now
        )
        recomputer = self.recomputer
        self.charger = ChargeQueue(self.store, recomputer=recomputer, **common, **how)
        self.rival = ChargeQueue(others, clock=lambda: self.now, recomputer=recomputer)

    def quotas(self, scope: str) -> Sequence[ResourceQuota]:
        return self.cached or ()

    def silence(self) -> float:
        """`silent_since` may be infinite, for a watch that is always alive; nothing is believed without a cache."""
        return inf if self.cached is None else self.now - self.silent_since

    async def pause(self, step: str) -> None:
        self.steps.append(step)
        self.cached = None  # it is believed until the first request
        if self.trouble is not None:
            await self.trouble(step)

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    async def add(self, name: str, known: bool = True, **hard: Any) -> None:
        made = quota(name, **hard)
        status = {"hard": made["spec"]["hard"], "used": dict.fromkeys(made["spec"]["hard"], "0")}
        await self.cluster.create(Kind.RESOURCE_QUOTAS, {**made, "status": status if known else {}})

    def read(self, name: str = "a") -> ResourceQuota:
        return ResourceQuota.from_object(self.cluster.peek(Kind.RESOURCE_QUOTAS, name, TEAM))

    def state(self, name: str = "a") -> tuple[int, set[str]]:
        """Memory used, and the ledger's ids."""
        item = self.cluster.peek(Kind.RESOURCE_QUOTAS, name, TEAM)
        assert item is not None
        return account_of(item).used.get(MEM, 0), set(account_of(item).ledger)

    def fail(self, failure: type[ClusterError], at: str, numbers: Sequence[int]) -> None:
        """Fail the given occurrences (from 1) of a step."""
        count = [0]

        async def trouble(step: str) -> None:
            if step == at:
                count[0] += 1
                if count[0] in numbers:
                    raise failure("no answer")

        self.trouble = trouble


def desk(hard: dict[str, int] | None = None, **how: Any) -> Callable[[Notified], Callable[[], None]]:
    def make(reported: Notified) -> Callable[[], None]:
        async def whole() -> None:
            one = Desk(**how)
            await one.cluster.ensure_namespace(TEAM)
            for name, mem in ({"a": 10, "b": 10} if hard is None else hard).items():
                await one.add(name, mem=mem)
            await reported(one)

        def run() -> None:
            asyncio.run(whole())

        run.__name__ = run.__qualname__ = reported.__name__
        return run

    return make


@desk()
async def test_a_pod_that_costs_nothing_is_allowed_without_a_look(one: Desk) -> None:
    one.fail(Unavailable, "list:before", range(9))
    assert await one.charger.charge(ask(gpu=0)) == ChargeResult()
    assert one.steps == []


@desk()
async def test_a_charge_reads_once_and_writes_each_quota_once_in_name_order(one: Desk) -> None:
    assert await one.charger.charge(ask()) == ChargeResult({"a": full(mem=5), "b": full(mem=5)})
    assert one.steps == ["list:before", *["patch_status:before", "patch_status:after"] * 2]
    assert one.state("a") == one.state("b") == (5, {"u"})
    one.steps.clear()
    # another attempt makes the entries its own, so that the first one takes nothing back that it relies on
    assert await one.charger.charge(ask()) == ChargeResult({"a": full(mem=5), "b": full(mem=5)})
    assert one.steps == ["list:before", *["patch_status:before", "patch_status:after"] * 2]
    assert one.state("a") == one.state("b") == (5, {"u"})
    await one.charger.charge(ask(gpu=1, mem=7))
    assert one.state() == (7, {"u"})


@pytest.mark.parametrize(("lost", "slept"), [(1, [0.004]), (8, [0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.2, 0.2])])
def test_lost_races_are_tried_again_after_a_pause(lost: int, slept: list[float]) -> None:
    @desk({"a": 10})
    async def reported(one: Desk) -> None:
        one.fail(Conflict, "patch_status:before", range(1, lost + 1))
        assert isinstance(await one.charger.charge(ask()), ChargeResult)
        assert one.slept == slept
        assert one.state() == (5, {"u"})
        assert one.charger.counts.conflicts == lost

    reported()


@desk({"a": 10})
async def test_a_pod_that_comes_during_a_lost_race_is_charged_by_the_next_write(one: Desk) -> None:
    later: list[asyncio.Task[Any]] = []

    async def trouble(step: str) -> None:
        if step == "patch_status:before":
            one.trouble = None
            later.append(asyncio.create_task(one.charger.charge(ask("v"))))
            await asyncio.sleep(0)
            raise Conflict("another replica was first")

    one.trouble = trouble
    assert isinstance(await one.charger.charge(ask("u")), ChargeResult)
    assert isinstance(await later[0], ChargeResult)
    assert one.state() == (10, {"u", "v"})
    assert one.charger.counts.writes == 2


@desk()
async def test_sixty_lost_races_are_a_retryable_refusal_that_leaves_nothing(one: Desk) -> None:
    one.fail(Conflict, "patch_status:before", range(2, 62))
    assert await one.charger.charge(ask()) == Refusal(
        503, "quota: can't charge namespace team now: 60 conflicting writes; try again"
    )
    assert one.state("a") == one.state("b") == (0, set())
    assert one.charger.counts.denied == {"unavailable": 1}


@pytest.mark.parametrize("failure", [Unavailable, Forbidden])
@pytest.mark.parametrize(
    ("step", "number"), [("list:before", 1), ("patch_status:before", 1), ("patch_status:before", 2)]
)
def test_a_failing_cluster_refuses_and_leaves_nothing(failure: type[ClusterError], step: str, number: int) -> None:
    @desk()
    async def reported(one: Desk) -> None:
        one.fail(failure, step, [number])
        assert await one.charger.charge(ask()) == Refusal(
            503, "quota: can't charge namespace team now: no answer; try again"
        )
        assert one.state("a") == one.state("b") == (0, set())

    reported()


@desk({"a": 10, "b": 3})
async def test_a_later_quota_that_refuses_after_a_conflict_undoes_the_earlier(one: Desk) -> None:
    await one.cluster.patch(Kind.RESOURCE_QUOTAS, "b", {"spec": {"hard": {MEM: "10"}}}, TEAM)

    async def trouble(step: str) -> None:
        if step == "patch_status:before" and one.state("a") == (5, {"u"}):
            one.trouble = None
            await one.cluster.patch(Kind.RESOURCE_QUOTAS, "b", {"spec": {"hard": {MEM: "3"}}}, TEAM)

    one.trouble = trouble
    outcome = await one.charger.charge(ask())
    assert isinstance(outcome, Refusal)
    assert "exceeded quota: b" in outcome.message
    assert one.state("a") == one.state("b") == (0, set())


@desk({"a": 10, "b": 10})
async def test_an_undo_restores_what_stood_there_before(one: Desk) -> None:
    await one.charger.charge(ask(gpu=1, mem=2))

    async def trouble(step: str) -> None:
        if step == "patch_status:before" and one.state("a")[0] == 5:
            one.trouble = None
            await one.cluster.patch(Kind.RESOURCE_QUOTAS, "b", {"spec": {"hard": {MEM: "3"}}}, TEAM)

    one.trouble = trouble
    assert isinstance(await one.charger.charge(ask()), Refusal)
    assert one.state("a") == one.state("b") == (2, {"u"})


@desk({"a": 10})
async def test_a_dry_run_writes_nothing(one: Desk) -> None:
    assert isinstance(await one.charger.charge(ask(dry_run=True)), ChargeResult)
    assert isinstance(await one.charger.charge(ask(dry_run=True, gpu=1, mem=11)), Refusal)
    assert one.steps == ["list:before"] * 2


@pytest.mark.parametrize("dry_run", [True, False])
def test_unknown_used_is_computed_in_the_charge(dry_run: bool) -> None:
    @desk({})
    async def reported(one: Desk) -> None:
        await one.add("a", known=False, mem=10)
        await one.cluster.create(Kind.PODS, pod("other", gpu=1, mem=6))
        outcome = await one.charger.charge(ask(dry_run=dry_run))
        assert isinstance(outcome, Refusal)
        assert outcome.message.endswith(
            f"requested: {MEM}=5, used: {MEM}=6, limited: {MEM}=10 (memory: 5Mi requested, 6Mi used, 10Mi limited)"
        )
        assert one.read().used == ({} if dry_run else {MEM: "6"})
        assert isinstance(await one.charger.charge(ask(dry_run=dry_run, gpu=1, mem=4)), ChargeResult)
        assert one.read().used == ({} if dry_run else {MEM: "10"})

    reported()


@desk({})
async def test_used_that_cannot_be_computed_is_said_to_be_unknown(one: Desk) -> None:
    await one.add("a", known=False, mem=10, gpu=2)
    one.fail(Unavailable, "get:before", range(9))
    assert await one.charger.charge(ask()) == Refusal(403, f"status unknown for quota: a, resources: {GPU},{MEM}")
    assert one.charger.counts.denied == {"unknown": 1}


@desk({"a": 100}, max_ledger=2)
async def test_a_full_ledger_is_pruned(one: Desk) -> None:
    await one.charger.charge(ask("x"))
    await one.charger.charge(ask("y"))
    outcome = await one.charger.charge(ask("z"))
    assert isinstance(outcome, Refusal)
    assert "the ledger of quota a is full (2 entries)" in outcome.message
    one.now += 45
    assert isinstance(await one.charger.charge(ask("z")), ChargeResult)
    assert one.state() == (5, {"z"})


@desk({"a": 10})
async def test_requests_that_wait_together_are_one_write(one: Desk) -> None:
    outcomes = await asyncio.gather(*(one.charger.charge(ask(f"u{n}")) for n in range(4)))
    assert [type(outcome) for outcome in outcomes] == [ChargeResult, ChargeResult, Refusal, Refusal]
    assert one.charger.counts.writes == 1
    assert one.charger.counts.denied == {"exceeded": 2}


@desk({"a": 10})
async def test_a_refused_twin_in_a_batch_does_not_undo_its_admitted_twin(one: Desk) -> None:
    outcomes = await asyncio.gather(one.charger.charge(ask()), one.charger.charge(ask(gpu=1, mem=11)))
    assert [type(outcome) for outcome in outcomes] == [ChargeResult, Refusal]
    assert one.state() == (5, {"u"})


async def ever(step: str) -> None:
    await asyncio.Event().wait()


@in_virtual_time
async def test_a_charge_is_waited_for_as_long_as_its_review_may_take() -> None:
    """On a busy machine, or with a replica more than usual while one is replaced, a write takes its seconds."""
    one = Desk(timeout=Options().charge_timeout)
    await one.cluster.ensure_namespace(TEAM)
    await one.add("a", mem=10)

    one.trouble = lambda step: asyncio.sleep(8 if step == "patch_status:before" else 0)
    assert await one.charger.charge(ask(), 9.0) == ChargeResult({"a": full(mem=5)})
    assert isinstance(await one.charger.charge(ask("v"), 7.0), Refusal)


@desk({"a": 10}, timeout=0)
async def test_out_of_time_is_a_retryable_refusal(one: Desk) -> None:
    one.trouble = ever
    assert await one.charger.charge(ask()) == Refusal(
        503, "quota: can't charge namespace team now: no answer from the API server in time; try again"
    )


@desk({"a": 10})
async def test_who_gave_up_while_waiting_is_not_charged(one: Desk) -> None:
    gate = asyncio.Event()

    async def hold(step: str) -> None:
        await gate.wait()

    one.trouble = hold
    first = asyncio.create_task(one.charger.charge(ask("first")))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert isinstance(await one.charger.charge(ask("late"), 0), Refusal)
    gate.set()
    assert isinstance(await first, ChargeResult)
    for _ in range(20):
        await asyncio.sleep(0)
    assert one.state() == (5, {"first"})
    assert one.steps.count("patch_status:before") == 1, "not even to be taken out again"


@desk({"a": 10}, shows=lambda account, identity, entry: identity == "old")
async def test_an_entry_whose_pod_shows_the_same_goes_with_the_next_charge_but_that_of_its_own(one: Desk) -> None:
    for _ in range(2):
        await one.charger.charge(ask("old"))
        assert one.state() == (5, {"old"})
    await one.charger.charge(ask("new", gpu=1, mem=3))
    assert one.state() == (8, {"new"})


@desk({"a": 10})
async def test_a_bug_is_a_retryable_refusal_and_the_next_one_is_served(one: Desk) -> None:
    def broken(namespace: str) -> Any:
        raise RuntimeError("a bug")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(one, "cached", [])
        patch.setattr(one, "quotas", broken)
        outcome = await one.charger.charge(ask())
    assert isinstance(outcome, Refusal)
    assert "an internal error" in outcome.message
    assert isinstance(await one.charger.charge(ask()), ChargeResult)


@pytest.mark.parametrize("conflicts", [5, 6])
def test_a_recompute_is_tried_six_times(conflicts: int) -> None:
    @desk({"a": 10})
    async def reported(one: Desk) -> None:
        await one.cluster.create(Kind.PODS, pod("p", gpu=1, mem=5))
        one.fail(Conflict, "patch_status:before", range(1, conflicts + 1))
        with pytest.raises(Conflict) if conflicts == 6 else nullcontext():
            assert (await one.recomputer.run(TEAM, "a")).after.used == full(mem=5)
        assert len(one.slept) == 5

    reported()


@pytest.mark.parametrize(("held", "lost"), [(True, range(2)), (False, range(3, 7))])
def test_a_recompute_in_a_burst_wins_its_race_only_where_charges_let_it_go_first(held: bool, lost: range) -> None:
    """It is slower than they are: it lists pods between its read and its write."""

    @desk({"a": 10**6})
    async def reported(one: Desk) -> None:
        async def takes_time(step: str) -> None:
            await asyncio.sleep(0.01 if asyncio.current_task() is recomputing else 0)

        async def charge_on(number: int) -> None:
            while not recomputing.done():
                await one.charger.charge(ask(f"{number}-{len(one.steps)}"))

        async def recompute() -> None:
            async with one.store.turn(TEAM) if held else nullcontext():
                with suppress(Conflict):
                    await one.recomputer.run(TEAM, "a")

        drift = {"status": {"used": {MEM: "100"}}}
        await one.cluster.patch_status(Kind.RESOURCE_QUOTAS, "a", drift, TEAM)
        recomputing = asyncio.create_task(recompute())
        one.trouble = takes_time
        charging = [asyncio.create_task(charge_on(number)) for number in range(3)]
        await asyncio.gather(recomputing, *charging)
        assert len([pause for pause in one.slept if pause >= 0.1]) in lost

    reported()


@desk({"a": 1000})
async def test_charges_are_held_half_a_second_at_most_however_many_batches_wait(one: Desk) -> None:
    loop = asyncio.get_running_loop()
    with pytest.MonkeyPatch.context() as patching:
        patching.setattr(store, "LONGEST_TURN", 0.2)
        async with one.store.turn(TEAM):
            began = loop.time()
            for number in range(50):
                assert isinstance(await one.charger.charge(ask(f"u{number}")), ChargeResult)
            assert 0.2 <= loop.time() - began < 5  # where each waited that long it would be 10


@pytest.mark.parametrize(("gone", "kept"), [(None, set()), ((), {"u"})], ids=["by the caches", "none"])
def test_whose_pods_are_gone_says_who_asks_for_a_recompute_before_the_caches(
    gone: tuple[str, ...] | None, kept: set[str]
) -> None:
    class Gone(NoPods):
        gone = ("u",)

    @desk({"a": 10})
    async def reported(one: Desk) -> None:
        await one.charger.charge(ask())
        pods = PodReader(one.cluster, Gone())
        recomputer = Recomputer(one.store, pods, vendors(), ClusterCapacity(), clock=lambda: one.now)
        await recomputer.run(TEAM, "a", gone=gone)
        assert one.state()[1] == kept

    reported()
