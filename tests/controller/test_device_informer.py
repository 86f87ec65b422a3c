"""Koordinator's Device objects on their way into the caches, and what they change of a quota."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from replicas import reconciling

from hami_webhook.assembly import Core
from hami_webhook.cluster.api import JSON, Kind
from hami_webhook.cluster.memory import MemoryCluster
from hami_webhook.controller.informers import SharedInformers, watched_kinds
from hami_webhook.controller.quotas import QuotaReconciler, ReconcileIntervals
from hami_webhook.core_options import Options
from hami_webhook.device_config import builtin_device_config, enabled_vendors

NOW = 1_767_225_600.0
K = "koordinator.sh/"
MEMORY, RATIO, SHARED = f"{K}gpu-memory", f"{K}gpu-memory-ratio", f"{K}gpu.shared"
ALLOCATED = "scheduling.koordinator.sh/device-allocated"


class DevicesEnv:
    def __init__(self, *, enabled: bool = True) -> None:
        self.now = NOW
        self.cluster = MemoryCluster(lambda: self.now)
        config = builtin_device_config().config
        if not enabled:
            config = config.model_copy(update={"koordinator": None})
        self.vendors = enabled_vendors(config)
        self.feed = SharedInformers(self.cluster, watched_kinds(self.vendors), clock=lambda: self.now, sleep=self.never)
        self.core = Core(self.cluster, self.vendors, Options(), clock=lambda: self.now, watches=self.feed)
        self.reconciler = QuotaReconciler(*reconciling(self.core), ReconcileIntervals(), jitter=lambda: 0.5)

    async def never(self, seconds: float) -> None:
        await asyncio.Event().wait()

    async def settle(self) -> None:
        for _ in range(60):
            await asyncio.sleep(0)

    async def pass_time(self, seconds: float = 5.0) -> None:
        await self.settle()
        self.now += seconds
        await self.reconciler.step()

    def used(self) -> JSON:
        quota = self.cluster.peek(Kind.RESOURCE_QUOTAS, "q", "default")
        assert quota is not None
        found: JSON = quota["status"]["used"]
        return {key.removeprefix("limits."): amount for key, amount in found.items()}

    def events(self, reason: str) -> list[str]:
        return [event.note.message for event in self.cluster.events if event.note.reason == reason]


@asynccontextmanager
async def opened(env: DevicesEnv | None = None) -> AsyncIterator[DevicesEnv]:
    made = env or DevicesEnv()
    await made.cluster.ensure_namespace("default")
    running = asyncio.create_task(made.feed.run(made.core.caches, made.core.failures, [made.reconciler]))
    await made.feed.wait_synced()
    yield made
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


def device(*cards: JSON) -> JSON:
    return {"metadata": {"name": "n1"}, "spec": {"devices": list(cards)}}


CARD = {"type": "gpu", "minor": 0, "health": True, "resources": {MEMORY: "10Gi"}}


def quota(**hard: str) -> JSON:
    return {"metadata": {"name": "q", "namespace": "default"}, "spec": {"hard": hard}}


def running(allocated: JSON) -> JSON:
    limits = {SHARED: "1", RATIO: "50"}
    notes = {ALLOCATED: json.dumps(allocated)}
    spec = {"nodeName": "n1", "containers": [{"name": "c", "resources": {"limits": limits, "requests": limits}}]}
    return {"metadata": {"name": "p", "namespace": "default", "annotations": notes}, "spec": spec}


async def test_devices_come_go_and_change() -> None:
    async with opened() as env:
        await env.cluster.create(Kind.DEVICES, device(CARD))
        await env.settle()
        first = env.core.state.device("n1")
        assert first is not None
        await env.cluster.patch(Kind.DEVICES, "n1", {"metadata": {"labels": {"a": "b"}}})
        await env.settle()
        second = env.core.state.device("n1")
        assert second is not None
        assert second["metadata"]["labels"] == {"a": "b"}
        await env.cluster.delete(Kind.DEVICES, "n1")
        await env.settle()
        assert env.core.state.device("n1") is None


@pytest.mark.parametrize("spec", [{"devices": "x"}, {"devices": ["x"]}])
async def test_a_device_that_can_not_be_read_is_left_out_and_noted(spec: JSON) -> None:
    async with opened() as env:
        await env.cluster.create(Kind.DEVICES, {"metadata": {"name": "n1"}, "spec": spec})
        await env.settle()
        assert env.core.state.device("n1") is None
        assert list(env.core.caches.unreadable) == [("devices", "", "n1")]


async def test_nobody_looks_for_devices_while_koordinator_is_off() -> None:
    async with opened(DevicesEnv(enabled=False)) as env:
        await env.cluster.create(Kind.DEVICES, device(CARD))
        await env.settle()
        assert env.core.state.device("n1") is None


async def test_a_debit_is_completed_once_its_card_is_known() -> None:
    key = f"limits.{MEMORY}"

    async with opened() as env:
        await env.cluster.create(Kind.RESOURCE_QUOTAS, quota(**{key: "40Gi"}))
        await env.cluster.create(Kind.PODS, running({"gpu": [{"minor": 0, "resources": {RATIO: "50"}}]}))
        await env.pass_time()
        assert env.used() == {MEMORY: "0"}
        (message,) = env.events("BadAllocation")
        assert "has no koordinator.sh/gpu-memory for minor 0" in message
        await env.cluster.create(Kind.DEVICES, device(CARD))
        await env.pass_time()
        assert env.used() == {MEMORY: str(5 * 2**30)}
        # what Koordinator changes on a pod is reported too
        more = {"gpu": [{"minor": 0, "resources": {RATIO: "60"}}]}
        await env.cluster.patch(Kind.PODS, "p", {"metadata": {"annotations": {ALLOCATED: json.dumps(more)}}}, "default")
        await env.pass_time()
        assert env.used() == {MEMORY: str(6 * 2**30)}
        assert env.events("QuotaUnitSuspicious") == []  # gibibytes of bytes


async def test_a_pod_of_nvidias_that_koordinator_placed_is_counted_when_it_changes() -> None:
    key = f"limits.{SHARED}"

    async with opened() as env:
        await env.cluster.create(Kind.RESOURCE_QUOTAS, quota(**{key: "4"}))
        await env.pass_time()
        pod = running({"gpu": [{"minor": 0, "resources": {RATIO: "100", MEMORY: "10Gi"}}]})
        pod["spec"]["containers"][0]["resources"] = {}
        await env.cluster.create(Kind.PODS, pod)
        await env.pass_time()
        assert env.used() == {SHARED: "1"}
        await env.cluster.set_phase("default", "p", "Succeeded")
        await env.pass_time()
        assert env.used() == {SHARED: "0"}
