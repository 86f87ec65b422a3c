"""`python -m hack.bench.clients`: what many clients that create pods wait for each; baseline: without our webhooks.

Each client creates one pod after the other, in one of 20 namespaces with a quota that is never full, and tries again
where the answer says so, which its wait includes. Everything shares the machine: API server, etcd, replicas, clients.
What is left out is one of our webhook configurations, to show what it costs by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial

from hack.bench.apiserver import SHARD, Replicas, YesSayers, api_server, make_namespace
from hack.bench.figures import Figure, Goal, run, show_progress
from hack.bench.objects import HARD, JSON, gpu, pod_with, quota
from hack.devcluster.plane import ControlPlane
from hami_webhook.cluster.api import Kind, Unavailable
from hami_webhook.cluster.connect import connect
from hami_webhook.cluster.kubernetes import KubernetesCluster

CLIENTS = {"smallest": (5,), "usual": (100, 200, 500), "large": (100, 200, 500)}
MOST = 500
SECONDS = {"smallest": 1.0, "usual": 20.0, "large": 180.0}
NAMESPACES = 20
REPLICAS = 3
MOST_RETRIES = 100
CONNECTIONS = 100
"""That a Kubernetes client has at most."""
WITHOUT, OURS = "without webhooks", f"{REPLICAS} replicas"

_spaces = itertools.count()
_pods = itertools.count()


@dataclass
class _WithoutOne(Replicas):
    """Replicas of which the API server asks nothing of one kind: `Mutating` or `Validating`."""

    left_out: str = ""

    def configurations(self, authority: bytes, ports: Sequence[int]) -> Iterator[JSON]:
        for each in super().configurations(authority, ports):
            if not each["kind"].startswith(self.left_out):
                yield each


def measure(size: str) -> Sequence[Figure]:
    figures: list[Figure] = []
    with api_server("clients") as plane:
        cases: dict[str, Callable[[], AbstractContextManager[object]]] = {
            WITHOUT: contextlib.nullcontext,
            "only ever yes": partial(YesSayers, plane, REPLICAS),
            OURS: partial(Replicas, plane, REPLICAS),
            "no mutation": partial(_WithoutOne, plane, REPLICAS, left_out="Mutating"),
            "no validation": partial(_WithoutOne, plane, REPLICAS, left_out="Validating"),
        }
        waits: dict[tuple[str, int], tuple[list[float], int]] = {}
        if size == "smallest":
            cases = {name: cases[name] for name in (WITHOUT, OURS)}
        for name, asked in cases.items():
            with asked():
                for clients in CLIENTS[size]:
                    show_progress(f"clients: {clients}, {name}")
                    waits[name, clients] = asyncio.run(_created(plane, clients, SECONDS[size]))
        for name in cases:
            figures += [each for clients in CLIENTS[size] for each in _figures(name, clients, waits)]
    return figures


def _figures(name: str, clients: int, waits: dict[tuple[str, int], tuple[list[float], int]]) -> Iterator[Figure]:
    (seconds, retries), (base_seconds, _) = waits[name, clients], waits[WITHOUT, clients]
    found, without = _Waits(seconds), _Waits(base_seconds)
    most = clients == MOST and name == OURS
    p99, more = (Goal(at_most=1.0), Goal(at_most=10, of="value")) if most else (None, None)
    rows = (("average", found.mean, without.mean, None), ("p95", found.p95, without.p95, None))
    added = ("added on average", found.mean - without.mean, without.mean, more)
    for what, value, base, goal in (*rows, ("p99", found.p99, without.p99, p99), added):
        yield Figure("clients", f"{clients} clients, {name}, {what}", 1000 * value, "ms", WITHOUT, 1000 * base, goal)
    yield Figure("clients", f"{clients} clients, {name}, created", len(seconds), "pods", WITHOUT, len(base_seconds))
    yield Figure("clients", f"{clients} clients, {name}, tried again", retries, "", "created", len(seconds))


@dataclass(frozen=True)
class _Waits:
    """Seconds that creations took."""

    seconds: Sequence[float] = field(repr=False)

    @property
    def mean(self) -> float:
        return statistics.fmean(self.seconds)

    @property
    def p95(self) -> float:
        return statistics.quantiles(self.seconds, n=20)[18]

    @property
    def p99(self) -> float:
        return statistics.quantiles(self.seconds, n=100)[98]


async def _created(plane: ControlPlane, clients: int, seconds: float) -> tuple[list[float], int]:
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
                pod["metadata"]["labels"][SHARD] = str(number % REPLICAS)
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
