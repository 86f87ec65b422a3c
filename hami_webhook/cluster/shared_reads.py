"""Live reads that are shared by all that need the same thing at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class SharedReads(Generic[T]):
    """At most one read of each key is under way. A read goes on if who began it is cancelled."""

    def __init__(self, read: Callable[[str], Coroutine[Any, Any, T]]) -> None:
        self._read = read
        self._under_way: dict[str, asyncio.Task[T]] = {}

    def begin(self, key: str) -> bool:
        """Begin to read a key, for who needs it soon; False if that is under way already."""
        known = self._under_way.get(key)
        if known is not None and not known.done():
            return False
        task = self._under_way[key] = asyncio.create_task(self._read(key))
        task.add_done_callback(lambda done: self._finished(key, done))
        return True

    async def get(self, key: str) -> tuple[T, bool]:
        """The answer of the read that is under way, or of a new one; and whether it is a new one.

        Raises what the read raises.
        """
        began = self.begin(key)
        return await asyncio.shield(self._under_way[key]), began

    def _finished(self, key: str, task: asyncio.Task[T]) -> None:
        if self._under_way.get(key) is task:
            del self._under_way[key]
        if not task.cancelled():
            task.exception()  # nobody may be waiting for it
