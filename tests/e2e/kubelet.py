"""A kubelet for nodes that are objects only, with the dev cluster's device plugin.

It finds the pod that holds its node's lock, has it allocated, which releases the lock, and sets the pod running; and it
ends pods that are deleted.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import threading
import time
from collections.abc import Collection, Coroutine
from pathlib import Path

import yaml

from hack.devcluster.client import FAILURES, ApiError, Client
from hack.devcluster.device_plugin import LOCK, PHASE, DevicePlugin
from hami_webhook.cluster.api import JSON, ClusterError, Conflict, Kind, NotFound, WatchType
from hami_webhook.cluster.connect import connect
from hami_webhook.cluster.informer import Change, Informer, Replaced
from hami_webhook.cluster.kubernetes import KubernetesCluster

DEFAULT_GRACE = 30


class Kubelets:
    """The kubelets and plugins of all nodes, in a thread, until `close`.

    `slow` is seconds that an allocation takes. Cards are audited of the nodes `audited` only, if it is given: others
    may register what they like.
    """

    def __init__(self, login: Path, *, slow: float = 0.02, audited: Collection[str] | None = None) -> None:
        self._login = login
        self._audited = audited
        self.slow = slow
        self._stop: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.allocated: list[str] = []
        self.faults: list[str] = []
        self._cards: dict[str, tuple[int, int, int]] = {}
        self._held: dict[str, list[tuple[str, int, int]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._locks: dict[str, str] = {}
        self._pods: dict[str, JSON] = {}
        self._ending: set[str] = set()
        """The UIDs of pods that are being ended, or were."""
        self._changed: dict[str, asyncio.Event] = {}
        """By node, set when its lock or a pod bound to it changed."""
        self.bound: dict[str, float] = {}
        """When pods were seen to be bound, by namespace and name, on `time.monotonic`'s clock."""
        self.ended: dict[str, float] = {}
        """When they were seen to be gone."""
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()
        assert self._started.wait(60)

    def close(self) -> None:
        assert self._loop is not None
        assert self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    async def _run(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        login = yaml.safe_load(self._login.read_text())
        ((server,), (user,)) = (
            [each["cluster"] for each in login["clusters"]],
            [each["user"] for each in login["users"]],
        )
        ca = base64.b64decode(server["certificate-authority-data"]).decode()
        async with (
            KubernetesCluster(await connect(str(self._login))) as cluster,
            Client.with_token(server["server"], ca, user["token"]) as client,
        ):
            self._cluster, self._plugin = cluster, DevicePlugin(client)
            for kind in (Kind.NODES, Kind.PODS):
                self._start(self._following(kind))
            self._started.set()
            await self._stop.wait()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        # TLS connections end in the background, and aiohttp has nothing to wait for; this is what it documents
        await asyncio.sleep(0.25)

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _following(self, kind: Kind) -> Coroutine[None, None, None]:
        def handle(change: Change) -> None:
            gone = not isinstance(change, Replaced) and change.type is WatchType.DELETED
            for obj in change.items if isinstance(change, Replaced) else (change.object,):
                self._audit(kind, obj, gone)
                (self._node_changed if kind is Kind.NODES else self._pod_changed)(obj, gone)

        loop = asyncio.get_running_loop()
        return Informer(self._cluster, kind, clock=loop.time, sleep=asyncio.sleep, random=lambda: 0.5).run(handle)

    def _node_changed(self, node: JSON, gone: bool) -> None:
        name = node["metadata"]["name"]
        self._locks[name] = "" if gone else (node["metadata"].get("annotations") or {}).get(LOCK, "")
        if name not in self._changed:
            self._changed[name] = asyncio.Event()
            self._start(self._serve(name))
        self._changed[name].set()

    def _pod_changed(self, pod: JSON, gone: bool) -> None:
        meta, node = pod["metadata"], pod["spec"].get("nodeName", "")
        key = f"{meta['namespace']},{meta['name']}"
        place = f"{meta['namespace']}/{meta['name']}"
        if gone:
            self._pods.pop(key, None)
            self.ended[place] = time.monotonic()
            return
        if node:
            self.bound.setdefault(place, time.monotonic())
        self._pods[key] = pod
        if node in self._changed:
            self._changed[node].set()
        # without a grace period there is nothing to end: it is gone, or waits for a finalizer
        if node and meta.get("deletionGracePeriodSeconds") and meta["uid"] not in self._ending:
            self._ending.add(meta["uid"])
            self._start(self._end(pod))

    def _audit(self, kind: Kind, obj: JSON, gone: bool) -> None:
        """Check at every change that no card has more on it than it has slots, memory and cores."""
        meta = obj["metadata"]
        node = meta["name"] if kind is Kind.NODES else obj["spec"].get("nodeName")
        if self._audited is not None and node not in self._audited:
            return
        notes = meta.get("annotations") or {}
        if kind is Kind.NODES:
            for card in json.loads(notes.get("hami.io/node-nvidia-register", "[]")):
                self._cards[card["id"]] = (card["count"], card["devmem"], card["devcore"])
            return
        parts = notes.get("hami.io/vgpu-devices-allocated", "").replace(";", "").split(":")
        over = gone or (obj.get("status") or {}).get("phase") in ("Succeeded", "Failed")
        bound = not over and obj["spec"].get("nodeName")
        fields = [part.split(",") for part in parts if part] if bound else []
        if bound and not fields and any("nvidia.com/gpu" in _limits(each) for each in obj["spec"]["containers"]):
            self.faults.append(f"no allocation: {meta['namespace']}/{meta['name']} is bound without an allocation")
        self._held[meta["uid"]] = [(uuid, int(memory), int(cores)) for uuid, _, memory, cores in fields]
        for uuid in {uuid for uuid, _, _ in self._held[meta["uid"]]}:
            on = [held for holds in self._held.values() for held in holds if held[0] == uuid]
            sums = (len(on), sum(held[1] for held in on), sum(held[2] for held in on))
            if uuid in self._cards and any(used > most for used, most in zip(sums, self._cards[uuid], strict=True)):
                self.faults.append(f"card {uuid} holds {sums} of {self._cards[uuid]}")

    async def _serve(self, node: str) -> None:
        """Allocate for each pod that holds the node's lock, as soon as it is bound."""
        while True:
            await self._changed[node].wait()
            self._changed[node].clear()
            held = self._locks[node]
            pod = self._pods.get(held.partition(",")[2], {"metadata": {}, "spec": {}})
            phase = (pod["metadata"].get("annotations") or {}).get(PHASE)
            if pod["spec"].get("nodeName") != node or phase != "allocating":
                continue
            try:
                await self._allocate(pod)
            except FAILURES as error:
                if isinstance(error, ApiError) and error.code in (404, 409):
                    continue  # it was deleted meanwhile: whoever bound it releases its lock
                self.faults.append(f"{type(error).__name__}: {error}")
                await asyncio.sleep(0.1)
                self._changed[node].set()

    async def _allocate(self, pod: JSON) -> None:
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        await asyncio.sleep(self.slow)
        await self._plugin.allocate(pod)
        self.allocated.append(f"{namespace}/{name}")
        self._start(self._set_running(name, namespace))

    async def _set_running(self, name: str, namespace: str) -> None:
        with contextlib.suppress(ClusterError):
            await self._cluster.patch_status(Kind.PODS, name, {"status": {"phase": "Running"}}, namespace)

    async def _end(self, pod: JSON) -> None:
        """A pod under deletion on a node of ours is gone at once, or after the grace period that it sets itself."""
        meta, grace = pod["metadata"], pod["spec"]["terminationGracePeriodSeconds"]
        if grace != DEFAULT_GRACE:
            await asyncio.sleep(grace)
        key, path = f"{meta['namespace']},{meta['name']}", f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": meta["uid"]}}
        # a conflict may be a change just then, or a pod of the same name
        while key in self._pods and self._pods[key]["metadata"]["uid"] == meta["uid"]:
            try:
                await self._cluster.call("DELETE", path, options)
            except NotFound:
                return
            except ClusterError as error:
                if not isinstance(error, Conflict):
                    self.faults.append(f"{type(error).__name__}: {error}")
                await asyncio.sleep(0.1)
            else:
                return


def _limits(container: JSON) -> JSON:
    found: JSON = container.get("resources", {}).get("limits", {})
    return found
