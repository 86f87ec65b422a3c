"""`python -m hack.bench.clients`: what many clients that create pods wait for each; baseline: without our webhooks.

Each client creates one pod after the other, in one of 20 namespaces with a quota that is never full, and tries again
where the answer says so, which its wait includes. Everything shares the machine: API server, etcd, replicas, clients.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial

from hack.bench.apiserver import SHARD, Replicas, YesSayers, api_server, make_namespace
from hack.bench.figures import Figure, Goal, run, show_progress
from hack.bench.objects import HARD, JSON, gpu, pod_with, quota
from hack.devcluster.plane import ControlPlane
from hami_webhook.cluster.api import Kind, Unavailable
from hami_webhook.cluster.connect import connect
from hami_webhook.cluster.kubernetes import KubernetesCluster

CLIENTS = {"smallest": (5,), "usual": (100, 500), "large": (100, 500)}
MOST = 500
SECONDS = {"smallest": 1.0, "usual": 20.0, "large": 180.0}
NAMESPACES = 20
REPLICAS = 3
"""At most."""
MOST_RETRIES = 100
CONNECTIONS = 100
"""That a Kubernetes client has at most."""
WITHOUT, ONE, OURS = "without webhooks", "1 replica", f"{REPLICAS} replicas"

_spaces = itertools.count()
_pods = itertools.count()


def measure(size: str) -> Sequence[Figure]:
    figures: list[Figure] = []
    with api_server("clients") as plane:
        cases: dict[str, Callable[[], AbstractContextManager[object]]] = {
            WITHOUT: contextlib.nullcontext,
            "only ever yes": partial(YesSayers, plane, REPLICAS),
            ONE: partial(Replicas, plane, 1),
            OURS: partial(Replicas, plane, REPLICAS),
        }
        waits: dict[tuple[str, int], tuple[list[float], int]] = {}
        if size == "smallest":
            cases = {name: cases[name] for name in (WITHOUT, OURS)}
        for name, asked in cases.items():
            with asked():
                for clients in CLIENTS[size]:
                    show_progress(f"clients: {clients}, {name}")
                    replicas = 1 if name == ONE else REPLICAS
                    waits[name, clients] = asyncio.run(_created(plane, clients, SECONDS[size], replicas))
        for name in cases:
            figures += [each for clients in CLIENTS[size] for each in _figures(name, clients, waits)]
    return figures


def _figures(name: str, clients: int, waits: dict[tuple[str, int], tuple[list[float], int]]) -> Iterator[Figure]:
    (seconds, retries), (base_seconds, _) = waits[name, clients], waits[WITHOUT, clients]
    most = clients == MOST and name == OURS
    means = [1000 * statistics.fmean(each) for each in (seconds, base_seconds)]
    lasts = [1000 * statistics.quantiles(each, n=100)[98] for each in (seconds, base_seconds)]
    for what, (value, base), goal in (("average", means, None), ("p99", lasts, Goal(at_most=1.0) if most else None)):
        yield Figure("clients", f"{clients} clients, {name}, {what}", value, "ms", WITHOUT, base, goal)
    yield Figure("clients", f"{clients} clients, {name}, created", len(seconds), "pods", WITHOUT, len(base_seconds))
    yield Figure("clients", f"{clients} clients, {name}, tried again", retries, "", "created", len(seconds))


async def _created(plane: ControlPlane, clients: int, seconds: float, replicas: int) -> tuple[list[float], int]:
    """What each creation took, of so many clients for so many seconds, and how many were tried again."""
    waits: list[float] = []
    retries = 0
    async with contextlib.AsyncExitStack() as connections:
        clusters = [
            await connections.enter_async_context(KubernetesCluster(await connect(str(plane.kubeconfig))))
            for _ in range(0, clients, CONNECTIONS)
        ]
        spaces = [f"clients-{next(_spaces)}" for _ in range(NAMESPACES)]
        for space in spaces:
            await make_namespace(clusters[0], space)
            await clusters[0].create(Kind.RESOURCE_QUOTAS, quota("gpu", HARD, space))
        end = time.perf_counter() + seconds

        async def client(number: int) -> None:
            nonlocal retries
            cluster = clusters[number // CONNECTIONS]
            while (began := time.perf_counter()) < end:
                pod = pod_with(f"pod-{next(_pods)}", gpu(), spaces[number % NAMESPACES])
                pod["metadata"]["labels"][SHARD] = str(number % replicas)
                tried_again = await _create(cluster, pod)
                retries += tried_again
                waits.append(time.perf_counter() - began)

        async with asyncio.TaskGroup() as tasks:
            for number in range(clients):
                tasks.create_task(client(number))
    return waits, retries


async def _create(cluster: KubernetesCluster, pod: JSON) -> int:
    """Create a pod; how often that was tried again, as a quota wasn't written in time."""
    for retries in range(MOST_RETRIES):
        with contextlib.suppress(Unavailable):
            await cluster.create(Kind.PODS, pod)
            return retries
    raise RuntimeError(f"a pod wasn't created in {MOST_RETRIES} attempts")


if __name__ == "__main__":
    run({"clients": measure}, __doc__)
