"""How the property tests run: the same examples each time, and no deadlines, as a busy machine isn't a fault.

`make test` looks at a few examples of each property; `make coverage`, which CI runs too, at two hundred.
"""

from __future__ import annotations

import asyncio
import inspect
import os

import pytest
from hypothesis import settings

settings.register_profile("quick", deadline=None, derandomize=True, database=None, max_examples=40)
settings.register_profile("thorough", settings.get_profile("quick"), max_examples=200)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an async test in a loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}

    async def whole() -> None:
        async with asyncio.timeout(60):
            await pyfuncitem.obj(**arguments)

    asyncio.run(whole())
    return True
