"""The API server's clock, by which all replicas go: times in ledgers mean the same to each (docs/spec/quota.md#9)."""

from __future__ import annotations

import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime

_RESOLUTION = 1.0
"""Seconds: the `Date` of an answer is rounded down to whole ones."""


class ServerClock:
    """Unix seconds by the API server's clock.

    It begins as this machine's (`wall`, Unix seconds) and goes on with `steady` (seconds of a clock that nobody sets).
    Each answer bounds what the API server's clock can show; only where that excludes this one it is set, to the nearer
    bound. So it is within a second of the API server's, and that of a machine that keeps time is never set.
    """

    def __init__(self, wall: Callable[[], float] = time.time, steady: Callable[[], float] = time.monotonic) -> None:
        self._wall = wall
        self._steady = steady
        self._offset = wall() - steady()

    def __call__(self) -> float:
        return self._steady() + self._offset

    @property
    def skew(self) -> float:
        """Seconds by which this machine's clock is ahead of the API server's; negative: behind."""
        return self._wall() - self()

    def answered(self, date: str, took: float) -> None:
        """Take note of the `Date` of an answer that just came, `took` seconds after its request was sent."""
        try:
            dated = parsedate_to_datetime(date).timestamp()
        except (ValueError, TypeError, OverflowError):
            return
        now = self()
        self._offset += min(max(now, dated), dated + _RESOLUTION + took) - now
