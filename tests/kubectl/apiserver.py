"""An API server that answers reads of the objects it is given, as `kubectl hami` asks for them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

from aiohttp import web
from http_server import http_server
from multidict import CIMultiDict

from hami_webhook.cluster.api import JSON

KINDS = {
    "Pod": ("/api/v1", "pods"),
    "Node": ("/api/v1", "nodes"),
    "Namespace": ("/api/v1", "namespaces"),
    "ResourceQuota": ("/api/v1", "resourcequotas"),
    "AcceleratorQuota": ("/apis/hami.io/v1alpha1", "acceleratorquotas"),
    "ConfigMap": ("/api/v1", "configmaps"),
    "Device": ("/apis/scheduling.koordinator.sh/v1alpha1", "devices"),
    "Secret": ("/api/v1", "secrets"),
    "Event": ("/api/v1", "events"),
    "Service": ("/api/v1", "services"),
    "DaemonSet": ("/apis/apps/v1", "daemonsets"),
    "Deployment": ("/apis/apps/v1", "deployments"),
    "ReplicaSet": ("/apis/apps/v1", "replicasets"),
    "StatefulSet": ("/apis/apps/v1", "statefulsets"),
    "Job": ("/apis/batch/v1", "jobs"),
    "EndpointSlice": ("/apis/discovery.k8s.io/v1", "endpointslices"),
    "NetworkPolicy": ("/apis/networking.k8s.io/v1", "networkpolicies"),
    "PodDisruptionBudget": ("/apis/policy/v1", "poddisruptionbudgets"),
    "PriorityClass": ("/apis/scheduling.k8s.io/v1", "priorityclasses"),
    "ResourceClaim": ("/apis/resource.k8s.io/v1", "resourceclaims"),
    "ResourceClaimTemplate": ("/apis/resource.k8s.io/v1", "resourceclaimtemplates"),
    "ResourceSlice": ("/apis/resource.k8s.io/v1", "resourceslices"),
    "DeviceClass": ("/apis/resource.k8s.io/v1", "deviceclasses"),
    "PodUsage": ("/apis/usage.hami.io/v1alpha1", "pods"),
    "NodeUsage": ("/apis/usage.hami.io/v1alpha1", "nodes"),
    "Lease": ("/apis/coordination.k8s.io/v1", "leases"),
    "CustomResourceDefinition": ("/apis/apiextensions.k8s.io/v1", "customresourcedefinitions"),
    "MutatingWebhookConfiguration": ("/apis/admissionregistration.k8s.io/v1", "mutatingwebhookconfigurations"),
    "ValidatingWebhookConfiguration": ("/apis/admissionregistration.k8s.io/v1", "validatingwebhookconfigurations"),
}
REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


@dataclass
class ApiServer:
    """The objects, what the user may do, and what it was asked.

    `only` is the one namespace in which the user may read; None: everything. `lacking` are paths that nobody may use,
    `unknown` those that it doesn't have. `groups` are the served groups, or versions, that aren't everywhere.
    `pod` is what becomes of a pod that is created in a dry run, and `warnings` what its creator is warned of.
    """

    objects: list[JSON] = field(default_factory=list)
    only: str | None = None
    lacking: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)
    asked: list[tuple[str, str]] = field(default_factory=list)
    groups: set[str] = field(default_factory=lambda: {"hami.io"})
    version: str = "v1.36.3"
    now: datetime | None = None
    pod: Callable[[JSON], tuple[int, JSON]] = lambda pod: (201, pod)
    warnings: Callable[[JSON], list[str]] = lambda pod: []
    allowed: Callable[[JSON], bool] = lambda review: True
    on_request: Callable[[str], None] = lambda path: None
    listed: dict[str, list[JSON]] = field(default_factory=dict)
    """What lists had, by their resourceVersions, from which watches go on."""

    def answer(self, method: str, path: str, body: JSON | None) -> tuple[int, JSON]:
        self.asked.append((method, path))
        self.on_request(path)
        if path == "/version":
            return 200, {"gitVersion": self.version}
        if not self._may(method, path):
            return 403, {"message": f'User "tenant" cannot {method.lower()} {path}', "reason": "Forbidden", "code": 403}
        if method == "POST" and path == REVIEWS:
            assert body is not None
            return 201, {**body, "status": {"allowed": self.allowed(body["spec"])}}
        if method == "POST" and path.endswith("/pods"):
            assert body is not None
            return self.pod(body)
        assert method == "GET", (method, path)
        if path in self.unknown:
            return 404, {"message": "the server could not find the requested resource", "code": 404}
        if path.removeprefix("/apis/") in self.groups:
            return 200, {"kind": "APIGroup"}
        status, found = self._read(path)
        if "items" in found:
            found = {**found, "metadata": {"resourceVersion": self._version_of(found["items"])}}
        return status, found

    def respond(
        self, method: str, path: str, body: JSON | None, version: str | None
    ) -> tuple[int, CIMultiDict[str], bytes | AsyncIterator[bytes]]:
        """Status, headers and body of the response to a request; `version` is the one that a watch goes on from."""
        status, found = self.answer(method, path, body)
        headers = CIMultiDict({"Date": format_datetime(self.now or datetime.now(UTC), usegmt=True)})
        for text in self.warnings(body) if path.endswith("/pods") and body else ():
            headers.add("Warning", f"299 - {json.dumps(text)}")
        if status == 200 and version is not None:
            return status, headers, self.changes(path, version)
        return status, headers, json.dumps(found).encode()

    def _version_of(self, items: list[JSON]) -> str:
        version = str(len(self.listed) + 1)
        self.listed[version] = items
        return version

    async def changes(self, path: str, version: str) -> AsyncIterator[bytes]:
        """The events of a watch: what differs from the list of a version, and from then on."""
        known = _by_name(self.listed[version])
        while True:
            self.on_request(path)
            items = self._read(path)[1].get("items", [])
            found = _by_name(items)
            gone = {name: ("DELETED", obj) for name, obj in known.items() if name not in found}
            changed = {
                name: ("MODIFIED" if name in known else "ADDED", obj)
                for name, obj in found.items()
                if obj != known.get(name)
            }
            if gone or changed:
                version = self._version_of(items)
            for kind, obj in (*gone.values(), *changed.values()):
                meta = {**obj["metadata"], "resourceVersion": version}
                yield json.dumps({"type": kind, "object": {**obj, "metadata": meta}}).encode() + b"\n"
            known = found
            await asyncio.sleep(0.1)

    def _may(self, method: str, path: str) -> bool:
        if path in self.lacking:
            return False
        if self.only is None:
            return True
        parts = path.split("/")
        return method == "GET" and "namespaces" in parts[:-1] and parts[parts.index("namespaces") + 1] == self.only

    def _read(self, path: str) -> tuple[int, JSON]:
        for kind, (prefix, plural) in KINDS.items():
            found = [each for each in self.objects if each["kind"] == kind]
            if "usage" in prefix and not found:
                continue
            if path == f"{prefix}/{plural}":
                return 200, _list(found)
            for each in found:
                meta = each["metadata"] or {"name": ""}
                space = f"/namespaces/{meta['namespace']}" if meta.get("namespace") else ""
                if path == f"{prefix}{space}/{plural}/{meta['name']}":
                    return 200, each
            namespace, _, last = path.removeprefix(f"{prefix}/namespaces/").partition("/")
            if path.startswith(f"{prefix}/namespaces/") and last == plural:
                within = [each for each in found if each["metadata"].get("namespace") == namespace]
                return 200, _list(within)
        return 404, {"message": f"{path} not found", "reason": "NotFound", "code": 404}


def _list(objects: Iterable[JSON]) -> JSON:
    """Items of a list don't have their kind."""
    items = [{key: value for key, value in each.items() if key not in ("kind", "apiVersion")} for each in objects]
    return {"items": items}


