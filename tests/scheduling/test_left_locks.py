"""Node locks that a former process took for pods that it never bound."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from builders import card, node, pod

from hami_webhook.cluster.api import Kind
from hami_webhook.devices.lock_annotations import COMMON_LOCK, NodeLock
from hami_webhook.kube.objects import Node, format_time
from hami_webhook.scheduling.left_locks import release_left_locks

from .extender_env import MODES, ExtenderEnv, turns

PLAIN = NodeLock("example.com/lock", 60.0, names_holder=False)


def show_node(env: ExtenderEnv) -> None:
    """The watch shows the node as it is now."""
    found = env.cluster.peek(Kind.NODES, "n")
    assert found is not None
    env.state.set_node(Node.from_object(found), env.now)


async def nothing(env: ExtenderEnv) -> None:
    """The pod waits."""


async def the_pod_is_bound(env: ExtenderEnv) -> None:
    assert await env.bind("p", "n") == ""
    env.hear("p")


async def the_pod_is_made_anew(env: ExtenderEnv) -> None:
    uid = env.read("p").uid
    await env.cluster.delete(Kind.PODS, "p", "default")
    env.state.remove_pod(uid)
    await env.add(pod("p", gpu=1, mem=1000))


async def the_pod_is_gone(env: ExtenderEnv) -> None:
    """Who binds another finds that out by itself."""
    uid = env.read("p").uid
    await env.cluster.delete(Kind.PODS, "p", "default")
    env.state.remove_pod(uid)


async def the_lock_is_taken_anew(env: ExtenderEnv) -> None:
    await env.lock("n", f"{format_time(env.now + 1)},default,p")


async def the_lock_is_another_pod_s(env: ExtenderEnv) -> None:
    await env.lock("n", f"{format_time(env.now + 1)},default,q")


class Start:
    """A process that starts where a lock of a former one is; `pass_time` lets it look again."""

    def __init__(self, env: ExtenderEnv) -> None:
        self.waits: list[float] = []
        self._due = asyncio.Event()
        locks = {COMMON_LOCK, PLAIN}
        self.task = asyncio.ensure_future(
            release_left_locks(env.extender, env.state, locks, request_timeout=5, sleep=self._sleep)
        )

    async def _sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        await self._due.wait()

    async def pass_time(self) -> None:
        self._due.set()
        await asyncio.wait_for(self.task, 5)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("happens", "released"),
    [
        (nothing, True),
        (the_pod_is_made_anew, True),
        (the_pod_is_bound, False),
        (the_pod_is_gone, False),
        (the_lock_is_taken_anew, False),
        (the_lock_is_another_pod_s, False),
    ],
    ids=lambda each: each.__name__ if callable(each) else "",
)
async def test_a_lock_that_nothing_became_of_is_released(
    mode: str, happens: Callable[[ExtenderEnv], Awaitable[None]], released: bool
) -> None:
    env = ExtenderEnv(mode, patience=0)
    await env.add(node("n", card("G", 8000)), pod("p", gpu=1, mem=1000), pod("q", gpu=1, mem=1000))
    await env.lock("n", f"{format_time(env.now)},default,p")
    start = Start(env)
    await turns()
    assert start.waits == [25.0]
    await happens(env)
    held = env._lock("n")
    show_node(env)
    await start.pass_time()
    assert env._lock("n") == (None if released else held)
    if released:
        show_node(env)
        assert await env.bind("q", "n") == ""


@pytest.mark.parametrize("value", ["garbage", "2026-01-02T15:04:05Z", "2026-01-02T15:04:05Z,default,nobody", None])
async def test_what_is_for_no_waiting_pod_is_left_at_once(value: str | None) -> None:
    env = ExtenderEnv("cooperative")
    await env.add(node("n", card("G", 8000)), pod("p", gpu=1, mem=1000))
    if value is not None:
        await env.lock("n", value)
    start = Start(env)
    await asyncio.wait_for(start.task, 5)
    assert (start.waits, env._lock("n")) == ([], value)


async def test_the_lock_of_a_pod_that_is_being_bound_stays() -> None:
    """Its bind counts on the lock; and while the lock is released no bind of the pod begins."""
    env = ExtenderEnv("cooperative")
    await env.add(node("n", card("G", 8000)), pod("p", gpu=1, mem=1000))
    value = f"{format_time(env.now)},default,p"
    await env.lock("n", value)
    reached, goes_on = asyncio.Event(), asyncio.Event()

    def stop_at(at: str) -> None:
        async def pause(step: str) -> None:
            if step == at:
                reached.set()
                await goes_on.wait()

        env.cluster.pause = pause

    stop_at("patch:before")
    releasing = asyncio.ensure_future(env.extender.release_lock("n", env.read("p").uid, COMMON_LOCK))
    await reached.wait()
    assert "is being bound already" in await env.bind("p", "n")
    goes_on.set()
    await releasing
    assert env._lock("n") is None
    await env.lock("n", value)
    reached.clear()
    goes_on.clear()
    stop_at("bind:before")
    binding = asyncio.ensure_future(env.bind("p", "n"))
    await reached.wait()
    await env.extender.release_lock("n", env.read("p").uid, COMMON_LOCK)
    goes_on.set()
    assert await binding == ""
    assert (env._lock("n") or "").endswith(",default,p")
