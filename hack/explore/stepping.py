"""An event loop that runs until nothing is ready, in virtual time, and knows whose task is whose.

What is ready runs in asyncio's own order. What happens outside, as an answer that arrives or time that passes, happens
between two runs: the explorer chooses it.
"""

from __future__ import annotations

import asyncio
import contextvars
import selectors
from collections.abc import Coroutine
from typing import Any
from weakref import WeakKeyDictionary

OWNER: contextvars.ContextVar[str] = contextvars.ContextVar("OWNER", default="")
"""The process that a task is of; tasks and timers inherit it."""


class _Idle(selectors.SelectSelector):
    """Instead of waiting it says for how long the loop would wait, and ends the run."""

    def __init__(self) -> None:
        super().__init__()
        self.loop: SteppingLoop | None = None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self.loop is not None and timeout != 0:
            self.loop.next_timer = None if timeout is None else self.loop.now + max(timeout, 0.0)
            self.loop.stop()
        return []


class SteppingLoop(asyncio.SelectorEventLoop):
    """`now` is its time in seconds from 0 on, which the caller moves on; `next_timer` is when something is due next."""

    def __init__(self) -> None:
        self.now = 0.0
        self.next_timer: float | None = None
        self._owners: WeakKeyDictionary[asyncio.Task[Any], str] = WeakKeyDictionary()
        idle = _Idle()
        super().__init__(idle)
        idle.loop = self
        self.set_task_factory(self._make_task)

    def time(self) -> float:
        return self.now

    def run_ready(self) -> None:
        """Run until everything waits."""
        self.run_forever()

    def start(self, owner: str, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Begin a task of a process."""
        context = contextvars.copy_context()
        context.run(OWNER.set, owner)
        return context.run(self.create_task, work)

    def tasks_of(self, owner: str) -> list[asyncio.Task[Any]]:
        """The tasks of a process that aren't done."""
        return [task for task, whose in self._owners.items() if whose == owner and not task.done()]

    def end(self) -> None:
        """Cancel everything, and close."""
        self.set_exception_handler(lambda loop, context: None)
        while left := [task for task in self._owners if not task.done()]:
            for task in left:
                task.cancel()
            self.run_ready()
        self.close()

    def _make_task(
        self, loop: asyncio.AbstractEventLoop, work: Any, context: contextvars.Context | None = None
    ) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(work, loop=self, context=context)
        self._owners[task] = (context or contextvars.copy_context()).get(OWNER, "")
        return task
