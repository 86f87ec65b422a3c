"""How async tests are run: pytest's hook in `conftest.py` calls this."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

import pytest


def run_async(
    test: pytest.Function, run: Callable[[Coroutine[Any, Any, None]], None] = asyncio.run, *, ends_tasks: bool = False
) -> bool | None:
    """Run an async test in a loop of its own; None for other tests. `ends_tasks`: it has to leave no task."""
    if not inspect.iscoroutinefunction(test.obj):
        return None
    arguments = {name: test.funcargs[name] for name in inspect.signature(test.obj).parameters}

    async def whole() -> None:
        async with asyncio.timeout(60):
            await test.obj(**arguments)
        assert not ends_tasks or asyncio.all_tasks() == {asyncio.current_task()}

    run(whole())
    return True
