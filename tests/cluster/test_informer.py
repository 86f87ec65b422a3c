"""The informer: list once, follow, resume, list again when it must, and know how fresh it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from math import inf
from typing import Any

import pytest

from hami_webhook.cluster import api
from hami_webhook.cluster.api import (
    JSON,
    Forbidden,
    Gone,
    Kind,
    Listing,
    Unavailable,
    WatchEvent,
    WatchType,
)
from hami_webhook.cluster.informer import BASE_DELAY, MAX_DELAY, Change, Informer, Replaced
from hami_webhook.cluster.memory import MemoryCluster

from .harness import pod

NOON = 1767268800.0


class Bench:
    """An informer of pods on an embedded cluster, with what it told, how it slept, and a clock to turn."""

    def __init__(self, cluster: Any = None, *, history: int = 100, random: float = 1.0) -> None:
        self.now = NOON
        self.memory = MemoryCluster(lambda: self.now, history=history)
        self.message: list[Change] = []
        self.slept: list[float] = []
        self.awake = asyncio.Event()
        self.awake.set()
        self.informer = Informer(
            cluster or self.memory,
            Kind.PODS,
            clock=lambda: self.now,
            sleep=self.sleep,
            random=lambda: random,
        )

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await asyncio.sleep(0)
        await self.awake.wait()

    async def settle(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    def heard(self) -> list[object]:
        """What was told since the last look: a list of names, or type and name of an event."""
        message, self.message[:] = list(self.message), []
        return [
            [obj["metadata"]["name"] for obj in change.items]
            if isinstance(change, Replaced)
            else f"{change.type.value} {change.object['metadata']['name']}"
            for change in message
        ]


@asynccontextmanager
async def informed(*, history: int = 100) -> AsyncIterator[Bench]:
    """A bench whose informer runs and has listed the pods a and b."""
    bench = Bench(history=history)
    await bench.memory.ensure_namespace("team")
    for name in ("a", "b"):
        await bench.memory.create(Kind.PODS, pod("team", name))
    async with running(bench):
        await bench.settle()
        yield bench


@asynccontextmanager
async def running(bench: Bench) -> AsyncIterator[None]:
    task = asyncio.create_task(bench.informer.run(bench.message.append))
    yield
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_it_lists_then_follows() -> None:
    async with informed() as bench:
        assert bench.heard() == [["a", "b"]]
        assert bench.informer.synced.is_set()
        await bench.memory.create(Kind.PODS, pod("team", "c"))
        await bench.memory.patch(Kind.PODS, "a", {"metadata": {"labels": {"x": "y"}}}, "team")
        await bench.memory.delete(Kind.PODS, "b", "team")
        await bench.settle()
        assert bench.heard() == ["ADDED c", "MODIFIED a", "DELETED b"]
        assert bench.slept == []


async def test_a_broken_watch_resumes_without_listing_or_telling_twice() -> None:
    async with informed() as bench:
        bench.heard()
        steps: list[str] = []

        async def note(step: str) -> None:
            steps.append(step)

        bench.memory.pause = note
        bench.memory.close_watches()
        await bench.memory.create(Kind.PODS, pod("team", "c"))
        await bench.settle()
        assert bench.heard() == ["ADDED c"]
        assert steps == ["watch:before"]
        assert bench.slept == [BASE_DELAY]


async def test_a_version_too_old_lists_again_and_tells_the_difference() -> None:
    async with informed(history=3) as bench:
        for name in ("again", "same"):
            await bench.memory.create(Kind.PODS, pod("team", name))
        await bench.settle()
        bench.heard()
        bench.awake.clear()
        bench.memory.close_watches()
        await bench.settle()
        await bench.memory.delete(Kind.PODS, "a", "team")
        await bench.memory.patch(Kind.PODS, "b", {"metadata": {"labels": {"x": "y"}}}, "team")
        await bench.memory.delete(Kind.PODS, "again", "team")
        await bench.memory.create(Kind.PODS, pod("team", "again"))
        await bench.memory.create(Kind.PODS, pod("team", "c"))
        bench.awake.set()
        await bench.settle()
        assert bench.heard() == ["DELETED a", "DELETED again", "ADDED again", "MODIFIED b", "ADDED c"]
        await bench.memory.delete(Kind.PODS, "b", "team")
        await bench.settle()
        assert bench.heard() == ["DELETED b"]


async def test_it_knows_how_long_ago_it_heard() -> None:
    async with informed() as bench:
        assert bench.informer.last_alive == NOON
        bench.now += 61
        assert bench.informer.silence == 61
        bench.memory.bookmark()
        await bench.memory.ensure_namespace("later")
        bench.memory.bookmark()
        await bench.settle()
        assert bench.informer.last_alive == NOON + 61
        assert bench.informer.silence == 0
        bench.now += 5
        bench.memory.close_watches()
        await bench.settle()
        assert bench.informer.last_alive == NOON + 61


Step = Listing | WatchEvent | Exception | None


class Scripted:
    """A cluster that plays one step after another, then waits for ever. None ends a watch in good order."""

    def __init__(self, *steps: Step) -> None:
        self.steps = list(steps)
        self.versions: list[str] = []

    async def next_step(self) -> Step:
        if not self.steps:
            await asyncio.Event().wait()
        step = self.steps.pop(0)
        if isinstance(step, Exception):
            raise step
        return step

    async def list(self, kind: Kind, namespace: str = "", *, node: str = "") -> Listing:
        step = await self.next_step()
        assert isinstance(step, Listing)
        return step

    async def watch(self, kind: Kind, resource_version: str, *, node: str = "") -> AsyncIterator[WatchEvent]:
        self.versions.append(resource_version)
        while (step := await self.next_step()) is not None:
            assert isinstance(step, WatchEvent)
            yield step


def event(version: str, type_: WatchType = WatchType.MODIFIED) -> WatchEvent:
    obj: JSON = {"metadata": {"name": "p", "namespace": "team", "resourceVersion": version}}
    return WatchEvent(type_, obj)


def play(*steps: Step) -> tuple[Bench, Scripted]:
    script = Scripted(*steps)

    async def body() -> Bench:
        bench = Bench(script)
        async with running(bench):
            for _ in range(10):
                await bench.settle()
        return bench

    return asyncio.run(body()), script


def test_it_is_not_synced_before_the_first_list() -> None:
    bench, _ = play(Unavailable("down"), Forbidden("no"))
    assert not bench.informer.synced.is_set()
    assert bench.informer.last_alive is None
    assert bench.informer.silence == inf
    assert bench.message == []


def test_failures_back_off_exponentially_up_to_a_limit() -> None:
    bench, _ = play(*[Unavailable("down")] * 9)
    assert bench.slept == [BASE_DELAY * 2**n for n in range(6)] + [MAX_DELAY] * 3


def test_progress_resets_the_backoff() -> None:
    empty = Listing([], "1")
    bench, script = play(
        Unavailable("1"), empty, Unavailable("2"), event("2"), Unavailable("3"), None, Gone("4"), empty
    )
    assert bench.slept == [BASE_DELAY, 2 * BASE_DELAY, BASE_DELAY, BASE_DELAY, BASE_DELAY]
    assert script.versions == ["1", "1", "2", "2", "1"]


def test_a_list_alone_is_no_progress() -> None:
    empty = Listing([], "1")
    bench, _ = play(empty, Gone("1"), empty, Gone("2"), empty, Gone("3"), empty)
    assert bench.slept == [BASE_DELAY, 2 * BASE_DELAY, 4 * BASE_DELAY]


def test_a_version_that_is_forgotten_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    empty = Listing([], "1")
    play(empty, Gone("too old resource version: 1 (2)"), empty, Unavailable("down"))
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warned == ["watching pods: Unavailable: down"]


def test_an_orderly_end_with_news_resumes_at_once() -> None:
    bench, script = play(Listing([], "1"), event("7", WatchType.BOOKMARK), None, event("8"), None, None)
    assert script.versions == ["1", "7", "8", "8"]
    assert bench.slept == [BASE_DELAY]
    assert bench.heard() == [[], "MODIFIED p"]


async def test_jitter_is_between_half_and_all_of_the_delay() -> None:
    bench = Bench(Scripted(Unavailable("down")), random=0.0)
    async with running(bench):
        await bench.settle()
    assert bench.slept == [BASE_DELAY / 2]


async def test_a_handlers_bug_ends_the_run() -> None:
    def broken(change: Change) -> None:
        raise RuntimeError("bug")

    script: Any = Scripted(Listing([], "1"))
    informer = Informer(script, Kind.PODS, clock=lambda: 0, sleep=asyncio.sleep, random=lambda: 0.0)
    with pytest.raises(RuntimeError, match="bug"):
        await informer.run(broken)
    assert not informer.synced.is_set()


async def test_an_event_that_is_no_object_ends_the_run_and_the_next_one_lists_again() -> None:
    event = WatchEvent(WatchType.ADDED, {"kind": "Status"})
    listing = Listing([pod("team", "a")], "1")
    script: Any = Scripted(listing, event, Listing([pod("team", "b")], "2"))
    bench = Bench(script)
    with pytest.raises(KeyError):
        await bench.informer.run(bench.message.append)
    async with running(bench):
        await bench.settle()
        assert bench.heard() == [["a"], "DELETED a", "ADDED b"]
        assert script.versions == ["1", "2"]


class Uninstalled:
    """A cluster that doesn't have a kind, or doesn't let us list it, until `there`."""

    def __init__(self, memory: MemoryCluster, error: api.ClusterError) -> None:
        self.memory, self.error, self.there = memory, error, False

    async def list(self, kind: Kind, *, node: str = "") -> Listing:
        if not self.there:
            raise self.error
        return await self.memory.list(kind, node=node)

    async def watch(self, kind: Kind, version: str, *, node: str = "") -> AsyncIterator[WatchEvent]:
        async for event in self.memory.watch(kind, version, node=node):
            if not self.there:
                raise self.error
            yield event


@pytest.mark.parametrize("error", [api.NotFound("404 page not found"), Forbidden("devices is forbidden")])
async def test_an_optional_kind_that_is_not_there_is_looked_for_now_and_then(
    error: api.ClusterError, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench()
    cluster = Uninstalled(bench.memory, error)
    again = asyncio.Event()

    async def sleep(seconds: float) -> None:
        bench.slept.append(seconds)
        await again.wait()
        again.clear()

    informer = Informer(
        cluster,  # type: ignore[arg-type]  # as much of one as an informer needs
        Kind.DEVICES,
        clock=lambda: bench.now,
        sleep=sleep,
        random=lambda: 1.0,
        look_again=300.0,
    )
    await bench.memory.create(Kind.DEVICES, {"metadata": {"name": "n1"}})
    running = asyncio.create_task(informer.run(bench.message.append))

    async def look() -> list[object]:
        again.set()
        await bench.settle()
        return bench.heard()

    await bench.settle()
    assert informer.synced.is_set()
    assert bench.heard() == [[]]
    assert await look() == []
    assert bench.slept == [300.0, 300.0]
    for seconds, silence in (300.0, 0.0), (300.0, 0.0), (1.0, 601.0):  # what isn't installed says nothing
        bench.now += seconds
        assert informer.silence == silence
    cluster.there = True
    assert await look() == ["ADDED n1"]
    bench.now += 1
    assert informer.silence == 1.0
    await bench.memory.create(Kind.DEVICES, {"metadata": {"name": "n2"}})
    await bench.settle()
    assert bench.heard() == ["ADDED n2"]
    cluster.there = False  # uninstalled, or the right was taken away
    await bench.memory.create(Kind.DEVICES, {"metadata": {"name": "n3"}})
    await bench.settle()
    assert bench.heard() == ["DELETED n1", "DELETED n2"]
    assert bench.slept[2:] == [300.0]
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    texts = [record.getMessage() for record in caplog.records]
    message = f"doing without devices.scheduling.koordinator.sh, looking again every 300 s: {error}"
    assert texts == [message, message]  # once each time it goes missing


async def test_another_kind_must_be_there() -> None:
    bench = Bench()
    bench.informer = Informer(
        Uninstalled(bench.memory, api.NotFound("404")),  # type: ignore[arg-type]  # as above
        Kind.PODS,
        clock=lambda: bench.now,
        sleep=bench.sleep,
        random=lambda: 1.0,
    )
    bench.awake.clear()
    running = asyncio.create_task(bench.informer.run(bench.message.append))
    await bench.settle()
    assert not bench.informer.synced.is_set()
    assert bench.slept == [BASE_DELAY]
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
