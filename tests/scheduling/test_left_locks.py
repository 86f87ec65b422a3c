"""Node locks that a former process took for pods that it never bound."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable

import pytest
from builders import bound_pod, card, node, pod

from hami_webhook.cluster.api import Kind, Unavailable
from hami_webhook.devices.lock_annotations import COMMON_LOCK, NodeLock
from hami_webhook.kube.objects import Node, format_time
from hami_webhook.scheduling.left_locks import release_left_locks

from .extender_env import MODES, ExtenderEnv

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


async def the_pod_was_served(env: ExtenderEnv) -> None:
    """Another extender had bound it, and its device plugin had unlocked the node, before the lock was taken."""
    given = {"hami.io/vgpu-node": "n", "hami.io/vgpu-devices-allocated": "G,NVIDIA,1000,0:;"}
    served = {"annotations": {**given, "hami.io/bind-phase": "success"}}
    await env.cluster.bind("default", "p", env.read("p").uid, "n", metadata=served)
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


class ReleaseLoop:
    """A process that looks for locks; `pass_time` lets it look again, and returns when it has."""

    def __init__(self, env: ExtenderEnv) -> None:
        self.waits: list[float] = []
        self._waiting, self._due = asyncio.Event(), asyncio.Event()
        known = {COMMON_LOCK, PLAIN}
        self.task = asyncio.ensure_future(
            release_left_locks(env.locks, env.state, known, request_timeout=5, patience=28, sleep=self._sleep)
        )

    async def _sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self._waiting.set()
        await self._due.wait()
        self._due.clear()

    async def looked(self) -> None:
        waiting = asyncio.ensure_future(self._waiting.wait())
        await asyncio.wait({waiting, self.task}, return_when=asyncio.FIRST_COMPLETED)
        assert waiting.done(), self.task
        self._waiting.clear()

    async def pass_time(self) -> None:
        self._due.set()
        await self.looked()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("happens", "released"),
    [
        (nothing, True),
        (the_pod_is_made_anew, True),
        (the_pod_is_bound, False),
        (the_pod_was_served, True),
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
    loop = ReleaseLoop(env)
    await loop.looked()
    assert loop.waits == [53.0]
    await happens(env)
    held = env._lock("n")
    show_node(env)
    await loop.pass_time()
    assert env._lock("n") == (None if released else held)
    if released:
        show_node(env)
        assert await env.bind("q", "n") == ""


@pytest.mark.parametrize("value", ["garbage", "2026-01-02T15:04:05Z", "2026-01-02T15:04:05Z,default,nobody"])
async def test_what_is_for_no_waiting_pod_is_left(value: str) -> None:
    env = ExtenderEnv("cooperative")
    await env.add(node("n", card("G", 8000)), pod("p", gpu=1, mem=1000))
    await env.lock("n", value)
    loop = ReleaseLoop(env)
    await loop.looked()
    await loop.pass_time()
    assert env._lock("n") == value


async def test_a_lock_that_comes_later_is_released_as_well_and_after_an_error_the_next_time() -> None:
    env = ExtenderEnv("cooperative")
    await env.add(node("n", card("G", 8000)), pod("p", gpu=1, mem=1000))
    loop = ReleaseLoop(env)
    await loop.looked()
    await env.lock("n", f"{format_time(env.now)},default,p")
    await loop.pass_time()
    assert env._lock("n"), "it may have been taken a moment ago"

    async def no_answer(step: str) -> None:
        if step == "patch:before":
            raise Unavailable("no answer")

    env.cluster.pause = no_answer
    await loop.pass_time()
    assert env._lock("n")
    env.cluster.pause = None
    await loop.pass_time()
    assert env._lock("n") is None


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("of", ["a former process", "a bind that broke off"])
async def test_the_lock_under_which_a_pod_is_bound_stays(mode: str, of: str) -> None:
    env = ExtenderEnv(mode)
    await env.add(node("n", card("G", 8000)), pod("p", gpu=1, mem=1000))
    if of == "a former process":
        await env.lock("n", f"{format_time(env.now)},default,p")
    else:
        await broken_off(env)
    show_node(env)
    loop = ReleaseLoop(env)
    await loop.looked()
    reached, goes_on = asyncio.Event(), asyncio.Event()

    async def pause(step: str) -> None:
        if step == "bind:before":
            reached.set()
            await goes_on.wait()

    env.cluster.pause = pause
    binding = asyncio.ensure_future(env.bind("p", "n"))
    await reached.wait()
    await loop.pass_time()
    goes_on.set()
    assert await binding == ""
    assert (env._lock("n") or "").endswith(",default,p")


@pytest.mark.parametrize("mode", MODES)
async def test_the_lock_stays_that_a_bind_finds_while_it_is_released(mode: str) -> None:
    env = ExtenderEnv(mode)
    await env.add(node("n", card("G", 8000)), pod("p", gpu=1, mem=1000))
    await env.lock("n", f"{format_time(env.now)},default,p")
    loop = ReleaseLoop(env)
    await loop.looked()
    reached, goes_on = asyncio.Event(), asyncio.Event()

    async def pause(step: str) -> None:
        if step == "patch:before":
            env.cluster.pause = None
            reached.set()
            await goes_on.wait()

    env.cluster.pause = pause
    releasing = asyncio.ensure_future(loop.pass_time())
    await reached.wait()
    assert await env.bind("p", "n") == ""
    goes_on.set()
    await releasing
    assert (env._lock("n") or "").endswith(",default,p")


async def broken_off(env: ExtenderEnv) -> None:
    """The API server answers neither the Binding nor the release of the lock."""

    async def pause(step: str) -> None:
        if step == "bind:before":
            env.cluster.pause = silence
            raise Unavailable("no answer")

    async def silence(step: str) -> None:
        raise Unavailable("no answer")

    env.cluster.pause = pause
    assert "no answer" in await env.bind("p", "n")
    env.cluster.pause = None
    assert (env._lock("n") or "").endswith(",default,p")


@pytest.mark.parametrize("mode", MODES)
async def test_two_pods_that_have_each_other_s_node_go_where_their_locks_are(mode: str) -> None:
    """By score both would rather have the other's node, and wait there for each other."""
    env = ExtenderEnv(mode)
    await env.add(node("full", card("F", 8000)), node("empty", card("E", 8000)), pod("p", gpu=1, mem=1000))
    await env.add(bound_pod("before", "full", "F,NVIDIA,1000,10:;"), pod("q", gpu=1, mem=1000))
    for name, best in ("p", "full"), ("q", "full"):
        assert await env.best(name, "full", "empty") == best
    await env.lock("full", f"{format_time(env.now)},default,q")
    await env.lock("empty", f"{format_time(env.now)},default,p")
    for name, own in ("p", "empty"), ("q", "full"):
        assert await env.best(name, "full", "empty") == own
        assert await env.bind(name, own) == ""


@pytest.mark.parametrize("mode", MODES)
async def test_attack_a_node_that_names_a_pod_in_its_lock_keeps_it_from_the_others_for_one_try(mode: str) -> None:
    env = ExtenderEnv(mode)
    await env.add(node("hostile", card("H", 8000)), node("z", card("Z", 8000)), pod("p", gpu=1, mem=1000))
    await env.add(bound_pod("before", "z", "Z,NVIDIA,1000,10:;"))
    minutes = itertools.count()

    async def name_the_pod() -> None:
        await env.lock("hostile", f"{format_time(env.now - 60 * next(minutes))},default,p")

    async def change_all_the_time(step: str) -> None:
        if step == "patch:before":
            env.cluster.pause = None
            await name_the_pod()
            env.cluster.pause = change_all_the_time

    await name_the_pod()
    assert await env.best("p", "hostile", "z") == "hostile"
    env.cluster.pause = change_all_the_time
    assert "the object has been modified" in await env.bind("p", "hostile")
    env.cluster.pause = None
    assert (env._lock("hostile") or "").endswith(",default,p")
    assert await env.best("p", "hostile", "z") == "z"
    assert await env.bind("p", "z") == ""
