"""Tables of examples in one test."""

from __future__ import annotations

import pytest
from tables import in_one_test


def test_every_row_that_fails_is_named_and_the_others_are_not() -> None:
    @in_one_test(("left", "right"), [(1, 1), (1, 2), pytest.param(3, 4, id="last")])
    def are_equal(left: int, right: int) -> None:
        assert left == right

    with pytest.raises(BaseExceptionGroup, match="2 of 3 rows fail") as raised:
        are_equal()
    notes = [getattr(failure, "__notes__", []) for failure in raised.value.exceptions]
    assert notes == [["left=1, right=2"], ["last: left=3, right=4"]]


def test_tables_above_each_other_are_all_combinations() -> None:
    seen = []

    @in_one_test("outer", [1, 2])
    @in_one_test("inner", [3, 4])
    def see(outer: int, inner: int) -> None:
        seen.append((outer, inner))

    see()
    assert seen == [(1, 3), (1, 4), (2, 3), (2, 4)]


def test_a_table_without_rows_is_refused() -> None:
    with pytest.raises(AssertionError, match="no rows"):
        in_one_test("row", [])
