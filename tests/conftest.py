"""How the property tests run: the same examples each time, and no deadlines, as a busy machine isn't a fault.

`make test` looks at a few examples of each property; `make coverage`, which CI runs too, at two hundred.
"""

from __future__ import annotations

import os

import pytest
from async_tests import run_async
from hypothesis import settings

settings.register_profile("quick", deadline=None, derandomize=True, database=None, max_examples=40)
settings.register_profile("thorough", settings.get_profile("quick"), max_examples=200)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    return run_async(pyfuncitem)
