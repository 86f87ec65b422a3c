"""The stand-ins for Kubernetes' own quota writers keep to what docs/spec/quota.md#3.1 and #3.2 say."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from hami_webhook.cluster.api import JSON, Forbidden, Kind
from hami_webhook.cluster.memory import MemoryCluster

from .harness import GPU, quota
from .native import admit, recompute

NOON = 1767268800.0
REQUESTED = "requests.nvidia.com/gpu"


def gpu_pod(name: str, gpus: int = 1) -> JSON:
    amounts = {"nvidia.com/gpu": str(gpus), "cpu": "500m"}
    container = {"name": "main", "resources": {"limits": amounts, "requests": amounts}}
    init = {"name": "init", "resources": {"requests": {"cpu": "2"}}}
    sidecar = {"name": "side", "restartPolicy": "Always", "resources": {"requests": {"cpu": "100m"}}}
    spec = {"containers": [container], "initContainers": [sidecar, init]}
    return {"metadata": {"name": name, "namespace": "team"}, "spec": spec}


def run(hard: JSON, body: Callable[[MemoryCluster, JSON], Awaitable[None]]) -> None:
    async def prepared() -> None:
        cluster = MemoryCluster(lambda: NOON)
        await cluster.ensure_namespace("team")
        made = await cluster.create(Kind.RESOURCE_QUOTAS, quota("team", hard))
        await body(cluster, await recompute(cluster, made, (), NOON))

    asyncio.run(prepared())


def used(cluster: MemoryCluster) -> JSON:
    found = cluster.peek(Kind.RESOURCE_QUOTAS, "q", "team")
    assert found is not None
    return dict(found["status"]["used"])


def test_the_controller_recomputes_its_keys_and_keeps_ours() -> None:
    async def body(cluster: MemoryCluster, _: JSON) -> None:
        ours = {"metadata": {"annotations": {"hami.io/quota-ledger": "{}"}}, "status": {"used": {GPU: "3"}}}
        written = await cluster.patch_status(Kind.RESOURCE_QUOTAS, "q", ours, "team")
        ended = {**gpu_pod("ended"), "status": {"phase": "Failed"}}
        new = await recompute(cluster, written, [gpu_pod("a"), gpu_pod("b", 2), ended], NOON)
        assert new["status"]["used"] == {GPU: "3", REQUESTED: "3", "pods": "2", "cpu": "4200m"}
        assert new["status"]["hard"] == new["spec"]["hard"]
        assert new["metadata"]["annotations"] == {"hami.io/quota-ledger": "{}"}

    run({GPU: "4", REQUESTED: "4", "pods": "9", "cpu": "20"}, body)


def test_the_plugin_charges_native_keys_only() -> None:
    async def body(cluster: MemoryCluster, _: JSON) -> None:
        await cluster.patch_status(Kind.RESOURCE_QUOTAS, "q", {"status": {"used": {GPU: "3"}}}, "team")
        await admit(cluster, gpu_pod("a"))
        assert used(cluster) == {GPU: "3", REQUESTED: "1", "pods": "1"}

    run({GPU: "4", REQUESTED: "4", "pods": "9"}, body)


def test_the_plugin_refuses_what_exceeds_or_is_unknown() -> None:
    async def body(cluster: MemoryCluster, _: JSON) -> None:
        await admit(cluster, gpu_pod("a"))
        text = (
            f'pods "b" is forbidden: exceeded quota: q, requested: pods=1,{REQUESTED}=1, used: pods=1,{REQUESTED}=1, '
        )
        with pytest.raises(Forbidden, match=f"{text}limited: pods=1,{REQUESTED}=1"):
            await admit(cluster, gpu_pod("b"))
        await cluster.patch_status(Kind.RESOURCE_QUOTAS, "q", {"status": {"used": None}}, "team")
        with pytest.raises(Forbidden, match=f"status unknown for quota: q, resources: pods,{REQUESTED}"):
            await admit(cluster, gpu_pod("b"))

    run({REQUESTED: "1", "pods": "1"}, body)
