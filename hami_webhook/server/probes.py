"""The routes of every process: `/healthz`, `/readyz` and `/metrics`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from hami_webhook.server.exposition import render


def probe_routes(
    registry: CollectorRegistry,
    ready: Callable[[], str | None],
    remark: Callable[[], str] = lambda: "",
    more: Callable[[], AsyncIterator[bytes]] | None = None,
) -> list[Route]:
    """`ready` says why the process may not be sent reviews, None if it may; `remark` what an administrator should see
    to although it may. That is in the answer of `/readyz` and doesn't make it fail: no replica gets better by being
    taken out of service, and a rollout would stop for what only an administrator can change. `/metrics` shows
    `registry`, after what `more` writes.
    """

    async def healthz(_: Request) -> Response:
        return Response()

    async def readyz(_: Request) -> Response:
        problem = ready()
        if problem is not None:
            return PlainTextResponse(f"{problem}\n", 503)
        text = remark()
        return PlainTextResponse(f"{text}\n") if text else Response()

    async def metrics(_: Request) -> Response:
        return StreamingResponse(text(), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    async def text() -> AsyncIterator[bytes]:
        if more is not None:
            async for piece in more():
                yield piece
        async for piece in render(registry):
            yield piece

    return [Route("/healthz", healthz), Route("/readyz", readyz), Route("/metrics", metrics)]
