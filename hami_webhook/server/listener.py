"""One address, plain or TLS, on which an ASGI application is served by uvicorn's HTTP/1.1 protocol, within limits.

uvicorn parses (with httptools) and answers. Its `Server` is not used: it has no deadline for headers,
bodies, handshakes or unread answers, takes over the process's signals, and exits the process when a port is taken. The
application's lifespan events are not sent: its owner starts and ends what it needs. Everything belongs to the event
loop that `Listener.start` ran in.
"""

import asyncio
import logging
import socket
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import astuple, dataclass
from email.utils import formatdate
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.server import ServerState

from hami_webhook.server.connections import Connections
from hami_webhook.server.protocol import BoundedProtocol, ConnectionBounds
from hami_webhook.server.timeouts import within
from hami_webhook.server.tls import ReloadingTls

_LOG: Final = logging.getLogger(__name__)

_BACKLOG: Final = 1024
# Seconds an answered client may still send a body nobody wants, so that the answer isn't lost to a connection reset;
# also how much later than `read_body` the connection itself is cut, so that the application can answer.
_LINGER: Final = 1.0
# Seconds until a TLS client has to confirm the end of its connection.
_TLS_CLOSE_TIMEOUT: Final = 5.0
# Seconds between two readings of the clock for the Date header, which has whole seconds.
_STAMP_INTERVAL: Final = 1.0
# Seconds without accepting when the process is out of file descriptors.
_ACCEPT_PAUSE: Final = 1.0
# How many of the largest requests the connections may hold half-sent: one has to go through, whatever others do.
_HELD_REQUESTS: Final = 2
# Bytes of a body that is too large which are kept, so that the answer can name what it answers.
_START_BYTES: Final = 1024
# Digits of a Content-Length that are looked at; no body that is taken needs as many.
_LENGTH_DIGITS: Final = 18


@dataclass(frozen=True, slots=True)
class ListenerLimits:
    """Sizes in bytes, times in seconds; all positive, else `ValueError`.

    ``header_read_timeout`` covers the TLS handshake and, separately, each request's headers; ``request_timeout`` a
    request's body, and the client's reading of the answer (over TLS, where asyncio hides what is unsent, that is first
    seen after ``keep_alive``). ``keep_alive`` exceeds the 90 s the API server keeps an idle connection, so that it is
    never the server that ends it.
    """

    max_request_bytes: int = 16 * 1024 * 1024
    max_header_bytes: int = 32 * 1024
    header_read_timeout: float = 15.0
    request_timeout: float = 60.0
    max_concurrent_requests: int = 256
    max_connections: int = 256
    keep_alive: float = 125.0
    shutdown_grace: float = 15.0

    def __post_init__(self) -> None:
        if not all(value > 0 for value in astuple(self)):
            raise ValueError(f"every limit must be positive: {self}")


class BodyError(Exception):
    """A request body that was not taken. ``status`` is the HTTP status that says so; the text is one sentence.

    ``start`` is how the body begins, where that was read.
    """

    status = 400

    def __init__(self, text: str, start: bytes = b"") -> None:
        super().__init__(text)
        self.start = start


class BodyTooLarge(BodyError):
    """The body is, or says it is, larger than ``max_request_bytes``."""

    status = 413


class BodyTimeout(BodyError):
    """The body was not complete within ``request_timeout``."""

    status = 408


async def read_body(request: Request, limits: ListenerLimits) -> bytes:
    """The whole body of a starlette request: see `receive_body`."""
    return await receive_body(request.scope, request.receive, limits)


async def receive_body(scope: Scope, receive: Receive, limits: ListenerLimits) -> bytes:
    """The whole body; at most ``max_request_bytes`` of it are ever held.

    Raises `BodyTooLarge` or `BodyTimeout`, after which the request can still be answered, and starlette's
    ``ClientDisconnect``, after which it can't (the listener swallows it).
    """
    bound = limits.max_request_bytes
    declared = header(scope, b"content-length")
    too_large = declared.isdecimal() and (len(declared) > _LENGTH_DIGITS or int(declared) > bound)
    try:
        if not too_large:
            return await within(limits.request_timeout, _body(receive, bound))
        start = b"" if header(scope, b"expect") else await within(limits.request_timeout, _start(receive))
    except TimeoutError:
        raise BodyTimeout(f"the request body was not complete within {limits.request_timeout:g} s") from None
    raise BodyTooLarge(f"the request body has {declared[:_LENGTH_DIGITS]} bytes, more than the {bound} allowed", start)


def header(scope: Scope, name: bytes) -> str:
    """The first header of a name, which is lower case; empty if there is none."""
    for key, value in scope["headers"]:
        if key == name:
            text: str = value.decode("latin-1")
            return text
    return ""


