"""What an API server sends is read up to a size: endless answers, lines and errors, and pages that tenants filled."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from builders import pod
from http_server import http_server
from kubernetes.aio.client import ApiClient, Configuration

from hami_webhook.cluster import kubernetes
from hami_webhook.cluster.api import ClusterError, Kind, Unavailable
from hami_webhook.cluster.kubernetes import KubernetesCluster

MIB = 1 << 20


@asynccontextmanager
async def cluster(
    answer: Callable[[web.BaseRequest], web.Response | Iterable[bytes]],
) -> AsyncIterator[KubernetesCluster]:
    with http_server(lambda request, _: answer(request)) as url:
        async with KubernetesCluster(ApiClient(Configuration(host=url))) as found:
            yield found


@pytest.fixture
def sent() -> list[int]:
    """The sizes of the parts that a server sent."""
    return []


def endless(sent: list[int], begin: bytes = b'{"items":["') -> Iterator[bytes]:
    for part in itertools.chain([begin], itertools.repeat(b"x" * MIB)):
        sent.append(len(part))
        yield part


async def test_an_answer_without_end_is_read_up_to_its_most(sent: list[int]) -> None:
    async with cluster(lambda _: endless(sent)) as found:
        with pytest.raises(Unavailable, match="has more than 64 MiB, and isn't read"):
            await found.get(Kind.PODS, "p", "team-a")
        assert sum(sent) < 2 * kubernetes.LARGEST_ANSWER


async def test_a_line_of_a_watch_without_end_is_read_up_to_its_most(sent: list[int]) -> None:
    async with cluster(lambda _: endless(sent)) as found:
        with pytest.raises(Unavailable, match="a line of a watch has more than 16 MiB"):
            async for _ in found.watch(Kind.PODS, "1"):
                pass
        assert sum(sent) < 4 * kubernetes.LARGEST_LINE


async def heard(parts: Iterable[bytes]) -> list[str]:
    """The names in a watch that comes in these parts."""
    async with cluster(lambda _: parts) as found:
        return [event.object["metadata"]["name"] async for event in found.watch(Kind.PODS, "1")]


async def test_lines_of_a_watch_may_come_in_any_parts() -> None:
    lines = b"".join(
        json.dumps({"type": "ADDED", "object": pod(f"p-{number}", namespace="a")}).encode() + b"\n" * (number % 3 + 1)
        for number in range(20)
    )
    for size in (1, 7, 500, len(lines)):
        parts = [lines[at : at + size] for at in range(0, len(lines), size)]
        assert await heard(parts) == [f"p-{number}" for number in range(20)]


async def test_an_error_of_any_size_is_an_error() -> None:
    async with cluster(lambda _: web.Response(status=403, body=b"x" * 3 * MIB)) as found:
        with pytest.raises(ClusterError, match="an error too large to be read"):
            await found.get(Kind.PODS, "p", "team-a")


async def test_a_page_that_is_too_large_is_read_in_smaller_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """No tenant keeps the rest of the cluster from being listed by pods that are as large as they may be."""
    monkeypatch.setattr(kubernetes, "LARGEST_ANSWER", 100_000)
    pods = [pod(f"p-{number}", annotations={"large": "x" * 30_000}) for number in range(20)]
    limits = []

    def answer(request: web.BaseRequest) -> web.Response:
        start, limit = int(request.query.get("continue", "0")), int(request.query["limit"])
        limits.append(limit)
        more = str(start + limit) if start + limit < len(pods) else ""
        meta = {"resourceVersion": "7", "continue": more}
        return web.json_response({"metadata": meta, "items": pods[start : start + limit]})

    async with cluster(answer) as found:
        listing = await found.list(Kind.PODS)
        assert [item["metadata"]["name"] for item in listing.items] == [f"p-{number}" for number in range(20)]
        assert listing.resource_version == "7"
        assert sorted(set(limits), reverse=True) == [500, 62, 7, 1]
        monkeypatch.setattr(kubernetes, "LARGEST_ANSWER", 1000)
        with pytest.raises(Unavailable, match="and isn't read"):
            await found.list(Kind.PODS)
