"""uvicorn's HTTP/1.1 protocol, with bounds on what a client may take: time, and memory."""

import asyncio
import logging
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from hami_webhook.server.connections import Connections

_LOG: Final = logging.getLogger(__name__)

# Bytes that the frame of a chunk may have, on average: a size has up to 16 digits, and there are two line ends.
_CHUNK_FRAME: Final = 20
_BODY_HEADERS: Final = frozenset((b"content-length", b"transfer-encoding"))


@dataclass(frozen=True, slots=True)
class ConnectionBounds:
    """``head_bytes`` of headers, or around a body's own bytes; the others are seconds for what the name says."""

    head_bytes: int
    headers: float
    body: float
    unwanted_body: float
    reader: float
    keep_alive: float


class _Reading(Enum):
    """What of a request a connection has read."""

    NOTHING = auto()
    HEAD = auto()
    BODY = auto()


class _Forgiving:
    """A transport on which it is no error to write after its end: uvloop tells of that end a moment later."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.close = transport.close
        self.abort = transport.abort
        self.is_closing = transport.is_closing
        self.get_extra_info = transport.get_extra_info
        self.get_write_buffer_size = transport.get_write_buffer_size
        self.pause_reading = transport.pause_reading
        self.resume_reading = transport.resume_reading

    def write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP/1.1 protocol with deadlines for what the client has to do: send headers, send a body, read.

    What the parser keeps of a head, or of what is around a chunked body's bytes, is bounded too. A client that sends
    a request before it has the answer to the one before gets that answer, and the end of the connection.

    It is one of `connections`, which it keeps informed, and which may call `cut`.
    """

    def __init__(
        self,
        config: Config,
        state: ServerState,
        bounds: ConnectionBounds,
        loop: asyncio.AbstractEventLoop,
        source: str,
        connections: Connections,
    ) -> None:
        super().__init__(config, state, {}, loop)
        self.source = source
        self.held = 0
        self.task: asyncio.Task[None] | None = None
        self._connections = connections
        self._body_held = 0
        self._answer_held = 0
        self.timeout_keep_alive = bounds.keep_alive  # type: ignore[assignment]  # int there, only given to call_later
        self.connected = False
        self.ended = asyncio.Event()
        self._bounds = bounds
        self._awaited: str | None = None
        self._read_deadline: asyncio.TimerHandle | None = None
        self._write_deadline: asyncio.TimerHandle | None = None
        self._reading = _Reading.NOTHING
        # Bytes read of a head, or of a body's frame.
        self._beside = 0
        self._deaf = False
        self._ending = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn narrows it
        super().connection_made(_Forgiving(transport))  # type: ignore[arg-type]  # all of it that is used
        self.connected = True
        # `pause_writing` shall start the clock at the first bytes the client doesn't take. (With 0, asyncio's TLS
        # transport would pause on an empty buffer.)
        transport.set_write_buffer_limits(high=1)
        self._mind_reading()

    @property
    def working(self) -> bool:
        """Whether a complete request is with the application."""
        return self._in_flight() and self._reading is _Reading.NOTHING

    def cut(self) -> None:
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
        if self.transport.is_closing() or self._deaf:
            return
        self._beside = len(data) + (self._beside if self._reading is not _Reading.NOTHING else 0)
        try:
            self._feed(data)
        except httptools.HttpParserError:
            self._refuse()
        else:
            if self._reading is not _Reading.NOTHING and self._beside > self._bounds.head_bytes:
                self._refuse()
        self._beside = max(self._beside, 0)
        self._mind_reading()

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
        self._beside = 0

    def on_chunk_header(self) -> None:
        self._beside -= _CHUNK_FRAME

    def on_body(self, body: bytes) -> None:
        self._beside -= len(body)
        super().on_body(body)
        if self._in_flight():
            self._body_held += len(body)
            self._connections.hold(self, len(body))

    def on_message_complete(self) -> None:
        self._reading = _Reading.NOTHING
        self._beside = 0
        self._release_body()
        super().on_message_complete()
        if self._ending and not self._in_flight():
            self.transport.close()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._release_body()
        self._connections.used(self)
        self._mind_reading()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._answer_held = self.transport.get_write_buffer_size()
        self._connections.hold(self, self._answer_held)
        self._write_deadline = self.loop.call_later(self._bounds.reader, self._cut_off, "reader")

    def resume_writing(self) -> None:
        super().resume_writing()
        self._connections.hold(self, -self._answer_held)
        self._answer_held = 0
        if self._write_deadline is not None:
            self._write_deadline.cancel()
            self._write_deadline = None

    def shutdown(self) -> None:
        """Close the connection after the request in flight; at once if there is none, not even half a one."""
        self._ending = True
        if self._in_flight():
            self.cycle.keep_alive = False
        elif self._reading is _Reading.NOTHING:
            self.transport.close()

    def _release_body(self) -> None:
        self._connections.hold(self, -self._body_held)
        self._body_held = 0

    def _should_upgrade(self) -> bool:
        """Never: uvicorn would log two warnings for every client that asks."""
        return False

    def _feed(self, data: bytes) -> None:
        """Give bytes to the parser, which stops after a request that wishes for another protocol."""
        while data:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as stopped:
                data = data[stopped.args[0] :]
            else:
                return

    def _refuse(self) -> None:
        """End a connection whose client sent what can't be taken, with 400 if that can be the next answer."""
        in_flight = self._in_flight()
        if in_flight and self._reading is _Reading.NOTHING:
            # It is a later request that is at fault.
            self.cycle.keep_alive = False
            self._deaf = True
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

    def _mind_reading(self) -> None:
        """Start, keep or stop the clock, by what the client owes now."""
        awaited = self._owed()
        if awaited == self._awaited:
            return
        self._awaited = awaited
        if self._read_deadline is not None:
            self._read_deadline.cancel()
            self._read_deadline = None
        if awaited is not None:
            self._read_deadline = self.loop.call_later(getattr(self._bounds, awaited), self._cut_off, awaited)

    def _owed(self) -> str | None:
        if self.transport.is_closing() or self._deaf:
            return None
        if self._reading is _Reading.HEAD or self.cycle is None:
            return "headers"
        if self._reading is _Reading.BODY:
            return "body" if self._in_flight() else "unwanted_body"
        return None

    def _cut_off(self, awaited: str) -> None:
        _LOG.debug("client %s cut off: %s not in time", self.client, awaited)
        self.transport.abort()
