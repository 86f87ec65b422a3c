"""A kubelet and a HAMi device plugin in one, for nodes that are objects only.

It finds the pod that holds its node's lock, marks it allocated, releases the lock and sets the pod running; and it ends
pods that are deleted.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from pathlib import Path

from hami_webhook.cluster.api import JSON, ClusterError, Conflict, Kind, NotFound, WatchType
from hami_webhook.cluster.connect import connect
from hami_webhook.cluster.informer import Change, Informer, Replaced
from hami_webhook.cluster.kubernetes import KubernetesCluster

LOCK = "hami.io/mutex.lock"
TO_ALLOCATE = "hami.io/vgpu-devices-to-allocate"


class Kubelets:
    """The kubelets and plugins of all nodes, in a thread, until `close`. `slow` is seconds that an allocation takes."""

    def __init__(self, login: Path, *, slow: float = 0.02) -> None:
        self._login = login
        self._slow = slow
        self._stop: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.allocated: list[str] = []
        self.faults: list[str] = []
        self._cards: dict[str, tuple[int, int, int]] = {}
        self._held: dict[str, list[tuple[str, int, int]]] = {}
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()
        assert self._started.wait(10)

    def close(self) -> None:
        assert self._loop is not None
        assert self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    async def _run(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        async with KubernetesCluster(await connect(str(self._login))) as cluster:
            self._cluster = cluster
            self._work: asyncio.Queue[tuple[Kind, JSON]] = asyncio.Queue()
            watching = [asyncio.create_task(self._informer(kind).run()) for kind in (Kind.NODES, Kind.PODS)]
            workers = [asyncio.create_task(self._worker()) for _ in range(8)]
            self._started.set()
            await self._stop.wait()
            for task in (*watching, *workers):
                task.cancel()
            await asyncio.gather(*watching, *workers, return_exceptions=True)
        # TLS connections end in the background, and aiohttp has nothing to wait for; this is what it documents
        await asyncio.sleep(0.25)

    def _informer(self, kind: Kind) -> Informer:
        def handle(change: Change) -> None:
            gone = not isinstance(change, Replaced) and change.type is WatchType.DELETED
            for obj in change.items if isinstance(change, Replaced) else (change.object,):
                self._audit(kind, obj, gone)
                if not gone:
                    self._work.put_nowait((kind, obj))

        loop = asyncio.get_running_loop()
        return Informer(self._cluster, kind, handle, clock=loop.time, sleep=asyncio.sleep, random=lambda: 0.5)

    def _audit(self, kind: Kind, obj: JSON, gone: bool) -> None:
        """Check at every change that no card has more on it than it has slots, memory and cores."""
        meta = obj["metadata"]
        notes = meta.get("annotations") or {}
        if kind is Kind.NODES:
            for card in json.loads(notes.get("hami.io/node-nvidia-register", "[]")):
                self._cards[card["id"]] = (card["count"], card["devmem"], card["devcore"])
            return
        parts = notes.get("hami.io/vgpu-devices-allocated", "").replace(";", "").split(":")
        bound = not gone and obj["spec"].get("nodeName")
        fields = [part.split(",") for part in parts if part] if bound else []
        self._held[meta["uid"]] = [(uuid, int(memory), int(cores)) for uuid, _, memory, cores in fields]
        for uuid in {uuid for uuid, _, _ in self._held[meta["uid"]]}:
            on = [held for holds in self._held.values() for held in holds if held[0] == uuid]
            sums = (len(on), sum(held[1] for held in on), sum(held[2] for held in on))
            if uuid in self._cards and any(used > most for used, most in zip(sums, self._cards[uuid], strict=True)):
                self.faults.append(f"card {uuid} holds {sums} of {self._cards[uuid]}")

    async def _worker(self) -> None:
        while True:
            kind, obj = await self._work.get()
            try:
                await (self._serve(obj) if kind is Kind.NODES else self._end(obj))
            except ClusterError as error:
                self.faults.append(f"{type(error).__name__}: {error}")

    async def _serve(self, node: JSON) -> None:
        """Allocate for the pod that holds the node's lock, as soon as it is bound."""
        held = (node["metadata"].get("annotations") or {}).get(LOCK, "")
        if held.count(",") != 2:
            return
        _, namespace, name = held.split(",")
        for _ in range(500):
            try:
                pod = await self._cluster.get(Kind.PODS, name, namespace)
            except NotFound:
                return
            notes = pod["metadata"].get("annotations") or {}
            if (
                pod["spec"].get("nodeName") == node["metadata"]["name"]
                and notes.get("hami.io/bind-phase") == "allocating"
            ):
                break
            if notes.get("hami.io/bind-phase") == "success":
                return
            await asyncio.sleep(0.01)
        else:
            return
        await asyncio.sleep(self._slow)
        done = {"hami.io/bind-phase": "success", TO_ALLOCATE: ";"}
        await self._cluster.patch(Kind.PODS, name, {"metadata": {"annotations": done}}, namespace)
        self.allocated.append(f"{namespace}/{name}")
        await self._unlock(node["metadata"]["name"], held)
        running = {"status": {"phase": "Running"}}
        await self._cluster.patch_status(Kind.PODS, name, running, namespace)

    async def _unlock(self, node: str, held: str) -> None:
        for _ in range(10):
            found = await self._cluster.get(Kind.NODES, node)
            if (found["metadata"].get("annotations") or {}).get(LOCK) != held:
                return
            patch = {"metadata": {"resourceVersion": found["metadata"]["resourceVersion"], "annotations": {LOCK: None}}}
            with contextlib.suppress(Conflict):
                await self._cluster.patch(Kind.NODES, node, patch)
                return

    async def _end(self, pod: JSON) -> None:
        """A pod under deletion on a node of ours is gone at once."""
        meta = pod["metadata"]
        if meta.get("deletionTimestamp") and pod["spec"].get("nodeName"):
            with contextlib.suppress(NotFound, Conflict):
                await self._cluster.call(
                    "DELETE",
                    f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}",
                    {"gracePeriodSeconds": 0, "preconditions": {"uid": meta["uid"]}},
                )
