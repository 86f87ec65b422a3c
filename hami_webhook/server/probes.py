"""The routes of every process, `/healthz`, `/readyz` and `/metrics`, and what each says of its build and loops."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from hami_webhook import __version__
from hami_webhook.build_info import build_info
from hami_webhook.server.exposition import Family, render


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


_BUILD = Family(
    "hami_build_info",
    "Build of this process.",
    ("version", "revision", "build_date", "go_version", "compiler", "platform"),
)
_PROBLEMS = Family("hami_webhook_problems", "Events recorded about objects.", ("reason",), is_counter=True)
_FAILURES = Family(
    "hami_webhook_loop_failures", "Unexpected exceptions that loops survived.", ("loop",), is_counter=True
)


@dataclass(frozen=True, eq=False)  # a registry needs its collectors hashable
class BuildCollector(Collector):
    """`problems` are events by reason, `failures` exceptions by loop."""

    problems: Counter[str]
    failures: Counter[str]

    def collect(self) -> Iterator[Metric]:
        """Every metric."""
        build = (__version__, *build_info(), "", platform.python_implementation(), platform.platform())
        yield _BUILD.of([(build, 1)])
        yield _PROBLEMS.of(((reason,), number) for reason, number in sorted(self.problems.items()))
        yield _FAILURES.of(((loop,), number) for loop, number in sorted(self.failures.items()))
