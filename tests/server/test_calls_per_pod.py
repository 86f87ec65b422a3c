"""What a placed pod costs the API server in calls, in a burst: a guard for what users feel as the speed of placing."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from builders import card, node, pod, quota
from scheduling.placer_env import ALLOCATED, GPU, MEM, NOW

from hami_webhook.cluster.api import Kind
from hami_webhook.cluster.memory import MemoryCluster

from .placing import bind, filtered, placing

PODS, NODES = 40, 4


class Counted:
    """A cluster that counts what is called of it but watches."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self._cluster = cluster
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method: Callable[..., Any] = getattr(self._cluster, name)
        if name == "watch":
            return method

        def call(*args: Any, **more: Any) -> Any:
            about = f" {args[0].value}" if args and isinstance(args[0], Kind) else ""
            self.calls[name + about] += 1
            return method(*args, **more)

        return call


@pytest.mark.parametrize("policy", ["spread", "binpack"])
@pytest.mark.parametrize("limited", [False, True], ids=["without quota", "with quota"])
@pytest.mark.parametrize("mode", ["cooperative", "single"])
async def test_a_placed_pod_costs_three_calls(mode: str, limited: bool, policy: str) -> None:
    memory = MemoryCluster(lambda: NOW)
    await memory.ensure_namespace("default")
    for number in range(NODES):
        await memory.create(Kind.NODES, node(f"n{number}", card(f"G{number}", 80000, count=100)))
    if limited:
        await memory.create(Kind.RESOURCE_QUOTAS, quota("q", gpu=1000, mem=10**6, used={GPU: PODS, MEM: 1000 * PODS}))
    cluster = Counted(memory)
    flags = "--extender-mode", mode, "--node-scheduler-policy", policy
    nodes = [f"n{number}" for number in range(NODES)]
    async with placing(memory, *flags, seen_as=cluster) as (core, extender):
        pods = [
            await memory.create(Kind.PODS, pod(f"p{number}", gpu=1, mem=1000, schedulerName="hami-scheduler"))
            for number in range(PODS)
        ]
        cluster.calls.clear()
        async with asyncio.TaskGroup() as binds:
            bound = [binds.create_task(bind(extender, raw, await filtered(extender, raw, nodes))) for raw in pods]
        assert [each.result() for each in bound] == [""] * PODS
        events = core.placer.events
        assert events is not None
        await events.flush()
    stored = [memory.peek(Kind.PODS, f"p{number}", "default") for number in range(PODS)]
    assert all(each is not None and ALLOCATED in each["metadata"]["annotations"] for each in stored)
    assert cluster.calls.total() / PODS <= 3, cluster.calls
