"""A cache's feed: list once, then watch and resume, and call a handler with what changed.

The protocol of client-go's reflector: a broken watch resumes from the last version seen, and one that is refused as
too old lists again. The handler then hears the difference, so it never has to start over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from math import inf
from typing import Protocol

from msgspec import Struct

from hami_webhook.cluster.api import (
    JSON,
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
_Key = tuple[str, str]
"""An object's namespace and name."""
_Version = tuple[str, str]
"""An object's UID and resourceVersion."""

logger = logging.getLogger(__name__)


class ListedAndWatched(Protocol):
    """What is asked of a `Cluster`."""

    async def list(self, kind: Kind, namespace: str = "", *, node: str = "") -> Listing: ...

    def watch(self, kind: Kind, resource_version: str, *, node: str = "") -> AsyncIterator[WatchEvent]: ...


class Replaced(Struct, frozen=True):
    """All objects there are, in answer to the first list: to be gone through once, and each is let go after that."""

    items: Iterator[JSON]


Change = Replaced | WatchEvent
"""What a handler receives: first `Replaced`, once, then additions, modifications and deletions; no bookmarks.

The object of a deletion that was missed, and found out by a later list, has only `metadata`, with what identifies it.
"""

Handler = Callable[[Change], None]


class Informer:
    """Calls a handler with all objects of a kind and their changes, while `run` runs.

    `clock` gives seconds (monotonic ones will do), `sleep` waits seconds, `random` gives a number in [0, 1).
    What the handler raises ends the run: it is a bug, and the cache can't be trusted any longer; `run` again lists
    again. `node`: of pods, only those that are bound to it. `look_again`: a kind that the cluster doesn't have, or
    doesn't let us list, has no objects, which is reported like any other list, and is asked for again after so many
    seconds. `expected`: a warning says that it isn't there.
    """

    def __init__(
        self,
        cluster: ListedAndWatched,
        kind: Kind,
        *,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
        random: Callable[[], float],
        node: str = "",
        look_again: float | None = None,
        expected: bool = True,
    ) -> None:
        self.kind = kind
        self.synced = asyncio.Event()
        """Set once the handler knows the first list; stays set."""
        self._cluster = cluster
        self._clock = clock
        self._sleep = sleep
        self._random = random
        self._node = node
        self._look_again = look_again
        self._expected = expected
        self._missing = False
        self._known: dict[_Key, _Version] = {}
        self._version: str | None = None
        self.listed = ""
        """The resourceVersion of the last list: what happened between it and the list before may have been missed."""
        self._failures = 0
        self._last_alive: float | None = None

    @property
    def version(self) -> str:
        """The resourceVersion up to which the handler received all; empty if that isn't known."""
        return self._version or ""

    @property
    def last_alive(self) -> float | None:
        """When the cluster last answered: a list, an event, a bookmark or a watch's orderly end. None: never yet."""
        return self._last_alive

    @property
    def size(self) -> int:
        """How many objects the handler knows."""
        return len(self._known)

    @property
    def silence(self) -> float:
        """Seconds since the cluster answered; infinite where the handler may not have received all.

        None of a kind that isn't installed, until it should have been asked for again: nobody else has to ask.
        """
        if not self.synced.is_set() or self._last_alive is None:
            return inf
        seconds = self._clock() - self._last_alive
        return 0.0 if self._missing and seconds <= 2 * (self._look_again or 0) else seconds

    async def run(self, handler: Handler) -> None:
        """List and watch until cancelled."""
        while True:
            try:
                if self._version is None:
                    self._version = self._adopt(await self._cluster.list(self.kind, node=self._node), handler)
                    self._missing = False
                if await self._follow(self._version, handler):
                    continue
                delay = BASE_DELAY  # a server that closes watches at once must not make us spin
            except ClusterError as error:
                if self._look_again is not None and isinstance(error, NotFound | Forbidden):
                    self._do_without(error, handler)
                    await self._sleep(self._look_again)
                    continue
                gone = isinstance(error, Gone)  # the version: the API server forgets them in time, so nothing is wrong
                if gone:
                    self._version = None
                level = logging.INFO if gone else logging.WARNING
                logger.log(level, "watching %s: %s: %s", self.kind.value, type(error).__name__, error)
                delay = min(MAX_DELAY, BASE_DELAY * 2.0 ** min(self._failures, 32))
                self._failures += 1
            except Exception:
                self._version = None  # an event that can't be followed would only come again
                raise
            await self._sleep(delay * (0.5 + self._random() / 2))

    def _do_without(self, error: ClusterError, handler: Handler) -> None:
        """There are no objects as far as we can see; said once, until there are."""
        if not self._missing and (self._expected or not isinstance(error, NotFound)):
            text = "doing without %s, looking again every %g s: %s"
            logger.warning(text, self.kind.qualified, self._look_again, error)
        self._missing, self._version = True, None
        self._adopt(Listing([], ""), handler)

    async def _follow(self, version: str, handler: Handler) -> bool:
        """Pass the events after `version` to the handler until the watch ends; whether there were any."""
        heard = False
        async for event in self._cluster.watch(self.kind, version, node=self._node):
            self._alive()
            heard = True
            if event.type is not WatchType.BOOKMARK:
                self._dispatch(event, handler)
            self._version = event.object["metadata"]["resourceVersion"]
        self._alive()
        return heard

    def _adopt(self, listing: Listing, handler: Handler) -> str:
        """Pass a list to the handler, or its difference to what was known; the version to watch from."""
        if self.synced.is_set():
            for event in _difference(self._known, {_key(obj): obj for obj in listing.items}):
                self._dispatch(event, handler)
        else:
            self._known = {_key(obj): _version(obj) for obj in listing.items}
            handler(Replaced(_handed_over(listing.items)))
        self._last_alive = self._clock()
        self.listed = listing.resource_version
        self.synced.set()
        return listing.resource_version

    def _dispatch(self, event: WatchEvent, handler: Handler) -> None:
        if event.type is WatchType.DELETED:
            self._known.pop(_key(event.object), None)
        else:
            self._known[_key(event.object)] = _version(event.object)
        handler(event)

    def _alive(self) -> None:
        self._last_alive = self._clock()
        self._failures = 0


