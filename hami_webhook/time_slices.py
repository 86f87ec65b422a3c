"""Long work in slices, so that the event loop can answer others meanwhile: probes, binds, watches.

What a filter or a search for victims finds doesn't depend on the slices; only what has changed meanwhile does, so the
caller looks at that again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from time import perf_counter
from typing import TypeVar

T = TypeVar("T")

Steps = Generator[None, None, T]
"""Work that may be interrupted where it yields, and what comes of it."""

SLICE = 0.005
"""Seconds after which others have their turn. One step, such as a Fit, may take some 20 ms longer."""


class TimeSlices:
    """The time that work takes of the event loop; `clock` gives seconds. It rests for `rest` seconds after a slice."""

    def __init__(self, clock: Callable[[], float] = perf_counter, *, rest: float = 0.0) -> None:
        self._clock = clock
        self._rest = rest
        self._ends = clock() + SLICE
        self.interruptions = 0
        """How often others had their turn."""

    async def interrupt(self) -> None:
        """Let others have their turn, if the slice is over."""
        if self._clock() >= self._ends:
            await asyncio.sleep(self._rest)
            self.interruptions += 1
            self._ends = self._clock() + SLICE

    async def run(self, steps: Steps[T]) -> T:
        """Do the work in slices."""
        while True:
            try:
                next(steps)
            except StopIteration as done:
                result: T = done.value
                return result
            await self.interrupt()


def run_at_once(steps: Steps[T]) -> T:
    """Do the work without interruption."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: T = done.value
            return result
