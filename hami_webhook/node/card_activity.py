"""When cards computed last, as their driver says: what a container says of itself is believed up to that.

Source: docs/spec/time.md#5.2. The driver is asked every few seconds for all samples since the last time. For a time of
which it wasn't asked, a card counts as having computed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from hami_webhook.node.cards import CardHealth

_GAP = 15.0
"""Seconds without a look after which the driver may have dropped samples."""


class CardActivity:
    """Follows the looks at the cards of a machine. Times are Unix seconds."""

    def __init__(self) -> None:
        self._last: dict[str, float] = {}
        self._at = 0.0

    def look(self, cards: Sequence[CardHealth], now: float) -> None:
        """These are the cards now. Of one that the driver has no samples of, nothing is known."""
        before = self._last if 0 <= now - self._at <= _GAP else {}
        self._last = {
            card.uuid: now if card.computed else before.get(card.uuid, now)
            for card in cards
            if card.computed is not None
        }
        self._at = now

    def last(self, uuids: Collection[str], now: float) -> float | None:
        """When one of these cards computed last, any of the machine if none are named; None if that isn't known."""
        wanted = uuids or self._last.keys()
        if not 0 <= now - self._at <= _GAP or not wanted or not self._last.keys() >= {*wanted}:
            return None
        return max(self._last[uuid] for uuid in wanted)
