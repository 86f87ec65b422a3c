"""Find the best set of linked cards: exhaustively within a limit of steps, greedily beyond.

`links[x][y]` is what a pair of cards adds: symmetric, 0 on the diagonal. Source: docs/spec/nvidia.md#7.6.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

from hami_webhook.devices.step_limit import OutOfSteps, StepLimit

Links = Sequence[Sequence[int]]
Admits = Callable[[Sequence[int]], bool]
"""Whether a set of positions may be given. Monotone: once it refuses a set, it refuses every larger one."""

_STEPS_OF_A_BOUND = 3
"""For each card that a bound is computed from."""
_STEPS_OF_A_CALL = 20
"""Besides what is done for each card."""


class GreedySearch:
    """Sets grown from one card each, always by the card that adds most, then improved by exchanging single cards."""

    def __init__(self, links: Links, count: int, admits: Admits | None, limit: StepLimit) -> None:
        self._links = links
        self._count = count
        self._admits = admits
        self._limit = limit

    def best(self) -> list[int]:
        """Return the best set found with most of the remaining steps; empty if `admits` allowed no set.

        The search starts with the best-linked cards. If no set can be completed, it takes the cards in their order.
        """
        best: list[int] = []
        best_value: int | None = None
        with self._limit.at_most(3 / 4):
            self._limit.take(len(self._links) ** 2)
            totals = [sum(row) for row in self._links]
            for start in sorted(range(len(totals)), key=totals.__getitem__, reverse=True):
                grown = self._grown(start)
                if grown is None:
                    continue
                # a set that is whole counts, even if no steps are left for improving it
                for chosen, sums in (grown, self._improved(*grown)):
                    value = sum(sums[card] for card in chosen)
                    # of equal sums the lexicographically first set
                    if best_value is None or (value, best) > (best_value, sorted(chosen)):
                        best, best_value = sorted(chosen), value
        if best:
            return best
        with self._limit.at_most(1 / 2):
            return self._in_order()
        return []

    def _grown(self, start: int) -> tuple[list[int], list[int]] | None:
        """A whole set with this card, and by card the sum of its links to the set; None if there is none."""
        chosen: list[int] = []
        sums = [0] * len(self._links)
        left = list(range(len(self._links)))
        card = start
        while True:
            self._limit.take(_STEPS_OF_A_CALL + 2 * len(sums))
            left.remove(card)
            if self._is_admitted([*chosen, card]):
                chosen.append(card)
                sums = [a + b for a, b in zip(sums, self._links[card], strict=True)]
            elif card == start:
                return None
            if len(chosen) == self._count:
                return chosen, sums
            if len(chosen) + len(left) < self._count:
                return None
            card = max(left, key=sums.__getitem__)

    def _improved(self, chosen: list[int], sums: list[int]) -> tuple[list[int], list[int]]:
        """The set with cards exchanged for others, one by one, until no exchange makes it better."""
        chosen = chosen.copy()
        others = [card for card in range(len(sums)) if card not in set(chosen)]
        since = place = 0
        while others and since < len(chosen):
            self._limit.take(_STEPS_OF_A_CALL + 2 * len(sums))
            out = chosen[place]
            row = self._links[out]
            gains = [sums[card] - row[card] for card in others]
            gain = max(gains)
            where = gains.index(gain)
            into = others[where]
            if gain > sums[out] and self._is_admitted([*chosen[:place], into, *chosen[place + 1 :]]):
                chosen[place], others[where] = into, out
                sums = [a - b + c for a, b, c in zip(sums, row, self._links[into], strict=True)]
                since = 0
            else:
                since += 1
            place = (place + 1) % len(chosen)
        return chosen, sums

    def _in_order(self) -> list[int]:
        chosen: list[int] = []
        for card in range(len(self._links)):
            if len(chosen) < self._count and self._is_admitted([*chosen, card]):
                chosen.append(card)
        return chosen if len(chosen) == self._count else []

    def _is_admitted(self, chosen: Sequence[int]) -> bool:
        return self._admits is None or self._admits(chosen)


class ExhaustiveSearch:
    """Search depth-first in lexicographic order with a bound.

    The bound counts each remaining card's links to the chosen cards, plus half of its best links among the rest. A
    branch is skipped if its bound can't exceed the best sum.
    """

    def __init__(self, links: Links, count: int, admits: Admits | None, limit: StepLimit) -> None:
        self._links = links
        self._count = count
        self._admits = admits
        self._limit = limit
        self._chosen: list[int] = []
        self._best: list[int] = []
        self._needed: int | None = None
        """The sum that the next set must reach."""
        self._reach: dict[int, list[list[int]]] = {}

    def best(self, known: list[int]) -> list[int]:
        """Return the lexicographically first best set, using half of the remaining steps; if they don't suffice, the
        best so far or `known`.

        Raises `OutOfSteps` if there may be sets, but none is known.
        """
        self._best = known
        if known:
            self._needed = sum(self._links[x][y] for i, x in enumerate(known) for y in known[i + 1 :])
        with self._limit.at_most(1 / 2):
            self._search(0, 0, [0] * len(self._links))
            return self._best
        if not self._best:
            raise OutOfSteps
        return self._best

    def _search(self, start: int, value: int, sums: list[int]) -> None:
        """Complete the chosen cards from `start` on; `value` is their sum, `sums` that of each card's links to them."""
        cards, chosen = len(self._links), self._chosen
        left = self._count - len(chosen)
        if left == 0:
            if self._needed is None or value >= self._needed:
                self._best, self._needed = chosen.copy(), value + 1
            return
        for position in range(start, cards - left + 1):
            self._limit.take(_STEPS_OF_A_CALL + _STEPS_OF_A_BOUND * (cards - position) + cards)
            if self._needed is not None:
                most = zip(sums[position:], self._most_links(position), strict=True)
                gains = sorted((2 * linked + reach[left - 1] for linked, reach in most), reverse=True)
                if 2 * value + sum(gains[:left]) < 2 * self._needed:
                    return
            chosen.append(position)
            if self._admits is None or self._admits(chosen):
                row = self._links[position]
                self._search(position + 1, value + sums[position], [a + b for a, b in zip(sums, row, strict=True)])
            chosen.pop()

    def _most_links(self, start: int) -> list[list[int]]:
        """For each card at `start` and after, by r, the sum of its r best links to the others of them."""
        known = self._reach.get(start)
        if known is None:
            cards = len(self._links)
            self._limit.take(_STEPS_OF_A_BOUND * (cards - start) ** 2)
            known = self._reach[start] = [
                [0, *accumulate(sorted((*row[start:card], *row[card + 1 :]), reverse=True))]
                for card, row in enumerate(self._links[start:], start)
            ]
        return known
