"""The embedded cluster's pauses: interleavings, crashes and lost answers at every call of the port."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest
from tables import in_one_test

from hami_webhook.cluster.api import EventNote, Kind, NotFound, Unavailable
from hami_webhook.cluster.memory import MemoryCluster

from .harness import lease, pod

NOON = 1767268800.0  # 2026-01-01T12:00:00Z

PORT_CALLS: dict[str, Callable[[MemoryCluster], Awaitable[object]]] = {
    "get": lambda c: c.get(Kind.PODS, "p", "team"),
    "list": lambda c: c.list(Kind.PODS),
    "watch": lambda c: anext(c.watch(Kind.PODS, "0")),
    "patch": lambda c: c.patch(Kind.PODS, "p", {"metadata": {"labels": {"a": "b"}}}, "team"),
    "patch_status": lambda c: c.patch_status(Kind.PODS, "p", {"status": {"reason": "x"}}, "team"),
    "bind": lambda c: c.bind("team", "p", "", "n"),
    "record_event": lambda c: c.record_event(EventNote("Pod", "team", "p", "u", "Normal", "BindingSucceed", "message")),
    "get_lease": lambda c: c.get_lease("team", "leader"),
    "create_lease": lambda c: c.create_lease("team", lease("second", "a")),
    "replace_lease": lambda c: c.replace_lease("team", lease("leader", "b", resourceVersion="3")),
}
READS = ("get", "list", "watch", "get_lease")


def prepared(pause: Callable[[str], Awaitable[None]]) -> MemoryCluster:
    """A cluster with the pod `p` and the lease `leader` (at version 3), whose port is paused from now on."""
    cluster = MemoryCluster(lambda: NOON)

    async def fill() -> None:
        await cluster.ensure_namespace("team")
        await cluster.create(Kind.PODS, pod("team"))
        await cluster.create_lease("team", lease("leader", "a"))

    asyncio.run(fill())
    cluster.pause = pause
    return cluster


def state(cluster: MemoryCluster) -> object:
    async def read() -> object:
        cluster.pause = None
        pods = (await cluster.list(Kind.PODS)).items
        leases = [(await cluster.get_lease("team", "leader"))["spec"]]
        with suppress(NotFound):
            leases.append((await cluster.get_lease("team", "second"))["spec"])
        return pods, leases, cluster.events

    return asyncio.run(read())


@in_one_test("call", PORT_CALLS)
def test_a_pause_comes_before_every_call_and_after_every_write(call: str) -> None:
    steps: list[str] = []

    async def pause(step: str) -> None:
        steps.append(step)
        await asyncio.sleep(0)

    async def body() -> None:
        await PORT_CALLS[call](cluster)

    cluster = prepared(pause)
    asyncio.run(body())
    assert steps == ([f"{call}:before"] if call in READS else [f"{call}:before", f"{call}:after"])


@pytest.mark.parametrize("call", [call for call in PORT_CALLS if call not in READS])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_crash_before_a_write_prevents_it_and_one_after_does_not(call: str, moment: str) -> None:
    async def crash(step: str) -> None:
        if step == f"{call}:{moment}":
            raise Unavailable("connection reset")

    async def body() -> None:
        with pytest.raises(Unavailable, match="connection reset"):
            await PORT_CALLS[call](cluster)

    cluster = prepared(crash)
    reset = state(cluster)
    cluster.pause = crash
    asyncio.run(body())
    assert (state(cluster) == reset) is (moment == "before")
