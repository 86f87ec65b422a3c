"""Which pods hold what is above a quota's hard (docs/spec/quota.md#9)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_webhook.kube.objects import Pod
from hami_webhook.quota.excess import Holding, above_hard, excess_sentence


def holding(name: str, created: float | None = 0, *, allowed: bool = False, **costs: int) -> Holding:
    return Holding(Pod("team", name, f"uid-{name}", {}, {}, (), created=created), costs, allowed)


@pytest.mark.parametrize(
    ("excess", "held", "named"),
    [
        ({}, [holding("a", gpu=1)], []),
        ({"gpu": 1}, [holding("old", 1, gpu=1), holding("new", 2, gpu=1)], ["new"]),
        ({"gpu": 1}, [holding("old", 1, gpu=1), holding("new", 2, allowed=True, gpu=1)], ["old"]),
        ({"gpu": 3}, [holding("a", 1, gpu=2), holding("b", 2, gpu=2), holding("c", 3, gpu=2)], ["c", "b"]),
        # one whose age isn't known is taken for the oldest
        ({"gpu": 1}, [holding("a", 0.5, gpu=1), holding("b", None, gpu=1)], ["a"]),
        # who holds nothing of what is above, or no more of it than was found already, isn't named
        ({"gpu": 1}, [holding("a", 1, gpu=1), holding("b", 2, mem=1)], ["a"]),
        ({"gpu": 1, "mem": 1}, [holding("a", 1, mem=1), holding("b", 2, gpu=1), holding("c", 3, gpu=1)], ["c", "a"]),
        # charges of pods that aren't there yet are above, too
        ({"gpu": 5}, [holding("a", gpu=1)], ["a"]),
    ],
)
def test_who_is_above(excess: Mapping[str, int], held: list[Holding], named: list[str]) -> None:
    assert [each.pod.name for each in above_hard(excess, held)] == named


COSTS = st.dictionaries(st.sampled_from(["gpu", "mem"]), st.integers(0, 5))


@given(st.dictionaries(st.sampled_from(["gpu", "mem"]), st.integers(1, 9)), st.lists(st.tuples(COSTS, st.booleans())))
def test_without_them_used_is_within_hard_and_with_one_less_it_is_not(
    excess: dict[str, int], pods: list[tuple[dict[str, int], bool]]
) -> None:
    held = [holding(f"p{n}", n, allowed=allowed, **costs) for n, (costs, allowed) in enumerate(pods)]
    found = above_hard(excess, held)
    held_sum, found_sum = Counter[str](), Counter[str]()
    for each in held:
        held_sum.update(each.costs)
    for each in found:
        assert each.costs.keys() <= excess.keys()
        found_sum.update(each.costs)
    assert all(found_sum[key] >= min(amount, held_sum[key]) for key, amount in excess.items())
    if found:
        assert any(found_sum[key] - found[-1].costs.get(key, 0) < amount for key, amount in excess.items())


def test_a_few_are_named_with_their_amounts_and_the_others_counted() -> None:
    assert excess_sentence([]) == ""
    some = [holding("a", mem=200, gpu=1), holding("b", gpu=1)]
    assert excess_sentence(some) == "above the limit: team/a (gpu=1, mem=200), team/b (gpu=1)"
    many = [holding("x" * 200, gpu=1)] * 1000
    sentence = excess_sentence(many)
    assert sentence.endswith(" and 995 more")
    assert len(sentence) < 1200
