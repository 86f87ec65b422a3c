"""The role `usage`: the API `usage.hami.io`, served to the API server (docs/decisions/0019-usage-api.md).

It makes a new certificate with each start, and puts the authority into the `caBundle` of its APIService. The API
server shows a certificate of its own, whose authority and names it publishes for this purpose.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import random
import signal
import socket
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NoReturn

import msgspec
import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from hami_webhook import pki
from hami_webhook.cluster.api import ClusterError, Kind
from hami_webhook.cluster.connect import connect
from hami_webhook.cluster.informer import Informer
from hami_webhook.cluster.kubernetes import KubernetesCluster
from hami_webhook.config import Settings
from hami_webhook.loops import Loops, repeat
from hami_webhook.server.app import application
from hami_webhook.server.limits import ListenerLimits
from hami_webhook.server.listener import Listener
from hami_webhook.server.probes import BuildCollector, probe_routes
from hami_webhook.server.request_metrics import new_registry
from hami_webhook.server.tls import CertificateFiles, ReloadingTls
from hami_webhook.usage.api import API_VERSION, GROUP, PREFIX, VERSION, NodeUsage, PodUsage, node_usage, pod_usage
from hami_webhook.usage.bound_pods import BoundPod, BoundPods, decode_bound
from hami_webhook.usage.scrape import Fetch, Fetcher, Monitors, NodeFigures, figures

logger: Final = logging.getLogger(__name__)

API_SERVICE = f"/apis/apiregistration.k8s.io/v1/apiservices/{VERSION}.{GROUP}"
FRONT_PROXY = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication"
"""Where an API server says by which certificate it is known to who serves a part of its API."""
_EVERY: Final = 60.0
"""Seconds between two looks at both."""
_MOST_AUTHORITIES: Final = 8
"""In the bundle: of replicas that start beside each other, and of those before."""
_CLIENTS: Final = "clients.crt"


class FrontProxy:
    """The API server's own certificate: the authority is in a file, the names that it may have are here."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.names: frozenset[str] = frozenset()

    def take(self, data: Mapping[str, str]) -> None:
        """Go by the ConfigMap's data. Raises `ValueError` where it names nobody."""
        authority = data.get("requestheader-client-ca-file", "")
        names = orjson.loads(data.get("requestheader-allowed-names") or "[]")
        if not authority or not isinstance(names, list):
            raise ValueError(f"{FRONT_PROXY} has no requestheader-client-ca-file: is API aggregation off?")
        if not self._file.exists() or self._file.read_text() != authority:
            self._file.write_text(authority)
        self.names = frozenset(str(each) for each in names)

    def admits(self, certificate: Mapping[str, Any]) -> bool:
        """Whether a certificate of that authority, as `ssl` shows it, is the API server's; any is if none are named."""
        subject = dict(pair for part in certificate.get("subject", ()) for pair in part)
        return bool(certificate) and (not self.names or subject.get("commonName") in self.names)


