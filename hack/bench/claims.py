"""`python -m hack.bench.claims`: bursts of pods with claims, allocated by a stock kube-scheduler on a real API server.

The baseline is the same burst on the same control plane while our program isn't installed. Everything shares the
machine: API server, etcd, kube-controller-manager, kube-scheduler, our replica, and the client.

Of templates the claims are made by kube-controller-manager, whose requests its own limit of 20 a second holds back;
those by hand come as fast as the client makes them. A rate runs from the first creation to the last binding, by the API
server's audit log, and is the median of several rounds.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Sequence
from statistics import median

from hack.bench.apiserver import SHARD, Replicas, api_server, binding_times, create_all, make_namespace
from hack.bench.figures import Figure, Goal, run, show_progress
from hack.bench.objects import JSON, quota
from hack.devcluster.plane import ControlPlane
from hami_webhook.cluster.api import Kind
from hami_webhook.cluster.connect import connect
from hami_webhook.cluster.kubernetes import KubernetesCluster
from hami_webhook.config.load import builtin_text
from hami_webhook.kube.quantity import Quantity

PODS = {"smallest": 10, "usual": 100, "large": 500}
ROUNDS = {"smallest": 1, "usual": 3, "large": 5}
MANAGERS = ("kube-controller-manager", "kube-scheduler")
CLIENTS = 8
NODE, DRIVER = "node-0", "hami-core-gpu.project-hami.io"
HARD = {"limits.nvidia.com/gpu": 10**6, "limits.nvidia.com/gpumem": 10**9}
BURST_SECONDS = 300.0
TEMPLATES, BY_HAND = "of templates", "by hand"

_API = "/apis/resource.k8s.io/v1"
_spaces = itertools.count()


def measure(size: str) -> Sequence[Figure]:
    alone: dict[str, list[float]] = {TEMPLATES: [], BY_HAND: []}
    ours: dict[str, list[float]] = {TEMPLATES: [], BY_HAND: []}
    with api_server("claims", MANAGERS) as plane:
        asyncio.run(_publish(plane))
        config = plane.folder / "device-config.yaml"
        config.write_text(builtin_text().replace("dra:\n  enabled: false", "dra:\n  enabled: true"))
        for number in range(ROUNDS[size]):
            _round(plane, PODS[size], alone, charged=False)
            with Replicas(plane, 1, ("--device-config-file", str(config)), claims=True):
                _round(plane, PODS[size], ours, charged=True)
            rates = ", ".join(f"{how} {ours[how][-1]:.1f} of {alone[how][-1]:.1f} a second" for how in ours)
            show_progress(f"claims: round {number + 1} of {ROUNDS[size]}: {rates}")
    goal = Goal(at_least=0.6) if size != "smallest" else None
    return [
        Figure("claims", how, median(ours[how]), "claims per second", "without us", median(alone[how]), goal)
        for how in ours
    ]


def _round(plane: ControlPlane, pods: int, rates: dict[str, list[float]], *, charged: bool) -> None:
    for how, found in rates.items():
        asyncio.run(_burst(plane, 5, how, charged=charged))  # finds everything cold
        found.append(asyncio.run(_burst(plane, pods, how, charged=charged)))


async def _publish(plane: ControlPlane) -> None:
    """A node with cards for all that is asked for, and a class."""
    room = {"pods": "100000", "cpu": "1000", "memory": "1Ti"}
    devices = [
        {
            "name": f"card-{number}",
            "allowMultipleAllocations": True,
            "attributes": {"uuid": {"string": f"card-{number}"}, "productName": {"string": "NVIDIA A100"}},
            "capacity": {"memory": {"value": "100Ti"}, "cores": {"value": "1000000"}},
        }
        for number in range(8)
    ]
    pool = {"name": NODE, "generation": 1, "resourceSliceCount": 1}
    selector = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}
    async with KubernetesCluster(await connect(str(plane.kubeconfig))) as cluster:
        await make_namespace(cluster, "hami-system")
        amounts = {"capacity": room, "allocatable": room}
        await cluster.create(Kind.NODES, {"metadata": {"name": NODE}, "status": amounts})
        await cluster.patch(Kind.NODES, NODE, {"spec": {"taints": None}})  # nobody says here that it is ready
        published = {"driver": DRIVER, "pool": pool, "nodeName": NODE, "devices": devices}
        await cluster.call("POST", f"{_API}/resourceslices", {"metadata": {"name": NODE}, "spec": published})
        chosen = {"metadata": {"name": DRIVER}, "spec": {"selectors": [selector]}}
        await cluster.call("POST", f"{_API}/deviceclasses", chosen)


async def _burst(plane: ControlPlane, pods: int, how: str, *, charged: bool) -> float:
    """Claims that were allocated per second, in a namespace of their own with a quota, which has them if `charged`."""
    space = f"burst-{next(_spaces)}"
    path = f"{_API}/namespaces/{space}"
    asked = {"capacity": {"requests": {"memory": "1000Mi", "cores": "10"}}}
    spec = {"devices": {"requests": [{"name": "card", "exactly": {"deviceClassName": DRIVER, **asked}}]}}
    labels = {SHARD: "0"}
    async with KubernetesCluster(await connect(str(plane.kubeconfig))) as cluster:
        await make_namespace(cluster, space)
        await cluster.create(Kind.RESOURCE_QUOTAS, quota("gpu", HARD, space))
        made = {"metadata": {"name": "card"}, "spec": {"metadata": {"labels": labels}, "spec": spec}}
        await cluster.call("POST", f"{path}/resourceclaimtemplates", made)
        used = {"status": {"hard": {k: str(v) for k, v in HARD.items()}, "used": dict.fromkeys(HARD, "0")}}
        await cluster.patch_status(Kind.RESOURCE_QUOTAS, "gpu", used, space)
        start = plane.audit_log.stat().st_size
        objects = []
        for number in range(pods):
            name = f"pod-{number}"
            if how == BY_HAND:
                claim = {"metadata": {"name": name, "namespace": space, "labels": labels}, "spec": spec}
                objects.append((Kind.RESOURCE_CLAIMS, claim))
            objects.append((Kind.PODS, _pod(name, space, how)))
        began = time.time()
        await create_all(plane.kubeconfig, objects, CLIENTS)

        async def are_bound() -> bool:
            return len(binding_times(plane.audit_log, start, space)[1]) == pods

        await _until(are_bound, f"{pods} pods {how} are bound")
        bound = binding_times(plane.audit_log, start, space)[1]
        used = (await cluster.get(Kind.RESOURCE_QUOTAS, "gpu", space))["status"]["used"]
        if Quantity.parse(used["limits.nvidia.com/gpu"]) != Quantity.parse(str(pods if charged else 0)):
            raise SystemExit(f"claims: {pods} claims {how}, and the quota has {used}")
        await cluster.call("DELETE", f"/api/v1/namespaces/{space}/pods", {"gracePeriodSeconds": 0})
        await cluster.call("DELETE", f"{path}/resourceclaims", {})

        async def are_gone() -> bool:
            return not (await cluster.call("GET", f"{path}/resourceclaims"))["items"]

        await _until(are_gone, "their claims are deleted")
        return pods / (max(bound.values()) - began)


async def _until(holds: Callable[[], Awaitable[bool]], what: str) -> None:
    deadline = time.monotonic() + BURST_SECONDS
    while not await holds():
        if time.monotonic() > deadline:
            raise SystemExit(f"claims: after {BURST_SECONDS:g} s it isn't so that {what}")
        await asyncio.sleep(0.25)


def _pod(name: str, space: str, how: str) -> JSON:
    reference = {"resourceClaimName": name} if how == BY_HAND else {"resourceClaimTemplateName": "card"}
    container = {"name": "main", "image": "registry.invalid/train:1", "resources": {"claims": [{"name": "card"}]}}
    spec = {"containers": [container], "resourceClaims": [{"name": "card", **reference}]}
    return {"metadata": {"name": name, "namespace": space, "labels": {SHARD: "0"}}, "spec": spec}


if __name__ == "__main__":
    run({"claims": measure}, __doc__)
