"""`python -m hack.bench.filter`: the extender's answer on nodes with 8 cards at half load; baseline: every node asked.

Cold is a request of a shape that wasn't seen before; steady is one that was, with one node changed since. The nodes are
of 200 classes. The time is from the body's bytes to the answer's, with the events and writes it makes on the embedded
cluster.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from unittest.mock import patch

import orjson

from hack.bench.figures import Figure, Goal, run, show_progress
from hack.bench.objects import CARD_MEMORY, CARDS, JSON, gpu, node, node_name, pod_with, running
from hami_webhook.cluster.api import Kind
from hami_webhook.cluster.memory import MemoryCluster
from hami_webhook.device_config import builtin_device_config, enabled_vendors
from hami_webhook.devices.model import NodeView
from hami_webhook.kube.objects import Node, Pod
from hami_webhook.scheduling.extender import Extender
from hami_webhook.scheduling.framework import Handle
from hami_webhook.scheduling.node_classes import NodeClasses
from hami_webhook.scheduling.node_locks import NodeLocks
from hami_webhook.scheduling.placer import Placer
from hami_webhook.scheduling.protocol import decode_args, encode_filtered
from hami_webhook.scheduling.requeue_trigger import RequeueTrigger
from hami_webhook.state.cluster_cache import ClusterCache
from hami_webhook.time_slices import TimeSlices

NODES = {"smallest": (20,), "usual": (100, 1000, 10_000), "large": (100, 1000, 5000, 10_000)}
ROUNDS = {"smallest": 2, "usual": 5, "large": 10}
CLASSES = 200
MOST_MILLISECONDS = 30
"""Of a cold request at the most nodes."""
NOW = 1_767_225_600.0
ASKED = "every node asked"


def measure(size: str) -> Sequence[Figure]:
    figures: list[Figure] = []
    seconds: dict[tuple[str, str, int], float] = {}
    for nodes in NODES[size]:
        filtering = Filtering(nodes, CLASSES)
        for mode in ("cooperative", "single"):
            show_progress(f"filter: {mode}, {nodes} nodes")
            cold, each, steady = asyncio.run(filtering.timed(mode, ROUNDS[size]))
            seconds[mode, "cold", nodes], seconds[mode, "steady", nodes] = cold, steady
            figures.append(_figure(f"{mode}, {nodes} nodes, cold", cold, each, _at_most(nodes)))
            goal = Goal(at_most=0.1) if nodes >= 1000 else None
            figures.append(_figure(f"{mode}, {nodes} nodes, steady", steady, each, goal))
    for mode, kind, nodes in seconds:
        if nodes == 10_000:
            few, many = seconds[mode, kind, 1000], seconds[mode, kind, nodes]
            name = f"{mode}, {kind}, 10,000 nodes"
            figures.append(Figure("filter", name, 1000 * many, "ms", "1,000 nodes", 1000 * few, Goal(at_most=11)))
    return figures


def _figure(name: str, seconds: float, each: float, goal: Goal | None) -> Figure:
    return Figure("filter", name, 1000 * seconds, "ms", ASKED, 1000 * each, goal)


def _at_most(nodes: int) -> Goal | None:
    return Goal(at_most=MOST_MILLISECONDS, of="value") if nodes == 10_000 else None


@contextmanager
def every_node_asked() -> Iterator[None]:
    """No node is taken for equal to another."""

    def by_itself(view: NodeView) -> Hashable:
        return view.name

    with patch.object(NodeClasses, "distinction", lambda *_: by_itself):
        yield


class Filtering:
    """Nodes at half load, of so many classes, and an extender that knows them; `slices` are those of its time."""

    extender: Extender

    def __init__(self, nodes: int, classes: int, slices: Callable[[], TimeSlices] = TimeSlices) -> None:
        self.nodes = nodes
        self.slices = slices
        self.vendors = enabled_vendors(builtin_device_config().config)
        self.cluster = MemoryCluster(lambda: NOW)
        self.state = ClusterCache(self.vendors)
        for number in range(nodes):
            self.state.set_node(Node.from_object(node(number)), NOW)
        for number in range(nodes * CARDS):
            kind, card = number // CARDS % classes, number % CARDS
            self.load(number, CARD_MEMORY * (40 + (kind + card) * 7 % 21) // 100 + kind)
        self.numbers = itertools.count()

    def use(self, mode: str) -> None:
        """Ask an extender of this mode from now on, which has answered nothing yet."""
        handle = Handle(self.cluster, self.state, self.vendors, lambda: NOW, quotas=lambda namespace: [])
        queue = RequeueTrigger(self.cluster, lambda: None, clock=lambda: NOW)
        locks = NodeLocks(self.cluster, clock=lambda: NOW)
        self.extender = Extender(handle, Placer(handle, slices=self.slices), locks, queue, single=mode == "single")

    def load(self, number: int, memory: int) -> None:
        """Let the one pod of a card hold so much of it, and half of its cores."""
        raw = running(number, number // CARDS, number % CARDS, memory, 50)
        raw["metadata"]["uid"] = f"running-{number}"
        self.state.set_pod(Pod.from_object(raw), NOW)

    async def timed(self, mode: str, rounds: int) -> tuple[float, float, float]:
        """Seconds of a cold request, of one that asks every node, and of a steady one: the fewest of some rounds."""
        self.use(mode)
        await self.cluster.ensure_namespace("default")
        await self.answered(await self.body(gpu(1000)))  # in which the nodes' classes are found
        cold, each, steady = [], [], []
        for number in range(1, rounds + 1):
            cold.append(await self.answered(await self.body(gpu(1000 + 2 * number))))
            with every_node_asked():
                each.append(await self.answered(await self.body(gpu(1001 + 2 * number))))
        await self.answered(await self.body(gpu(3000)))
        for i in range(4 * rounds):
            self.load(i * 37 % (self.nodes * CARDS), 15000 + i)
            steady.append(await self.answered(await self.body(gpu(3000))))
        return min(cold), min(each), min(steady)

    async def body(self, limits: JSON) -> bytes:
        name = f"new-{next(self.numbers)}"
        stored: JSON = await self.cluster.create(Kind.PODS, pod_with(name, limits, "default"))
        names = [node_name(number) for number in range(self.nodes)]
        return orjson.dumps({"Pod": stored, "Nodes": None, "NodeNames": names})

    async def answered(self, body: bytes) -> float:
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
