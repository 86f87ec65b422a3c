"""Coroutines in virtual time: only the event loop's clock runs, so what the machine does meanwhile changes nothing."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, TypeVar

T = TypeVar("T")


class _NoWaiting(selectors.SelectSelector):
    """Instead of waiting for so long, the clock moves on by as much."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "everything waits, and for no time"
        self.now += max(timeout, 0.0)
        return []


class _VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.clock = _NoWaiting()
        super().__init__(self.clock)

    def time(self) -> float:
        return self.clock.now


def run(main: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=_VirtualLoop) as runner:
        return runner.run(main)


def in_virtual_time(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """A test that is run so."""

    @wraps(test)
    def made() -> None:
        run(test())

    return made
