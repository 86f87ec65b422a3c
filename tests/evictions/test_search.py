"""Who is given back: what all searches for victims share (docs/preemption.md#victims)."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from hami_webhook.evictions.search import giving_back
from hami_webhook.time_slices import Steps, run_at_once


@given(st.integers(1, 12), st.lists(st.frozensets(st.integers(0, 11), min_size=1, max_size=4), max_size=5))
def test_nobody_goes_who_could_stay_and_halves_find_whom_one_by_one_finds(
    count: int, needed: list[frozenset[int]]
) -> None:
    """Some of each of `needed` have to go, as cards on several nodes have to: more who go are never worse."""
    needed = [one for each in needed if (one := each & set(range(count)))]
    asked = 0

    def is_enough(gone: Sequence[int]) -> bool:
        return all(each & set(gone) for each in needed)

    def enough(gone: Sequence[int]) -> Steps[bool]:
        nonlocal asked
        asked += 1
        yield
        return is_enough(gone)

    one_by_one = [*range(count)]
    for each in range(count):
        rest = [other for other in one_by_one if other != each]
        one_by_one = rest if is_enough(rest) else one_by_one
    assert run_at_once(giving_back([*range(count)], enough)) == one_by_one
    assert asked <= 2 * count - 1
    assert run_at_once(giving_back([*range(count)], enough, many=False)) == one_by_one
    assert not any(is_enough([other for other in one_by_one if other != each]) for each in one_by_one)
