"""Which cards of a Kunlunxin server go together: two wings of four, the links between them, and what fills a node best.

Cards are their indices, 0 to 7. Source: docs/spec/kunlun.md#7.2, #7.3 and #8.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import combinations

INDICES = range(8)
LINKED_COUNTS = (1, 2, 4, 8)
"""The numbers of cards that a wing or the links between wings can serve."""

_SIDES = (range(4), range(4, 8))
_TIGHTEST_FIRST = {1: (1, 3, 2, 4), 2: (2, 3, 4), 3: (3, 4), 4: (4,)}
"""By count, how many fitting cards a wing should have, the most wanted number first."""

_LINKED = {
    2: ((0, 4), (1, 5), (2, 6), (3, 7)),
    4: ((0, 1, 4, 5), (2, 3, 6, 7), (0, 2, 4, 6), (1, 3, 5, 7), (0, 3, 4, 7), (1, 2, 5, 6)),
}
"""By count, the sets with links between the wings, the first ones first."""

_TASKS_TO_FILL = (1, 2, 1, 1, 0)
"""By used cards of a wing, how many tasks of 1, 2 or 4 cards fill the rest of it, as the vendor counts them."""


def card_sets(
    count: int, fitting: Collection[int], shared: Collection[int] = (), *, sliced: bool = False
) -> Iterator[tuple[int, ...]]:
    """The sets of `count` fitting cards that may work together, best first, each in ascending order.

    `shared` are the fitting cards that carry slices already: a single slice goes to one of them if there is any.
    `sliced`: real slices, which may also be requested in numbers that no wing pattern serves.
    """
    if count not in LINKED_COUNTS and not sliced:
        return
    wings = _wings(fitting)
    permitted = shared if count == 1 and shared else fitting
    for size in _TIGHTEST_FIRST.get(count, ()):
        for wing in wings:
            if len(wing) == size:
                yield from combinations((index for index in wing if index in permitted), count)
    yield from (linked for linked in _LINKED.get(count, ()) if set(linked) <= set(fitting))
    if len(fitting) >= count > len(_SIDES[0]):
        yield from _over_both(count, wings)


def _over_both(count: int, wings: Sequence[Sequence[int]]) -> Iterator[tuple[int, ...]]:
    """All of the fuller wing (left on a tie), then cards linked to it, then the others; after that any other set."""
    fuller, other = sorted(wings, key=len, reverse=True)
    linked_first = sorted(other, key=lambda index: (index ^ 4 not in fuller, index))
    best = tuple(sorted([*fuller, *linked_first][:count]))
    yield best
    yield from (chosen for chosen in combinations(sorted([*fuller, *other]), count) if chosen != best)


def score(before: Collection[int], after: Collection[int]) -> int:
    """How well a placement keeps a node easy to fill, 0 to 3000, from the cards used before and after it."""
    return 1000 * max(0, min(3, 2 - (tasks_to_fill(after) - tasks_to_fill(before))))


def tasks_to_fill(used: Collection[int]) -> int:
    """MTF: the least number of tasks of 1, 2, 4 or 8 cards that would fill the node."""
    return sum(_TASKS_TO_FILL[len(wing)] for wing in _wings(used)) if used else 1


def _wings(indices: Collection[int]) -> list[list[int]]:
    return [[index for index in side if index in indices] for side in _SIDES]
