"""The starts that were promised to pods that wait, as long as no limit changes (docs/spec/time.md#2.2)."""

from __future__ import annotations

from collections.abc import Mapping, Set

from msgspec import Struct

from hami_webhook.quota.queue_order import QueueDecision, QueueRoom
from hami_webhook.quota.runtime import STARTED_WITHIN
from hami_webhook.quota.starts import with_starts


class StartErrors(Struct):
    """By how many seconds pods started later than was promised; below 0 earlier."""

    count: int = 0
    last: float = 0.0
    late: int = 0
    """How many started more than a second later."""

    def add(self, seconds: float) -> None:
        self.count += 1
        self.last = seconds
        self.late += seconds > 1


class Promises:
    """The leader's promised starts (Unix seconds) of waiting turns, by UID.

    `promised` are the starts of those that waited last; `released_at` has the pods of the last 10 s.
    """

    def __init__(self) -> None:
        self.promised: dict[str, float] = {}
        self._terms: Mapping[str, tuple[object, ...]] = {}
        self.released_at: dict[str, float] = {}
        self.errors = StartErrors()

    def given(
        self, decision: QueueDecision, rooms: Mapping[str, QueueRoom], now: float, late: Set[str]
    ) -> QueueDecision:
        """Return the decision with promised starts, and with the pods that may pass.

        Earlier promises stay until a limit or the order changes.
        """
        self.released_at = {uid: at for uid, at in self.released_at.items() if now - at <= STARTED_WITHIN}
        terms: Mapping[str, tuple[object, ...]] = {
            name: (room.hard, room.order) for name, room in rooms.items() if room.held is not None
        }
        if any(self._terms.get(name, now_written) != now_written for name, now_written in terms.items()):
            self.promised = {}
        self._terms = terms
        unsure = {name for name, room in rooms.items() if room.unsure}
        if unsure:
            broken = {each.pod.uid for each in decision.waiting if any(name in unsure for name, _ in each.pod.demand)}
            self.promised = {uid: at for uid, at in self.promised.items() if uid not in broken}
        found = with_starts(decision, rooms, now, late, self.promised)
        for pod in found.released:
            if (promised := self.promised.get(pod.uid)) is not None:
                self.errors.add(now - promised)
        self.promised = {
            each.pod.uid: each.start.at
            for each in found.waiting
            if each.start is not None and each.start.at is not None
        }
        return found

    def released(self, uid: str, now: float) -> None:
        """A pod was released."""
        self.released_at[uid] = now
