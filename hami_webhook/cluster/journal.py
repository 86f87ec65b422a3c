"""What watches of the cluster in memory can reach back to."""

from __future__ import annotations

from bisect import bisect_right

from hami_webhook.cluster.api import Gone, WatchEvent


class Journal:
    """The latest events of one kind; at least `size` of them, in the order of their versions."""

    __slots__ = ("_size", "events", "floor", "versions")

    def __init__(self, size: int) -> None:
        self._size = size
        self.versions: list[int] = []
        self.events: list[WatchEvent] = []
        self.floor = 0  # what happened after this version is known

    def append(self, version: int, event: WatchEvent) -> None:
        self.versions.append(version)
        self.events.append(event)
        surplus = len(self.versions) - self._size
        if surplus > 0:
            self.floor = self.versions[surplus - 1]
        if surplus > self._size:  # trimmed rarely, so that appending stays cheap
            del self.versions[:surplus], self.events[:surplus]

    def after(self, version: int) -> tuple[int, WatchEvent] | None:
        """The first event past `version`; raises `Gone` if it may have been forgotten."""
        if version < self.floor:
            raise Gone(f"too old resource version: {version} ({self.floor})")
        index = bisect_right(self.versions, version)
        return (self.versions[index], self.events[index]) if index < len(self.versions) else None
