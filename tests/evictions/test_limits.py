"""What a tenant's pods may cost others: no more than their use of it, and a number of pods a minute.

Source: docs/preemption.md#limits.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from builders import card, node
from scheduling.placer_env import NOW

from hami_webhook.cluster.api import JSON, Forbidden, Kind
from hami_webhook.core_options import Options
from hami_webhook.evictions.policies import POD
from hami_webhook.scheduling.node_locks import LOCK

from .extended import Extended, add, extended, high, low, turns

CARDS = 20
USE = "nvidia.com/use-gpuuuid"


class Attacked:
    """Cards on one node, each taken by a pod of low priority, and the time. Pods under deletion end with their grace
    period.
    """

    def __init__(self) -> None:
        self.now = NOW
        self.each: Extended
        self._ending_since: dict[str, float] = {}

    async def pass_time(self, seconds: float) -> None:
        self.now += seconds
        for found in self.each.cluster.peek_all(Kind.PODS):
            meta = found["metadata"]
            if "deletionTimestamp" in meta:
                since = self._ending_since.setdefault(meta["name"], self.now)
                if self.now - since >= meta["deletionGracePeriodSeconds"]:
                    await self.each.end(meta["name"])

    async def name_card(self, name: str, number: int) -> None:
        patch = {"metadata": {"annotations": {USE: f"c{number % CARDS}"}}}
        await self.each.cluster.patch(Kind.PODS, name, patch, "default")


@asynccontextmanager
async def attacked(*more: JSON, grace: int = 30, cards: int = CARDS, per_minute: int = 60) -> AsyncIterator[Attacked]:
    there = [node("n1", *(card(f"c{number}", 8000) for number in range(cards)))]
    for number in range(cards):
        taken = low(f"x{number:02}", "n1", f"c{number},NVIDIA,8000,0:;")
        taken["spec"]["terminationGracePeriodSeconds"] = grace
        there.append(taken)
    env = Attacked()
    options = Options(evictions_per_minute=per_minute)
    async with extended(*there, *more, clock=lambda: env.now, options=options) as env.each:
        yield env


def whole(name: str = "high") -> JSON:
    """A pod of high priority that takes a whole card."""
    return high(gpu=1, mem=8000, name=name)


def named(name: str, number: int) -> JSON:
    made = whole(name)
    made["metadata"]["annotations"] = {USE: f"c{number % CARDS}"}
    return made


@pytest.mark.parametrize(
    ("grace", "seconds", "every", "most"), [(30, 60, 2, 2), (30, 600, 10, 6), (3600, 600, 20, 1), (0, 60, 2, 3)]
)
async def test_a_pod_that_names_another_card_again_and_again(grace: int, seconds: int, every: int, most: int) -> None:
    """It never binds: when its card is free it names another one."""
    async with attacked(named("high", 0), grace=grace) as env:
        for step in range(seconds // every):
            await env.name_card("high", step)
            await env.each.filter("high")
            await env.pass_time(every)
        assert 1 <= env.each.preemption.victims <= most


@pytest.mark.parametrize(
    ("grace", "seconds", "every", "most"), [(30, 60, 2, 2), (0, 60, 2, 3), (0, 3600, 30, 12), (3600, 3600, 120, 1)]
)
async def test_pods_that_are_made_and_deleted_again_and_again(grace: int, seconds: int, every: int, most: int) -> None:
    """Each has its own name, and names a card of its own. There are more cards than victims allowed."""
    async with attacked(grace=grace, cards=16) as env:
        for step in range(seconds // every):
            await add(env.each.cluster, named(f"high{step}", step % 16))
            await env.each.filter(f"high{step}")
            await env.each.end(f"high{step}")
            await env.pass_time(every)
        assert 1 <= env.each.preemption.victims <= most


async def test_many_pods_at_once_that_are_all_deleted_are_as_many_as_the_limit() -> None:
    async with attacked(*(named(f"high{number}", number) for number in range(20)), grace=0, per_minute=10) as env:
        for number in range(20):
            await env.each.filter(f"high{number}")
        await env.each.end(*(f"high{number}" for number in range(20)))
        for step in range(30):
            await env.pass_time(10)
            await add(env.each.cluster, named(f"again{step}", step))
            await env.each.filter(f"again{step}")
            await env.each.end(f"again{step}")
        assert env.each.preemption.victims == 10, "none in five minutes more"


async def test_pods_of_one_owner_have_others_evicted_side_by_side() -> None:
    """The ordinary day: a Deployment's pods, or a gang's; victims that take an hour hold up nobody."""
    names = [f"high{number:02}" for number in range(CARDS)]
    async with attacked(*map(whole, names), grace=3600) as env:
        for name in names:
            await env.each.filter(name)
        assert len(env.each.ending()) == CARDS
        assert env.each.preemption.counts == {"evicting": CARDS}


async def test_what_is_used_counts_for_a_minute_only() -> None:
    """A job's pods come one after the other, each has one evicted, is bound, and ends."""
    async with attacked(grace=0, per_minute=60) as env:
        for number in range(CARDS):
            name = f"high{number:02}"
            await add(env.each.cluster, whole(name))
            await env.each.filter(name)
            await env.pass_time(4)
            fits = (await env.each.filter(name))["NodeNames"]
            assert fits == ["n1"]
            assert await env.each.bind(name, "n1") == ""
            await env.each.cluster.patch(Kind.NODES, "n1", {"metadata": {"annotations": {LOCK: None}}})
        assert env.each.preemption.victims == CARDS


