"""A kubelet for the dev control plane: it runs the containers of the pods bound to its node as local processes.

What a pod says is what runs: command and arguments, environment, user and capabilities, probes, volumes that follow
their objects, a bound and rotating token. Every pod has a network namespace and an address of its own (`network.py`),
every container a root of its own (`sandbox.py`). Images are names for programs of this machine; folders of the host are
in a folder of the kubelet's. What isn't supported, such as the host's network, keeps the pod waiting with a message
that says so.

It ends by being killed, and everything it started ends with it: there is nothing to clean up but its folder.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import urllib.parse
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import aiohttp

from . import logs
from .client import FAILURES, JSON, ApiError, Client
from .containers import Node
from .environment import api_service
from .network import HOST
from .pods import PodWorker
from .sandbox import Image, images

_log = logging.getLogger(__name__)

_RETRY_SECONDS = 0.5
_LEASE_SECONDS = 10.0
_HEARTBEATS = 30
"""How many renewals of the lease come to one report of the conditions."""
_LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
CAPACITY = {"cpu": "16", "memory": "64Gi", "pods": "110", "ephemeral-storage": "100Gi"}
"""What the node offers. Requests aren't enforced, so this isn't the machine's."""


class Worker(Protocol):
    """What keeps one pod."""

    def update(self, pod: JSON) -> None:
        """Take the pod as the API server has it now."""

    def vanish(self) -> None:
        """End at once what is left of a pod that the API server has no more."""

    async def run(self) -> None:
        """Keep the pod until it is gone."""


class Kubelet:
    """Keeps the pods of a node, each in what `worker` makes for it: by default, they are run."""

    def __init__(self, node: Node, worker: Callable[[JSON], Worker] | None = None) -> None:
        self._node = node
        self._worker = worker or (lambda pod: PodWorker(node, pod))
        self._workers: dict[str, Worker] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Follow the pods of the node, each in a worker of its own."""
        async for pods in self._node.client.follow("/api/v1/pods", fieldSelector=f"spec.nodeName={self._node.name}"):
            for uid in self._workers.keys() - pods.keys():
                self._workers.pop(uid).vanish()
            for uid, pod in pods.items():
                if uid not in self._workers:
                    self._start(uid, pod)
                self._workers[uid].update(pod)

    def _start(self, uid: str, pod: JSON) -> None:
        worker = self._workers[uid] = self._worker(pod)
        task = asyncio.create_task(worker.run())
        self._tasks.add(task)
        task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            _log.error("a pod's worker failed: %s", error, exc_info=error)


async def register(
    admin: Client,
    kubelet: Client,
    name: str,
    port: int,
    capacity: Mapping[str, str] = CAPACITY,
    more_labels: Mapping[str, str] | None = None,
) -> None:
    """Make the Node, ready and free of the taint that a cluster's node controller would take away.

    `port` is where the API server asks for logs.
    """
    labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", **(more_labels or {})}
    try:
        await admin.post("/api/v1/nodes", {"metadata": {"name": name, "labels": labels}})
    except ApiError as error:
        if error.code != 409:
            raise
    addresses = [{"type": "InternalIP", "address": HOST}, {"type": "Hostname", "address": name}]
    addresses.append({"type": "ExternalIP", "address": logs.ADDRESS})
    status = {"capacity": capacity, "allocatable": capacity, "conditions": [_ready()], "addresses": addresses}
    status["daemonEndpoints"] = {"kubeletEndpoint": {"Port": port}}
    await kubelet.patch(f"/api/v1/nodes/{name}/status", {"status": status})
    await admin.patch(f"/api/v1/nodes/{name}", {"spec": {"taints": None}})


def _ready() -> JSON:
    return {
        "type": "Ready",
        "status": "True",
        "reason": "KubeletReady",
        "message": "the dev cluster's kubelet runs",
        "lastHeartbeatTime": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
    }


async def keep_alive(client: Client, name: str) -> None:
    """Renew the node's Lease, and now and then its condition Ready, as a kubelet does."""
    renewals = 0
    while True:
        try:
            spec = {
                "holderIdentity": name,
                "leaseDurationSeconds": 40,
                "renewTime": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%fZ}",
            }
            try:
                await client.patch(f"{_LEASES}/{name}", {"spec": spec})
            except ApiError as error:
                if error.code != 404:
                    raise
                uid = (await client.get(f"/api/v1/nodes/{name}"))["metadata"]["uid"]
                owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid}
                await client.post(_LEASES, {"metadata": {"name": name, "ownerReferences": [owner]}, "spec": spec})
            renewals += 1
            if renewals % _HEARTBEATS == 0:
                await client.patch(f"/api/v1/nodes/{name}/status", {"status": {"conditions": [_ready()]}})
        except FAILURES as error:
            _log.warning("%s: no sign of life: %s", name, error)
        await asyncio.sleep(_LEASE_SECONDS)


async def find_service(client: Client) -> tuple[str, int]:
    """The address of the API server's Service, which the API server makes soon after it has started."""
    while True:
        try:
            spec = api_service(await client.get("/api/v1/namespaces/default/services/kubernetes"))["spec"]
            return spec["clusterIP"], spec["ports"][0]["port"]
        except FAILURES as error:
            _log.info("waiting for the Service kubernetes: %s", error)
            await asyncio.sleep(_RETRY_SECONDS)


@contextlib.asynccontextmanager
async def node(
    admin: Client, server: str, credentials: Path, user: str, folder: Path, known: dict[str, Image], name: str
) -> AsyncIterator[Node]:
    """What pods of a node share, whose kubelet has the client certificate `user`."""
    url = urllib.parse.urlsplit(server)
    assert url.hostname is not None
    assert url.port is not None
    service = await find_service(admin)
    prober = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=False, force_close=True))
    async with Client(server, credentials, user) as client, prober:
        yield Node(name, client, folder, known, (url.hostname, url.port), service, prober)


async def serve(server: str, credentials: Path, folder: Path, programs: Path, versions: Path, name: str) -> None:
    known = images(programs, versions)
    async with (
        Client(server, credentials, "admin") as admin,
        node(admin, server, credentials, "kubelet", folder, known, name) as own,
        logs.served(credentials, folder, name, own.client) as port,
    ):
        await register(admin, own.client, name, port)
        async with asyncio.TaskGroup() as group:
            group.create_task(keep_alive(own.client, name))
            group.create_task(Kubelet(own).run())


def main() -> None:
    parser = argparse.ArgumentParser(
        allow_abbrev=False, prog="kubelet", description="Runs the pods of one node as local processes."
    )
    parser.add_argument("--server", required=True, help="the API server's URL")
    parser.add_argument("--credentials", required=True, type=Path, help="the control plane's folder with certificates")
    parser.add_argument("--folder", required=True, type=Path, help="where volumes and logs of pods go")
    parser.add_argument("--programs", required=True, type=Path, help="the control plane's programs")
    parser.add_argument("--versions", required=True, type=Path, help="source trees of our other versions, by tag")
    parser.add_argument("--node", required=True, help="the name of the Node to run pods for")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    folders = options.folder, options.programs, options.versions
    asyncio.run(serve(options.server, options.credentials, *folders, options.node))


if __name__ == "__main__":
    main()
