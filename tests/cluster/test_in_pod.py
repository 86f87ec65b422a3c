"""The small client of a pod: it sends what `kubernetes.aio` would, with the pod's token of today."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import orjson
import pytest
from aiohttp import web
from http_server import http_server
from yarl import URL

from hami_webhook import pki
from hami_webhook.cluster import in_pod
from hami_webhook.cluster.api import ClusterError, Kind, NotFound, Unavailable
from hami_webhook.cluster.in_pod import PodClient
from hami_webhook.cluster.kubernetes import KubernetesCluster

Sent = tuple[str, str, str, str, object]
"""Method, path with query, content type and authorisation of a request, and its body."""


class ApiServer:
    """An API server that notes what it is sent, and a pod's folder with its CA and a token."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.requests: list[Sent] = []
        pki.write(
            folder, pki.generate("kubernetes", "default", now=datetime.now(UTC), extra_names=["127.0.0.1"]), force=False
        )
        (folder / "token").write_text("first\n")
        self.tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.tls.load_cert_chain(folder / "tls.crt", folder / "tls.key")

    def answer(self, request: web.BaseRequest, body: bytes) -> web.Response:
        headers = request.headers
        sent = (request.method, str(request.rel_url), headers["Content-Type"], headers["Authorization"])
        self.requests.append((*sent, orjson.loads(body) if body else None))
        if request.path.endswith("/gone"):
            return web.json_response({"message": "no such node"}, status=404)
        return web.json_response({"metadata": {"resourceVersion": "7"}, "items": []})

    def cluster(self, url: str) -> KubernetesCluster:
        address = URL(url)
        client = PodClient.here(
            {"KUBERNETES_SERVICE_HOST": str(address.host), "KUBERNETES_SERVICE_PORT": str(address.port)}, self.folder
        )
        assert client is not None
        return KubernetesCluster(client)


@pytest.fixture
def server(tmp_path: Path) -> ApiServer:
    return ApiServer(tmp_path / "serviceaccount")


@pytest.fixture
def url(server: ApiServer) -> Iterator[str]:
    with http_server(server.answer, server.tls) as found:
        yield found


async def test_requests_are_those_of_the_ordinary_client(server: ApiServer, url: str) -> None:
    async with server.cluster(url) as cluster:
        listing = await cluster.list(Kind.PODS, node="gpu-1")
        await cluster.patch(Kind.NODES, "gpu-1", {"metadata": {"annotations": {"a": None}}})
        with pytest.raises(NotFound, match="no such node"):
            await cluster.get(Kind.NODES, "gone")
    assert listing.resource_version == "7"
    assert server.requests == [
        ("GET", "/api/v1/pods?limit=500&fieldSelector=spec.nodeName%3Dgpu-1", "application/json", "Bearer first", None),
        (
            "PATCH",
            "/api/v1/nodes/gpu-1",
            "application/merge-patch+json",
            "Bearer first",
            {"metadata": {"annotations": {"a": None}}},
        ),
        ("GET", "/api/v1/nodes/gone", "application/json", "Bearer first", None),
    ]


async def test_a_token_that_is_renewed_is_used(server: ApiServer, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_pod, "_TOKEN_AGE", 0.0)
    async with server.cluster(url) as cluster:
        await cluster.get(Kind.NODES, "gpu-1")
        (server.folder / "token").write_text("second")
        await cluster.get(Kind.NODES, "gpu-1")
        (server.folder / "token").unlink()
        await cluster.get(Kind.NODES, "gpu-1")
    assert [request[3] for request in server.requests] == ["Bearer first", "Bearer second", "Bearer second"]


async def test_a_server_of_another_authority_is_not_asked(server: ApiServer, url: str, tmp_path: Path) -> None:
    other = ApiServer(tmp_path / "other")
    async with other.cluster(url) as cluster:
        with pytest.raises(Unavailable, match="didn't answer GET /api/v1/nodes/gpu-1"):
            await cluster.get(Kind.NODES, "gpu-1")
    assert server.requests == []


@pytest.mark.parametrize("missing", ["ca.crt", "token"])
async def test_a_service_account_without_a_file_is_told(server: ApiServer, url: str, missing: str) -> None:
    (server.folder / missing).unlink()
    with pytest.raises(ClusterError, match=r"can't be (used|read): .*No such file"):
        await server.cluster(url).get(Kind.NODES, "gpu-1")


def test_outside_a_pod_there_is_none(tmp_path: Path) -> None:
    inside = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    assert PodClient.here({}, tmp_path) is None
    assert PodClient.here(inside, tmp_path / "nowhere") is None
