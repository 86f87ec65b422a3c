"""Tests of quotas run in virtual time, as their cluster has a clock of its own: no charge ends for a busy machine."""

from __future__ import annotations

import pytest
from async_tests import run_async
from virtual_time import run


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    return run_async(pyfuncitem, run)
