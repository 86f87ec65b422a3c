"""Choose among linked cards: the best-connected set, a single card that breaks no link group, or cards of the largest
groups.

Sources: docs/spec/nvidia.md#7.6, docs/spec/ascend.md#7, docs/spec/amd-biren-vastai.md#C4.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from hami_webhook.devices.set_search import Admits, ExhaustiveSearch, GreedySearch
from hami_webhook.devices.step_limit import StepLimit
from hami_webhook.devices.subset_search import MOST_CARDS, best_set

Scores = Sequence[Sequence[int]]
"""score[x][y] of the cards in the order they are tried."""

NVLINK_SCORE = 100
"""The score of a pair with one NVLink and nothing else."""

_STEPS_OF_A_PAIR = 2
_STEPS_OF_A_SUBSET = 40
"""Steps to look at a set of half of the cards with all sets of the others."""


def best_combination(
    scores: Scores, count: int, admits: Admits | None = None, limit: StepLimit | None = None
) -> list[int]:
    """The positions of the `count` cards with the largest sum of score[x][y] over pairs x before y.

    Among sets with equal sums, return the lexicographically first. With `admits`, only sets that it accepts are
    compared. It must be monotone: if it refuses a set, it refuses all supersets. An empty list if no set competes.

    Without `admits`, all sets of up to 16 cards are looked at together (`subset_search`). Otherwise all are searched as
    far as `limit` allows; beyond, the answer is the best set found, which `admits` holds for, too. Raises `OutOfSteps`
    if the limit allows no search, or too short a one to find a set.
    """
    cards = len(scores)
    if count == 0 or count > cards:
        return []
    limit = limit or StepLimit()
    limit.take(_STEPS_OF_A_PAIR * cards * cards)
    columns = list(zip(*scores, strict=True))
    both = [[*columns[x][:x], 0, *scores[x][x + 1 :]] for x in range(cards)]
    if admits is None and cards <= MOST_CARDS:
        with limit.at_most(1 / 2):
            limit.take(_STEPS_OF_A_SUBSET << cards // 2)
            least = min(map(min, both))
            # what every pair has less of changes no comparison of sets of one size
            return best_set([[each - least for each in row] for row in both] if least < 0 else both, count)
    found = GreedySearch(both, count, admits, limit).best()
    return ExhaustiveSearch(both, count, admits, limit).best(found)


def pair_sum(scores: Scores, positions: Sequence[int]) -> int:
    """The sum of score[x][y] over pairs of `positions`, x before y."""
    return sum(scores[x][y] for i, x in enumerate(positions) for y in positions[i + 1 :])


class NvLinks:
    """Which cards are linked by NVLink, by their pair scores: 100 and more both ways; PCIe alone comes to 60 at most.

    A link group are the cards that are linked directly or through others.
    """

    STEPS_OF_A_PAIR = 5
    """Steps of finding the links and the weights, for each pair of cards."""

    def __init__(self, scores: Scores) -> None:
        self._scores = scores
        self._linked = [
            {
                y
                for y, (to, back) in enumerate(zip(row, column, strict=True))
                if to >= NVLINK_SCORE and back >= NVLINK_SCORE and y != x
            }
            for x, (row, column) in enumerate(zip(scores, zip(*scores, strict=True), strict=True))
        ]

    def fully_linked(self, positions: Sequence[int]) -> bool:
        """Whether each two of the cards are linked directly."""
        return all(self._linked[x].issuperset(positions[i + 1 :]) for i, x in enumerate(positions))

    def left_in_groups(self, positions: Sequence[int]) -> int:
        """Return how many cards outside `positions` are in the link groups of these cards."""
        return len(self._reached(positions)) - len(positions)

    def groups(self) -> list[list[int]]:
        """The link groups of more than one card, each in order."""
        groups: list[list[int]] = []
        grouped: set[int] = set()
        for card in range(len(self._linked)):
            if self._linked[card] and card not in grouped:
                groups.append(sorted(self._reached([card])))
                grouped.update(groups[-1])
        return groups

    def _reached(self, positions: Sequence[int]) -> set[int]:
        """The cards and all that are in their groups."""
        reached = set(positions)
        border = list(positions)
        while border:
            near = self._linked[border.pop()] - reached
            reached |= near
            border += near
        return reached

    def single(self) -> int:
        """Return the card with the fewest links; ties go to the smallest sum of scores, then to the first."""
        return min(
            range(len(self._scores)),
            key=lambda x: (len(self._linked[x]), sum(self._scores[x]) - self._scores[x][x]),
        )

    def weights(self, count: int, *, only_linked: bool) -> Scores:
        """Weights for which `best_combination` finds the best set of `count` cards by scores and groups.

        The largest sum of scores comes first. Among equal sums, the set wins that leaves the most linked pairs among
        the other cards, and so keeps the largest groups whole. With `only_linked` every set that isn't fully linked
        comes behind those that are.
        """
        scores, linked = self._scores, self._linked
        cards = len(scores)
        # the pairs that are left: all, without those of each chosen card, with those of two chosen ones put back
        scale = 2 * count * count * cards
        span = max(map(max, scores)) - min(0, *map(min, scores)) + 1
        penalty = scale * span * cards * cards if only_linked else 0
        degrees = [len(others) for others in linked]
        weights = []
        for x, row in enumerate(scores):
            less = degrees[x] + penalty
            of_x = [scale * score - less - degree for score, degree in zip(row, degrees, strict=True)]
            for y in linked[x]:
                of_x[y] += count - 1 + penalty
            weights.append(of_x)
        return weights


def largest_groups_first(keys: Sequence[Hashable], count: int) -> list[int]:
    """Group equal `keys`, sort the groups by size, largest first, and return the first `count` positions.

    Of groups of equal size the one met first comes first; within a group the order stays.
    """
    groups: dict[Hashable, list[int]] = {}
    for position, key in enumerate(keys):
        groups.setdefault(key, []).append(position)
    ordered = sorted(groups.values(), key=len, reverse=True)
    return [position for group in ordered for position in group][:count]
