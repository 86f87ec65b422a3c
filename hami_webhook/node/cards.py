"""What is measured of a card, by NVML or by what stands for it, and when it computed last (docs/spec/time.md#5.2)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass


class ProbeError(Exception):
    """NVML isn't there, or failed; the text says what it said."""


@dataclass(frozen=True, slots=True)
class CardHealth:
    """What NVML says of a GPU's health.

    `causes` are those that it shows now, `xids` the errors of its driver since it was last asked. `needs_recovery` is
    whether a reset is needed, `computed` whether it computed since it was last asked; None where NVML doesn't say it.
    """

    uuid: str
    causes: frozenset[str]
    xids: frozenset[int]
    needs_recovery: bool | None
    computed: bool | None = None


@dataclass(frozen=True, slots=True)
class CardMetrics:
    """What of a GPU is used; None where NVML doesn't say it, as of MIG, or of memory that GPU and processor share.

    Memory in bytes, utilisation of SMs and of the memory controller in percent, temperature in degrees Celsius, power
    in watts. `name` is NVML's.
    """

    index: int
    uuid: str
    name: str
    memory: int | None
    utilisation: int | None
    memory_controller: int | None
    temperature: int | None
    power: float | None


_GAP = 15.0
"""Seconds without a look after which the driver may have dropped samples."""


class CardActivity:
    """Follows the looks at the cards of a machine. Times are Unix seconds. What a container says of itself is believed
    up to that. For a time in which the driver wasn't asked, a card counts as having computed.
    """

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
