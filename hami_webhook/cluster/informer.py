"""A cache's feed: list once, then watch and resume, and tell a handler what changed.

The protocol of client-go's reflector: a broken watch resumes from the last version seen, and one that is refused as
too old lists again. The handler then hears the difference, so it never has to start over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass

from hami_webhook.cluster.api import (
    JSON,
    Cluster,
    ClusterError,
    Forbidden,
    Gone,
    Kind,
    Listing,
    NotFound,
    WatchEvent,
    WatchType,
)

BASE_DELAY = 0.5
"""Seconds before the first try after a failure; doubled with each further one, and each time 50 to 100 % of it."""
MAX_DELAY = 30.0
LOOK_AGAIN = 300.0
"""Seconds after which a kind that isn't installed, or may not be listed, is asked for again."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Replaced:
    """All objects there are, in answer to the first list."""

    items: tuple[JSON, ...]


Change = Replaced | WatchEvent
"""What a handler is told: first `Replaced`, once, then additions, modifications and deletions; no bookmarks."""


class Informer:
    """Keeps a handler told of all objects of a kind. `run` it as a task.

    `clock` gives seconds (monotonic ones will do), `sleep` waits seconds, `random` gives a number in [0, 1).
    What the handler raises ends the run: it is a bug, and the cache can't be trusted any longer. An `optional` kind
    that the cluster doesn't have, or doesn't let us list, has no objects: that is told like any other list.
    """

    def __init__(
        self,
        cluster: Cluster,
        kind: Kind,
        handler: Callable[[Change], None],
        *,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
        random: Callable[[], float],
        optional: bool = False,
    ) -> None:
        self.kind = kind
        self.synced = asyncio.Event()
        """Set once the handler knows the first list; stays set."""
        self._cluster = cluster
        self._handler = handler
        self._clock = clock
        self._sleep = sleep
        self._random = random
        self._optional = optional
        self._missing = False
        self._known: dict[tuple[str, str], JSON] = {}
        self._version: str | None = None
        self._failures = 0
        self._last_alive: float | None = None

    @property
    def last_alive(self) -> float | None:
        """When the cluster last answered: a list, an event, a bookmark or a watch's orderly end. None: never yet."""
        return self._last_alive

    def alive_within(self, seconds: float) -> bool:
        """Whether the handler is told all and the cluster was heard of in the last `seconds`."""
        heard = self._last_alive
        return self.synced.is_set() and heard is not None and self._clock() - heard <= seconds

    async def run(self) -> None:
        """List and watch until cancelled."""
        while True:
            try:
                if self._version is None:
                    self._version = self._adopt(await self._cluster.list(self.kind))
                    self._missing = False
                if await self._follow(self._version):
                    continue
                delay = BASE_DELAY  # a server that closes watches at once must not make us spin
            except ClusterError as error:
                if self._optional and isinstance(error, NotFound | Forbidden):
                    self._do_without(error)
                    await self._sleep(LOOK_AGAIN)
                    continue
                if isinstance(error, Gone):
                    self._version = None
                _log.warning("watching %s: %s: %s", self.kind.value, type(error).__name__, error)
                delay = min(MAX_DELAY, BASE_DELAY * 2.0 ** min(self._failures, 32))
                self._failures += 1
            await self._sleep(delay * (0.5 + self._random() / 2))

    def _do_without(self, error: ClusterError) -> None:
        """There are no objects as far as we can see; said once, until there are."""
        if not self._missing:
            _log.warning("doing without %s, looking again every %g s: %s", self.kind.qualified, LOOK_AGAIN, error)
        self._missing, self._version = True, None
        self._adopt(Listing([], ""))

    async def _follow(self, version: str) -> bool:
        """Tell the handler of events after `version` until the watch ends; whether there were any."""
        heard = False
        async for event in self._cluster.watch(self.kind, version):
            self._alive()
            heard = True
            if event.type is not WatchType.BOOKMARK:
                self._tell(event)
            self._version = event.object["metadata"]["resourceVersion"]
        self._alive()
        return heard

    def _adopt(self, listing: Listing) -> str:
        """Tell the handler of a list, or of its difference to what was known; the version to watch from."""
        now = {_key(obj): obj for obj in listing.items}
        if self.synced.is_set():
            for event in _difference(self._known, now):
                self._tell(event)
        else:
            self._known = now
            self._handler(Replaced(tuple(listing.items)))
        self._last_alive = self._clock()
        self.synced.set()
        return listing.resource_version

    def _tell(self, event: WatchEvent) -> None:
        if event.type is WatchType.DELETED:
            self._known.pop(_key(event.object), None)
        else:
            self._known[_key(event.object)] = event.object
        self._handler(event)

    def _alive(self) -> None:
        self._last_alive = self._clock()
        self._failures = 0


def _difference(before: Mapping[tuple[str, str], JSON], now: Mapping[tuple[str, str], JSON]) -> Iterable[WatchEvent]:
    """The events that lead from one state to another, deletions first; a namesake with another UID is a new object."""
    events = []
    for key, old in before.items():
        if key not in now or _field(now[key], "uid") != _field(old, "uid"):
            events.append(WatchEvent(WatchType.DELETED, old))
    for key, new in now.items():
        known = before.get(key)
        if known is None or _field(known, "uid") != _field(new, "uid"):
            events.append(WatchEvent(WatchType.ADDED, new))
        elif _field(known, "resourceVersion") != _field(new, "resourceVersion"):
            events.append(WatchEvent(WatchType.MODIFIED, new))
    return events


def _key(obj: JSON) -> tuple[str, str]:
    return _field(obj, "namespace"), _field(obj, "name")


def _field(obj: JSON, name: str) -> str:
    return str(obj["metadata"].get(name, ""))