def _handed_over(items: list[JSON]) -> Iterator[JSON]:
    """The items, none kept longer than its turn: a list of a large cluster is the most that is ever in memory."""
    items.reverse()
    while items:
        yield items.pop()


def _difference(before: Mapping[_Key, _Version], now: Mapping[_Key, JSON]) -> Iterable[WatchEvent]:
    """The events that lead from one state to another, deletions first; a namesake with another UID is a new object.

    Of what is deleted only the identity is known: handlers keep the whole objects that they need, not here once more.
    """
    events = []
    for (namespace, name), (uid, version) in before.items():
        if (namespace, name) not in now or _field(now[namespace, name], "uid") != uid:
            meta = {"namespace": namespace, "name": name, "uid": uid, "resourceVersion": version}
            gone = {"metadata": {field: text for field, text in meta.items() if text}}
            events.append(WatchEvent(WatchType.DELETED, gone))
    for key, new in now.items():
        known = before.get(key)
        if known is None or known[0] != _field(new, "uid"):
            events.append(WatchEvent(WatchType.ADDED, new))
        elif known != _version(new):
            events.append(WatchEvent(WatchType.MODIFIED, new))
    return events


def _key(obj: JSON) -> _Key:
    return _field(obj, "namespace"), _field(obj, "name")


def _version(obj: JSON) -> _Version:
    return _field(obj, "uid"), _field(obj, "resourceVersion")


def _field(obj: JSON, name: str) -> str:
    return str(obj["metadata"].get(name, ""))
