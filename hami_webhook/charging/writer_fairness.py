"""Who writes next, where several processes write to the same quotas (docs/spec/quota.md#7).

Each would begin from a version that another's write replaces meanwhile, and lose its own to the conflict. So each lets
the others write as often as they did between its own last two writes: whatever their number, they write in the order of
their last writes, each as soon as it has seen the one before. Nobody has a name, and nothing is agreed on. Who has
nothing to write in its turn, or has ended, is waited for once, and then isn't among them any more.
docs/decisions/0024-turns-of-writers.md has the figures.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from msgspec import Struct, field

from hami_webhook.kube.objects import ResourceQuota

_LONGEST_WAIT = 1.0
"""Seconds for which a change waits for other processes: where writes take 0.3 s, as long as three of them take."""

_BUSY_SECONDS = 0.25
"""Seconds after another's write for which writers take turns at least: a lone charge never waits."""

_WRITES = 3
"""How many times as long as the last write took the next one of another is waited for.

With 1.5 a third more writes were sent, and four times as many were lost to conflicts: the other's was on its way.
"""

_MOST_OTHERS = 64
"""Versions of others that are counted."""


class WriterFairness(Struct):
    """The writes to a namespace's quotas, as far as they were seen here.

    `took`: seconds of this process's last write. `own`: versions that the current update wrote. `latest`: the last
    version of this process's previous update. `others` are versions that somebody else wrote since, the last of which
    was seen at `heard`; `between` is how many there were between the last two updates from here.
    """

    took: float = 0.0
    own: set[int] = set()
    latest: int = 0
    others: set[int] = set()
    between: int = 0
    heard: float = float("-inf")
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def note(self, quota: ResourceQuota, now: float) -> None:
        """A version was read, or is shown by a watch; in any order, also those that were written here."""
        version = _number(quota)
        if version > self.latest and version not in self.own and len(self.others) < _MOST_OTHERS:
            self.others.add(version)
            self.heard = now
            self.changed.set()

    def wrote(self, quota: ResourceQuota, took: float) -> None:
        """An update wrote this version, in so many seconds."""
        self.own.add(_number(quota))
        self.took = took

    def end(self) -> None:
        """The update is over: it is the others' turn."""
        if self.own:
            before, self.latest = self.latest, max(self.own)
            between = sum(version < self.latest for version in self.others - self.own)
            self.between = between if before else 0  # of what came before the first one nothing follows
            self.others = {version for version in self.others if version > self.latest}
            self.own = set()

    async def wait(self, clock: Callable[[], float]) -> None:
        """Wait for the turn of the next update from here, for `_LONGEST_WAIT` at most."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + _LONGEST_WAIT
        others_write = _WRITES * self.took
        while len(self.others) < self.between and clock() - self.heard < max(_BUSY_SECONDS, others_write):
            self.changed.clear()
            try:
                async with asyncio.timeout_at(min(ends, loop.time() + others_write)):
                    await self.changed.wait()
            except TimeoutError:
                return


def _number(quota: ResourceQuota) -> int:
    return int(quota.resource_version) if quota.resource_version.isdecimal() else 0
