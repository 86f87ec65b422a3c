"""The extender may end at any step of a burst; whoever comes after it places what is left."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
from builders import card, node, pod, quota
from scheduling.placer_env import ALLOCATED, MEM, NOW

from hami_webhook.cluster.api import Kind, Unavailable
from hami_webhook.cluster.memory import MemoryCluster

from .placing import bind, filtered, placing


class Ending:
    """A cluster as a process sees it that ends at the nth time of a step: from then on nothing of it gets through."""

    def __init__(self, cluster: MemoryCluster, step: str, nth: int) -> None:
        self._cluster = cluster
        self._step = step
        self._left = nth
        self.ended = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._cluster, name)
        return method if name == "watch" else partial(self._call, name, method)

    async def _call(self, name: str, method: Callable[..., Awaitable[Any]], *args: Any, **more: Any) -> Any:
        await self._reach(f"{name}:before")
        answer = await method(*args, **more)
        await self._reach(f"{name}:after")
        return answer

    async def _reach(self, step: str) -> None:
        if self.ended.is_set():
            raise Unavailable("the process has ended")
        self._left -= step == self._step
        if not self._left:
            self.ended.set()
            await asyncio.Event().wait()


STEPS = [f"{call}:{when}" for call in ("patch", "patch_status", "bind") for when in ("before", "after")]
"""The node's lock, the quota, and the Binding that carries the allocation."""


@pytest.mark.parametrize("nth", [1, 2, 3])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("mode", ["cooperative", "single"])
def test_nothing_is_lost_or_done_twice(mode: str, step: str, nth: int) -> None:
    """Three pods whose share of the larger card costs more than what they wait with."""

    async def story() -> None:
        cluster = MemoryCluster(lambda: NOW)
        await cluster.ensure_namespace("default")
        await cluster.create(Kind.NODES, node("small", card("S", 8000)))
        await cluster.create(Kind.NODES, node("large", card("L", 80000)))
        await cluster.create(Kind.RESOURCE_QUOTAS, quota("q", mem=30000, used={MEM: 2400}))
        pods = [
            await cluster.create(Kind.PODS, pod(f"p{number}", gpu=1, percent=10, schedulerName="hami-scheduler"))
            for number in range(3)
        ]
        process = Ending(cluster, step, nth)
        async with placing(cluster, "--extender-mode", mode, seen_as=process) as (_, extender):
            nodes = [await filtered(extender, raw, ["large"]) for raw in pods]
            binds = [asyncio.create_task(bind(extender, *each)) for each in zip(pods, nodes, strict=True)]
            await process.ended.wait()
            for each in binds:
                each.cancel()
            await asyncio.gather(*binds, return_exceptions=True)
        async with placing(cluster, "--extender-mode", mode) as (core, extender):
            left = []
            for raw in pods:
                now = cluster.peek(Kind.PODS, raw["metadata"]["name"], "default")
                assert now is not None
                bound = "nodeName" in now["spec"]
                assert (ALLOCATED in now["metadata"].get("annotations", {})) is bound
                if not bound:
                    left.append((now, await filtered(extender, now, ["large"])))
            # side by side, as kube-scheduler does: whose lock the ended process left, isn't known
            assert await asyncio.gather(*(bind(extender, *each) for each in left)) == [""] * len(left)
            await core.recomputer.run("default", "q")
        stored = [cluster.peek(Kind.PODS, raw["metadata"]["name"], "default") for raw in pods]
        held = [each["metadata"]["annotations"][ALLOCATED] for each in stored if each is not None]
        assert held == ["L,NVIDIA,8000,0:;"] * 3
        found = cluster.peek(Kind.RESOURCE_QUOTAS, "q", "default")
        assert found is not None
        assert found["status"]["used"] == {MEM: "24k"}

    asyncio.run(asyncio.wait_for(story(), 60))
