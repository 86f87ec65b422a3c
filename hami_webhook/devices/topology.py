"""Choices among linked cards: the best mutual connectivity, the least connected single card, the largest groups.

Sources: docs/spec/nvidia.md#7.6, docs/spec/ascend.md#7, docs/spec/amd-biren-vastai.md#C4.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from itertools import accumulate

from hami_webhook.devices.subset_search import MOST_CARDS, best_set

Scores = Sequence[Sequence[int]]
"""score[x][y] of the cards in the order they are tried."""


def best_combination(scores: Scores, count: int, admits: Callable[[Sequence[int]], bool] | None = None) -> list[int]:
    """The positions of the `count` cards with the largest sum of score[x][y] over pairs x before y.

    Among equal sums the lexicographically first set. With `admits`, only sets it holds for compete; it must be
    monotone: once it refuses a set, it refuses every larger one. An empty list if no set competes.

    Without `admits`, all sets of up to 16 cards are looked at together (`packed`). Otherwise depth first in
    lexicographic order with a bound: a branch can't beat the best so far if not even the most each remaining card could
    add — its links to the chosen ones plus half of its best links among the rest — would.
    """
    cards = len(scores)
    if count == 0 or count > cards:
        return []
    columns = list(zip(*scores, strict=True))
    both = [[*columns[x][:x], 0, *scores[x][x + 1 :]] for x in range(cards)]
    if admits is None and cards <= MOST_CARDS:
        least = min(map(min, both))
        # what every pair has less of changes no comparison of sets of one size
        return best_set([[each - least for each in row] for row in both] if least < 0 else both, count)
    # reach[s][j][r]: the sum of card j's r best links to the cards at s and after, doubled bounds below
    reach = [
        [
            [0, *accumulate(sorted((both[j][k] for k in range(start, cards) if k != j), reverse=True))]
            for j in range(cards)
        ]
        for start in range(cards)
    ]
    best: list[int] = []
    best_value: int | None = None
    chosen: list[int] = []

    def search(start: int, value: int, links: list[int]) -> None:
        nonlocal best, best_value
        left = count - len(chosen)
        if left == 0:
            if best_value is None or value > best_value:
                best, best_value = chosen.copy(), value
            return
        for position in range(start, cards - left + 1):
            if best_value is not None:
                gains = sorted(
                    (2 * links[j] + reach[position][j][left - 1] for j in range(position, cards)), reverse=True
                )
                if 2 * value + sum(gains[:left]) <= 2 * best_value:
                    return
            chosen.append(position)
            if admits is None or admits(chosen):
                row = both[position]
                search(position + 1, value + links[position], [a + b for a, b in zip(links, row, strict=True)])
            chosen.pop()

    search(0, 0, [0] * cards)
    return best


def pair_sum(scores: Scores, positions: Sequence[int]) -> int:
    """The sum of score[x][y] over pairs of `positions`, x before y."""
    return sum(scores[x][y] for i, x in enumerate(positions) for y in positions[i + 1 :])


def least_connected(scores: Scores) -> int:
    """The position of the card whose links to all others sum to least; the first of equals."""
    totals = [sum(row) - row[x] for x, row in enumerate(scores)]
    return totals.index(min(totals))


def largest_groups_first(keys: Sequence[Hashable], count: int) -> list[int]:
    """The first `count` positions of `keys` when equal keys stand together, the largest group first.

    Of groups of equal size the one met first comes first; within a group the order stays.
    """
    groups: dict[Hashable, list[int]] = {}
    for position, key in enumerate(keys):
        groups.setdefault(key, []).append(position)
    ordered = sorted(groups.values(), key=len, reverse=True)
    return [position for group in ordered for position in group][:count]
