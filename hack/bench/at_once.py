"""An extender that answers at once: what any extender pays for the protocol of kube-scheduler and device plugins.

`python -m hack.bench.at_once PORT KUBECONFIG` finds that every node takes every pod, and binds each with what a device
plugin has to find: its node's lock, and a Binding that carries an allocation. It decides nothing, and watches nothing.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
import uvloop
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from hack.bench.objects import JSON
from hami_webhook.cluster.api import Kind
from hami_webhook.cluster.connect import connect
from hami_webhook.cluster.kubernetes import KubernetesCluster
from hami_webhook.kube.objects import format_time
from hami_webhook.server.bodies import read_body
from hami_webhook.server.limits import ListenerLimits
from hami_webhook.server.listener import Listener

_LIMITS = ListenerLimits()


def _route(path: str, answer: Callable[[Any], Awaitable[JSON]]) -> Route:
    async def respond(request: Request) -> Response:
        answered = await answer(orjson.loads(await read_body(request, _LIMITS)))
        return Response(orjson.dumps(answered), media_type="application/json")

    return Route(path, respond, methods=["POST"])


def _routes(cluster: KubernetesCluster) -> list[Route]:
    async def take_all(args: JSON) -> JSON:
        return {"NodeNames": args["NodeNames"], "Error": ""}

    async def bind(args: JSON) -> JSON:
        space, pod, uid, node = (args[key] for key in ("PodNamespace", "PodName", "PodUID", "Node"))
        now = time.time()
        lock = {"metadata": {"annotations": {"hami.io/mutex.lock": f"{format_time(now)},{space},{pod}"}}}
        await cluster.patch(Kind.NODES, node, lock)
        allocation = f"GPU-{node.rpartition('-')[2]}-0,NVIDIA,2000,0:;"
        written = {
            "hami.io/vgpu-node": node,
            "hami.io/vgpu-time": f"{now:.0f}",
            "hami.io/bind-time": f"{now:.0f}",
            "hami.io/bind-phase": "allocating",
            "hami.io/vgpu-devices-allocated": allocation,
            "hami.io/vgpu-devices-to-allocate": allocation,
        }
        await cluster.bind(space, pod, uid, node, metadata={"annotations": written})
        return {"Error": ""}

    return [_route("/filter", take_all), _route("/bind", bind)]


async def _serve(port: int, login: str) -> None:
    async with KubernetesCluster(await connect(login)) as cluster:
        app = Starlette(routes=_routes(cluster))
        await Listener(app, host="127.0.0.1", port=port, limits=_LIMITS).start()
        await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1]), sys.argv[2]))