async def use_card(env: Attacked, name: str) -> bool:
    """Whether a pod is bound that has another one evicted, if need be and allowed."""
    await env.each.filter(name)
    await env.pass_time(0)
    if not (await env.each.filter(name))["NodeNames"]:
        return False
    assert await env.each.bind(name, "n1") == ""
    await env.each.cluster.patch(Kind.NODES, "n1", {"metadata": {"annotations": {LOCK: None}}})
    await turns()
    return True


@pytest.mark.parametrize(("ran", "victims"), [(0, 2), (59, 2), (60, 12)])
@pytest.mark.parametrize("ends", ["deleted", "Succeeded", "Failed"])
async def test_pods_that_end_right_after_they_were_bound_did_not_use_it(ran: float, ends: str, victims: int) -> None:
    """The attack: pods are bound and deleted, or exit, one after the other. An ordinary day: they run for a minute."""
    async with attacked(grace=0, cards=12) as env:
        for number in range(12):
            name = f"high{number}"
            await add(env.each.cluster, named(name, number))
            bound = await use_card(env, name)
            await env.pass_time(ran if bound else 0)
            if ends == "deleted" or not bound:
                await env.each.end(name)
            else:
                await env.each.cluster.set_phase("default", name, ends)
        assert env.each.preemption.victims == victims


async def test_a_pod_that_was_evicted_itself_would_have_stayed() -> None:
    """Two that were bound are evicted for pods of higher priority, so that their namespace waits for nothing."""
    async with attacked(grace=0, cards=4) as env:
        for number in range(2):
            evicted = named(f"high{number}", number)
            evicted["spec"]["terminationGracePeriodSeconds"] = 0
            await add(env.each.cluster, evicted)
            assert await use_card(env, f"high{number}")
            higher = high(gpu=1, mem=8000, name=f"higher{number}", priority=11)
            higher["metadata"]["annotations"] = {USE: f"c{number}"}
            await add(env.each.cluster, higher)
            await env.pass_time(1)
            assert await use_card(env, f"higher{number}")
        await add(env.each.cluster, named("last", 2))
        assert await use_card(env, "last")


@pytest.mark.parametrize(("count", "who", "are"), [(1, "a pod that was", "is"), (2, "2 pods that were", "are")])
async def test_while_pods_are_ending_for_nobody_no_others_go(count: int, who: str, are: str) -> None:
    gone = high(gpu=count, mem=8000, name="gone")
    gone["metadata"]["annotations"] = {USE: "c0,c1"}
    async with attacked(gone, named("next", 2), grace=600) as env:
        await env.each.filter("gone")
        await env.each.end("gone")
        await env.each.filter("next")
        ((reason, text),) = env.each.events("next")
        assert reason == "PreemptionLimited"
        assert text.startswith(f"preemption evicts nobody now: {who} evicted for other pods of namespace default")
        assert text.endswith(f", {are} still ending")


@pytest.mark.parametrize(("waited", "victims"), [(3599, 1), (3600, 2)])
async def test_who_takes_hours_to_end_is_waited_for_an_hour(waited: float, victims: int) -> None:
    async with attacked(named("gone", 0), named("next", 1), grace=7200) as env:
        await env.each.filter("gone")
        await env.each.end("gone")
        env.now += waited
        await env.each.filter("next")
        assert env.each.preemption.victims == victims


async def test_evictions_that_failed_cost_nothing_whatever_becomes_of_their_victims() -> None:
    async def pause(step: str) -> None:
        if step == "delete_pod:before":
            raise Forbidden("no")

    async with attacked(*(named(f"high{number}", number) for number in range(3))) as env:
        env.each.cluster.pause = pause
        for number in range(2):
            await env.each.filter(f"high{number}")
            await env.each.end(f"x{number:02}", f"high{number}")
        env.each.cluster.pause = None
        await env.each.filter("high2")
        assert env.each.ending() == ["x02"]


