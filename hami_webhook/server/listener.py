"""One address, plain or TLS, on which uvicorn serves an ASGI application over HTTP/1.1, within limits.

uvicorn's `Server` keeps the connections and requests, dates the answers and ends with the requests in flight. It is
given no socket to accept from: its own way of accepting has no deadline for TLS handshakes, can't close a connection
in one, and keeps one TLS context for the life of the process. The application's lifespan events are not sent: its owner
starts and ends what it needs. Everything belongs to the event loop that `Listener.start` ran in.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn import Config, Server

from hami_webhook.server.connections import Connections
from hami_webhook.server.limits import ListenerLimits, TooManyRequests
from hami_webhook.server.protocol import BoundedProtocol

if TYPE_CHECKING:  # it brings cryptography, 7 MiB that a plain listener does without
    from hami_webhook.server.tls import ReloadingTls

logger: Final = logging.getLogger(__name__)

_BACKLOG: Final = 1024
# Seconds until a TLS client has to confirm the end of its connection.
_TLS_CLOSE_TIMEOUT: Final = 5.0
# Seconds without accepting when the process is out of file descriptors.
_ACCEPT_PAUSE: Final = 1.0
# How many of the largest requests the connections may hold half-sent: one has to go through, whatever others do.
_HELD_REQUESTS: Final = 2


class _Server(Server):
    """uvicorn's server, in a process that handles its signals itself."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Listener:
    """Serves ``app`` on ``host``:``port`` from `start` until `drain_and_stop`; then it may be started again.

    ``host`` is an address or a name; empty or ``::`` means every address of both families. ``port`` 0 takes a free
    one. Signals are the caller's. A request is in work from when its body is complete until its answer begins: how long
    a client takes to read is bounded by connections and bytes. One that is complete while ``max_concurrent_requests``
    others are in work is answered with 503: `receive` raises, and what ``app`` sends after that is dropped. Requests
    whose body isn't read, as probes, are always answered. ``admits`` says whether a client whose certificate ``tls``
    verified is let in, by that certificate as ``ssl`` shows it.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        host: str,
        port: int,
        limits: ListenerLimits,
        tls: ReloadingTls | None = None,
        admits: Callable[[Mapping[str, Any]], bool] | None = None,
    ) -> None:
        self._app = app
        self._host = host
        self._wanted_port = port
        self._limits = limits
        self._tls = tls
        self._admits = admits
        self._server = _Server(
            Config(
                self._answer,
                http="httptools",
                ws="none",
                lifespan="off",
                interface="asgi3",
                log_config=None,
                log_level=logging.WARNING,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=limits.keep_alive,  # type: ignore[arg-type]  # int there, only given to call_later
                timeout_graceful_shutdown=limits.shutdown_grace,  # type: ignore[arg-type]  # as well, to wait_for
            )
        )
        self._server.config.load()
        self._serving: asyncio.Task[None] | None = None
        self._socket: socket.socket | None = None
        self._connections = Connections(limits.max_connections, _HELD_REQUESTS * limits.max_request_bytes)
        self._served: dict[asyncio.Task[None], BoundedProtocol] = {}
        self._in_work = 0
        self._refused = 0
        self.failed_handshakes = 0
        """TLS handshakes that failed or never ended, since the beginning: wrong ``caBundle``, no client certificate."""
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
        return len(self._server.server_state.tasks)

    @property
    def refused(self) -> int:
        """Requests refused and connections closed since the beginning because there were too many."""
        return self._refused + self._connections.evicted

    async def start(self) -> None:
        """Listen. Raises `OSError` when the address can't be bound, `RuntimeError` when already listening."""
        if self._socket is not None:
            raise RuntimeError("the listener has already been started")
        self._socket = await self._bind()
        self._socket.setblocking(False)
        self._server.should_exit = False
        self._server.config.encoded_headers.clear()
        self._serving = asyncio.create_task(self._server.serve(sockets=[]))
        self._start_accepting(self._socket)

    def end_keep_alive(self) -> None:
        """From now on every answer closes its connection, so that clients go elsewhere before `drain_and_stop`."""
        if not self._server.config.encoded_headers:
            for headers in (self._server.config.encoded_headers, self._server.server_state.default_headers):
                headers.append((b"connection", b"close"))

    async def drain_and_stop(self) -> None:
        """Refuse connections, finish requests in flight for up to ``shutdown_grace`` seconds, then abort the rest.

        The caller has let readiness fail long enough before. Does nothing when not listening.
        """
        if self._socket is None or self._serving is None:
            return
        asyncio.get_running_loop().remove_reader(self._socket)
        if self._accept_timer is not None:
            self._accept_timer.cancel()
        self._socket.close()
        self._socket = None
        self.end_keep_alive()
        for protocol in self._served.values():
            if not protocol.connected:
                protocol.abort()
        self._server.should_exit = True
        try:
            await self._serving
        finally:
            # Requests first: uvicorn still answers a cancelled one, with 500.
            await self._cancel(self._server.server_state.tasks)
            await self._cancel(self._served)

    async def _cancel(self, tasks: Iterable[asyncio.Task[None]]) -> None:
        """Cancel tasks that are overdue, and wait up to ``linger`` seconds for their end."""
        overdue = set(tasks)
        for task in overdue:
            task.cancel()
        if overdue:
            await asyncio.wait(overdue, timeout=self._limits.linger)

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

    def _start_accepting(self, listening: socket.socket) -> None:
        asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            connection, address = listening.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            logger.error("no connection can be accepted for %g s: %s", _ACCEPT_PAUSE, error)
            loop.remove_reader(listening)
            self._accept_timer = loop.call_later(_ACCEPT_PAUSE, self._start_accepting, listening)
            return
        protocol = BoundedProtocol(self._server, self._limits, self._connections, str(address[0]))
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

    async def _serve(self, connection: socket.socket, protocol: BoundedProtocol) -> None:
        """One connection from its handshake to its end. Cancelled, it is aborted at once."""
        secured = self._tls is not None
        try:
            transport, _ = await asyncio.get_running_loop().connect_accepted_socket(
                lambda: protocol,
                connection,
                ssl=self._tls.context if self._tls is not None else None,
                ssl_handshake_timeout=self._limits.header_read_timeout if secured else None,
                ssl_shutdown_timeout=_TLS_CLOSE_TIMEOUT if secured else None,
            )
            if self._admits is not None and not self._admits(transport.get_extra_info("peercert") or {}):
                self.failed_handshakes += 1
                transport.abort()
            await protocol.ended.wait()
        except OSError as error:
            self.failed_handshakes += 1
            logger.debug("TLS handshake failed: %s", error)
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
        # The protocol bounds incomplete headers only.
        size = len(scope["raw_path"]) + len(scope["query_string"])
        size += sum(len(name) + len(value) + 4 for name, value in scope["headers"])
        if size > self._limits.max_header_bytes:
            await PlainTextResponse("Request Header Fields Too Large", 431)(scope, receive, send)
            return
        in_work = begun = refused = False

        async def counting() -> Message:
            """As `receive`; the request counts from when its body is complete, so that half-sent ones keep none out."""
            nonlocal in_work, refused
            message = await receive()
            if in_work or begun or message["type"] != "http.request" or message.get("more_body"):
                return message
            if self._in_work >= self._limits.max_concurrent_requests:
                self._refused += 1
                refused = True
                raise TooManyRequests
            in_work = True
            self._in_work += 1
            return message

        async def sending(message: Message) -> None:
            """As `send`, unless the request was refused: a streamed answer listens while it begins."""
            nonlocal in_work, begun
            if refused:
                return
            self._in_work -= in_work
            in_work, begun = False, True
            await send(message)

        try:
            await self._app(scope, counting, sending)
        except ClientDisconnect:
            logger.debug("client left before its request was read")
        except TooManyRequests:
            text = PlainTextResponse("Too many requests in flight", 503, {"retry-after": "1"})
            await text(scope, receive, send)
        finally:
            self._in_work -= in_work