def _by_name(items: Iterable[JSON]) -> dict[tuple[str, str], JSON]:
    return {(each["metadata"].get("namespace", ""), each["metadata"]["name"]): each for each in items}


@contextmanager
def serving(api: ApiServer, folder: Path, namespace: str = "team-a") -> Iterator[Path]:
    """The API server on a socket, and the kubeconfig of its user, whose context names the namespace."""

    def answer(request: web.BaseRequest, body: bytes) -> web.Response | AsyncIterator[bytes]:
        sent = json.loads(body) if body else None
        version = request.query["resourceVersion"] if "watch" in request.query else None
        status, headers, content = api.respond(request.method, request.path, sent, version)
        if isinstance(content, bytes):
            return web.Response(body=content, status=status, headers=headers)
        return content

    with http_server(answer) as url:
        yield kubeconfig(folder, url, namespace)


def kubeconfig(folder: Path, server: str, namespace: str = "team-a") -> Path:
    """A kubeconfig of a user of the server, whose current context names the namespace."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [
            {"name": "x", "context": {"cluster": "c", "user": "u", "namespace": namespace}},
            {"name": "bare", "context": {"cluster": "c", "user": "u"}},
        ],
        "current-context": "x",
    }
    path = folder / "kubeconfig"
    path.write_text(json.dumps(config))
    return path


class Response:
    """What the client reads of an aiohttp.ClientResponse, of an API server in this process."""

    def __init__(self, status: int, headers: CIMultiDict[str], body: bytes | AsyncIterator[bytes]) -> None:
        self.status = status
        self.headers = headers
        self.content = self
        self._body = body

    async def iter_any(self) -> AsyncIterator[bytes]:
        if isinstance(self._body, bytes):
            yield self._body
        else:
            async for part in self._body:
                yield part

    def release(self) -> None: ...

    def close(self) -> None: ...


def calls_of(api: ApiServer) -> Callable[..., Awaitable[Any]]:
    """A `call_api` of the Kubernetes client that has the API server in this process: no socket, and no HTTP."""

    async def call_api(
        client: object, method: str, url: str, headers: object, body: JSON | None, _request_timeout: object
    ) -> Any:
        await asyncio.sleep(0)  # others have their turn, as while a response is on its way
        parts = urlsplit(url)
        query = parse_qs(parts.query)
        version = query["resourceVersion"][0] if "watch" in query else None
        return SimpleNamespace(response=Response(*api.respond(method, parts.path, body, version)))

    return call_api