async def test_beyond_the_limit_pods_wait_for_the_next_minute() -> None:
    names = [f"high{number}" for number in range(5)]
    async with attacked(*map(whole, names), per_minute=3) as env:
        for name in names:
            await env.each.filter(name)
        assert len(env.each.ending()) == 3
        assert env.each.preemption.counts == {"evicting": 3, "limited": 2}
        assert env.each.events("high4") == [
            (
                "PreemptionLimited",
                "preemption evicts nobody now: 3 pods were evicted for namespace default within a minute, and 1 more "
                "would exceed 3 (--preemption-evictions-per-minute)",
            )
        ]
        assert env.each.queue.times_freed, "they are tried again when the minute is over"
        await env.pass_time(60)
        for name in names[3:]:
            await env.each.filter(name)
        assert env.each.preemption.counts["evicting"] == 5


async def test_one_pod_may_need_more_than_the_limit() -> None:
    async with attacked(high(gpu=8, mem=8000), per_minute=3) as env:
        await env.each.filter("high")
        assert len(env.each.ending()) == 8


async def test_evictions_at_kube_schedulers_request_count_too() -> None:
    """It asks about nodes where it found that pods have to go for CPU."""
    async with attacked(*(whole(f"high{number}") for number in range(4)), per_minute=2) as env:
        for number in range(4):
            answer = await env.each.preempt(f"high{number}", n1=[f"x{number:02}"])
            assert answer == {"n1": [f"x{number:02}"]}, "nobody has to go for devices besides"
        for number in range(4):
            answer = await env.each.preempt(f"high{number}", n1=["cpu"])
            assert (answer != {}) is (number < 2)
        await turns()
        reasons = [reason for reason, _ in env.each.events("high3")]
        assert reasons == ["PreemptionLimited"]


async def test_what_kube_scheduler_asked_about_and_did_not_do_costs_nothing() -> None:
    async with attacked(whole(), per_minute=1) as env:
        for _ in range(10):
            assert await env.each.preempt("high", n1=["cpu"]) != {}


async def test_after_a_restart_a_nominated_pod_has_nobody_evicted_elsewhere() -> None:
    other = [node("n2", card("other", 8000)), low("y", "n2", "other,NVIDIA,8000,0:;")]
    async with attacked(named("high", 0), *other) as env:
        await env.each.filter("high")
        assert env.each.ending() == ["x00"]
        async with extended(cluster=env.each.cluster, clock=lambda: env.now) as again:
            patch = {"metadata": {"annotations": {USE: "other"}}}
            await again.cluster.patch(Kind.PODS, "high", patch, "default")
            await again.filter("high")
            assert (again.ending(), again.nominated("high")) == (["x00"], "n1")


async def test_a_pod_that_waited_for_others_to_end_may_have_some_evicted_of_its_own() -> None:
    """What it waited for is taken by a pod of higher priority; nobody went for it so far."""
    there = [node("n1", card("a", 8000)), node("n2", card("b", 8000))]
    taken = [low("x", "n1", "a,NVIDIA,8000,0:;"), low("y", "n2", "b,NVIDIA,8000,0:;")]
    async with extended(*there, *taken, whole()) as each:
        await each.cluster.delete(Kind.PODS, "y", "default", grace=30)
        await each.filter("high")
        assert (each.nominated("high"), each.ending()) == ("n2", ["y"])
        await add(each.cluster, high(gpu=1, mem=8000, name="higher", priority=11))
        await each.filter("higher")
        assert (each.nominated("higher"), each.ending()) == ("n2", ["y"])
        await each.filter("high")
        assert (each.nominated("high"), each.ending()) == ("n1", ["x", "y"])


async def test_nothing_is_remembered_for_longer_than_it_counts() -> None:
    names = [f"high{number}" for number in range(8)]
    async with attacked(*map(whole, names), grace=0) as env:
        for name in names:
            await env.each.filter(name)
        await env.each.end(*names)
        await env.pass_time(0)
        await env.pass_time(3601)
        limits = env.each.core.limits
        assert limits.reached(POD, env.each.core.state.pods_in("default")[:1], 1) is None
        assert (limits._of_pods, limits._of_namespaces) == ({}, {})


async def test_pods_that_wait_for_who_ends_anyway_are_not_remembered_for_longer_either() -> None:
    async with attacked(whole("first"), whole("second")) as env:
        limits, state = env.each.core.limits, env.each.core.state
        first, second = (next(each for each in state.pods() if each.name == name) for name in ("first", "second"))
        limits.evicted([first], ())
        env.now += 60
        limits.evicted([second], ())
        assert len(limits._of_namespaces["default"].recent) == 1
