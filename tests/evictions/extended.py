"""An extender with preemption on an embedded cluster, its informers and writes going on beside the test."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from builders import bound_pod, pod
from scheduling.extender_env import RecordedQueue
from scheduling.placer_env import NOW, VENDORS

from hami_webhook.assembly import Core
from hami_webhook.cluster.api import JSON, Kind
from hami_webhook.cluster.memory import MemoryCluster
from hami_webhook.controller.informers import SharedInformers, watched_kinds
from hami_webhook.core_options import Options
from hami_webhook.evictions.decisions import Decisions
from hami_webhook.evictions.pod_preemption import Preemption
from hami_webhook.scheduling.extender import Extender
from hami_webhook.scheduling.framework import Handle
from hami_webhook.scheduling.node_locks import NodeLocks
from hami_webhook.scheduling.protocol import Binding, decode_args, decode_proposals, encode_filtered, encode_proposals

_OPTIONS = Options()


class Extended:
    """An extender with preemption; `queue` records what kube-scheduler was asked to try again."""

    def __init__(
        self, cluster: MemoryCluster, mode: str, preemption: str, clock: Callable[[], float], options: Options
    ) -> None:
        self.cluster = cluster
        kinds = watched_kinds(VENDORS, disruption_budgets=True)
        self.feed = SharedInformers(cluster, kinds, clock=clock, sleep=_nap)
        self.core = core = Core(cluster, VENDORS, options, clock=clock, watches=self.feed)
        self.queue = RecordedQueue()
        handle = Handle(
            cluster,
            core.state,
            VENDORS,
            clock,
            ready=self.feed.wait_synced,
            quotas=core.caches.quotas,
            disruption_budgets=core.caches.disruption_budgets.values,
        )
        placer, dry_run = core.placer_for(handle), preemption == "dry-run"
        limits = core.limits
        self.preemption = Decisions(handle, placer, core.nominations, limits, self.queue, dry_run=dry_run, sleep=_nap)
        post_filter = Preemption(handle, placer, self.preemption)
        locks, single = NodeLocks(cluster, clock=clock), mode == "single"
        self.extender = Extender(handle, placer, locks, self.queue, single=single, preemption=post_filter)

    async def filter(self, name: str, nodes: Sequence[str] = ()) -> JSON:
        """What is answered for a pod, by default for all nodes; everything that follows has happened."""
        await turns()
        offered = list(nodes) or [each["metadata"]["name"] for each in self.cluster.peek_all(Kind.NODES)]
        args = decode_args(json.loads(json.dumps({"Pod": self.raw(name), "NodeNames": offered})))
        assert not isinstance(args, str), args
        answer = encode_filtered(await self.extender.filter(args))
        await turns()
        return answer

    async def bind(self, name: str, node: str) -> str:
        """What is answered, empty if the pod is bound."""
        await turns()
        return await self.extender.bind(Binding("default", name, self.raw(name)["metadata"]["uid"], node))

    async def preempt(self, name: str, **victims: Sequence[str]) -> dict[str, list[str]]:
        """The victims by node that kube-scheduler's proposal becomes, through the wire's form."""
        await turns()
        proposed = {node: {"Pods": [{"UID": uid} for uid in uids]} for node, uids in victims.items()}
        args = decode_proposals(json.loads(json.dumps({"Pod": self.raw(name), "NodeNameToMetaVictims": proposed})))
        assert not isinstance(args, str), args
        answer = encode_proposals(await self.extender.preempt(*args))["NodeNameToMetaVictims"]
        return {node: [pod["UID"] for pod in each["Pods"]] for node, each in answer.items()}

    def raw(self, name: str) -> JSON:
        found = self.cluster.peek(Kind.PODS, name, "default")
        assert found is not None, name
        return found

    def ending(self) -> list[str]:
        """The names of the pods under deletion."""
        pods = self.cluster.peek_all(Kind.PODS)
        return [each["metadata"]["name"] for each in pods if "deletionTimestamp" in each["metadata"]]

    def nominated(self, name: str) -> str:
        """The node that the pod is nominated to, which its annotation and its status agree on."""
        found = self.raw(name)
        node: str = found["metadata"].get("annotations", {}).get("hami.io/nominated-node", "")
        assert (found.get("status", {}).get("nominatedNodeName") or "") == node
        return node

    def events(self, name: str) -> list[tuple[str, str]]:
        """Reason and message of the pod's events, but for those of its filtering."""
        notes = [event.note for event in self.cluster.events if event.note.name == name]
        return [(note.reason, note.message) for note in notes if not note.reason.startswith("Filtering")]

    async def end(self, *names: str) -> None:
        """The kubelet reports that pods have ended."""
        for name in names:
            await self.cluster.delete(Kind.PODS, name, "default")
        await turns()


@asynccontextmanager
async def extended(
    *objects: JSON,
    mode: str = "cooperative",
    preemption: str = "on",
    cluster: MemoryCluster | None = None,
    pause: Callable[[str], Awaitable[None]] | None = None,
    clock: Callable[[], float] = lambda: NOW,
    options: Options = _OPTIONS,
) -> AsyncIterator[Extended]:
    """An extender at work on these nodes, pods and budgets, or on a cluster from before."""
    if cluster is None:
        cluster = MemoryCluster(clock)
        await add(cluster, *objects)
        cluster.pause = pause
    found = Extended(cluster, mode, preemption, clock, options)
    tasks = [
        asyncio.create_task(found.feed.run(found.core.caches, found.core.failures)),
        asyncio.create_task(found.preemption.run()),
    ]
    try:
        await found.feed.wait_synced()
        await turns()
        yield found
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def add(cluster: MemoryCluster, *objects: JSON) -> None:
    for obj in objects:
        if "spec" not in obj:
            await cluster.create(Kind.NODES, obj)
            continue
        await cluster.ensure_namespace(obj["metadata"]["namespace"])
        kinds = {"containers": Kind.PODS, "hard": Kind.RESOURCE_QUOTAS, "selector": Kind.POD_DISRUPTION_BUDGETS}
        await cluster.create(next(kind for part, kind in kinds.items() if part in obj["spec"]), obj)
    await turns()


async def turns() -> None:
    """Let everything else go as far as it can."""
    loop = asyncio.get_running_loop()
    for _ in range(100):
        await asyncio.sleep(0)
        if not loop._ready:  # type: ignore[attr-defined]  # of asyncio's own loops: nothing else is left to run
            return


async def _nap(seconds: float) -> None:
    await asyncio.sleep(0)


def low(name: str, on: str, text: str, priority: int = 0, started: int = 0, **meta: object) -> JSON:
    """A pod that runs on a node and holds what `text` says, since so many seconds after midnight."""
    made = bound_pod(name, on, text, priority=priority)
    made["metadata"] |= {"uid": name, **meta}
    return {**made, "status": {"phase": "Running", "startTime": f"2026-01-01T00:00:{started:02}Z"}}


def high(*containers: JSON, name: str = "high", priority: int = 10, **spec: Any) -> JSON:
    return pod(name, *containers, priority=priority, schedulerName="hami-scheduler", **spec)


def budget(allowed: int, app: str = "a", **status: object) -> JSON:
    """A PodDisruptionBudget for the pods with a label `app`."""
    spec = {"selector": {"matchLabels": {"app": app}}}
    meta = {"name": "pdb", "namespace": "default"}
    return {"metadata": meta, "spec": spec, "status": {"disruptionsAllowed": allowed, **status}}
