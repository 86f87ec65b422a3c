"""Whatever frees devices touches a node, if somebody waits; nothing else does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from hami_webhook.assembly import Core
from hami_webhook.cluster.api import JSON, Kind, Unavailable
from hami_webhook.cluster.memory import MemoryCluster
from hami_webhook.controller.informers import SharedInformers, watched_kinds
from hami_webhook.core_options import Options
from hami_webhook.device_config import builtin_device_config, enabled_vendors
from hami_webhook.devices.unhealthy_cards import ANNOTATION as UNHEALTHY
from hami_webhook.devices.unhealthy_cards import UnhealthyCard, encode
from hami_webhook.scheduling.capacity_notifier import CapacityNotifier
from hami_webhook.scheduling.requeue_trigger import TOUCHED, RequeueTrigger

NOW = 1_767_225_600.0
CARD = {"id": "G", "count": 10, "devmem": 8000, "devcore": 100, "type": "NVIDIA A10", "mode": "hami-core"}
REGISTER = "hami.io/node-nvidia-register"
GPU, MEM = "limits.nvidia.com/gpu", "limits.nvidia.com/gpumem"


class CountingCluster(MemoryCluster):
    """Counts the patches that touch a node."""

    touches = 0

    async def patch(self, kind: Kind, name: str, patch: JSON, namespace: str = "") -> JSON:
        patched = await super().patch(kind, name, patch, namespace)
        self.touches += TOUCHED in patch["metadata"].get("annotations", {})
        return patched


class RequeueEnv:
    """A cluster that is watched, and a waker whose waits move the clock."""

    def __init__(self, pause: Callable[[str], Awaitable[None]] | None = None) -> None:
        self.now = NOW
        self.cluster = CountingCluster(lambda: self.now, pause=pause)
        vendors = enabled_vendors(builtin_device_config().config)
        self.feed = SharedInformers(self.cluster, watched_kinds(vendors), clock=lambda: self.now)
        self.core = Core(self.cluster, vendors, Options(), clock=lambda: self.now, watches=self.feed)
        self.node: str | None = "n"
        self.naps: list[float] = []
        self.most_naps = 100
        self.requeue_trigger = RequeueTrigger(self.cluster, lambda: self.node, clock=lambda: self.now, sleep=self.sleep)

    async def sleep(self, seconds: float) -> None:
        self.naps.append(seconds)
        self.now += seconds
        if len(self.naps) >= self.most_naps:
            await asyncio.Event().wait()
        await asyncio.sleep(0)

    async def open(self) -> None:
        notes = {REGISTER: json.dumps([{**CARD, "health": True}])}
        made: JSON = {"metadata": {"name": "n", "annotations": notes}, "status": {"allocatable": {"nvidia.com/gpu": 1}}}
        await self.cluster.create(Kind.NODES, made)
        await self.cluster.ensure_namespace("default")

    def touched(self) -> str | None:
        found = self.cluster.peek(Kind.NODES, "n")
        assert found is not None
        text: str | None = found["metadata"].get("annotations", {}).get(TOUCHED)
        return text


@asynccontextmanager
async def opened(pause: Callable[[str], Awaitable[None]] | None = None) -> AsyncIterator[RequeueEnv]:
    env = RequeueEnv(pause)
    await env.open()
    async with asyncio.TaskGroup() as tasks:
        freed = CapacityNotifier(env.requeue_trigger, env.core.vendors)
        feeding = env.feed.run(env.core.caches, env.core.failures, [freed])
        running = [tasks.create_task(feeding), tasks.create_task(env.requeue_trigger.run())]
        await env.feed.wait_synced()
        yield env
        for task in running:
            task.cancel()


async def settle() -> None:
    for _ in range(60):
        await asyncio.sleep(0)


def a_pod(name: str, **status: Any) -> JSON:
    limits = {"nvidia.com/gpu": "1"}
    containers = [{"name": "c", "image": "x", "resources": {"limits": limits}}]
    inits = [{"name": "i", "image": "x", "resources": {"limits": limits}}]
    spec = {"containers": containers, "initContainers": inits, "nodeName": "n"}
    return {"metadata": {"name": name, "namespace": "default"}, "spec": spec, "status": status}


def a_quota(mem: int, used: int) -> JSON:
    meta = {"name": "q", "namespace": "default"}
    return {"metadata": meta, "spec": {"hard": {MEM: str(mem)}}, "status": {"used": {MEM: str(used)}}}


DONE = [{"name": "i", "state": {"terminated": {"exitCode": 0}}}]


async def a_pod_ends(env: RequeueEnv) -> None:
    await env.cluster.set_phase("default", "p", "Succeeded")


async def a_pod_goes(env: RequeueEnv) -> None:
    await env.cluster.delete(Kind.PODS, "p", "default")


async def init_ends(env: RequeueEnv) -> None:
    await env.cluster.set_phase("default", "p", "Running", initContainerStatuses=DONE)


async def a_quota_is_raised(env: RequeueEnv) -> None:
    await env.cluster.replace(Kind.RESOURCE_QUOTAS, a_quota(200, 50))


async def a_quota_is_used_less(env: RequeueEnv) -> None:
    await env.cluster.replace(Kind.RESOURCE_QUOTAS, a_quota(100, 40))


async def a_quota_gives_room(env: RequeueEnv) -> None:
    notes = {"hami.io/quota-preemption": "true"}
    await env.cluster.patch(Kind.RESOURCE_QUOTAS, "q", {"metadata": {"annotations": notes}}, "default")


async def a_quota_is_annotated(env: RequeueEnv) -> None:
    notes = {"hami.io/quota-preemption": "false"}
    await env.cluster.patch(Kind.RESOURCE_QUOTAS, "q", {"metadata": {"annotations": notes}}, "default")


async def a_quota_goes(env: RequeueEnv) -> None:
    await env.cluster.delete(Kind.RESOURCE_QUOTAS, "q", "default")


async def a_node_gets_cards(env: RequeueEnv) -> None:
    cards = json.dumps([{**CARD, "health": True}, {**CARD, "id": "H", "health": True}])
    await env.cluster.patch(Kind.NODES, "n", {"metadata": {"annotations": {REGISTER: cards}}})


async def a_card_becomes_unhealthy(env: RequeueEnv) -> None:
    cards = {"G": UnhealthyCard(("lost",))}
    await env.cluster.patch(Kind.NODES, "n", {"metadata": {"annotations": {UNHEALTHY: encode(cards)}}})


async def an_unhealthy_card_is_healthy_again(env: RequeueEnv) -> None:
    await a_card_becomes_unhealthy(env)
    await settle()
    await env.cluster.patch(Kind.NODES, "n", {"metadata": {"annotations": {UNHEALTHY: None}}})


async def a_namespace_allows_other_cards(env: RequeueEnv) -> None:
    notes = {"nvidia.com/use-gpuuuid": "G"}
    await env.cluster.patch(Kind.NAMESPACES, "default", {"metadata": {"annotations": notes}})


async def a_pod_is_labelled(env: RequeueEnv) -> None:
    await env.cluster.patch(Kind.PODS, "p", {"metadata": {"labels": {"a": "b"}}}, "default")


async def a_pod_comes(env: RequeueEnv) -> None:
    await env.cluster.create(Kind.PODS, a_pod("new"))


async def a_pod_of_a_group_is_ready(env: RequeueEnv) -> None:
    made = a_pod("member")
    made["metadata"]["labels"] = {"hami.io/pod-group": "train", "hami.io/pod-group-size": "2"}
    del made["spec"]["nodeName"]
    await env.cluster.create(Kind.PODS, made)


async def a_quota_is_lowered(env: RequeueEnv) -> None:
    await env.cluster.replace(Kind.RESOURCE_QUOTAS, a_quota(90, 60))


async def a_node_is_labelled(env: RequeueEnv) -> None:
    await env.cluster.patch(Kind.NODES, "n", {"metadata": {"labels": {"a": "b"}}})


async def a_namespace_comes(env: RequeueEnv) -> None:
    await env.cluster.ensure_namespace("another")


async def a_quota_comes(env: RequeueEnv) -> None:
    await env.cluster.create(Kind.RESOURCE_QUOTAS, {**a_quota(1, 0), "metadata": {"name": "r", "namespace": "default"}})


FREES = (
    *(a_pod_ends, a_pod_goes, init_ends, a_quota_is_raised, a_quota_is_used_less, a_quota_goes, a_node_gets_cards),
    *(a_namespace_allows_other_cards, a_quota_gives_room, an_unhealthy_card_is_healthy_again),
    a_pod_of_a_group_is_ready,
)
FREES_NOT = (
    *(a_pod_is_labelled, a_pod_comes, a_quota_is_lowered, a_quota_comes, a_node_is_labelled),
    *(a_namespace_comes, a_quota_is_annotated, a_card_becomes_unhealthy),
)


@pytest.mark.parametrize("happens", [*FREES, *FREES_NOT], ids=lambda what: what.__name__)
@pytest.mark.parametrize("waiting", [True, False], ids=["somebody waits", "nobody waits"])
async def test_what_frees_devices_wakes_who_waits(
    happens: Callable[[RequeueEnv], Awaitable[None]], waiting: bool
) -> None:
    async with opened() as env:
        await env.cluster.create(Kind.PODS, a_pod("p", phase="Running"))
        await env.cluster.create(Kind.RESOURCE_QUOTAS, a_quota(100, 50))
        await settle()
        env.now += 10  # the node's first cards are long forgotten
        if waiting:
            env.requeue_trigger.refused("w")
        await happens(env)
        await settle()
        assert env.cluster.touches == (1 if waiting and happens in FREES else 0)
        if waiting and happens in FREES:
            assert env.touched() == f"{NOW + 10.2:.3f}"


async def test_a_burst_of_deletions_is_one_touch_and_the_next_is_a_second_later() -> None:
    async with opened() as env:
        env.requeue_trigger.refused("w")
        env.most_naps = 2
        for _ in range(50):
            env.requeue_trigger.freed()
        await settle()
        assert (env.cluster.touches, env.naps) == (1, [0.2, 1.0])


async def test_who_was_judged_before_and_told_after_is_woken_too() -> None:
    async with opened() as env:
        env.requeue_trigger.freed()
        await settle()
        assert env.cluster.touches == 0
        env.now += 4.9
        env.requeue_trigger.refused("w")
        await settle()
        assert env.cluster.touches == 1
        env.now += 5
        env.requeue_trigger.refused("v")
        await settle()
        assert env.cluster.touches == 1, "a pod that was refused by now was evaluated before the release"


async def test_pods_that_have_a_place_or_are_gone_wait_no_longer() -> None:
    async with opened() as env:
        raw = a_pod("p")
        del raw["spec"]["nodeName"]
        first = await env.cluster.create(Kind.PODS, raw)
        second = await env.cluster.create(Kind.PODS, {**raw, "metadata": {**raw["metadata"], "name": "q"}})
        await settle()
        for made in (first, second):
            env.requeue_trigger.refused(made["metadata"]["uid"])
        env.requeue_trigger.refused("placed")
        env.requeue_trigger.settled("placed")
        await env.cluster.bind("default", "p", first["metadata"]["uid"], "n")
        await env.cluster.delete(Kind.PODS, "q", "default")
        await settle()
        before = env.cluster.touches
        env.now += 10
        env.requeue_trigger.freed()
        await settle()
        assert env.cluster.touches == before


async def test_a_touch_that_fails_is_tried_again() -> None:
    fails = [2]

    async def pause(step: str) -> None:
        if step == "patch:before" and fails[0]:
            fails[0] -= 1
            raise Unavailable("down")

    async with opened(pause) as env:
        env.requeue_trigger.refused("w")
        env.requeue_trigger.freed()
        await settle()
        assert env.cluster.touches == 1
        assert fails == [0]


async def test_without_a_node_nothing_is_touched() -> None:
    async with opened() as env:
        env.node = None
        env.requeue_trigger.refused("w")
        env.requeue_trigger.freed()
        await settle()
        assert env.cluster.touches == 0
