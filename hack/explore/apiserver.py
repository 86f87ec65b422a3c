"""An API server whose requests wait until the explorer lets them happen, and whose watches show what it lets them.

Between a request and its answer a process does nothing, so that a request takes effect and is answered in one step is
no loss: what comes between the two (the answer is lost, is late, the process ends) are steps of their own.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Coroutine
from functools import partial
from typing import Any

import orjson
from msgspec import Struct

from hami_webhook.cluster.api import JSON, ClusterError, Kind, Listing, Unavailable, WatchEvent
from hami_webhook.cluster.memory import MemoryCluster

SHARED = (Kind.RESOURCE_QUOTAS, Kind.ACCELERATOR_QUOTAS, Kind.PODS, Kind.RESOURCE_CLAIMS)
"""The kinds that somebody writes meanwhile; requests for others are answered at once."""
READS = ("get", "list")
Written = Callable[[Kind, WatchEvent], None]


class SimulatedServer(MemoryCluster):
    """The storage. `written` is called with each change; `state` has a digest of each object as it is."""

    def __init__(self, clock: Callable[[], float], written: Written) -> None:
        super().__init__(clock)
        self._written = written
        self._writes: dict[tuple[Kind, str], int] = {}
        self._digests: dict[str, int] = {}
        self.state: dict[tuple[Kind, str], int] = {}

    def _dispatch(self, kind: Kind, event: WatchEvent) -> None:
        meta = event.object["metadata"]
        key = kind, f"{meta.get('namespace', '')}/{meta['name']}"
        number = self._writes[key] = self._writes.get(key, 0) + 1
        content = {**event.object, "metadata": {**meta, "resourceVersion": number}}
        digest = hash((event.type, orjson.dumps(content, option=orjson.OPT_SORT_KEYS)))
        self._digests[meta["resourceVersion"]] = self.state[key] = digest
        self._written(kind, event)

    def digest(self, answer: object) -> int:
        """The same for all answers that a process can't tell apart: versions count by object."""
        if isinstance(answer, Listing):
            return hash(tuple(self.digest(item) for item in answer.items))
        if isinstance(answer, dict):
            version = answer.get("metadata", {}).get("resourceVersion")
            return self._digests.get(version) or hash(orjson.dumps(answer, option=orjson.OPT_SORT_KEYS))
        return hash((type(answer).__name__, str(answer)))


class Request(Struct, eq=False):
    """A request of a process that may take effect. `kept` is the outcome of one whose answer is late.

    `content` is a digest of all that it says.
    """

    process: str
    number: int
    verb: str
    what: str
    kind: Kind
    act: Callable[[], Coroutine[Any, Any, Any]]
    answer: asyncio.Future[Any]
    content: int
    kept: object = None
    took_effect: bool = False

    @property
    def reads(self) -> bool:
        return self.verb in READS

    @property
    def abandoned(self) -> bool:
        """Nobody waits for it any longer: the process gave up, or ended."""
        return self.answer.done()

    def __str__(self) -> str:
        return f"{self.process}: {self.verb} {self.what}"

    def happen(self) -> object:
        """Let it take effect; what it returned or raised."""
        self.took_effect = True
        try:
            return at_once(self.act())
        except ClusterError as error:
            return error

    def reply(self, outcome: object) -> None:
        """Answer who waits."""
        if self.answer.done():
            return
        if isinstance(outcome, Exception):
            self.answer.set_exception(outcome)
        else:
            self.answer.set_result(outcome)


class Stream:
    """What a process's watch of a kind has yet to show; `late`: it shows nothing for now."""

    def __init__(self) -> None:
        self.late = False
        self.events: deque[WatchEvent] = deque()
        self.more = asyncio.Event()

    def wake(self) -> None:
        if self.events and not self.late:
            self.more.set()

    async def shown(self) -> AsyncIterator[WatchEvent]:
        while True:
            await self.more.wait()
            self.more.clear()
            while self.events and not self.late:
                yield self.events.popleft()


class Port:
    """A `Cluster` for one process. `ask` gets each request of a `shared` kind; `streams` has its watches by kind.

    `open`: requests are answered at once, as they are while a process starts.
    """

    def __init__(
        self,
        server: SimulatedServer,
        process: str,
        ask: Callable[[Request], None],
        shared: Collection[Kind] = SHARED,
    ) -> None:
        self._server = server
        self._process = process
        self._ask = ask
        self._shared = shared
        self._asked = 0
        self.streams: dict[Kind, Stream] = {}
        self.open = False
        self.dead = False

    def __getattr__(self, verb: str) -> Any:
        return partial(self._request, verb)

    async def _request(self, verb: str, kind: object, *arguments: Any, **named: Any) -> Any:
        if self.dead:
            raise Unavailable("the process has ended")
        act = partial(getattr(self._server, verb), kind, *arguments, **named)
        concerns = kind if isinstance(kind, Kind) else Kind.PODS
        if self.open or concerns not in self._shared or verb == "record_event":
            return await act()
        self._asked += 1
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        what = f"{concerns.value} {_name(arguments)}".strip()
        content = hash((what, repr(arguments), repr(named)))
        self._ask(Request(self._process, self._asked, verb, what, concerns, act, answer, content))
        return await answer

    async def watch(self, kind: Kind, resource_version: str, *, node: str = "") -> AsyncIterator[WatchEvent]:
        stream = self.streams[kind] = Stream()
        async for event in stream.shown():
            yield event


def _name(arguments: tuple[Any, ...]) -> str:
    if not arguments:
        return ""
    first = arguments[0]
    if isinstance(first, dict):
        found: JSON = first.get("metadata", {})
        return str(found.get("name", ""))
    return str(first)


def at_once(work: Coroutine[Any, Any, Any]) -> Any:
    """What a coroutine returns that waits for nothing."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("it waits")


def review_of(pod: JSON, namespace: str) -> bytes:
    """The AdmissionReview of a new pod."""
    request = {
        "uid": "1",
        "operation": "CREATE",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "namespace": namespace,
        "name": pod["metadata"]["name"],
        "object": pod,
        "userInfo": {"username": "user"},
    }
    return orjson.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})
