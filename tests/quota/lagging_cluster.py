"""A cluster whose watches lag behind, for the state machines of quota."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from hami_webhook.cluster.api import Kind, WatchEvent
from hami_webhook.cluster.memory import MemoryCluster


class Lagging:
    """The port, with watches that tell nothing until they are let."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self._cluster = cluster
        self.open = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)

    async def watch(self, kind: Kind, resource_version: str, *, node: str = "") -> AsyncIterator[WatchEvent]:
        async for event in self._cluster.watch(kind, resource_version, node=node):
            await self.open.wait()
            yield event
