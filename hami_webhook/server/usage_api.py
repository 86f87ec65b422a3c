"""The routes of the API `usage.hami.io`, which the API server passes on to us (docs/used.md#the-api).

It has authenticated who asks, and RBAC has decided, before a request comes here; the listener lets nobody else in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from hami_webhook.usage.api import API_VERSION, PREFIX, NodeUsage, PodUsage, node_usage, pod_usage
from hami_webhook.usage.bound_pods import BoundPod, BoundPods
from hami_webhook.usage.scrape import Monitors, NodeFigures, figures

_RESOURCES = {
    "kind": "APIResourceList",
    "apiVersion": "v1",
    "groupVersion": API_VERSION,
    "resources": [
        {"name": "nodes", "singularName": "", "namespaced": False, "kind": "NodeUsage", "verbs": ["get", "list"]},
        {"name": "pods", "singularName": "", "namespaced": True, "kind": "PodUsage", "verbs": ["get", "list"]},
    ],
}
_SPACE = f"{PREFIX}/namespaces/{{namespace}}"


def usage_routes(pods: BoundPods, monitors: Monitors) -> list[Route]:
    """What was measured of pods that have cards, and of nodes' cards; what isn't known is left out of lists."""

    async def resources(_: Request) -> Response:
        return _json(_RESOURCES)

    async def list_pods(request: Request) -> Response:
        wanted = pods.with_cards(request.path_params.get("namespace", ""))
        known = await monitors.of({pod.node for pod in wanted})
        return _list("PodUsageList", [each for pod in wanted if (each := _pod(pod, known)) is not None])

    async def get_pod(request: Request) -> Response:
        namespace, name = request.path_params["namespace"], request.path_params["name"]
        found = next((pod for pod in pods.with_cards(namespace) if pod.name == name), None)
        usage = None if found is None else _pod(found, await monitors.of([found.node]))
        return _absent("pods", name) if usage is None else _json(usage)

    async def list_nodes(_: Request) -> Response:
        known = sorted((await monitors.of()).items())
        return _list("NodeUsageList", [each for node, said in known if (each := _node(node, said)) is not None])

    async def get_node(request: Request) -> Response:
        name = request.path_params["name"]
        usage = _node(name, (await monitors.of([name])).get(name))
        return _absent("nodes", name) if usage is None else _json(usage)

    return [
        Route(PREFIX, resources),
        Route(f"{PREFIX}/pods", list_pods),
        Route(f"{_SPACE}/pods", list_pods),
        Route(f"{_SPACE}/pods/{{name}}", get_pod),
        Route(f"{PREFIX}/nodes", list_nodes),
        Route(f"{PREFIX}/nodes/{{name}}", get_node),
    ]


def _pod(pod: BoundPod, known: Mapping[str, NodeFigures]) -> PodUsage | None:
    said = known.get(pod.node)
    found = figures(said).pod(pod.namespace, pod.name, pod.node, pod.uuids)
    return None if said is None or found is None else pod_usage(found, said.at)


def _node(node: str, said: NodeFigures | None) -> NodeUsage | None:
    if said is None or said.found is None:
        return None
    return node_usage(node, [card for (_, _), card in sorted(said.found.cards.items())], said.at)


def _list(kind: str, items: Sequence[PodUsage | NodeUsage]) -> Response:
    return _json({"kind": kind, "apiVersion": API_VERSION, "metadata": {}, "items": items})


def _absent(resource: str, name: str) -> Response:
    """As the API server says it."""
    group = API_VERSION.partition("/")[0]
    status = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "reason": "NotFound",
        "code": 404,
    }
    message = f'{resource}.{group} "{name}" not found: nothing was measured of it'
    return _json({**status, "message": message, "details": {"name": name, "group": group, "kind": resource}}, 404)


def _json(body: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(body), status, media_type="application/json")
