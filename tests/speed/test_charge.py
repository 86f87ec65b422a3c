"""A burst of pods in one namespace is charged in few writes, and without asking the API server anything else."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from admission.clusters import Recorder, account_of, core_on, quota_cluster
from admission.reviews import parsed, pod, review
from builders import GPU, MEM, PERCENT, container

from hack.bench.counting import counted_calls
from hack.bench.objects import node
from hami_webhook.cluster.api import Kind
from hami_webhook.cluster.watches import NoWatches
from hami_webhook.device_config import builtin_device_config, enabled_vendors
from hami_webhook.kube.objects import Namespace, Node, Pod
from hami_webhook.quota.pricing import price_pending
from hami_webhook.state.cluster_cache import ClusterCache

PODS = 500
NOW = 1_767_225_600.0
ALL = enabled_vendors(builtin_device_config().config)


class Slow(Recorder):
    """A cluster that takes a turn of the event loop for each call, in which others may come."""

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)

        async def slowly(*arguments: Any, **more: Any) -> Any:
            await asyncio.sleep(0.001)
            return await found(*arguments, **more)

        return slowly


@pytest.mark.parametrize("at_once", [25, 500])
def test_a_burst_costs_less_than_a_fifth_of_a_write_per_pod(at_once: int) -> None:
    async def story() -> tuple[Counter[str], int]:
        cluster = await quota_cluster({GPU: 10 * PODS, MEM: 10**9})
        recorder = Slow(cluster)
        core = core_on(recorder, watches=NoWatches((Kind.RESOURCE_QUOTAS, Kind.ACCELERATOR_QUOTAS)))
        core.caches.namespaces["team-a"] = Namespace("team-a", {}, {})
        core.caches.put(Kind.RESOURCE_QUOTAS, cluster.peek(Kind.RESOURCE_QUOTAS, "gpu-quota", "team-a") or {})
        waiting = list(range(PODS))

        async def client() -> None:
            while waiting:
                number = waiting.pop()
                asked = pod(f"p{number}", gpu=1, mem=3000, uid=f"u{number}")
                await core.admission.validate(parsed(review(asked)))
                core.caches.put(Kind.PODS, asked)
                most.append(len(account_of(cluster).ledger))

        most: list[int] = []
        await asyncio.gather(*(client() for _ in range(at_once)))
        # a ledger has pods on their way only: each write must carry it
        assert max(most) <= 2 * at_once
        return Counter(recorder.calls), account_of(cluster).used[f"limits.{GPU}"]

    calls, used = asyncio.run(story())
    assert used == PODS
    assert calls.pop("patch_status resourcequotas") < 0.2 * PODS
    assert not calls


async def test_a_lone_pod_is_charged_without_a_pause() -> None:
    cluster = await quota_cluster({GPU: 10})
    naps: list[float] = []

    async def sleep(seconds: float) -> None:
        naps.append(seconds)

    core = core_on(cluster, sleep=sleep)
    core.caches.namespaces["team-a"] = Namespace("team-a", {}, {})
    for number in range(5):
        await core.admission.validate(parsed(review(pod(f"p{number}", gpu=1, mem=3000, uid=f"u{number}"))))
    assert naps == []


@pytest.mark.parametrize(
    "limits",
    [
        {GPU: 1, PERCENT: 50},
        {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory-percentage": 50},
        {"koordinator.sh/gpu-memory-ratio": 50},
        {"koordinator.sh/gpu-memory": "8Gi"},
    ],
)
def test_a_price_that_depends_on_the_cards_costs_the_same_on_however_many_nodes(limits: dict[str, Any]) -> None:
    """It is that of the smallest or largest of the cluster, which is worked out when a node changes."""

    def calls(nodes: int) -> int:
        state = ClusterCache(ALL)
        for number in range(nodes):
            state.set_node(Node.from_object(node(number)), NOW)
        asked = Pod.from_object(pod("p", container(limits=limits)))
        for _ in range(2):
            with counted_calls() as counts:
                charge = price_pending(asked, ALL, state.capacity)
        assert charge.floors or PERCENT not in limits
        return sum(counts.values())

    assert calls(1) == calls(100)
