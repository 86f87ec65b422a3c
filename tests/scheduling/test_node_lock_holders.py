"""A lock whose holder has no more use for it: who waits has it within half a second, by the cache's events.

Source: docs/spec/core.md#9.4.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from builders import pod

from hami_webhook.cluster.api import JSON, Kind
from hami_webhook.devices.lock_annotations import COMMON_LOCK, NodeLock
from hami_webhook.kube.objects import Pod
from hami_webhook.scheduling.node_locks import LOCK

from .extender_env import turns
from .placer_env import NOW
from .test_node_locks import MLU, LockEnv, a_pod, at


class HeldEnv(LockEnv):
    """Node `n` is locked by `held`, a pod of namespace `a` that was just bound; the cache shows what `show` read.

    Sleeps of more than a second never end: nothing may wait for them.
    """

    def __init__(self) -> None:
        super().__init__(pods_on=lambda node: self.holders)
        self.holders: list[Pod] = []
        self.version = self._version

    async def sleep(self, seconds: float) -> None:
        self.endless_naps = seconds > 1
        await super().sleep(seconds)

    def _version(self) -> str:
        found = self.cluster.peek(Kind.NODES, "n")
        return found["metadata"]["resourceVersion"] if found is not None else ""

    def show(self) -> None:
        found = self.cluster.peek(Kind.NODES, "n")
        assert found is not None
        self.shown = found["metadata"].get("annotations", {}).get(LOCK)
        pods = [Pod.from_object(each) for each in self.cluster.peek_all(Kind.PODS)]
        self.holders = [each for each in pods if each.node_name == "n" and not each.terminal]
        self.locks.node_changed("n")

    def held(self) -> Pod:
        found = self.cluster.peek(Kind.PODS, "held", "a")
        assert found is not None
        return Pod.from_object(found)

    async def open_held(self, lock: NodeLock = COMMON_LOCK) -> Pod:
        """The holder, bound by this process."""
        await self.open(None, "held")
        holder = self.held()
        async with self.locks.turn("n", holder) as deadline:
            await self.locks.take("n", holder, deadline, lock)
            annotations = {"hami.io/bind-phase": "allocating"}
            await self.cluster.bind("a", "held", holder.uid, "n", metadata={"annotations": annotations})
        self.show()
        return holder

    async def take_as(self, who: Pod, lock: NodeLock = COMMON_LOCK) -> None:
        async with self.locks.turn("n", who) as deadline:
            await self.locks.take("n", who, deadline, lock)

    async def wait(self, name: str = "p", namespace: str = "b", lock: NodeLock = COMMON_LOCK) -> asyncio.Task[None]:
        """Another pod's bind, waiting for the lock."""
        task = asyncio.create_task(self.take_as(a_pod(name, namespace), lock))
        await turns()
        assert not task.done()
        return task


async def delete(env: HeldEnv) -> None:
    await env.cluster.delete(Kind.PODS, "held", "a")


async def refuse(env: HeldEnv) -> None:
    """Kubelet refuses the pod before it asks a plugin, as one with a sysctl that isn't allowed."""
    await env.cluster.patch_status(Kind.PODS, "held", {"status": {"phase": "Failed"}}, "a")


async def replace(env: HeldEnv) -> None:
    """The tenant deletes the pod, and makes another one with its name."""
    await delete(env)
    await env.cluster.create(Kind.PODS, pod("held", gpu=1, namespace="a"))


def phase(text: str) -> Callable[[HeldEnv], Awaitable[None]]:
    async def set_phase(env: HeldEnv) -> None:
        patch: JSON = {"metadata": {"annotations": {"hami.io/bind-phase": text}}}
        await env.cluster.patch(Kind.PODS, "held", patch, "a")

    return set_phase


