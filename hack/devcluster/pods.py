"""The life of one pod: its volumes, its network, its containers and its status, until it is deleted."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from functools import partial
from pathlib import Path

from . import network
from .client import FAILURES, JSON, ApiError
from .containers import Container, Node, now
from .network import NetworkError, PodNetwork
from .sandbox import Identity, Mount, find_image
from .volumes import ConfigurationError, Owner, Volumes, unsupported

_log = logging.getLogger(__name__)

_RETRY_SECONDS = 1.0
HOST_ROOT = "host"
"""The folder, beside those of pods, that stands for the node's own root in volumes of the host."""


class PodWorker:
    """Runs one pod. `run` returns once the pod is gone, here and from the API server."""

    def __init__(self, node: Node, pod: JSON) -> None:
        self._node = node
        self._pod = pod
        meta = pod["metadata"]
        self._path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        self._folder = node.folder / f"{meta['namespace']}_{meta['name']}_{meta['uid']}"
        self._changed = asyncio.Event()
        self._deleted = asyncio.Event()
        self._gone = False
        self._network = PodNetwork(f"hami{meta['uid'].replace('-', '')[:10]}", node.service, node.api_server)
        create = partial(Container, node, pod, folder=self._folder, changed=self._changed.set)
        self._inits = [create(spec=spec, init=True) for spec in pod["spec"].get("initContainers") or []]
        self._mains = [create(spec=spec) for spec in pod["spec"]["containers"]]
        self._containers = [*self._inits, *self._mains]
        self._conditions: dict[str, JSON] = {}
        self._began = now()

    def update(self, pod: JSON) -> None:
        """The pod as the API server has it now."""
        self._pod = pod
        if pod["metadata"].get("deletionTimestamp"):
            self._deleted.set()

    def vanish(self) -> None:
        """The API server has the pod no more: nothing of it may go on."""
        self._gone = True
        for container in self._containers:
            container.kill()
        self._deleted.set()

    async def run(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._changed.set()
        life = asyncio.create_task(self._live())
        reports = asyncio.create_task(self._report())
        life.add_done_callback(self._check)
        reports.add_done_callback(self._check)
        await self._deleted.wait()
        grace = self._pod["metadata"].get("deletionGracePeriodSeconds", 0)
        await asyncio.gather(*(container.stop(grace) for container in self._containers))
        for task in (life, reports):
            task.cancel()
        await asyncio.gather(life, reports, return_exceptions=True)
        await self._network.close()
        await self._remove()

    async def _live(self) -> None:
        try:
            volumes = Volumes(
                self._node.client, self._pod, self._folder / "volumes", self._node.folder / HOST_ROOT, self._owner()
            )
            self._refuse_unsupported()
        except ConfigurationError as error:
            for container in self._containers:
                container.wait(error.reason, str(error))
            return
        following = asyncio.create_task(volumes.keep())
        following.add_done_callback(self._check)
        try:
            await self._start(volumes)
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            volumes.remove()

    async def _start(self, volumes: Volumes) -> None:
        while True:
            try:
                await asyncio.wait_for(volumes.filled(), _RETRY_SECONDS)
                break
            except TimeoutError:
                for container in self._containers:
                    container.wait("ContainerCreating", volumes.missing)
        while not self._network.address:
            try:
                await self._network.open()
            except NetworkError as error:
                await self._network.close()
                for container in self._containers:
                    container.wait("ContainerCreating", str(error))
                await asyncio.sleep(_RETRY_SECONDS)
        self._changed.set()
        for container in self._mains if self._inits else ():
            container.wait("PodInitializing")
        for init in self._inits:
            await init.run(self._mounts(init.spec, volumes), self._network)
            if not init.succeeded:
                return
        await asyncio.gather(*(each.run(self._mounts(each.spec, volumes), self._network) for each in self._mains))

    def _mounts(self, container: JSON, volumes: Volumes) -> list[Mount]:
        """The volumes of a container at their paths: parents before what is mounted inside of them."""
        found = [
            Mount(
                # what a part of a volume is now: it doesn't follow changes
                (volumes.path(each["name"]) / each.get("subPath", "")).resolve(),
                each["mountPath"],
                each["name"] in volumes.writable and not each.get("readOnly"),
            )
            for each in container.get("volumeMounts") or []
        ]
        return sorted(found, key=lambda mount: Path(mount.target).parts)

    def _owner(self) -> Owner:
        context = self._pod["spec"].get("securityContext") or {}
        users = set()
        for container in (each.spec for each in self._containers):
            with contextlib.suppress(ConfigurationError):
                image = find_image(self._node.images, container["image"])
                users.add(Identity.of(self._pod, container, image).user)
        return Owner(context.get("fsGroup"), users.pop() if len(users) == 1 else None)

    def _refuse_unsupported(self) -> None:
        spec = self._pod["spec"]
        for name in ("hostNetwork", "readinessGates", "shareProcessNamespace"):
            if spec.get(name):
                raise unsupported(f"the field {name}")
        for container in (each.spec for each in self._containers):
            if container.get("restartPolicy"):
                raise unsupported("the field restartPolicy of a container")
            for mount in container.get("volumeMounts") or []:
                if mount.get("subPathExpr"):
                    raise unsupported("the field subPathExpr of a mount")

    async def _report(self) -> None:
        """Write the status whenever it changed."""
        written: JSON = {}
        while True:
            await self._changed.wait()
            self._changed.clear()
            status = self._status()
            if status == written:
                continue
            try:
                await self._node.client.patch(f"{self._path}/status", {"status": status})
                written = status
            except FAILURES as error:
                if isinstance(error, ApiError) and error.code == 404:
                    return
                _log.warning("%s: its status can't be written: %s", self._path, error)
                await asyncio.sleep(_RETRY_SECONDS)
                self._changed.set()

    def _status(self) -> JSON:
        containers = [container.status for container in self._mains]
        ready = all(container["ready"] for container in containers)
        inits = [init.status for init in self._inits]
        own = {
            "PodReadyToStartContainers": bool(self._network.address),
            "Initialized": all(init.succeeded for init in self._inits),
            "ContainersReady": ready,
            "Ready": ready,
        }
        for kind, value in own.items():
            text = str(value)
            if self._conditions.get(kind, {}).get("status") != text:
                self._conditions[kind] = {"type": kind, "status": text, "lastTransitionTime": now()}
        others = [each for each in self._pod["status"].get("conditions") or [] if each["type"] not in own]
        address = self._network.address
        return {
            "phase": self._phase(),
            "conditions": [*self._conditions.values(), *others],
            **({"initContainerStatuses": inits} if inits else {}),
            "containerStatuses": containers,
            "startTime": self._began,
            "hostIP": network.HOST,
            "hostIPs": [{"ip": network.HOST}],
            **({"podIP": address, "podIPs": [{"ip": address}]} if address else {}),
        }

    def _phase(self) -> str:
        if any(init.over and not init.succeeded for init in self._inits):
            return "Failed" if self._pod["spec"].get("restartPolicy") == "Never" else "Pending"
        if all(container.over for container in self._mains):
            return "Failed" if any(container.exit_code for container in self._mains) else "Succeeded"
        return "Running" if all(container.ran for container in self._mains) else "Pending"

    async def _remove(self) -> None:
        """Report how the containers ended, and have the API server forget the pod."""
        uid = self._pod["metadata"]["uid"]
        last = {"metadata": {"uid": uid}, "status": self._status()}
        while not self._gone:
            try:
                await self._node.client.patch(f"{self._path}/status", last)
                await self._node.client.delete(self._path, {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}})
            except FAILURES as error:
                if isinstance(error, ApiError) and error.code == 404:
                    return  # somebody else was first
                _log.warning("%s: it can't be deleted: %s", self._path, error)
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                return

    def _check(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()):
            _log.error("%s: %s", self._path, error, exc_info=error)