async def _body(receive: Receive, bound: int) -> bytes:
    parts: list[bytes] = []
    size, more = 0, True
    while more:
        part, more = await _part(receive)
        size += len(part)
        if size > bound:
            start = b"".join((*parts, part))[:_START_BYTES]
            raise BodyTooLarge(f"the request body has more than the {bound} bytes allowed", start)
        parts.append(part)
    return part if len(parts) == 1 else b"".join(parts)


async def _start(receive: Receive) -> bytes:
    """The first bytes of a body, which is then left alone."""
    start, more = b"", True
    while more and len(start) < _START_BYTES:
        part, more = await _part(receive)
        start += part
    return start[:_START_BYTES]


async def _part(receive: Receive) -> tuple[bytes, bool]:
    """The next bytes of a body, and whether there are more. Raises ``ClientDisconnect``."""
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientDisconnect
    return message.get("body", b""), bool(message.get("more_body"))


class Listener:
    """Serves ``app`` on ``host``:``port`` from `start` until `drain_and_stop`; then it may be started again.

    ``host`` is an address or a name; empty or ``::`` means every address of both families. ``port`` 0 takes a free
    one. Signals are the caller's. ``app`` answers starlette's ``HTTPException``, which `receive` raises for a request
    whose body is complete while ``max_concurrent_requests`` others are in work. What nobody reads a body of, as probes,
    is always answered.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        host: str,
        port: int,
        limits: ListenerLimits,
        tls: ReloadingTls | None = None,
    ) -> None:
        self._app = app
        self._host = host
        self._wanted_port = port
        self._limits = limits
        self._tls = tls
        self._config = Config(
            self._answer,
            http="httptools",
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
        )
        self._state = ServerState()
        self._socket: socket.socket | None = None
        self._connections = Connections(limits.max_connections, _HELD_REQUESTS * limits.max_request_bytes)
        self._served: dict[asyncio.Task[None], BoundedProtocol] = {}
        self._closing = False
        self._in_work = 0
        self._refused = 0
        self._failed_handshakes = 0
        self._stamp_timer: asyncio.TimerHandle | None = None
        self._accept_timer: asyncio.TimerHandle | None = None

    @property
    def port(self) -> int:
        """The port really bound. Raises `RuntimeError` while not listening."""
        if self._socket is None:
            raise RuntimeError("the listener has not been started")
        bound: int = self._socket.getsockname()[1]
        return bound

    @property
    def open_connections(self) -> int:
        """Connections now open, those still in their TLS handshake included."""
        return len(self._served)

    @property
    def requests_in_flight(self) -> int:
        """Requests the application has now, those whose body isn't complete included."""
        return len(self._state.tasks)

    @property
    def refused(self) -> int:
        """Requests refused and connections closed since the beginning because there were too many."""
        return self._refused + self._connections.evicted

    @property
    def failed_handshakes(self) -> int:
        """TLS handshakes that failed or never ended, since the beginning: wrong ``caBundle``, no client certificate."""
        return self._failed_handshakes

    async def start(self) -> None:
        """Listen. Raises `OSError` when the address can't be bound, `RuntimeError` when already listening."""
        if self._socket is not None:
            raise RuntimeError("the listener has already been started")
        self._socket = await self._bind()
        self._socket.setblocking(False)
        self._closing = False
        self._stamp_answers()
        self._start_accepting(self._socket)

    def end_keep_alive(self) -> None:
        """From now on every answer closes its connection, so that clients go elsewhere before `drain_and_stop`."""
        self._closing = True
        self._stamp_answers()

    async def drain_and_stop(self) -> None:
        """Refuse connections, finish requests in flight for up to ``shutdown_grace`` seconds, then cut off the rest.

        The caller has let readiness fail long enough before. Does nothing when not listening.
        """
        if self._socket is None:
            return
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._limits.shutdown_grace
        loop.remove_reader(self._socket)
        if self._accept_timer is not None:
            self._accept_timer.cancel()
        self._socket.close()
        self._socket = None
        self.end_keep_alive()
        for protocol in self._served.values():
            if protocol.connected:
                protocol.shutdown()
            else:
                protocol.cut()
        try:
            while (pending := {*self._served, *self._state.tasks}) and (left := deadline - loop.time()) > 0:
                await asyncio.wait(pending, timeout=left)
        finally:
            # Requests first: uvicorn still answers a cancelled one, with 500.
            await _cancel(self._state.tasks)
            await _cancel(self._served)
            if self._stamp_timer is not None:
                self._stamp_timer.cancel()

    async def _bind(self) -> socket.socket:
        if self._host in ("", "::"):
            if socket.has_dualstack_ipv6():
                address = ("::", self._wanted_port)
                return socket.create_server(address, family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=True)
            return socket.create_server(("0.0.0.0", self._wanted_port), backlog=_BACKLOG)  # noqa: S104 asked for
        found = await asyncio.get_running_loop().getaddrinfo(
            self._host, self._wanted_port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, _, _, _, name = found[0]
        return socket.create_server((str(name[0]), int(name[1])), family=family, backlog=_BACKLOG)

    def _stamp_answers(self) -> None:
        """The headers every answer gets; changed in place, so that requests in flight get them too."""
        close = [(b"connection", b"close")] if self._closing else []
        self._state.default_headers[:] = [(b"date", formatdate(usegmt=True).encode()), *close]
        if self._stamp_timer is not None:
            self._stamp_timer.cancel()
        self._stamp_timer = asyncio.get_running_loop().call_later(_STAMP_INTERVAL, self._stamp_answers)

    def _start_accepting(self, listening: socket.socket) -> None:
        asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            connection, address = listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            _LOG.error("no connection can be accepted for %g s: %s", _ACCEPT_PAUSE, error)
            loop.remove_reader(listening)
            self._accept_timer = loop.call_later(_ACCEPT_PAUSE, self._start_accepting, listening)
            return
        protocol = BoundedProtocol(self._config, self._state, self._bounds(), loop, str(address[0]), self._connections)
        if not self._connections.add(protocol):
            self._refused += 1
            connection.close()
            return
        connection.setblocking(False)
        # asyncio sets it only where the socket's protocol number says TCP, which create_server leaves open; without it
        # every answer on a kept connection waits some 40 ms for the client's acknowledgement.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        protocol.task = task = loop.create_task(self._serve(connection, protocol))
        self._served[task] = protocol
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._connections.discard(self._served.pop(task))

    def _bounds(self) -> ConnectionBounds:
        limits = self._limits
        return ConnectionBounds(
            head_bytes=limits.max_header_bytes,
            headers=limits.header_read_timeout,
            body=limits.request_timeout + _LINGER,
            unwanted_body=_LINGER,
            reader=limits.request_timeout,
            keep_alive=limits.keep_alive,
        )

    async def _serve(self, connection: socket.socket, protocol: BoundedProtocol) -> None:
        """One connection from its handshake to its end. Cancelled, it is cut off at once."""
        loop = asyncio.get_running_loop()
        try:
            if self._tls is None:
                await loop.connect_accepted_socket(lambda: protocol, connection)
            else:
                await loop.connect_accepted_socket(
                    lambda: protocol,
                    connection,
                    ssl=self._tls.context,
                    ssl_handshake_timeout=self._limits.header_read_timeout,
                    ssl_shutdown_timeout=_TLS_CLOSE_TIMEOUT,
                )
            await protocol.ended.wait()
        except OSError as error:
            self._failed_handshakes += 1
            _LOG.debug("TLS handshake failed: %s", error)
        except asyncio.CancelledError:
            if protocol.connected:
                protocol.transport.abort()
                await protocol.ended.wait()
            else:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            raise

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """What uvicorn calls for each request: the application, unless a limit speaks against it."""
        # The protocol bounds headers that come bit by bit; those that come at once are complete before it looks.
        size = len(scope["raw_path"]) + len(scope["query_string"])
        size += sum(len(name) + len(value) + 4 for name, value in scope["headers"])
        if size > self._limits.max_header_bytes:
            await _refuse(send, 431, "Request Header Fields Too Large")
            return
        complete = False

        async def counting() -> Message:
            """As `receive`; the request counts from when its body is complete, so that half-sent ones keep none out."""
            nonlocal complete
            message = await receive()
            if not complete and message["type"] == "http.request" and not message.get("more_body"):
                if self._in_work >= self._limits.max_concurrent_requests:
                    self._refused += 1
                    raise HTTPException(503, "Too many requests in flight", {"retry-after": "1"})
                complete = True
                self._in_work += 1
            return message

        try:
            await self._app(scope, counting, send)
        except ClientDisconnect:
            _LOG.debug("client left before its request was read")
        finally:
            self._in_work -= complete


async def _refuse(send: Send, status: int, text: str, *headers: tuple[bytes, bytes]) -> None:
    body = text.encode()
    own = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": [*own, *headers]})
    await send({"type": "http.response.body", "body": body})


async def _cancel(tasks: Iterable[asyncio.Task[None]]) -> None:
    """End tasks that overran, without waiting longer than a moment for one that resists."""
    overdue = set(tasks)
    for task in overdue:
        task.cancel()
    if overdue:
        await asyncio.wait(overdue, timeout=_LINGER)
