"""Large reviews: bounded in sum, and worked on one at a time, with pauses in which the event loop serves the others.

A pod may have more than ten thousand containers; its review takes tenths of a second, in which nothing else happens.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Final

LARGE: Final = 64 * 1024
"""Bytes of a review from which it is a large one."""


class TooManyLargeReviews(Exception):
    """The large reviews that aren't answered yet take all the memory that they may."""


class LargeReviews:
    """The large reviews that aren't answered yet, with bodies of at most `most` bytes in sum."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._bytes = 0
        self._turn = asyncio.Lock()

    @asynccontextmanager
    async def admitted(self, size: int) -> AsyncIterator[None]:
        """While the block runs, a review with a body of `size` bytes counts. Raises `TooManyLargeReviews`."""
        if self._bytes + size > self._most:
            raise TooManyLargeReviews
        self._bytes += size
        try:
            yield
        finally:
            self._bytes -= size

    async def turn(self) -> None:
        """Wait for the turn of a review. It lasts until the caller awaits, and a pause of the same length follows."""
        await self._turn.acquire()
        asyncio.get_running_loop().call_soon(self._pause, perf_counter())

    def _pause(self, began: float) -> None:
        asyncio.get_running_loop().call_later(perf_counter() - began, self._turn.release)
