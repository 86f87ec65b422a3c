"""An extender with its informers and device plugins: what its end leaves, what its start finds, what a pod costs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
from builders import card, node, pod, quota
from scheduling.placer_env import ALLOCATED, GPU, MEM, NOW, VENDORS

from hami_webhook.assembly import Core
from hami_webhook.cluster.api import JSON, Kind, Unavailable
from hami_webhook.cluster.memory import MemoryCluster
from hami_webhook.controller.informers import SharedInformers, watched_kinds
from hami_webhook.core_options import options_of
from hami_webhook.policy.rules import PolicyRules
from hami_webhook.scheduling.requeue_trigger import TOUCHED, RequeueTrigger
from hami_webhook.server.limits import ListenerLimits
from hami_webhook.server.request_metrics import new_registry
from hami_webhook.server.roles import Shared
from hami_webhook.server.roles.extender import extender_of

from .placing import bind, filtered, placing
from .serving import settings_of


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


# What a placed pod costs the API server in calls, in a burst


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


# What an extender that starts makes of the pods that a former one refused


class Cluster(MemoryCluster):
    """Counts how often kube-scheduler is made to try again who was refused."""

    requeues = 0

    async def patch(self, kind: Kind, name: str, patch: JSON, namespace: str = "") -> JSON:
        self.requeues += TOUCHED in patch["metadata"].get("annotations", {})
        return await super().patch(kind, name, patch, namespace)


async def settle() -> None:
    for _ in range(200):
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("spec", "phase", "waits"),
    [
        ({}, "Pending", True),
        ({"nodeName": "n"}, "Running", False),
        ({}, "Failed", False),
        ({"schedulingGates": [{"name": "example.com/wait"}]}, "Pending", False),
        ({"schedulerName": "default-scheduler"}, "Pending", False),
        ({"without": "cards"}, "Pending", False),
    ],
    ids=["waiting", "bound", "ended", "gated", "another scheduler's", "without cards"],
)
async def test_who_waited_before_the_start_is_tried_again(spec: dict[str, Any], phase: str, waits: bool) -> None:
    """At once, as something may have been freed meanwhile; and if it is refused again, when something is freed."""
    cluster = Cluster(lambda: NOW)
    await cluster.ensure_namespace("default")
    await cluster.create(Kind.NODES, node("n", card("G", 8000)))
    await cluster.create(Kind.RESOURCE_QUOTAS, quota("q", mem=100, used={MEM: 0}))
    requested = {} if spec.pop("without", "") else {"gpu": 1, "mem": 1000}
    made = pod("p", **{"schedulerName": "hami-scheduler", **requested, **spec})
    stored = await cluster.create(Kind.PODS, {**made, "status": {"phase": phase}})
    settings = settings_of()
    informers = SharedInformers(cluster, watched_kinds(VENDORS), clock=lambda: NOW)
    core = Core(cluster, VENDORS, options_of(settings), clock=lambda: NOW, watches=informers)
    trigger = RequeueTrigger(cluster, lambda: "n", clock=lambda: NOW, sleep=lambda seconds: asyncio.sleep(0))
    shared = Shared(core, informers, settings, ListenerLimits(), new_registry())
    server = extender_of(shared, trigger, lambda: PolicyRules.EMPTY)
    feeding = informers.run(core.caches, core.failures, server.role().subscribers)
    tasks = [asyncio.create_task(feeding), asyncio.create_task(server.requeue())]
    try:
        await informers.wait_synced()
        await settle()
        assert cluster.requeues == (1 if waits else 0)
        await cluster.replace(Kind.RESOURCE_QUOTAS, quota("q", mem=1000, used={MEM: 0}))
        await settle()
        assert cluster.requeues == (1 if waits else 0), "nobody is known to wait"
        if waits:
            trigger.refused(stored["metadata"]["uid"])
            await cluster.replace(Kind.RESOURCE_QUOTAS, quota("q", mem=2000, used={MEM: 0}))
            await settle()
            assert cluster.requeues == 2
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
