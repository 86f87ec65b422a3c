"""An extender on an embedded cluster, asked as kube-scheduler asks it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from prometheus_client import CollectorRegistry

from hami_webhook.cluster.api import JSON, Kind
from hami_webhook.cluster.memory import MemoryCluster
from hami_webhook.kube.objects import Node, Pod
from hami_webhook.scheduling.extender import Extender
from hami_webhook.scheduling.extender_metrics import ExtenderMetrics
from hami_webhook.scheduling.framework import Handle
from hami_webhook.scheduling.node_locks import LOCK, NodeLocks, ShownNodes
from hami_webhook.scheduling.placer import LockedNodes, SchedulingPolicies
from hami_webhook.scheduling.protocol import ExtenderArgs, decode_args, decode_binding, encode_filtered
from hami_webhook.scheduling.requeue_trigger import RequeueTrigger
from hami_webhook.time_slices import TimeSlices

from .placer_env import VENDORS, PlacerEnv, uninterrupted

MODES = ("single", "cooperative")
MUTEX = LOCK


class RecordedQueue(RequeueTrigger):
    """What kube-scheduler's queue would be told: the UIDs of pods, and how often something was freed."""

    def __init__(self) -> None:
        super().__init__(MemoryCluster(lambda: 0.0), lambda: None, clock=lambda: 0.0)
        self.refusals: list[str] = []
        self.placed: list[str] = []
        self.times_freed = 0

    def refused(self, uid: str) -> None:
        self.refusals.append(uid)

    def settled(self, uid: str) -> None:
        self.placed.append(uid)

    def freed(self) -> None:
        self.times_freed += 1


class ExtenderEnv(PlacerEnv):
    """`mode` is the extender's; a wait of its locks moves the clock; `synced` is what `ready` waits for."""

    def __init__(
        self,
        mode: str,
        policies: SchedulingPolicies | None = None,
        pause: Callable[[str], Awaitable[None]] | None = None,
        patience: float = 28.0,
        slices: Callable[[], TimeSlices] = uninterrupted,
    ) -> None:
        super().__init__(policies, pause, slices)
        self.synced = asyncio.Event()
        self.synced.set()
        self.queue = RecordedQueue()
        self.naps = 0
        self.registry = CollectorRegistry()
        self.locks = NodeLocks(
            self.cluster,
            clock=lambda: self.now,
            patience=patience,
            shown=ShownNodes.of(self.state),
            sleep=self._sleep,
            jitter=lambda: 1.0,
        )

        self.state.watch_nodes(self.locks.node_changed)

        async def ready() -> None:
            await self.synced.wait()

        self.complete = False
        """Whether the cache is believed to have all bound pods."""
        handle = Handle(
            self.cluster,
            self.state,
            VENDORS,
            lambda: self.now,
            ready=ready,
            pods_complete=lambda version: self.complete,
        )
        self.extender = Extender(
            handle, self.placer, self.locks, self.queue, single=mode == "single", metrics=ExtenderMetrics(self.registry)
        )

    def _locked_nodes(self, pod: Pod) -> LockedNodes:
        return LockedNodes(self.locks.busy, self.locks.contended, self.locks.held_by(pod))

    async def _sleep(self, seconds: float) -> None:
        self.naps += 1
        self.now += seconds
        await asyncio.sleep(0)

    def _lock(self, name: str, annotation: str = MUTEX) -> str | None:
        found = self.cluster.peek(Kind.NODES, name)
        return found["metadata"].get("annotations", {}).get(annotation) if found else None

    def raw(self, name: str, namespace: str = "default") -> JSON:
        found = self.cluster.peek(Kind.PODS, name, namespace)
        assert found is not None
        return found

    def hear(self, name: str, namespace: str = "default") -> None:
        """The watch shows the pod as it is now."""
        self.state.set_pod(self.read(name, namespace), self.now)

    async def lock(self, name: str, value: str | None) -> None:
        stored = await self.cluster.patch(Kind.NODES, name, {"metadata": {"annotations": {MUTEX: value}}})
        self.state.set_node(Node.from_object(stored), self.now)

    async def label(self, name: str, key: str, value: str) -> None:
        stored = await self.cluster.patch(Kind.NODES, name, {"metadata": {"labels": {key: value}}})
        self.state.set_node(Node.from_object(stored), self.now)

    async def filter(self, name: str, *nodes: str, namespace: str = "default") -> JSON:
        """What is answered to filter for a pod of the cluster, through the wire's form."""
        return await self.ask({"Pod": self.raw(name, namespace), "Nodes": None, "NodeNames": list(nodes)})

    async def best(self, name: str, *nodes: str) -> str:
        """The node that the pod would be bound to by filter and the grades."""
        left: list[str] = (await self.filter(name, *nodes))["NodeNames"]
        grades = dict(await self.extender.prioritize(args({"Pod": self.raw(name), "NodeNames": left})))
        return max(left, key=grades.__getitem__)

    async def ask(self, body: Any) -> JSON:
        answer = encode_filtered(await self.extender.filter(args(body)))
        await self.recorded()
        return answer

    async def bind(self, name: str, node: str, *, namespace: str = "default", uid: str = "") -> str:
        meta = (self.cluster.peek(Kind.PODS, name, namespace) or {"metadata": {}})["metadata"]
        sent = {"PodName": name, "PodNamespace": namespace, "PodUID": uid or meta.get("uid", "?"), "Node": node}
        binding = decode_binding(json.loads(json.dumps(sent)))
        assert not isinstance(binding, str), binding
        error = await self.extender.bind(binding)
        await self.recorded()
        return error

    async def scheduled(self, raw: JSON, *nodes: str) -> str:
        """Create, filter and bind a pod on the first node left; the error of the bind."""
        await self.add(raw)
        meta = raw["metadata"]
        left = (await self.filter(meta["name"], *nodes, namespace=meta["namespace"]))["NodeNames"]
        return await self.bind(meta["name"], left[0], namespace=meta["namespace"])


def args(body: Any) -> ExtenderArgs:
    decoded = decode_args(json.loads(json.dumps(body)))
    assert not isinstance(decoded, str), decoded
    return decoded


async def turns() -> None:
    """Let everything else go as far as it can."""
    for _ in range(20):
        await asyncio.sleep(0)
