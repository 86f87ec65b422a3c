"""Taking a changed policy file into use while the process runs (docs/policy.md)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import NoReturn

from hami_webhook.config import ConfigError, read_text
from hami_webhook.policy.file import PolicySource

logger = logging.getLogger(__name__)

_Reading = tuple[str | None, str]
"""What a file holds, or why it can't be read."""


class PolicyReload:
    """Puts a changed policy file in force, and calls `replaced` then.

    A text that can't be used changes nothing but `failures` and `problem`.
    """

    def __init__(
        self,
        path: str,
        source: PolicySource,
        report: Callable[[str], Awaitable[None]],
        replaced: Callable[[], None] = lambda: None,
    ) -> None:
        self._path = path
        self._source = source
        self._report = report
        self._replaced = replaced
        self._before: _Reading | None = None
        self._last_read: _Reading | None = None
        self.failures = 0
        self.problem: str | None = None

    async def poll(self) -> None:
        """Read the file once. Content counts once two reads in a row agree, so that half a file doesn't."""
        try:
            now: _Reading = (read_text(self._path), "")
        except ConfigError as error:
            now = (None, str(error))
        stable, self._before = now == self._before, now
        if not stable or now == self._last_read:
            return
        self._last_read = now
        text, problem = now
        self.problem = problem if text is None else self._source.replace_from(text)
        if self.problem is None:
            logger.info("policy file %s is in force: %d rules", self._path, len(self._source.current.rules))
            self._replaced()
            return
        self.failures += 1
        logger.warning("policy file not reloaded, the rules before stay in force: %s", self.problem)
        await self._report(self.problem)

    async def watch(self, interval: float, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> NoReturn:
        """`poll` every `interval` seconds, until cancelled."""
        while True:
            await sleep(interval)
            await self.poll()
