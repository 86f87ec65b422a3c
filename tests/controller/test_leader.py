"""Leader election on the embedded cluster: one at a time, taken over when the leader is gone, given back at the end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from hami_webhook.cluster.api import Unavailable
from hami_webhook.cluster.memory import MemoryCluster
from hami_webhook.controller.leader import LeaderElection, LeaseDurations, LeaseHooks, LeaseLock, LeaseName


class Turning:
    """A clock that sleeping turns: everybody who sleeps wakes in the order of their times."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._count = 0

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self._count += 1
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleepers.append((self.now + seconds, self._count, future))
        await future

    async def pass_time(self, seconds: float) -> None:
        until = self.now + seconds
        while True:
            for _ in range(50):
                await asyncio.sleep(0)
            self._sleepers = [sleeper for sleeper in self._sleepers if not sleeper[2].done()]
            due = sorted(sleeper for sleeper in self._sleepers if sleeper[0] <= until)
            if not due:
                self.now = until
                return
            self.now = max(self.now, due[0][0])
            due[0][2].set_result(None)


class Candidate:
    def __init__(self, cluster: MemoryCluster, turning: Turning, name: str, skew: float = 0.0) -> None:
        self.times = 0
        """How often it led."""
        self.changes: list[bool] = []
        self.election = LeaderElection(
            cluster,
            LeaseLock(LeaseName("system", "lease"), name),
            clock=lambda: turning.now + skew,
            monotonic=turning.clock,
            terms=LeaseDurations(),
            sleep=turning.sleep,
            jitter=lambda: 0.0,
            hooks=LeaseHooks(changed=self.changes.append),
        )
        self.task = asyncio.ensure_future(self.election.run(self._lead))

    async def _lead(self) -> None:
        self.times += 1
        await asyncio.Event().wait()

    def leads(self) -> bool:
        return self.election.leading

    def skew(self) -> float | None:
        """By how much it sees its clock differ from the leader's, in seconds."""
        return self.election.skew

    async def end(self) -> None:
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task


@asynccontextmanager
async def opened() -> AsyncIterator[tuple[MemoryCluster, Turning]]:
    turning = Turning()
    cluster = MemoryCluster(turning.clock)
    await cluster.ensure_namespace("system")
    yield cluster, turning


async def kill(candidate: Candidate, cluster: MemoryCluster) -> None:
    """It ends without giving the lease back."""

    async def nothing_goes(step: str) -> None:
        raise Unavailable("the API server can't be reached")

    cluster.pause = nothing_goes
    await candidate.end()
    cluster.pause = None


async def test_one_leads_and_the_other_waits_however_their_clocks_differ() -> None:
    async with opened() as (cluster, turning):
        first, second = Candidate(cluster, turning, "first"), Candidate(cluster, turning, "second", skew=3600)
        await turning.pass_time(120)
        assert sorted((first.leads(), second.leads())) == [False, True]
        assert first.times + second.times == 1
        await first.end()
        await second.end()


@pytest.mark.parametrize("skew", [0.0, 600.0, -600.0])
async def test_who_waits_sees_by_how_much_its_clock_differs_from_the_leaders(skew: float) -> None:
    def is_seen(by: Candidate) -> bool:
        seen = by.skew()
        return seen is not None and 0 <= seen - skew <= 3

    async with opened() as (cluster, turning):
        first = Candidate(cluster, turning, "first")
        await turning.pass_time(1)
        second = Candidate(cluster, turning, "second", skew=skew)
        await turning.pass_time(1)
        assert (first.skew(), second.skew()) == (None, None)  # no renewal yet
        await turning.pass_time(20)
        assert is_seen(second)
        for renewed in ("soon", 7, None):
            lease = await cluster.get_lease("system", "lease")
            await cluster.replace_lease("system", {**lease, "spec": {**lease["spec"], "renewTime": renewed}})
            await turning.pass_time(2)
            assert is_seen(second)
        await first.end()
        await turning.pass_time(5)
        assert (second.leads(), second.skew()) == (True, None)
        await second.end()


async def test_a_leader_that_died_is_followed_after_its_lease_ran_out() -> None:
    async with opened() as (cluster, turning):
        first = Candidate(cluster, turning, "first")
        await turning.pass_time(5)
        second = Candidate(cluster, turning, "second")
        await turning.pass_time(5)
        await kill(first, cluster)
        await turning.pass_time(12)
        assert not second.leads()
        await turning.pass_time(6)
        assert second.leads()
        lease = await cluster.get_lease("system", "lease")
        assert (lease["spec"]["holderIdentity"], lease["spec"]["leaseTransitions"]) == ("second", 1)
        await second.end()


async def test_a_leader_that_ends_in_order_is_followed_at_once() -> None:
    async with opened() as (cluster, turning):
        first = Candidate(cluster, turning, "first")
        await turning.pass_time(5)
        second = Candidate(cluster, turning, "second")
        await first.end()
        await turning.pass_time(3)
        assert second.leads()
        await second.end()


async def test_a_leader_that_can_not_renew_stops_before_another_may_start() -> None:
    async with opened() as (cluster, turning):
        first = Candidate(cluster, turning, "first")
        await turning.pass_time(5)
        assert first.leads()

        async def cut_off(step: str) -> None:
            raise Unavailable("the API server can't be reached")

        cluster.pause = cut_off
        await turning.pass_time(13)
        assert not first.leads()
        cluster.pause = None
        await turning.pass_time(20)
        assert first.leads()
        assert first.times == 2
        await first.end()
        assert first.changes == [True, False, True, False]


async def test_a_leader_that_stood_still_finds_that_the_lease_is_another_s() -> None:
    """Its own timers don't show it: they stood still too."""
    async with opened() as (cluster, turning):
        still = Turning()
        first = Candidate(cluster, still, "first")
        await still.pass_time(1)
        assert await first.election.holds()
        second = Candidate(cluster, turning, "second")
        await turning.pass_time(20)
        assert second.leads()
        assert await second.election.holds()
        assert first.leads()
        assert not await first.election.holds()
        await first.end()
        await second.end()
