"""`python -m hack.bench.start`: from start to ready on a real API server full of nodes, pods and quotas, and then.

The baseline lists the same objects with the client alone, page by page, in a process of its own that decodes them.
After ready all quotas are recomputed once, then /metrics is scraped; the memory is the most so far. The web pages are
those of `kubectl hami ui` for an administrator, from its start to the whole overview.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hack.bench.apiserver import api_server, create_all, make_namespace, scraped, wait_ready
from hack.bench.figures import Figure, Goal, run, show_progress
from hack.bench.objects import CARDS, HARD, NAMESPACE, SCHEDULER, node, quota, running
from hack.bench.processes import most_resident
from hack.bench.ui import page, ui
from hack.devcluster.plane import free_ports
from hami_webhook.cluster.api import Kind
from hami_webhook.cluster.connect import connect
from hami_webhook.cluster.kubernetes import KubernetesCluster

NODES = {"smallest": 20, "usual": 2000, "large": 10_000}
PODS = {"smallest": 100, "usual": 10_000, "large": 100_000}
NAMESPACES = {"smallest": 2, "usual": 100, "large": 2000}
"""Each with a quota."""
ROUNDS = {"smallest": 1, "usual": 3, "large": 3}
WRITERS = 32
RECOMPUTES = "hami_webhook_quota_recompute_seconds_count"
KINDS = (Kind.NAMESPACES, Kind.NODES, Kind.RESOURCE_QUOTAS, Kind.PODS)


@dataclass(frozen=True, slots=True)
class _Started:
    """Seconds from start to ready, from there until all quotas are recomputed, and of a scrape; MiB until each."""

    ready: float
    recomputed: float
    scrape: float
    memory_ready: float
    memory: float


def measure(size: str) -> Sequence[Figure]:
    nodes, pods, namespaces = NODES[size], PODS[size], NAMESPACES[size]
    with api_server("start") as plane:
        show_progress(f"start: creating {nodes} nodes, {pods} pods and {namespaces} namespaces with a quota")
        spaces = [f"{NAMESPACE}-{number}" for number in range(namespaces)]
        asyncio.run(_prepare(plane.kubeconfig, spaces))
        objects = [
            (Kind.PODS, running(n, n % nodes, n // nodes % CARDS, namespace=spaces[n % namespaces]))
            for n in range(pods)
        ]
        objects += [(Kind.NODES, node(n)) for n in range(nodes)]
        asyncio.run(create_all(plane.kubeconfig, objects, WRITERS, progress_every=5000))
        started, listing = [], []
        for number in range(ROUNDS[size]):
            show_progress(f"start: round {number + 1} of {ROUNDS[size]}")
            listing.append(_listed_alone(plane.kubeconfig))
            started.append(_started(plane.kubeconfig, namespaces))
        show_progress("start: web pages")
        first_page, page_memory = _first_page(plane.kubeconfig)
    seconds, memory = min(each.ready for each in started), max(each.memory_ready for each in started)
    base_seconds, base_memory = min(each[0] for each in listing), max(each[1] for each in listing)
    what = f"{nodes} nodes, {pods} pods, {namespaces} quotas"
    below = Goal(at_most=400, of="value") if size == "large" else None
    last = started[-1]  # the first one's recompute writes what is used
    return [
        Figure("start", f"{what}: ready", seconds, "s", "listing alone", base_seconds, Goal(at_most=3)),
        Figure("start", f"{what}: memory when ready", memory, "MiB", "listing alone", base_memory, below),
        Figure("start", f"{what}: all recomputed after", last.recomputed, "s", "ready", last.ready),
        Figure("start", f"{what}: scrape", min(each.scrape for each in started), "s", "ready", last.ready),
        Figure("start", f"{what}: memory after a scrape", last.memory, "MiB", "listing alone", base_memory),
        Figure("start", f"{what}: first page", first_page, "s", "listing alone", base_seconds),
        Figure("start", f"{what}: memory of the pages", page_memory, "MiB", "listing alone", base_memory),
    ]


async def _prepare(login: Path, spaces: Sequence[str]) -> None:
    async with KubernetesCluster(await connect(str(login))) as cluster:
        for name in spaces:
            await make_namespace(cluster, name)
            await cluster.create(Kind.RESOURCE_QUOTAS, quota("gpu", HARD, name))


def _listed_alone(login: Path) -> tuple[float, float]:
    """Seconds of a process that only lists everything, from its start to its end, and the most MiB it had."""
    started = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "hack.bench.start", "--list", str(login)], stdout=-1, check=True)
    return time.perf_counter() - started, float(json.loads(done.stdout))


async def _list(login: str) -> None:
    async with KubernetesCluster(await connect(login)) as cluster:
        kept = await asyncio.gather(*(cluster.list(kind) for kind in KINDS))
        print(json.dumps(most_resident("self")))
        del kept


def _started(login: Path, quotas: int) -> _Started:
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
        ready, memory_ready = time.perf_counter(), most_resident(process.pid)
        while _recomputes(scraped(metrics)) < quotas:
            time.sleep(1)
        recomputed = time.perf_counter()
        scraped(metrics)
        scrape = time.perf_counter() - recomputed
        return _Started(ready - begun, recomputed - ready, scrape, memory_ready, most_resident(process.pid))
    finally:
        process.kill()
        process.wait()


def _recomputes(text: str) -> float:
    (count,) = (line.split()[-1] for line in text.splitlines() if line.startswith(RECOMPUTES))
    return float(count)


def _first_page(login: Path) -> tuple[float, float]:
    """Seconds from the start of the web pages to the overview, and the most MiB resident until then."""
    begun = time.perf_counter()
    with ui(login) as (process, client):
        page(client, "/overview")
        return time.perf_counter() - begun, most_resident(process.pid)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--list"]:
        asyncio.run(_list(sys.argv[2]))
    else:
        run({"start": measure}, __doc__)
