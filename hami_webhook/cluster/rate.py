"""A limit on requests to the API server: so many a second, and so many at once (client-go's `QPS` and `Burst`).

Half of the burst is kept for requests that somebody waits for, so that recomputes don't delay admission.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from time import monotonic

in_background: ContextVar[bool] = ContextVar("in_background", default=False)
"""Whether what runs here can wait: true in loops that catch up with what happened, and in what they start."""

_PATIENCE = 5.0
"""Seconds after which a request from the background is as urgent as any."""


class TokenBucket:
    """`take` returns when a request may be sent; waiting requests go in the order they came, urgent ones first."""

    def __init__(
        self,
        rate: float,
        burst: int,
        *,
        clock: Callable[[], float] = monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._sleep = sleep
        self._tokens = float(burst)
        self._at = clock()
        self._turn = asyncio.Lock()

    async def take(self) -> None:
        if in_background.get():
            await self._wait_for_plenty()
        self._refill()
        self._tokens -= 1  # below zero: those who wait
        if self._tokens < 0:
            await self._sleep(-self._tokens / self._rate)

    async def _wait_for_plenty(self) -> None:
        """Wait, one after another, until more than the reserve is there, or for so long that patience ends."""
        impatient = self._clock() + _PATIENCE
        async with self._turn:
            while self._refill() < impatient:
                lacking = self._burst // 2 + 1 - self._tokens
                if lacking <= 0:
                    return
                await self._sleep(min(lacking / self._rate, impatient - self._at))

    def _refill(self) -> float:
        """Add what came since the last look; the time now."""
        now = self._clock()
        self._tokens = min(float(self._burst), self._tokens + (now - self._at) * self._rate)
        self._at = now
        return now
