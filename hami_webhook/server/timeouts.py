"""A deadline for what has to wait, which costs nothing where nothing does: most requests are there whole, and most
reviews are answered without I/O. Starting and stopping a timer is a tenth of such an answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")


async def within(seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """What `work` returns. Raises `TimeoutError`, and cancels it, if it isn't done in so many seconds."""
    try:
        awaited = work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    async with asyncio.timeout(seconds):
        finished: T = await _Begun(work, awaited)
        return finished


class _Begun:
    """A coroutine that was begun already, and waits for `awaited`."""

    def __init__(self, work: Coroutine[Any, Any, T], awaited: Any) -> None:
        self._work = work
        self._awaited = awaited

    def __await__(self) -> Generator[Any, Any, Any]:
        awaited = self._awaited
        while True:
            try:
                answer = yield awaited
            except GeneratorExit:
                self._work.close()
                raise
            except BaseException as error:
                failed: BaseException | None = error
            else:
                failed = None
            try:
                awaited = self._work.send(answer) if failed is None else self._work.throw(failed)
            except StopIteration as done:
                return done.value
