"""What an extender that starts makes of the pods that a former one refused."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from builders import card, node, pod, quota
from scheduling.placer_env import MEM, NOW, VENDORS

from hami_webhook.assembly import Core
from hami_webhook.cluster.api import JSON, Kind
from hami_webhook.cluster.memory import MemoryCluster
from hami_webhook.controller.informers import SharedInformers, watched_kinds
from hami_webhook.core_options import options_of
from hami_webhook.policy.rules import PolicyRules
from hami_webhook.scheduling.requeue_trigger import TOUCHED, RequeueTrigger
from hami_webhook.server.limits import ListenerLimits
from hami_webhook.server.request_metrics import new_registry
from hami_webhook.server.roles import Shared
from hami_webhook.server.roles.extender import extender_of

from .serving import settings_of


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
