"""A kubelet for the dev control plane: it runs the containers of the pods bound to its node as local processes.

What a pod says is what runs: command and arguments, environment, user and capabilities, probes, volumes that follow
their objects, a bound and rotating token. Every pod has a network namespace and an address of its own (`network.py`),
every container a root of its own (`sandbox.py`). Images are names for programs of this machine. What isn't supported,
such as a volume of the host, keeps the pod waiting with a message that says so.

It ends by being killed, and everything it started ends with it: there is nothing to clean up but its folder.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import urllib.parse
from pathlib import Path

import aiohttp

from .client import FAILURES, JSON, ApiError, Client
from .containers import Node
from .environment import api_service
from .network import HOST
from .pods import PodWorker
from .sandbox import images

_log = logging.getLogger(__name__)

_RETRY_SECONDS = 0.5
_CAPACITY = {"cpu": "16", "memory": "64Gi", "pods": "110", "ephemeral-storage": "100Gi"}
"""What the node offers. Requests aren't enforced, so this isn't the machine's."""


class Kubelet:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._workers: dict[str, PodWorker] = {}
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
        worker = self._workers[uid] = PodWorker(self._node, pod)
        task = asyncio.create_task(worker.run())
        self._tasks.add(task)
        task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            _log.error("a pod's worker failed: %s", error, exc_info=error)


async def register(admin: Client, kubelet: Client, name: str) -> None:
    """Make the Node, ready and free of the taint that a cluster's node controller would take away."""
    labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}
    try:
        await admin.post("/api/v1/nodes", {"metadata": {"name": name, "labels": labels}})
    except ApiError as error:
        if error.code != 409:
            raise
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "the dev cluster's kubelet runs"}
    addresses = [{"type": "InternalIP", "address": HOST}, {"type": "Hostname", "address": name}]
    status = {"capacity": _CAPACITY, "allocatable": _CAPACITY, "conditions": [ready], "addresses": addresses}
    await kubelet.patch(f"/api/v1/nodes/{name}/status", {"status": status})
    await admin.patch(f"/api/v1/nodes/{name}", {"spec": {"taints": None}})


async def find_service(client: Client) -> tuple[str, int]:
    """The address of the API server's Service, which the API server makes soon after it has started."""
    while True:
        try:
            spec = api_service(await client.get("/api/v1/namespaces/default/services/kubernetes"))["spec"]
            return spec["clusterIP"], spec["ports"][0]["port"]
        except FAILURES as error:
            _log.info("waiting for the Service kubernetes: %s", error)
            await asyncio.sleep(_RETRY_SECONDS)


async def serve(server: str, credentials: Path, folder: Path, programs: Path, versions: Path, name: str) -> None:
    url = urllib.parse.urlsplit(server)
    assert url.hostname is not None
    assert url.port is not None
    prober = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=False, force_close=True))
    async with Client(server, credentials, "admin") as admin, Client(server, credentials, "kubelet") as client, prober:
        service = await find_service(admin)
        await register(admin, client, name)
        known = images(programs, versions)
        await Kubelet(Node(name, client, folder, known, (url.hostname, url.port), service, prober)).run()


def main() -> None:
    parser = argparse.ArgumentParser(prog="kubelet", description="Runs the pods of one node as local processes.")
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
