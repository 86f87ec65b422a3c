"""`python -m hack.bench.start`: from start to ready on a real API server full of nodes and pods, and resident memory.

The baseline lists the same objects with the client alone, page by page, in a process of its own that decodes them. The
controller is at work too, but what it does after ready isn't waited for.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from hack.bench.apiserver import api_server, create_all, make_namespace, wait_ready
from hack.bench.figures import Figure, Goal, run, show_progress
from hack.bench.objects import CARDS, NAMESPACE, SCHEDULER, node, running
from hack.devcluster.plane import free_ports
from hami_webhook.cluster.api import Kind
from hami_webhook.cluster.connect import connect
from hami_webhook.cluster.kubernetes import KubernetesCluster

NODES = {"smallest": 20, "usual": 2000, "large": 10_000}
PODS = {"smallest": 100, "usual": 10_000, "large": 50_000}
ROUNDS = {"smallest": 1, "usual": 3, "large": 3}
WRITERS = 32
KINDS = (Kind.NAMESPACES, Kind.NODES, Kind.RESOURCE_QUOTAS, Kind.PODS)


def measure(size: str) -> Sequence[Figure]:
    nodes, pods = NODES[size], PODS[size]
    with api_server("start") as plane:
        show_progress(f"start: creating {nodes} nodes and {pods} pods")
        asyncio.run(_prepare(plane.kubeconfig))
        objects = [(Kind.PODS, running(n, n % nodes, n // nodes % CARDS)) for n in range(pods)]
        objects += [(Kind.NODES, node(n)) for n in range(nodes)]
        asyncio.run(create_all(plane.kubeconfig, objects, WRITERS, progress_every=5000))
        ready, listing = [], []
        for _ in range(ROUNDS[size]):
            listing.append(_listed_alone(plane.kubeconfig))
            ready.append(_started(plane.kubeconfig))
    seconds, memory = min(each[0] for each in ready), max(each[1] for each in ready)
    base_seconds, base_memory = min(each[0] for each in listing), max(each[1] for each in listing)
    large = size == "large"
    what = f"{nodes} nodes, {pods} pods"
    below = Goal(at_most=400, of="value") if large else None
    return [
        Figure("start", f"{what}: ready", seconds, "s", "listing alone", base_seconds, Goal(at_most=3)),
        Figure("start", f"{what}: memory", memory, "MiB", "listing alone", base_memory, below),
    ]


async def _prepare(login: Path) -> None:
    async with KubernetesCluster(await connect(str(login))) as cluster:
        await make_namespace(cluster, NAMESPACE)


def _listed_alone(login: Path) -> tuple[float, float]:
    """Seconds of a process that only lists everything, from its start to its end, and the most MiB it had."""
    started = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "hack.bench.start", "--list", str(login)], stdout=-1, check=True)
    return time.perf_counter() - started, float(json.loads(done.stdout))


async def _list(login: str) -> None:
    async with KubernetesCluster(await connect(login)) as cluster:
        kept = await asyncio.gather(*(cluster.list(kind) for kind in KINDS))
        print(json.dumps(_most_resident(os.getpid())))
        del kept


def _started(login: Path) -> tuple[float, float]:
    """Seconds from start to ready, and the most MiB resident until then."""
    main, metrics = free_ports(2)
    begun = time.perf_counter()
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "hami_webhook", "serve", "--kubeconfig", str(login)),
            *("--roles", "webhook,controller,extender", "--extender-bind-address", "127.0.0.1:0"),
            *("--http_bind", f"127.0.0.1:{main}", "--metrics-bind-address", f"127.0.0.1:{metrics}"),
            *("--scheduler-name", SCHEDULER, "--kube-qps", "200", "--kube-burst", "400"),
        ],
        env={**os.environ, "POD_NAMESPACE": "hami-system"},
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_ready(process, metrics)
        return time.perf_counter() - begun, _most_resident(process.pid)
    finally:
        process.kill()
        process.wait()


def _most_resident(process: int) -> float:
    status = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024


if __name__ == "__main__":
    if sys.argv[1:2] == ["--list"]:
        asyncio.run(_list(sys.argv[2]))
    else:
        run({"start": measure}, __doc__)
