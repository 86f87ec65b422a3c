"""`python -m hack.bench.metrics`: `/metrics` of a large cluster, and what a scrape does to reviews meanwhile.

Nodes with 8 cards, pods of which nine in ten run, namespaces with a quota each. Reviews charge a pod, one after the
other, while scrape follows scrape. Times are CPU time of the one thread that does both, so what else the machine does
doesn't count: from the beginning of a review to its end it is the review's work and what came between.
"""

from __future__ import annotations

import asyncio
import gc
import gzip
import statistics
import time
from collections.abc import Sequence

from prometheus_client import CollectorRegistry, generate_latest
from starlette.types import ASGIApp

from hack.bench.figures import Figure, Goal, run, show_progress
from hack.bench.objects import CARDS, ask, gpu, node, pod_with, quota, review, running
from hami_webhook.assembly import Core
from hami_webhook.cluster.api import Kind
from hami_webhook.cluster.memory import MemoryCluster
from hami_webhook.controller.showback import Showback
from hami_webhook.core_options import Options
from hami_webhook.device_config import builtin_device_config, enabled_vendors
from hami_webhook.server.app import application, review_routes
from hami_webhook.server.cluster_metrics import ClusterCollector
from hami_webhook.server.exposition import render
from hami_webhook.server.limits import ListenerLimits
from hami_webhook.server.process_metrics import CoreCollector
from hami_webhook.server.request_metrics import new_registry

SIZES = {"smallest": (10, 50, 5), "usual": (1000, 5000, 500), "large": (5000, 25_000, 2500)}
"""Nodes, pods, namespaces."""
REVIEWS = {"smallest": 20, "usual": 300, "large": 300}
CHARGED = "charged"
NOW = 1_767_225_700.0


def measure(size: str) -> Sequence[Figure]:
    return asyncio.run(_measured(size))


async def _measured(size: str) -> list[Figure]:
    nodes, pods, namespaces = SIZES[size]
    show_progress(f"metrics: {nodes} nodes, {pods} pods, {namespaces} namespaces")
    cluster = MemoryCluster(lambda: NOW)
    core = Core(cluster, enabled_vendors(builtin_device_config().config), Options(), clock=lambda: NOW)
    await _fill(cluster, core, nodes, pods, namespaces)
    showback = Showback(core.view)
    await showback.start()
    registry = new_registry()
    registry.register(CoreCollector(core))
    registry.register(ClusterCollector(core.view, showback))
    app = application(review_routes(core.admission, ListenerLimits(), registry=registry))
    await _scrape(registry)  # what is worked out once
    gc.collect()
    gc.freeze()  # as serve does
    text, slices = await _slices(registry)
    started = time.thread_time()
    whole = generate_latest(registry)
    at_once = time.thread_time() - started
    alone = await _reviews(app, REVIEWS[size])
    scraping = asyncio.create_task(_scraping(registry))
    beside = await _reviews(app, REVIEWS[size])
    scraping.cancel()
    samples = sum(not line.startswith(b"#") for line in whole.splitlines())
    about = f"{nodes} nodes, {samples} samples"
    packed = len(gzip.compress(text, 1)) / 1e6
    longest = 1000 * max(slices)
    delay = 1000 * (_p99(beside) - _p99(alone))
    return [
        Figure("metrics", f"size, {about}", len(text) / 1e6, "MB", "compressed", packed),
        Figure("metrics", "rendering", 1000 * sum(slices), "ms", "by the library at once", 1000 * at_once),
        Figure("metrics", "longest slice", longest, "ms", "the rendering", 1000 * sum(slices)),
        Figure("metrics", "review beside scrapes, median", 1000 * statistics.median(beside), "ms", "alone",
               1000 * statistics.median(alone)),
        Figure("metrics", "review beside scrapes, p99", 1000 * _p99(beside), "ms", "alone", 1000 * _p99(alone)),
        Figure("metrics", "delay of a review, p99", delay, "ms", "a review alone, p99", 1000 * _p99(alone),
               Goal(at_most=10, of="value")),
    ]  # fmt: skip


async def _fill(cluster: MemoryCluster, core: Core, nodes: int, pods: int, namespaces: int) -> None:
    for number in range(nodes):
        core.caches.put(Kind.NODES, node(number))
    hard = {"limits.nvidia.com/gpu": 10**6, "limits.nvidia.com/gpumem": 10**9}
    for number in range(namespaces):
        core.caches.put(Kind.NAMESPACES, {"metadata": {"name": f"team-{number}"}})
        core.caches.put(Kind.RESOURCE_QUOTAS, quota("gpu", hard, f"team-{number}"))
    for number in range(pods):
        space = f"team-{number % namespaces}"
        if number % 10:
            pod = running(number, number % nodes, number % CARDS, namespace=space)
        else:
            pod = pod_with(f"pod-{number}", gpu(), space)
        pod["metadata"]["uid"] = f"uid-{number}"
        core.caches.put(Kind.PODS, pod)
    await cluster.ensure_namespace(CHARGED)
    core.caches.put(Kind.NAMESPACES, {"metadata": {"name": CHARGED}})
    used = {"status": {"used": dict.fromkeys(hard, "0")}}
    await cluster.create(Kind.RESOURCE_QUOTAS, quota("gpu", hard, CHARGED) | used)


async def _slices(registry: CollectorRegistry) -> tuple[bytes, list[float]]:
    """The text, and the seconds of each slice."""
    slices: list[float] = []
    began = time.thread_time()

    async def sleep(_: float) -> None:
        nonlocal began
        slices.append(time.thread_time() - began)
        await asyncio.sleep(0)
        began = time.thread_time()

    text = b"".join([part async for part in render(registry, sleep)])
    return text, [*slices, time.thread_time() - began]


async def _scrape(registry: CollectorRegistry) -> None:
    async for _ in render(registry):
        pass


async def _scraping(registry: CollectorRegistry) -> None:
    while True:
        await _scrape(registry)


async def _reviews(app: ASGIApp, number: int) -> list[float]:
    """The seconds that each of so many reviews takes."""
    seconds = []
    for each in range(number):
        pod = pod_with(f"new-{each}", gpu(), CHARGED)
        pod["metadata"]["uid"] = f"new-{time.perf_counter_ns()}"
        body = review(pod)
        started = time.thread_time()
        response = await ask(app, "/validate", body)
        seconds.append(time.thread_time() - started)
        if not response["allowed"]:
            raise RuntimeError(response["status"]["message"])
        await asyncio.sleep(0.005)
    return seconds


def _p99(seconds: Sequence[float]) -> float:
    return statistics.quantiles(seconds, n=100)[98]


if __name__ == "__main__":
    run({"metrics": measure}, __doc__)
