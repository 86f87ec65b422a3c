"""What a listener allows its clients: sizes, numbers and times (docs/security.md)."""

from __future__ import annotations

from dataclasses import astuple, dataclass


class TooManyRequests(Exception):
    """More requests are in work than `max_concurrent_requests`; raised where the application receives a body's end.

    The listener answers 503 once the application lets it through.
    """


@dataclass(frozen=True, slots=True)
class ListenerLimits:
    """Sizes in bytes, times in seconds; all positive, else `ValueError`.

    ``header_read_timeout`` covers the TLS handshake and, separately, each request's headers; ``request_timeout`` a
    request's body, and the client's reading of the answer (over TLS, where asyncio hides what is unsent, that is first
    seen after ``keep_alive``). ``keep_alive`` exceeds the 90 s the API server keeps an idle connection, so that it is
    never the server that ends it. ``linger`` is how long an answered client may still send a body that isn't read, so
    that a connection reset doesn't take the answer from it; how much later than the application the connection gives
    up a body, so that the application can answer; and how long a cancelled request may take to end.
    """

    max_request_bytes: int = 16 * 1024 * 1024
    max_header_bytes: int = 32 * 1024
    header_read_timeout: float = 15.0
    request_timeout: float = 60.0
    max_concurrent_requests: int = 256
    max_connections: int = 256
    keep_alive: float = 125.0
    shutdown_grace: float = 15.0
    linger: float = 1.0

    def __post_init__(self) -> None:
        if not all(value > 0 for value in astuple(self)):
            raise ValueError(f"every limit must be positive: {self}")
