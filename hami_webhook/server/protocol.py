"""uvicorn's HTTP/1.1 protocol, with bounds on the time and the memory that a client may take (docs/security.md)."""

import asyncio
import logging
import select
from enum import Enum, auto
from typing import Any, Final

import httptools
from uvicorn import Server
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from hami_webhook.server.connections import Connections
from hami_webhook.server.limits import ListenerLimits

logger: Final = logging.getLogger(__name__)

# Bytes that the frame of a chunk may have, on average: a size has up to 16 digits, and there are two line ends.
_CHUNK_FRAME: Final = 20
_BODY_HEADERS: Final = frozenset((b"content-length", b"transfer-encoding"))


class _Reading(Enum):
    """What of a request a connection has read."""

    NOTHING = auto()
    HEAD = auto()
    BODY = auto()


class _WritableTransport:
    """A transport on which it is no error to write after its end, which uvloop reports a moment later."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.is_closing = transport.is_closing  # several times a request

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP/1.1 protocol with deadlines for what the client has to do: send headers, send a body, read.

    What the parser keeps of a head, or of what is around a chunked body's bytes, is bounded too. A client that sends
    a request before it has the answer to the one before gets that answer, and the end of the connection.

    It reports the bytes that it holds to `connections`, which may call `abort`. `task` is what serves it.
    """

    def __init__(
        self,
        server: Server,
        limits: ListenerLimits,
        connections: Connections,
        source: str,
    ) -> None:
        super().__init__(server.config, server.server_state, {}, asyncio.get_running_loop())
        self.source = source
        self.held = 0
        self.task: asyncio.Task[None] | None = None
        self._connections = connections
        self._body_held = 0
        self._answer_held = 0
        self.connected = False
        self.ended = asyncio.Event()
        self._limits = limits
        self._expected: tuple[str, float] | None = None
        self._read_deadline: asyncio.TimerHandle | None = None
        self._write_deadline: asyncio.TimerHandle | None = None
        self._reading = _Reading.NOTHING
        # Bytes read of a head, or of what is around the chunks of a body.
        self._framing_bytes = 0
        self._ignores_input = False
        self._close_after_response = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn narrows it
        super().connection_made(_WritableTransport(transport))  # type: ignore[arg-type]  # all of it that is used
        self.connected = True
        # `pause_writing` is to be called at the first bytes that the client doesn't take. (With 0, asyncio's TLS
        # transport would pause on an empty buffer.)
        transport.set_write_buffer_limits(high=1)
        self._update_read_deadline()

    @property
    def working(self) -> bool:
        """Whether a complete request is with the application."""
        return self._in_flight() and self._reading is _Reading.NOTHING

    def abort(self) -> None:
        """Close the connection, in its handshake or later."""
        if self.task is not None:
            # Not at once: a task cancelled before its first step would leave its socket open.
            self.loop.call_soon(self.task.cancel)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._connections.discard(self)
        self._unset_keepalive_if_required()
        for deadline in (self._read_deadline, self._write_deadline):
            if deadline is not None:
                deadline.cancel()
        self.ended.set()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing() or self._ignores_input:
            return
        self._framing_bytes = len(data) + (self._framing_bytes if self._reading is not _Reading.NOTHING else 0)
        try:
            self._feed(data)
        except httptools.HttpParserError:
            self._reject_input()
        else:
            if self._reading is not _Reading.NOTHING and self._framing_bytes > self._limits.max_header_bytes:
                self._reject_input()
        self._framing_bytes = max(self._framing_bytes, 0)
        self._update_read_deadline()

    def on_message_begin(self) -> None:
        if self._in_flight():
            raise ValueError("a request before the answer to the last one")
        self._unset_keepalive_if_required()
        self._reading = _Reading.HEAD
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._reading is _Reading.HEAD:  # else a trailer, which nobody reads
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade() and not _BODY_HEADERS.isdisjoint(name for name, _ in self.headers):
            raise ValueError("the parser passes over a body after which another protocol shall begin")
        super().on_headers_complete()
        self._reading = _Reading.BODY
        self._framing_bytes = 0

    def on_chunk_header(self) -> None:
        self._framing_bytes -= _CHUNK_FRAME

    def on_body(self, body: bytes) -> None:
        self._framing_bytes -= len(body)
        super().on_body(body)
        if self._in_flight():
            self._body_held += len(body)
            self._connections.hold(self, len(body))

    def on_message_complete(self) -> None:
        self._reading = _Reading.NOTHING
        self._framing_bytes = 0
        self._drop_held_body()
        super().on_message_complete()
        if self._close_after_response and not self._in_flight():
            self.transport.close()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._drop_held_body()
        self._connections.used(self)
        self._update_read_deadline()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._answer_held = self.transport.get_write_buffer_size()
        self._connections.hold(self, self._answer_held)
        self._write_deadline = self.loop.call_later(
            self._limits.request_timeout, self._time_out, "reading of the answer"
        )

    def resume_writing(self) -> None:
        super().resume_writing()
        self._connections.hold(self, -self._answer_held)
        self._answer_held = 0
        if self._write_deadline is not None:
            self._write_deadline.cancel()
            self._write_deadline = None

    def shutdown(self) -> None:
        """Close the connection after the request in flight; at once if there is none, not even one that nobody read."""
        self._close_after_response = True
        if self._in_flight():
            self.cycle.keep_alive = False
        elif self._reading is _Reading.NOTHING and not self._has_unread():
            self.transport.close()

    def _has_unread(self) -> bool:
        """Whether bytes have arrived that the loop hasn't come to; a client's end of the connection is one, too."""
        socket = self.transport.get_extra_info("socket")
        if socket is None or socket.fileno() < 0:  # the transport is closed
            return False
        poll = select.poll()
        poll.register(socket, select.POLLIN)
        return bool(poll.poll(0))

    def _drop_held_body(self) -> None:
        self._connections.hold(self, -self._body_held)
        self._body_held = 0

    def _should_upgrade(self) -> bool:
        """Never: uvicorn would log two warnings for every client that asks."""
        return False

    def _feed(self, data: bytes) -> None:
        """Give bytes to the parser, which stops after a request for another protocol."""
        while data:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as stopped:
                data = data[stopped.args[0] :]
            else:
                return

    def _reject_input(self) -> None:
        """End a connection whose client sent what is refused, with 400 if that can be the next answer."""
        in_flight = self._in_flight()
        if in_flight and self._reading is _Reading.NOTHING:
            # The fault is in a later request.
            self.cycle.keep_alive = False
            self._ignores_input = True
        elif self._reading is _Reading.BODY and (not in_flight or self.cycle.response_started):
            self.transport.abort()
        else:
            self.send_400_response("Invalid HTTP request received.")
            if in_flight:
                # The application must not answer a second time.
                self.cycle.disconnected = True
                self.cycle.message_event.set()

    def _in_flight(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete  # type: ignore[redundant-expr]  # None at first

    def _update_read_deadline(self) -> None:
        """Start, keep or cancel the deadline, by what the client has to send now."""
        expected = self._expected_input()
        if expected == self._expected:
            return
        self._expected = expected
        if self._read_deadline is not None:
            self._read_deadline.cancel()
            self._read_deadline = None
        if expected is not None:
            what, seconds = expected
            self._read_deadline = self.loop.call_later(seconds, self._time_out, what)

    def _expected_input(self) -> tuple[str, float] | None:
        """What the client has to send next, and within how many seconds from the moment when that became so."""
        idle = self._reading is _Reading.NOTHING and self.cycle is not None
        if idle or self._ignores_input or self.transport.is_closing():
            return None
        limits = self._limits
        if self._reading is not _Reading.BODY:
            return "headers", limits.header_read_timeout
        return (
            ("body", limits.request_timeout + limits.linger) if self._in_flight() else ("unwanted body", limits.linger)
        )

    def _time_out(self, what: str) -> None:
        logger.debug("connection of %s aborted: %s not in time", self.client, what)
        self.transport.abort()
