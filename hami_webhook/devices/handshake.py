"""Whether a node's device plugin is alive, by the handshake that both sides write (docs/spec/core.md#3.2)."""

from __future__ import annotations

import re
from datetime import datetime, tzinfo

from msgspec import Struct

ANSWER_WITHIN = 60.0
"""Seconds."""
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}", re.ASCII)


class Health(Struct, frozen=True):
    """The health of a vendor's cards on a node, how long it is valid, and whether to request a handshake.

    `until` is Unix seconds (None: for good); with `request_handshake` the leader writes a new handshake.
    """

    healthy: bool
    until: float | None = None
    request_handshake: bool = False


def common_health(handshake: str, allocatable: int, now: float, zone: tzinfo | None) -> Health:
    """Return the health by the common rule, from the handshake's text and the allocatable count of the vendor's
    resource.

    `zone` is that of the times in handshakes (None: local).
    """
    if "Requesting" not in handshake:
        return Health(healthy=True, request_handshake=True)
    requested = handshake_time(handshake, zone)
    if requested is None or allocatable > 0:
        return Health(healthy=True)
    deadline = requested + ANSWER_WITHIN
    return Health(healthy=True, until=deadline) if now < deadline else Health(healthy=False)


def handshake_time(handshake: str, zone: tzinfo | None) -> float | None:
    """The time behind the first `_`, `YYYY-MM-DD HH:MM:SS`; None if there is none."""
    text = handshake.partition("_")[2].strip()
    if not _TIME.fullmatch(text):
        return None
    try:
        return datetime.fromisoformat(text).replace(tzinfo=zone).timestamp()
    except (ValueError, OverflowError):
        return None
