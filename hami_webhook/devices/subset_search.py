"""The best set of up to 16 linked cards, with every set looked at: many sums at once in the lanes of a long integer.

The cards are halved. Lane T of an integer represents the set T of the second half, so that adding two integers adds up
2^8 sums, and one addition and one AND show whether any of them beats the best so far. Each of the 2^8 sets of the first
half costs a few such operations, so the time doesn't depend on the scores.

Sets are numbered so that of two sets of one size the lexicographically first has the larger number.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from msgspec import Struct

MOST_CARDS = 16

Weights = Sequence[Sequence[int]]
"""What each pair of cards adds: symmetric, none negative, 0 on the diagonal."""


class _Lanes(Struct, frozen=True):
    """The lanes of the sets of some cards, `width` bits each, of which the highest stays free for comparing.

    `ones` has a one in each lane, `having[c]` in those of the sets with card c; `sized[s]` has the highest bit in those
    of the sets of s cards.
    """

    width: int
    ones: int
    having: tuple[int, ...]
    sized: tuple[int, ...]


@lru_cache(maxsize=64)
def _lanes(cards: int, width: int) -> _Lanes:
    ones, shift = 1, width
    having: list[int] = []
    sized = [1 << width - 1]
    for _ in range(cards):
        having = [ones << shift, *(lanes | lanes << shift for lanes in having)]
        sized = [lacking | holding << shift for lacking, holding in zip([*sized, 0], [0, *sized], strict=True)]
        ones |= ones << shift
        shift *= 2
    return _Lanes(width, ones, tuple(having), tuple(sized))


def best_set(weights: Weights, count: int) -> list[int]:
    """The lexicographically first of the sets of `count` cards whose pairs have the largest sum of weights."""
    cards = len(weights)
    middle = cards // 2
    most = cards * (cards - 1) // 2 * max(map(max, weights))
    lanes = _lanes(cards - middle, most.bit_length() + 2)
    width, ones, sized = lanes.width, lanes.ones, lanes.sized
    free = (1 << width - 1) - 1
    best, head, tail = -1, 0, 0
    values, sums = _values(weights, middle), _sums(weights, middle, lanes)
    for number in range((1 << middle) - 1, -1, -1):
        size = count - number.bit_count()
        if not 0 <= size < len(sized):
            continue
        value = values[number]
        # a lane overflows into its highest bit if it has more than is lacking to beat the best
        while better := (sums[number] + ones * (free - max(best - value, -1))) & sized[size]:
            head, tail = number, (better.bit_length() - 1) // width
            best = value + (sums[number] >> tail * width & free)
    chosen = head << cards - middle | tail
    return [card for card in range(cards) if chosen >> cards - 1 - card & 1]


def _values(weights: Weights, middle: int) -> list[int]:
    """For each set of the cards before `middle`, by number, the sum over its pairs."""
    values = [0]
    for card in reversed(range(middle)):
        links = [0]
        for weight in reversed(weights[card][card + 1 : middle]):
            links += [link + weight for link in links]
        values += [value + link for value, link in zip(values, links, strict=True)]
    return values


def _sums(weights: Weights, middle: int, lanes: _Lanes) -> list[int]:
    """For each set of the cards before `middle`, by number, the lanes of the sets of the others: the sum over the pairs
    of which at least one card is among those.
    """
    cards, full = len(weights), (1 << lanes.width) - 1
    within = 0
    for card, holding in zip(range(middle, cards), lanes.having, strict=True):
        later = zip(weights[card][card + 1 :], lanes.having[card + 1 - middle :], strict=True)
        within += sum(weight * having for weight, having in later) & holding * full
    sums = [within]
    for card in reversed(range(middle)):
        across = sum(weight * having for weight, having in zip(weights[card][middle:], lanes.having, strict=True))
        sums += [each + across for each in sums]
    return sums
