"""Choices among linked cards: the best mutual connectivity, the card that breaks no link group, the largest groups.

Sources: docs/spec/nvidia.md#7.6, docs/spec/ascend.md#7, docs/spec/amd-biren-vastai.md#C4.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from itertools import accumulate

from hami_webhook.devices.subset_search import MOST_CARDS, best_set

Scores = Sequence[Sequence[int]]
"""score[x][y] of the cards in the order they are tried."""

NVLINK_SCORE = 100
"""The score of a pair with one NVLink and nothing else."""


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


class NvLinks:
    """Which cards are linked by NVLink, by their pair scores: 100 and more both ways; PCIe alone comes to 60 at most.

    A link group are the cards that are linked directly or through others.
    """

    def __init__(self, scores: Scores) -> None:
        self._scores = scores
        cards = range(len(scores))
        self._linked = [
            [y for y in cards if y != x and scores[x][y] >= NVLINK_SCORE and scores[y][x] >= NVLINK_SCORE]
            for x in cards
        ]

    def fully_linked(self, positions: Sequence[int]) -> bool:
        """Whether each two of the cards are linked directly."""
        return all(y in self._linked[x] for i, x in enumerate(positions) for y in positions[i + 1 :])

    def left_in_groups(self, positions: Sequence[int]) -> int:
        """How many other cards are in the groups of these."""
        return len(self._reached(positions)) - len(positions)

    def groups(self) -> list[list[int]]:
        """The link groups of more than one card, each in order."""
        groups: list[list[int]] = []
        for card in range(len(self._linked)):
            if self._linked[card] and not any(card in group for group in groups):
                groups.append(sorted(self._reached([card])))
        return groups

    def _reached(self, positions: Sequence[int]) -> list[int]:
        """The cards and all that are in their groups."""
        reached = list(positions)
        for card in reached:
            reached += [other for other in self._linked[card] if other not in reached]
        return reached

    def single(self) -> int:
        """The card linked to the fewest, then that whose scores to all others sum to least; the first of equals."""
        return min(
            range(len(self._scores)),
            key=lambda x: (len(self._linked[x]), sum(self._scores[x]) - self._scores[x][x]),
        )

    def weights(self, count: int, *, only_linked: bool) -> Scores:
        """Weights for which `best_combination` finds the best set of `count` cards by scores and groups.

        The largest sum of scores comes first. Of equal sums that set counts that leaves the most linked pairs among the
        other cards, and so the largest groups whole. With `only_linked` every set that isn't fully linked comes behind
        those that are.
        """
        scores, linked = self._scores, self._linked
        cards = len(scores)
        # the pairs that are left: all, without those of each chosen card, with those of two chosen ones put back
        scale = 2 * count * count * cards
        span = max(map(max, scores)) - min(0, *map(min, scores)) + 1
        penalty = scale * span * cards * cards if only_linked else 0
        weights = []
        for x, row in enumerate(scores):
            of_x = [scale * score - len(linked[x]) - len(linked[y]) - penalty for y, score in enumerate(row)]
            for y in linked[x]:
                of_x[y] += count - 1 + penalty
            weights.append(of_x)
        return weights


def largest_groups_first(keys: Sequence[Hashable], count: int) -> list[int]:
    """The first `count` positions of `keys` when equal keys stand together, the largest group first.

    Of groups of equal size the one met first comes first; within a group the order stays.
    """
    groups: dict[Hashable, list[int]] = {}
    for position, key in enumerate(keys):
        groups.setdefault(key, []).append(position)
    ordered = sorted(groups.values(), key=len, reverse=True)
    return [position for group in ordered for position in group][:count]