@pytest.mark.parametrize(
    "end",
    [delete, refuse, replace, phase("success"), phase("failed")],
    ids=["deleted", "refused by kubelet", "made again", "allocated", "allocation failed"],
)
async def test_who_waits_has_the_lock_of_a_holder_that_does_not_need_it(
    end: Callable[[HeldEnv], Awaitable[None]],
) -> None:
    """Where the plugin unlocks the node itself, it is quicker; here it doesn't."""
    env = HeldEnv()
    await env.open_held()
    waiting = await env.wait()
    await end(env)
    env.show()
    async with asyncio.timeout(5):
        await waiting
    assert str(env.value()).endswith(",b,p")
    assert env.now - NOW == pytest.approx(0.5), "kubelet may be about to ask the plugin for the pod that is gone"


async def test_a_lock_that_the_pod_had_before_its_bind_is_as_any_other() -> None:
    """A former process took it, or the answer was lost; this process bound the pod under it all the same."""
    env = HeldEnv()
    await env.open(f"{at(0)},a,held", "held")
    env.show()
    holder = env.held()
    await env.take_as(holder)
    await env.cluster.bind("a", "held", holder.uid, "n", metadata={"annotations": {"hami.io/bind-phase": "allocating"}})
    env.show()
    waiting = await env.wait()
    await delete(env)
    env.show()
    async with asyncio.timeout(5):
        await waiting
    assert env.now - NOW == pytest.approx(0.5), "kubelet may be about to ask the plugin for the pod that is gone"


async def test_the_lock_of_a_pod_that_is_gone_for_longer_is_had_at_once() -> None:
    env = HeldEnv()
    await env.open_held()
    waiting = await env.wait()
    env.now += 1
    await delete(env)
    env.show()
    await waiting
    assert env.naps == []


async def test_a_cambricon_lock_without_a_name_is_had_too() -> None:
    env = HeldEnv()
    await env.open_held(MLU)
    env.shown = at(0)
    waiting = await env.wait(lock=MLU)
    await delete(env)
    env.holders = []
    env.locks.node_changed("n")
    async with asyncio.timeout(5):
        await waiting
    assert env.now - NOW == pytest.approx(0.5)


@pytest.mark.parametrize("cached", [True, False], ids=["cached", "not in the cache yet"])
async def test_a_pod_that_another_scheduler_bound_keeps_its_lock(cached: bool) -> None:
    """HAMi's own, beside us; our cache of pods may be behind the node's."""
    env = HeldEnv()
    await env.open(f"{at(0)},a,held", "held")
    await env.cluster.bind("a", "held", env.held().uid, "n")
    env.show()
    env.holders = env.holders if cached else []
    waiting = await env.wait()
    for _ in range(3):
        env.locks.node_changed("n")
        await turns()
    assert not waiting.done()
    assert env.value() == f"{at(0)},a,held"
    waiting.cancel()


async def test_waiting_for_a_holder_that_seems_gone_costs_no_calls() -> None:
    calls: list[str] = []

    async def pause(step: str) -> None:
        calls.append(step)

    env = HeldEnv()
    await env.open(f"{at(0)},a,held", "held")
    env.show()
    env.cluster.pause = pause
    waiting = await env.wait()
    for _ in range(20):
        env.locks.node_changed("n")
        await turns()
    assert calls == ["get:before"] * 2, "the node and the pod, once"
    waiting.cancel()


async def test_a_pod_with_the_name_of_the_holder_before_does_not_go_first() -> None:
    env = HeldEnv()
    await env.open_held()
    first = await env.wait("other")
    await replace(env)
    env.show()
    namesake = asyncio.create_task(env.take_as(env.held()))
    async with asyncio.timeout(5):
        await first
    assert str(env.value()).endswith(",b,other")
    namesake.cancel()


async def test_what_is_known_of_a_node_goes_with_it() -> None:
    env = HeldEnv()
    await env.open_held()
    await env.cluster.delete(Kind.NODES, "n")
    env.shown, env.holders = None, []
    env.locks.node_changed("n")
    assert not any((env.locks._taken, env.locks._others, env.locks._last_bind, env.locks._changes))
