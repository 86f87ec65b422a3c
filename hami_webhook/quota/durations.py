"""How long something takes, for a histogram."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds in seconds of the buckets; one more takes the rest."""


@dataclass(slots=True)
class Durations:
    """How many took how long: a count for each bucket, and the sum in seconds."""

    buckets: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    total: float = 0.0

    def add(self, seconds: float) -> None:
        self.total += seconds
        self.buckets[bisect_left(BOUNDS, seconds)] += 1
