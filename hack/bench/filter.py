"""`python -m hack.bench.filter`: the extender's answer on nodes with 8 cards at half load; baseline: parsing its body.

Cold is a request of a shape that wasn't seen before; steady is one that was, with one node changed since. Linked is a
cold one for 4 cards with `topology-aware`; baseline: without. The time is from the body's bytes to the answer's, with
the events and writes it makes on the embedded cluster.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import time
from collections.abc import Sequence

import orjson

from hack.bench.figures import Figure, Goal, run, show_progress
from hack.bench.objects import CARD_MEMORY, CARDS, JSON, gpu, node, node_name, pod_with, running
from hami_webhook.cluster.api import Kind
from hami_webhook.cluster.memory import MemoryCluster
from hami_webhook.controller.requeue_trigger import RequeueTrigger
from hami_webhook.device_config import builtin_device_config, enabled_vendors
from hami_webhook.devices.pod_preferences import GPU_POLICY
from hami_webhook.kube.objects import Node, Pod
from hami_webhook.scheduling.cluster_cache import ClusterCache
from hami_webhook.scheduling.extender import Extender
from hami_webhook.scheduling.framework import Handle
from hami_webhook.scheduling.node_locks import NodeLocks
from hami_webhook.scheduling.placer import Placer
from hami_webhook.scheduling.protocol import decode_args, encode_filtered

NODES = {"smallest": (20,), "usual": (100, 1000, 10_000), "large": (100, 1000, 5000, 10_000)}
ROUNDS = {"smallest": 2, "usual": 5, "large": 10}
NOW = 1_767_225_600.0


def measure(size: str) -> Sequence[Figure]:
    seconds: dict[tuple[str, int], tuple[float, float, float]] = {}
    linked: dict[int, tuple[float, float]] = {}
    for nodes in NODES[size]:
        env = _Yard(nodes)
        for mode in ("cooperative", "single"):
            show_progress(f"filter: {mode}, {nodes} nodes")
            seconds[mode, nodes] = asyncio.run(env.timed(mode, ROUNDS[size]))
        show_progress(f"filter: topology-aware, {nodes} nodes")
        linked[nodes] = asyncio.run(env.timed_linked(ROUNDS[size]))
    figures = [
        Figure("filter", f"linked, {nodes} nodes", 1000 * aware, "ms", "without the policy", 1000 * unaware)
        for nodes, (aware, unaware) in linked.items()
    ]
    for (mode, nodes), (cold, steady, parsing) in sorted(seconds.items()):
        name = f"{mode}, {nodes} nodes"
        goal = Goal(at_most=0.1) if nodes >= 1000 else None
        figures += [
            Figure("filter", f"{name}, cold", 1000 * cold, "ms", "parsing the body", 1000 * parsing),
            Figure("filter", f"{name}, steady", 1000 * steady, "ms", "cold", 1000 * cold, goal),
        ]
        if nodes == 10_000:
            for place, kind in enumerate(("cold", "steady")):
                few, many = seconds[mode, 1000][place], seconds[mode, 10_000][place]
                name = f"{mode}, {kind}, 10,000 nodes"
                figures.append(Figure("filter", name, 1000 * many, "ms", "1,000 nodes", 1000 * few, Goal(at_most=11)))
    return figures


class _Yard:
    """Nodes at half load, and an extender that knows them."""

    extender: Extender

    def __init__(self, nodes: int) -> None:
        self.nodes = nodes
        self.vendors = enabled_vendors(builtin_device_config().config)
        self.cluster = MemoryCluster(lambda: NOW)
        self.state = ClusterCache(self.vendors)
        for number in range(nodes):
            self.state.set_node(Node.from_object(node(number)), NOW)
        for number in range(nodes * CARDS):
            self._load(number, CARD_MEMORY * (40 + number * 7 % 21) // 100)
        self.numbers = itertools.count()

    def _extender(self, mode: str) -> Extender:
        handle = Handle(self.cluster, self.state, self.vendors, lambda: NOW, quotas=lambda namespace: [])
        queue = RequeueTrigger(self.cluster, lambda: None, clock=lambda: NOW)
        locks = NodeLocks(self.cluster, clock=lambda: NOW)
        return Extender(handle, Placer(handle), locks, queue, single=mode == "single")

    def _load(self, number: int, memory: int) -> None:
        """Let the one pod of a card hold so much of it, and half of its cores."""
        raw = running(number, number // CARDS, number % CARDS, memory, 50)
        raw["metadata"]["uid"] = f"running-{number}"
        self.state.set_pod(Pod.from_object(raw), NOW)

    async def timed(self, mode: str, rounds: int) -> tuple[float, float, float]:
        """Seconds of a cold request, a steady one, and of parsing the body: the fewest of some rounds."""
        self.extender = self._extender(mode)
        await self.cluster.ensure_namespace("default")
        cold = [await self._answered(await self._body(gpu(1000 + i))) for i in range(rounds)]
        steady, parsing = [], []
        await self._answered(await self._body(gpu(3000)))
        for i in range(4 * rounds):
            self._load(i * 37 % (self.nodes * CARDS), 15000 + i)
            body = await self._body(gpu(3000))
            steady.append(await self._answered(body))
            started = time.perf_counter()
            orjson.loads(body)
            parsing.append(time.perf_counter() - started)
        return min(cold), min(steady), min(parsing)

    async def timed_linked(self, rounds: int) -> tuple[float, float]:
        """Seconds of a cold request for 4 cards, with `topology-aware` and without: the fewest of some rounds."""
        self.extender = self._extender("cooperative")
        await self.cluster.ensure_namespace("default")
        aware, unaware = [], []
        for i in range(rounds):
            limits = {**gpu(1000 + i), "nvidia.com/gpu": "4"}
            aware.append(await self._answered(await self._body(limits, {GPU_POLICY: "topology-aware"})))
            unaware.append(await self._answered(await self._body(limits)))
        return min(aware), min(unaware)

    async def _body(self, limits: JSON, annotations: JSON | None = None) -> bytes:
        name = f"new-{next(self.numbers)}"
        stored: JSON = await self.cluster.create(Kind.PODS, pod_with(name, limits, "default", annotations))
        names = [node_name(number) for number in range(self.nodes)]
        return orjson.dumps({"Pod": stored, "Nodes": None, "NodeNames": names})

    async def _answered(self, body: bytes) -> float:
        gc.collect()
        started = time.perf_counter()
        args = decode_args(orjson.loads(body))
        assert not isinstance(args, str), args
        filtered = await self.extender.filter(args)
        answer = orjson.dumps(encode_filtered(filtered))
        seconds = time.perf_counter() - started
        if filtered.error or not filtered.names:
            raise SystemExit(f"filter: no node: {answer[:200]!r}")
        return seconds


if __name__ == "__main__":
    run({"filter": measure}, __doc__)
