"""An extender on a cluster in memory, with informers and device plugins that run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from scheduling.placer_env import NOW, VENDORS

from hami_webhook.assembly import Core
from hami_webhook.cluster.api import JSON, Kind
from hami_webhook.cluster.memory import MemoryCluster
from hami_webhook.controller.informers import SharedInformers, watched_kinds
from hami_webhook.core_options import options_of
from hami_webhook.policy.rules import PolicyRules
from hami_webhook.scheduling.extender import Extender
from hami_webhook.scheduling.protocol import Binding, decode_args
from hami_webhook.scheduling.requeue_trigger import RequeueTrigger
from hami_webhook.server.limits import ListenerLimits
from hami_webhook.server.request_metrics import new_registry
from hami_webhook.server.roles import Shared
from hami_webhook.server.roles.extender import extender_of

from .serving import settings_of

LOCK = "hami.io/mutex.lock"


async def serve_as_device_plugins(cluster: MemoryCluster) -> None:
    """Mark every pod that is bound as served, and let its node's lock go, as HAMi's device plugins do."""
    async for event in cluster.watch(Kind.PODS, "0"):
        now = cluster.peek(Kind.PODS, event.object["metadata"]["name"], event.object["metadata"]["namespace"])
        if now is None or now["metadata"].get("annotations", {}).get("hami.io/bind-phase") != "allocating":
            continue
        name, namespace, on = now["metadata"]["name"], now["metadata"]["namespace"], now["spec"]["nodeName"]
        lock = (await cluster.get(Kind.NODES, on))["metadata"]["annotations"][LOCK]
        assert lock.endswith(f",{namespace},{name}"), "by the lock the plugin knows whose turn it is"
        served = {"metadata": {"annotations": {"hami.io/bind-phase": "success"}}}
        await cluster.patch(Kind.PODS, name, served, namespace)
        await cluster.patch(Kind.NODES, on, {"metadata": {"annotations": {LOCK: None}}})


@asynccontextmanager
async def placing(memory: MemoryCluster, *flags: str, seen_as: Any = None) -> AsyncIterator[tuple[Core, Extender]]:
    """An extender until the block ends; `seen_as` is the cluster as it calls it."""
    settings = settings_of(*flags)
    cluster = seen_as or memory
    feed = SharedInformers(cluster, watched_kinds(VENDORS), clock=lambda: NOW)
    core = Core(cluster, VENDORS, options_of(settings), clock=lambda: NOW, watches=feed)
    trigger = RequeueTrigger(memory, lambda: None, clock=lambda: NOW)
    shared = Shared(core, feed, settings, ListenerLimits(), new_registry())
    server = extender_of(shared, trigger, lambda: PolicyRules.EMPTY)
    plugins = asyncio.create_task(serve_as_device_plugins(memory))
    background = [asyncio.create_task(feed.run(core.caches, core.failures, server.role().subscribers)), plugins]
    await feed.wait_synced()
    try:
        yield core, server.extender
        assert not plugins.done(), plugins.exception()
    finally:
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)


async def filtered(extender: Extender, raw: JSON, nodes: list[str]) -> str:
    """The node that kube-scheduler would choose."""
    args = decode_args({"Pod": raw, "NodeNames": nodes})
    assert not isinstance(args, str)
    answer = await extender.filter(args)
    grades = dict(await extender.prioritize(args))
    assert answer.names
    return max(answer.names, key=lambda name: grades[name])


async def bind(extender: Extender, raw: JSON, node: str) -> str:
    """What kube-scheduler is answered, empty if the pod is bound."""
    meta = raw["metadata"]
    return await extender.bind(Binding(meta["namespace"], meta["name"], meta["uid"], node))
