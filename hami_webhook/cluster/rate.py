"""A limit on requests to the API server: so many a second, and so many at once (client-go's `QPS` and `Burst`)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic


class TokenBucket:
    """`take` returns when a request may be sent; waiting requests go in the order they came."""

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

    async def take(self) -> None:
        now = self._clock()
        self._tokens = min(float(self._burst), self._tokens + (now - self._at) * self._rate)
        self._at = now
        self._tokens -= 1  # below zero: those who wait
        if self._tokens < 0:
            await self._sleep(-self._tokens / self._rate)
