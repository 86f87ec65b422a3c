"""`python -m hack.bench.search`: the topology choice on random scores, every request size; baseline: brute force."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence

from hack.bench.figures import Figure, Goal, least_seconds, run
from hami_webhook.devices.topology import Scores, best_combination, pair_sum

SCORES = (10, 20, 100, 200, 300)
CARDS = {"smallest": (8,), "usual": (8, 16), "large": (8, 16)}
ROUNDS = {"smallest": 1, "usual": 5, "large": 20}


def measure(size: str) -> Sequence[Figure]:
    return [_choice(cards, count, ROUNDS[size]) for cards in CARDS[size] for count in range(2, cards)]


def _choice(cards: int, count: int, rounds: int) -> Figure:
    draw = random.Random(7)
    scores = [[draw.choice(SCORES) for _ in range(cards)] for _ in range(cards)]
    found, expected = best_combination(scores, count), _brute_force(scores, count)()
    if found != expected:
        raise SystemExit(f"search: {found} was found, {expected} is right")
    own, brute = least_seconds([lambda: best_combination(scores, count), _brute_force(scores, count)], rounds)
    goal = Goal(at_least=50) if (cards, count) == (16, 8) else None
    return Figure("search", f"{cards} choose {count}", 1 / own, "per second", "brute force", 1 / brute, goal)


def _brute_force(scores: Scores, count: int) -> Callable[[], list[int]]:
    places = range(len(scores))
    return lambda: list(max(itertools.combinations(places, count), key=lambda chosen: pair_sum(scores, [*chosen])))


if __name__ == "__main__":
    run({"search": measure}, __doc__)
