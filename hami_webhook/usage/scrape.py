"""What the nodes' monitors say, asked for when somebody asks, within bounds.

A node may say anything. It is believed of its own cards, and of the pods that the API server has bound to it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from types import TracebackType

import aiohttp
from msgspec import Struct
from msgspec.structs import replace

from hami_webhook.usage.bound_pods import BoundPods
from hami_webhook.usage.figures import NOT_ASKED, Measured
from hami_webhook.usage.samples import measured, read_text

logger = logging.getLogger(__name__)

_FRESH = 5.0
"""Seconds for which what a node said is answered again, an error as well."""
_AT_ONCE = 8
"""Nodes that are asked at the same time."""
_WITHIN = 4.0
"""Seconds in which a node has to answer."""
_ALTOGETHER = 8.0
"""Seconds after which nodes that haven't answered are left out."""
_LARGEST = 8 << 20
"""Bytes of an answer: 200 containers on 8 cards each have 3 MiB."""

Fetch = Callable[[str], Awaitable[str]]


class NodeFigures(Struct, frozen=True):
    """What a node said at `at` (Unix seconds); None if it didn't, or nothing that can be read."""

    at: float
    found: Measured | None


class Monitors:
    """The monitors of nodes, each asked at most once in `_FRESH` seconds. `fetch` gets the text at an address."""

    def __init__(self, pods: BoundPods, fetch: Fetch, clock: Callable[[], float]) -> None:
        self._pods = pods
        self._fetch = fetch
        self._clock = clock
        self._known: dict[str, NodeFigures] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def of(self, nodes: Collection[str] | None = None) -> Mapping[str, NodeFigures]:
        """What nodes say, all that are monitored if none are named; those that don't answer in time are left out."""
        monitors = self._pods.monitors(nodes)
        now = self._clock()
        self._known = {node: each for node, each in self._known.items() if 0 <= now - each.at < _FRESH}
        for node, address in monitors.items():
            if node not in self._known and node not in self._asking:
                task = asyncio.ensure_future(self._ask(node, address))
                self._asking[node] = task
        if waiting := [self._asking[node] for node in monitors if node in self._asking]:
            await asyncio.wait(waiting, timeout=_ALTOGETHER)
        return {node: self._known[node] for node in monitors if node in self._known}

    async def _ask(self, node: str, address: str) -> None:
        try:
            async with self._turns:
                now = self._clock()
                text = await self._fetch(address)
                found = await asyncio.to_thread(lambda: measured(read_text(text), now))
                self._known[node] = NodeFigures(now, self._believed(node, found))
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            logger.info(
                "the monitor of node %s doesn't answer: %s: %s", node, address, str(error) or type(error).__name__
            )
            self._known[node] = NodeFigures(self._clock(), None)
        finally:
            del self._asking[node]

    def _believed(self, node: str, found: Measured) -> Measured:
        """Of what a node says, what is its own."""
        bound = self._pods.on(node)
        return replace(
            found,
            pods={key: pod for key, pod in found.pods.items() if key in bound},
            cards={key: card for key, card in found.cards.items() if key[0] == node},
        )


def figures(known: NodeFigures | None) -> Measured:
    """What a node said; nothing if it didn't."""
    return known.found if known is not None and known.found is not None else NOT_ASKED


class Fetcher:
    """Gets metrics over HTTP: no more than `_LARGEST` bytes, without redirects. `async with` closes connections."""

    async def __aenter__(self) -> Fetcher:
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_WITHIN), auto_decompress=False)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def __call__(self, address: str) -> str:
        """The text at an address. Raises `aiohttp.ClientError`, `TimeoutError`, and `ValueError` for what is none."""
        async with self._session.get(address, allow_redirects=False, headers={"Accept-Encoding": "identity"}) as answer:
            if answer.status != 200:
                raise ValueError(f"HTTP status {answer.status}")
            pieces, size = [], 0
            async for piece in answer.content.iter_any():
                size += len(piece)
                if size > _LARGEST:
                    raise ValueError(f"more than {_LARGEST >> 20} MiB")
                pieces.append(piece)
            return b"".join(pieces).decode(errors="replace")
