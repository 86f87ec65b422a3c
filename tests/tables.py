"""Tables of examples that take microseconds each, where pytest's own work on a test takes milliseconds."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

import pytest


def in_one_test(
    names: str | tuple[str, ...], rows: Iterable[Any]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """As `pytest.mark.parametrize`, but all rows are one test, which fails with the values of every row that does."""
    columns = (names,) if isinstance(names, str) else names
    table = [
        row if isinstance(row, pytest.ParameterSet) else pytest.param(*((row,) if isinstance(names, str) else row))
        for row in rows
    ]
    assert table, "no rows test nothing"

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @wraps(test)
        def every_row(*args: Any, **fixtures: Any) -> None:
            failures: list[BaseException] = []
            for row in table:
                values = dict(zip(columns, row.values, strict=True))
                try:
                    test(*args, **fixtures, **values)
                except (Exception, pytest.fail.Exception) as failure:
                    shown = ", ".join(f"{name}={value!r:.300}" for name, value in values.items())
                    failure.add_note(f"{row.id}: {shown}" if row.id else shown)
                    failures.append(failure)
            if failures:
                raise BaseExceptionGroup(f"{len(failures)} of {len(table)} rows fail", failures)

        signature = inspect.signature(test)
        others = [parameter for name, parameter in signature.parameters.items() if name not in columns]
        every_row.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]  # pytest's fixtures
        return every_row

    return decorate
