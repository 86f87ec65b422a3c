"""Listeners on real sockets, and the clients that try them. Deadlines are tenths of seconds here."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from hami_webhook import pki
from hami_webhook.server.bodies import BodyError, read_body
from hami_webhook.server.limits import ListenerLimits
from hami_webhook.server.listener import Listener
from hami_webhook.server.tls import ReloadingTls

PAIR = pki.generate("w", "n", now=datetime.now(UTC))
LIMITS = ListenerLimits(
    max_request_bytes=200_000,
    max_header_bytes=2_000,
    header_read_timeout=5,
    request_timeout=5,
    keep_alive=5,
    shutdown_grace=0.3,
)
BRISK = replace(LIMITS, header_read_timeout=0.15, request_timeout=0.15)
GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
SLOW = b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n"


class App:
    """Echoes the length of a body on /, waits to be released on /slow, which may have a body too.

    /pieces sends 20 MB in many.
    """

    def __init__(self, limits: ListenerLimits = LIMITS) -> None:
        self.limits = limits
        self.release = asyncio.Event()
        self.entered = asyncio.Event()
        self.errors: list[BodyError] = []
        self.asgi = Starlette(
            routes=[
                Route("/", self.echo, methods=["GET", "POST"]),
                Route("/slow", self.slow, methods=["GET", "POST"]),
                Route("/unread", self.unread, methods=["POST"]),
                Route("/large", self.large),
                Route("/stubborn", self.stubborn),
                Route("/streamed", self.streamed, methods=["POST"]),
                Route("/pieces", self.pieces),
            ]
        )

    async def echo(self, request: Request) -> PlainTextResponse:
        try:
            body = await read_body(request, self.limits)
        except BodyError as error:
            self.errors.append(error)
            return PlainTextResponse(str(error), error.status)
        return PlainTextResponse(str(len(body)))

    async def slow(self, request: Request) -> PlainTextResponse:
        await read_body(request, self.limits)
        self.entered.set()
        await self.release.wait()
        return PlainTextResponse("done")

    async def unread(self, request: Request) -> PlainTextResponse:
        return PlainTextResponse("no need")

    async def large(self, request: Request) -> PlainTextResponse:
        return PlainTextResponse("x" * 20_000_000)

    async def stubborn(self, request: Request) -> PlainTextResponse:
        self.entered.set()
        while True:
            with suppress(asyncio.CancelledError):
                await self.release.wait()
                return PlainTextResponse("at last")

    async def streamed(self, request: Request) -> ASGIApp:
        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"part", "more_body": True})
            self.entered.set()
            await self.release.wait()
            await send({"type": "http.response.body", "body": b"rest"})

        return answer

    async def pieces(self, request: Request) -> StreamingResponse:
        async def pieces() -> AsyncIterator[bytes]:
            for _ in range(200):
                yield b"x" * 100_000
                await asyncio.sleep(0.001)

        return StreamingResponse(pieces())


@asynccontextmanager
async def listening(
    app: App, limits: ListenerLimits = LIMITS, tls: ReloadingTls | None = None
) -> AsyncIterator[Listener]:
    listener = Listener(app.asgi, host="127.0.0.1", port=0, limits=limits, tls=tls)
    await listener.start()
    try:
        yield listener
    finally:
        app.release.set()
        await listener.drain_and_stop()
        assert listener.open_connections == 0


@asynccontextmanager
async def connected(
    listener: Listener, **options: Any
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port, **options)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
        with suppress(OSError):
            await writer.wait_closed()


async def answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the next answer that has a content-length."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return int(head[0].split()[1]), headers, body


async def until_cut(reader: asyncio.StreamReader) -> bytes:
    """Everything until the server ends the connection."""
    received = b""
    with suppress(ConnectionError):
        while part := await reader.read(1 << 16):
            received += part
    return received


async def until(condition: Callable[..., object]) -> None:
    while not condition():  # noqa: ASYNC110 the listener has no event for it
        await asyncio.sleep(0.005)
