"""The open connections of a listener, and which of them are closed in favour of others (docs/security.md).

Two things are bounded: how many connections there are, and how many bytes they hold of requests that aren't complete
and of answers that aren't read. Beyond a bound, the source address that takes most of it loses its connection that has
been idle, or has held bytes, for the longest time. So no client can keep others out, and one that shares its address
with an attacker can still open new connections. A connection whose complete request the application is working on is
never closed here.
"""

from __future__ import annotations

import resource
from collections import Counter
from typing import Protocol

_LARGEST_LIMIT = 4096
"""Connections, whatever the process may open: idle ones over TLS take 47 KiB each, which are 190 MiB then."""
_HEADROOM = 768
"""File descriptors for everything else: the other listeners, the connections to the API server, files."""


class Connection(Protocol):
    """A connection as `Connections` sees it: its client's address, and the bytes that it holds."""

    source: str
    held: int

    @property
    def working(self) -> bool:
        """Whether a complete request is with the application."""
        ...

    def abort(self) -> None:
        """Close the connection soon, without an answer."""
        ...


class Connections:
    """The connections of one listener: at most `most`, with at most `most_held` bytes held altogether."""

    def __init__(self, most: int, most_held: int) -> None:
        self._most = most
        self._most_held = most_held
        self._by_source: dict[str, dict[Connection, None]] = {}
        """The connections of each source address, the one that was used longest ago first."""
        self._holding: dict[Connection, None] = {}
        """Those that hold bytes, in the order in which they began to."""
        self._count = 0
        self._held = 0
        self.evicted = 0

    def __len__(self) -> int:
        return self._count

    def add(self, connection: Connection) -> bool:
        """Take in a new connection, if need be in place of another. False if every one has a request in work."""
        if self._count >= self._most and not self._evict_idle():
            return False
        self._by_source.setdefault(connection.source, {})[connection] = None
        self._count += 1
        return True

    def used(self, connection: Connection) -> None:
        """A request of the connection was answered."""
        connections = self._by_source.get(connection.source, {})
        if connection in connections:
            del connections[connection]
            connections[connection] = None

    def hold(self, connection: Connection, change: int) -> None:
        """The bytes that a connection holds became more or fewer."""
        if connection not in self._by_source.get(connection.source, ()):
            return
        self._held += change
        connection.held += change
        if connection.held:
            self._holding.setdefault(connection)
        else:
            self._holding.pop(connection, None)
        while self._held > self._most_held:
            self._evict(self._longest_holding())

    def discard(self, connection: Connection) -> None:
        """The connection has ended."""
        connections = self._by_source.get(connection.source, {})
        if connection not in connections:
            return
        del connections[connection]
        if not connections:
            del self._by_source[connection.source]
        self._count -= 1
        self._held -= connection.held
        connection.held = 0
        self._holding.pop(connection, None)

    def _evict_idle(self) -> bool:
        for connections in sorted(self._by_source.values(), key=len, reverse=True):
            for connection in connections:
                if not connection.working:
                    self._evict(connection)
                    return True
        return False

    def _longest_holding(self) -> Connection:
        """The one that has held bytes for the longest time, of the source address that holds most."""
        held: Counter[str] = Counter()
        for connection in self._holding:
            held[connection.source] += connection.held
        source = max(held, key=held.__getitem__)
        return next(connection for connection in self._holding if connection.source == source)

    def _evict(self, connection: Connection) -> None:
        self.discard(connection)
        self.evicted += 1
        connection.abort()


def connection_limit() -> int:
    """How many connections a listener of this process may have; raises the process's limit of open files for it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _LARGEST_LIMIT + _HEADROOM
    files = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    return max(files - _HEADROOM, files // 2)
