"""The clockwork of simulated time: events in order, and figures of the waits and times that they leave."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Sequence
from typing import Generic, TypeVar

_Event = TypeVar("_Event")


class Timeline(Generic[_Event]):
    """Events by time, in seconds; those of one time are in the order in which they were added."""

    def __init__(self, events: Iterable[tuple[float, _Event]] = ()) -> None:
        self._order = itertools.count()
        self._events = [(at, next(self._order), event) for at, event in events]
        heapq.heapify(self._events)

    def __bool__(self) -> bool:
        return bool(self._events)

    def add(self, at: float, event: _Event) -> None:
        heapq.heappush(self._events, (at, next(self._order), event))

    def next(self) -> tuple[float, _Event]:
        """Remove the first event; it with its time."""
        at, _, event = heapq.heappop(self._events)
        return at, event

    def next_together(self) -> tuple[float, list[_Event]]:
        """Remove the first event and all others of its time; they with the time."""
        at, event = self.next()
        events = [event]
        while self._events and self._events[0][0] == at:
            events.append(self.next()[1])
        return at, events


def overlap(since: float, until: float, start: float, end: float) -> float:
    """The seconds from `since` to `until` that lie between `start` and `end`."""
    return max(0.0, min(until, end) - max(since, start))


def covered(spans: Iterable[tuple[float, float]], start: float, end: float) -> float:
    """The seconds between `start` and `end` that at least one of the spans covers."""
    total, reached = 0.0, start
    for since, until in sorted(spans):
        total += overlap(max(since, reached), until, start, end)
        reached = max(reached, until)
    return total


def quantile(values: Sequence[float], share: float) -> float:
    """The value that this share of the values lies below; of none 0."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
