"""Loops that survive exceptions, and log only news: what an object or a programming error makes them raise is logged,
counted and survived.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

logger = logging.getLogger(__name__)

_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0
"""Seconds before a loop that failed starts again; doubled with each failure until it ran for the longest pause."""

Sleep = Callable[[float], Awaitable[None]]

_AFTER_CONFLICT = 1.0


@contextmanager
def contained(failures: Counter[str], loop: str, about: str) -> Iterator[None]:
    """Keep what one object raises from ending the loop over all of them."""
    try:
        yield
    except Exception:
        failures[loop] += 1
        logger.exception("%s: %s failed; going on without it", loop, about)


async def repeat(step: Callable[[], Awaitable[object]], seconds: float, sleep: Sleep) -> NoReturn:
    """Run `step` every `seconds` until cancelled; after a step that returns False, which met a conflict, after 1 s."""
    while True:
        conflict = await step() is False
        await sleep(_AFTER_CONFLICT if conflict else seconds)


class News:
    """Logs what is new of a matter as a warning, and not what was said of it before; an empty text is no news."""

    def __init__(self, logger: logging.Logger, prefix: str = "") -> None:
        self._logger = logger
        self._prefix = prefix
        self._said: dict[str, str] = {}

    def say(self, text: str, about: str = "") -> None:
        if text and text != self._said.get(about):
            self._logger.warning("%s%s", self._prefix, text)
        self._said[about] = text


class Loops:
    """Runs loops until they are cancelled. `failures` counts unexpected exceptions by the loop's name."""

    def __init__(
        self,
        failures: Counter[str],
        *,
        sleep: Sleep = asyncio.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._failures = failures
        self._sleep = sleep
        self._monotonic = monotonic

    async def keep(self, name: str, loop: Callable[[], Awaitable[None]]) -> None:
        """Run `loop`, and start it again after a pause whenever it raises; returns when it does."""
        pause = _FIRST_PAUSE
        while True:
            started = self._monotonic()
            try:
                return await loop()
            except Exception:
                if self._monotonic() - started >= _LONGEST_PAUSE:
                    pause = _FIRST_PAUSE
                self._failures[name] += 1
                logger.exception("%s failed; starting it again in %g s", name, pause)
            await self._sleep(pause)
            pause = min(_LONGEST_PAUSE, pause * 2)
