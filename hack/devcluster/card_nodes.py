"""Nodes with cards for the dev control plane: a stand-in for kubelet and for a vendor's device plugin, each.

Kubelets are `system:node:NAME`, device plugins `hami-device-plugin`, and neither may do more than on a real cluster.
Pods of images that the dev cluster has are run as by its own kubelet; of all others they come to Running and end.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
from pathlib import Path

from . import logs
from .boards import MODELS, Board, Offer, find
from .client import JSON, Client
from .containers import Node
from .device_plugin import DevicePlugin
from .kubelet import Kubelet, Worker, keep_alive, node, register
from .pods import PodWorker
from .sandbox import find_image, images
from .simulated_pods import SimulatedPod
from .volumes import ConfigurationError

_log = logging.getLogger(__name__)

PLUGIN = "device-plugin"
"""The client certificate of the device plugins."""
READY = "hami.io/dev-cluster-node"
"""The label of a node that is complete: its cards are registered."""
CAPACITY = {"cpu": "64", "memory": "512Gi", "pods": "110", "ephemeral-storage": "1Ti"}


def user(name: str) -> str:
    """The client certificate of a node's kubelet."""
    return f"kubelet-{name}"


async def serve(options: argparse.Namespace, board: Board) -> None:
    """Keep all nodes until each has been deleted."""
    known = images(options.programs, options.versions)
    async with (
        Client(options.server, options.credentials, "admin") as admin,
        Client(options.server, options.credentials, PLUGIN) as plugin,
    ):

        async def keep(name: str) -> None:
            own = node(admin, options.server, options.credentials, user(name), options.folder, known, name)
            async with own as found, logs.served(options.credentials, options.folder, name, found.client) as port:
                await keep_node(admin, found, port, DevicePlugin(plugin), board.offer(name))

        async with asyncio.TaskGroup() as group:
            for name in options.nodes.split(","):
                group.create_task(keep(name))


async def keep_node(admin: Client, own: Node, port: int, plugin: DevicePlugin, offer: Offer) -> None:
    """Make a node, and keep it until it is deleted; `port` is where the API server asks for logs."""
    capacity = CAPACITY | {name: str(amount) for name, amount in offer.capacity.items()}
    await register(admin, own.client, own.name, port, capacity, {"gpu": "on", **offer.labels})
    await plugin.register(own.name, offer)
    await admin.patch(f"/api/v1/nodes/{own.name}", {"metadata": {"labels": {READY: "true"}}})

    def worker(pod: JSON) -> Worker:
        return PodWorker(own, pod) if _has_images(own, pod) else SimulatedPod(own, plugin, pod)

    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(Kubelet(own, worker).run()),
            group.create_task(keep_alive(own.client, own.name)),
            group.create_task(plugin.keep_registered(own.name, offer)),
        ]
        await _removal(own)
        _log.info("%s is deleted", own.name)
        for task in tasks:
            task.cancel()


def _has_images(own: Node, pod: JSON) -> bool:
    """Whether the dev cluster has the programs of any container."""
    for container in (*(pod["spec"].get("initContainers") or ()), *pod["spec"]["containers"]):
        try:
            find_image(own.images, container["image"])
        except ConfigurationError:
            continue
        return True
    return False


async def _removal(own: Node) -> None:
    async for found in own.client.follow("/api/v1/nodes", fieldSelector=f"metadata.name={own.name}"):
        if not found:
            return


def main() -> None:
    parser = argparse.ArgumentParser(
        allow_abbrev=False, prog="card_nodes", description="Stands in for the kubelets of nodes with cards."
    )
    parser.add_argument("--server", required=True, help="the API server's URL")
    parser.add_argument("--credentials", required=True, type=Path, help="the control plane's folder with certificates")
    parser.add_argument("--folder", required=True, type=Path, help="where volumes and logs of pods go")
    parser.add_argument("--programs", required=True, type=Path, help="the control plane's programs")
    parser.add_argument("--versions", required=True, type=Path, help="source trees of our other versions, by tag")
    parser.add_argument("--nodes", required=True, help="the names of the nodes, with commas between them")
    parser.add_argument("--vendor", required=True, choices=sorted(MODELS))
    parser.add_argument("--model", required=True)
    parser.add_argument("--cards", required=True, type=int)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    asyncio.run(serve(options, find(options.vendor, options.model, options.cards)))


if __name__ == "__main__":
    main()
