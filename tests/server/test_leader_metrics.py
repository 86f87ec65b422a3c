"""The leader alone exports what describes the cluster (docs/metrics.md#metrics-that-only-the-leader-exports)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from admission.clusters import FULL, quota_cluster

from hami_webhook.cluster.api import JSON, Kind, NotFound
from hami_webhook.cluster.memory import MemoryCluster
from hami_webhook.controller.showback import UNTIL

from .serving import Served, served
from .test_metrics import Samples, node, placed, samples

SHOWBACK = "hami_webhook_showback_card_seconds_total"
CLUSTER = {"hami_gpu_shared_count", "hami_vgpu_memory_allocated_bytes", "hami_webhook_quota_hard", SHOWBACK}


async def scraped(webhook: Served) -> Samples:
    return samples((await webhook.client.get("/metrics")).content)


async def lease(cluster: MemoryCluster) -> JSON:
    with contextlib.suppress(NotFound):
        return await cluster.get_lease("team-a", "hami-scheduler-controller")
    return {"spec": {"holderIdentity": ""}}


async def leads(cluster: MemoryCluster, name: str) -> None:
    """Wait until a replica has the lease."""
    while True:
        holder = (await lease(cluster))["spec"]["holderIdentity"]
        if holder.startswith(f"{name}_"):
            return
        await asyncio.sleep(0.01)


@asynccontextmanager
async def replica(folder: Path, cluster: MemoryCluster, name: str) -> AsyncIterator[Served]:
    flags = ("--leader-elect", "--roles", "webhook,controller")
    async with served(folder / name, cluster, *flags, env={"POD_NAMESPACE": "team-a", "POD_NAME": name}) as webhook:
        yield webhook


async def test_the_cluster_is_exported_by_the_leader_alone_and_by_the_next_after_it(tmp_path: Path) -> None:
    cluster = await quota_cluster(FULL)
    await cluster.create(Kind.NODES, node())
    await cluster.create(Kind.PODS, placed("G0,NVIDIA,250,30:;"))
    async with AsyncExitStack() as first:
        leader = await first.enter_async_context(replica(tmp_path, cluster, "a"))
        await leads(cluster, "a")
        async with replica(tmp_path, cluster, "b") as other:
            before, beside = await scraped(leader), await scraped(other)
            assert before.keys() >= CLUSTER
            assert CLUSTER.isdisjoint(beside)
            assert (before["hami_webhook_leader"], beside["hami_webhook_leader"]) == ({(): 1}, {(): 0})
            assert (before["hami_scheduler_is_leader"], beside["hami_scheduler_is_leader"]) == ({(): 1}, {(): 0})
            assert beside["hami_scheduler_cache_synced"] == {(): 1}
            assert {"hami_build_info", "hami_webhook_cache_objects", "process_cpu_seconds_total"} <= beside.keys()
            await scraped(leader)
            await first.aclose()
            read_until = float((await lease(cluster))["metadata"]["annotations"][UNTIL])
            await leads(cluster, "b")
            after = await scraped(other)
            assert {name: after[name] for name in CLUSTER} == {name: before[name] for name in CLUSTER}
            assert list(after[SHOWBACK].values()) == [0]
            (seconds,) = (await scraped(other))[SHOWBACK].values()
            assert 0 < seconds < other.process.core.clock() - read_until