class UsageRole:
    """What the process runs. `folder` is for certificates: kept in memory, where the pod has it so."""

    def __init__(
        self,
        cluster: KubernetesCluster,
        settings: Settings,
        folder: Path,
        fetch: Fetch,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._folder = folder
        self._clock = clock
        self._pods = BoundPods(settings.pod_namespace)
        loop = asyncio.get_running_loop()
        self._informer = Informer(cluster, Kind.PODS, clock=loop.time, sleep=asyncio.sleep, random=random.random)
        self._monitors = Monitors(self._pods, fetch, clock)
        self.failures: Counter[str] = Counter()
        self._front_proxy = FrontProxy(folder / _CLIENTS)
        self._published = False
        registry = new_registry()
        registry.register(BuildCollector(Counter(), self.failures))
        address = settings.metrics_bind_address
        self.probes = Listener(
            application(probe_routes(registry, self._not_ready)),
            host=address.host,
            port=address.port,
            limits=ListenerLimits(),
        )
        self.listener: Listener | None = None

    async def run(self) -> None:
        """Serve until cancelled. Raises `OSError` where an address can't be listened on."""
        await self.probes.start()
        loops = Loops(self.failures)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(loops.keep("pods", self._follow_pods))
            tasks.create_task(self._serve(tasks, loops))

    async def _serve(self, tasks: asyncio.TaskGroup, loops: Loops) -> None:
        """Listen once it is known who may ask, and what is shown to them."""
        self._certify()
        while True:
            if await self._look():
                break
            await asyncio.sleep(1)
        files = CertificateFiles(
            self._folder / pki.SERVING_CERTIFICATE, self._folder / pki.SERVING_KEY, self._folder / _CLIENTS
        )
        tls = ReloadingTls(files)
        address = self._settings.http_bind
        routes = usage_routes(self._pods, self._monitors)
        self.listener = Listener(
            application(routes),
            host=address.host,
            port=address.port,
            limits=ListenerLimits(),
            tls=tls,
            admits=self._front_proxy.admits,
        )
        await self.listener.start()
        tasks.create_task(loops.keep("certificate files", tls.watch))
        tasks.create_task(loops.keep("front proxy and APIService", self._keep_looking))

    async def stop(self) -> None:
        """Finish requests in flight."""
        for listener in (self.listener, self.probes):
            if listener is not None:
                await listener.drain_and_stop()

    async def _follow_pods(self) -> None:
        await self._informer.run(self._pods.handle)

    def _not_ready(self) -> str | None:
        if not self._informer.synced.is_set():
            return "the pods aren't known yet"
        return (
            None if self.listener is not None and self._published else f"{API_SERVICE} can't be served yet: see the log"
        )

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock(), UTC)

    def _certify(self) -> None:
        """Make an authority and a certificate; the authority's key is kept nowhere."""
        pair = pki.generate(self._settings.webhook_service, self._settings.pod_namespace, now=self._now())
        self._authority = pair.ca.certificate
        (self._folder / pki.SERVING_KEY).write_bytes(pair.serving.key)
        (self._folder / pki.SERVING_CERTIFICATE).write_bytes(pair.serving.certificate)

    async def _keep_looking(self) -> NoReturn:
        async def step() -> None:
            if pki.needs_renewal((self._folder / pki.SERVING_CERTIFICATE).read_bytes(), self._now()):
                self._certify()
            await self._look()

        await repeat(step, _EVERY, asyncio.sleep)

    async def _look(self) -> bool:
        """Learn who may ask, and publish our authority; False where that failed, which the log says."""
        try:
            found = await self._cluster.call("GET", FRONT_PROXY)
            self._front_proxy.take(found.get("data") or {})
            await self._publish()
        except (ClusterError, ValueError) as error:
            logger.warning("%s can't be served: %s", GROUP, error)
            return False
        self._published = True
        return True

    async def _publish(self) -> None:
        spec = (await self._cluster.call("GET", API_SERVICE)).get("spec") or {}
        before = base64.b64decode(spec.get("caBundle") or "")
        valid = pki.valid_authorities(before, self._now())
        if self._authority in valid:
            return
        bundle = b"".join([*valid, self._authority][-_MOST_AUTHORITIES:])
        patch = {"spec": {"caBundle": base64.b64encode(bundle).decode(), "insecureSkipTLSVerify": None}}
        await self._cluster.call("PATCH", API_SERVICE, patch)


async def serve_usage(settings: Settings) -> None:
    """Run until SIGINT or SIGTERM. Raises `ClusterError`, and `OSError` where an address can't be listened on."""
    cluster = KubernetesCluster(
        await connect(settings.kubeconfig),
        decode=decode_bound,
        component="hami-webhook-usage",
        instance=settings.pod_name or socket.gethostname(),
        timeout=settings.kube_timeout,
    )
    with tempfile.TemporaryDirectory() as folder:
        async with cluster, Fetcher() as fetch:
            role = UsageRole(cluster, settings, Path(folder), fetch)
            task = asyncio.ensure_future(role.run())
            for number in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().add_signal_handler(number, task.cancel)
            with contextlib.suppress(asyncio.CancelledError):
                await task
            await role.stop()


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
    """What was measured of pods that have cards, and of nodes' cards; what isn't known is left out of lists. The API
    server has authenticated who asks, and RBAC has decided; the listener lets nobody else in.
    """

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
