"""An API server that answers reads of the objects it is given, as `kubectl hami` asks for them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path

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
    "Deployment": ("/apis/apps/v1", "deployments"),
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
                meta = each["metadata"]
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
        status, found = api.answer(request.method, request.path, sent)
        if status == 200 and "watch" in request.query:
            return api.changes(request.path, request.query["resourceVersion"])
        headers = CIMultiDict({"Date": format_datetime(api.now or datetime.now(UTC), usegmt=True)})
        for text in api.warnings(sent) if request.path.endswith("/pods") and sent else ():
            headers.add("Warning", f"299 - {json.dumps(text)}")
        return web.json_response(found, status=status, headers=headers)

    with http_server(answer) as url:
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": url}}],
            "users": [{"name": "u", "user": {}}],
            "contexts": [
                {"name": "x", "context": {"cluster": "c", "user": "u", "namespace": namespace}},
                {"name": "bare", "context": {"cluster": "c", "user": "u"}},
            ],
            "current-context": "x",
        }
        path = folder / "kubeconfig"
        path.write_text(json.dumps(config))
        yield path
