"""Searches with few steps: what they answer is valid and always the same, and exact where the steps suffice."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_webhook.devices.set_search import GreedySearch
from hami_webhook.devices.step_limit import FIT_STEPS, OutOfSteps, StepLimit
from hami_webhook.devices.topology import best_combination, pair_sum

from .test_topology import brute_force, tables

Admits = Callable[[Sequence[int]], bool]


def test_steps_that_are_not_left_are_not_counted() -> None:
    limit = StepLimit(10)
    limit.take(7)
    with pytest.raises(OutOfSteps):
        limit.take(4)
    assert limit.left == 3


def test_a_share_ends_its_block_and_leaves_the_rest() -> None:
    limit, done = StepLimit(100), list[str]()
    with limit.at_most(1 / 2):
        limit.take(20)
        with limit.at_most(1 / 2):
            limit.take(15)
            done.append("inner")
            limit.take(1)
            done.append("never")
        limit.take(15)
        done.append("outer")
        limit.take(1)
        done.append("never")
    limit.take(50)
    assert (done, limit.left) == (["inner", "outer"], 0)


@st.composite
def limits(draw: st.DrawFn, scores: list[list[int]]) -> Admits | None:
    """A monotone limit on sets of the cards, or none."""
    costs = draw(st.lists(st.integers(0, 5), min_size=len(scores), max_size=len(scores)))
    most = draw(st.integers(0, 15))

    def admits(positions: Sequence[int]) -> bool:
        return sum(costs[p] for p in positions) <= most

    return draw(st.sampled_from([None, admits]))


@given(tables(12), st.integers(0, 20_000), st.data())
def test_whatever_the_steps_the_answer_is_a_set_that_may_be_given(
    scores: list[list[int]], steps: int, data: st.DataObject
) -> None:
    admits = data.draw(limits(scores))
    for count in range(1, len(scores) + 1):
        found: list[list[int] | None] = []
        for limit in (StepLimit(steps), StepLimit(steps)):
            try:
                found.append(best_combination(scores, count, admits, limit))
            except OutOfSteps:
                found.append(None)
            assert limit.left >= 0
        chosen = found[0]
        assert chosen == found[1]
        if chosen:
            assert chosen == sorted(set(chosen))
            assert len(chosen) == count
            assert admits is None or admits(chosen)
            assert pair_sum(scores, chosen) <= pair_sum(scores, brute_force(scores, count, admits or (lambda _: True)))


@given(tables(9), st.data())
def test_with_the_steps_of_a_node_the_answer_is_exact(scores: list[list[int]], data: st.DataObject) -> None:
    admits = data.draw(limits(scores))
    for count in range(1, len(scores) + 1):
        limit = StepLimit(FIT_STEPS)
        assert best_combination(scores, count, admits, limit) == brute_force(scores, count, admits or (lambda _: True))


def test_growing_and_improving_sets_takes_a_step_for_each_card_that_is_looked_at() -> None:
    """A set of 4 of 40 cards is grown from each card, then each card of it is compared with all others."""
    limit = StepLimit(FIT_STEPS)
    assert GreedySearch([[7] * 40] * 40, 4, None, limit).best() == [0, 1, 2, 3]
    assert FIT_STEPS - limit.left >= 40 * (4 * 40 + 4 * 40)


def test_beyond_the_bound_the_two_halves_of_a_machine_are_still_kept_apart() -> None:
    """Of 96 cards in two groups the 48 of one come together, though no search can look at all sets."""
    scores = [[210 if (x < 48) is (y < 48) else 10 for y in range(96)] for x in range(96)]
    limit = StepLimit(FIT_STEPS)
    assert best_combination(scores, 48, None, limit) in ([*range(48)], [*range(48, 96)])
    assert limit.left >= 0
