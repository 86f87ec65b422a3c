"""Which nodes changed since when: exact while it is known, and never wrong by what was forgotten."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hami_webhook.state import generations
from hami_webhook.state.generations import Generations


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.booleans()), max_size=60))
def test_whoever_asks_is_told_all_that_changed_since_or_that_it_is_not_known(steps: list[tuple[str, bool]]) -> None:
    spare, generations._SPARE = generations._SPARE, 0
    try:
        log, there, history, last_gone = Generations(), set[str](), list[tuple[int, str]](), 0
        for name, stays in steps:
            number = log.changed(name)
            assert number == log.latest > (history[-1][0] if history else 0)
            history.append((number, name))
            last_gone = last_gone if stays else number
            (there.add if stays else there.discard)(name)
            log.keep_only(there, len(there))
            assert len(log._changed) <= max(2 * len(there), len(there) + 1)
            for since in range(number + 1):
                found = log.since(since)
                changed = {changed for at, changed in history if at > since}
                if found is not None:
                    assert sorted(found) == sorted(changed)
                else:
                    assert since < last_gone
            assert log.since(number) == []
    finally:
        generations._SPARE = spare
