"""Taking a changed policy file into use while the process runs (docs/policy.md)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import NoReturn

from hami_webhook.config import ConfigError, read_text
from hami_webhook.devices.keys import PolicyTarget
from hami_webhook.policy.file import PolicyFile
from hami_webhook.policy.rules import PolicyRules

logger = logging.getLogger(__name__)

_Reading = tuple[str | None, str]
"""What a file holds, or why it can't be read."""


class PolicySource:
    """The rules of a policy file in force: those of its last text that was right, at first `current`.

    `vendors` are the enabled ones. A text that can't be used changes nothing but `failures` and `problem`.
    """

    def __init__(
        self, path: str, vendors: Mapping[str, PolicyTarget], current: PolicyRules = PolicyRules.EMPTY
    ) -> None:
        self.current = current
        self.failures = 0
        self.problem: str | None = None
        self._path = path
        self._vendors = vendors
        self._before: _Reading | None = None
        self._last_read: _Reading | None = None

    async def poll(self, report: Callable[[str], Awaitable[None]], replaced: Callable[[], None]) -> None:
        """Read the file once. Content counts once two reads in a row agree, so that half a file doesn't.

        `replaced` is called when other rules are in force, `report` with why a text can't be used.
        """
        try:
            now: _Reading = (read_text(self._path), "")
        except ConfigError as error:
            now = (None, str(error))
        stable, self._before = now == self._before, now
        if not stable or now == self._last_read:
            return
        self._last_read = now
        text, problem = now
        try:
            if text is not None:
                self.current = PolicyFile.parse(text, self._path, self._vendors)
        except ConfigError as error:
            problem = str(error)
        self.problem = problem or None
        if not problem:
            logger.info("policy file %s is in force: %d rules", self._path, len(self.current.rules))
            replaced()
            return
        self.failures += 1
        logger.warning("policy file not reloaded, the rules before stay in force: %s", problem)
        await report(problem)

    async def watch(
        self,
        interval: float,
        report: Callable[[str], Awaitable[None]],
        replaced: Callable[[], None],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> NoReturn:
        """`poll` every `interval` seconds, until cancelled."""
        while True:
            await sleep(interval)
            await self.poll(report, replaced)
