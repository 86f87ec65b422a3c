"""Koordinator's Device object of a node, decoded: its GPUs and its partition table.

Source: docs/spec/koordinator.md#3 and #7.4.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import orjson
from msgspec import Struct

from hami_webhook.integrations.koordinator.keys import CORE, MEMORY, PARTITIONS, RATIO
from hami_webhook.kube.quantity import Quantity, QuantityError


class Spot(NamedTuple):
    """Where a card is: its NUMA node's number, and the PCIe switch there."""

    numa: int
    pcie: str


class KoordinatorCard(Struct, frozen=True):
    """One GPU: `minor` is what it is on its node. Cores and ratio are percent, memory bytes; None: not reported."""

    minor: int
    id: str = ""
    healthy: bool = True
    labels: Mapping[str, str] = {}
    core: int | None = None
    memory: int | None = None
    ratio: int | None = None
    spot: Spot | None = None

    @property
    def name(self) -> str:
        """The device's id, or its minor number where it has none."""
        return self.id or f"minor-{self.minor}"


class Partition(Struct, frozen=True):
    """Cards that are allocated together, by minor; a better one has a higher score. Bandwidth in bytes, if known."""

    minors: tuple[int, ...]
    score: int = 1
    bandwidth: int | None = None


Table = Mapping[int, tuple[Partition, ...]]
"""Partitions by their number of cards, as listed."""


class KoordinatorDevice(Struct, frozen=True):
    """The GPUs of a node by minor, and what else its Device says; `table` is None where it has no partitions.

    `least` and `largest` are bytes: of the healthy cards, one that reports no memory has 0, and makes the largest
    unknown. Both are None where no card is healthy.
    """

    cards: tuple[KoordinatorCard, ...]
    labels: Mapping[str, str] = {}
    table: Table | None = None
    least: int | None = None
    largest: int | None = None

    def card(self, minor: int) -> KoordinatorCard | None:
        return next((card for card in self.cards if card.minor == minor), None)


def read_cards(device: Mapping[str, Any]) -> KoordinatorDevice:
    """The GPUs of a Device object. What in it can't be read counts as not reported; a card needs a minor number."""
    meta = device.get("metadata") or {}
    found: dict[int, KoordinatorCard] = {}
    for entry in (device.get("spec") or {}).get("devices") or ():
        minor = entry.get("minor")
        if entry.get("type") == "gpu" and _is_whole(minor):
            found[minor] = _card(minor, entry)
    cards = tuple(found[minor] for minor in sorted(found))
    memories = [card.memory for card in cards if card.healthy]
    known = [memory for memory in memories if memory is not None]
    return KoordinatorDevice(
        cards,
        meta.get("labels") or {},
        _table((meta.get("annotations") or {}).get(PARTITIONS)),
        min((memory or 0 for memory in memories), default=None),
        max(known) if known and len(known) == len(memories) else None,
    )


def amount(written: Any) -> int | None:
    """A quantity as an integer, rounded up as Go does; None if it is none, or negative."""
    return _amount_of(written) if isinstance(written, str | int | float) else None


@lru_cache(maxsize=1024, typed=True)  # a fleet has few sizes of cards, and many cards of each
def _amount_of(written: str | float) -> int | None:
    try:
        value = Quantity.parse(written).value
    except QuantityError:
        return None
    return math.ceil(value) if value >= 0 else None


def _card(minor: int, entry: Mapping[str, Any]) -> KoordinatorCard:
    written = _mapping(entry.get("resources"))
    labels = {key: text for key, text in _mapping(entry.get("labels")).items() if isinstance(text, str)}
    name = entry.get("id")
    return KoordinatorCard(
        minor,
        name if isinstance(name, str) else "",
        entry.get("health") is True,
        labels,
        amount(written.get(CORE)),
        amount(written.get(MEMORY)),
        amount(written.get(RATIO)),
        _spot(entry.get("topology")),
    )


def _spot(topology: Any) -> Spot | None:
    if not isinstance(topology, Mapping):
        return None
    numa, pcie = topology.get("nodeID", 0), topology.get("pcieID", "")
    return Spot(numa, pcie) if _is_whole(numa) and isinstance(pcie, str) else None


def _table(text: str | None) -> Table | None:
    """The partitions of the annotation; None if there is none, or it can't be read."""
    if text is None:
        return None
    try:
        written = orjson.loads(text)
        return {int(size): tuple(map(_partition, listed or ())) for size, listed in written.items()}
    except (ValueError, TypeError, AttributeError, KeyError):
        return None


def _partition(written: Mapping[str, Any]) -> Partition:
    """Raises ValueError, TypeError, AttributeError or KeyError for anything but a partition."""
    minors, score, bandwidth = written["minors"], written.get("allocationScore", 0), written.get("ringBusBandwidth")
    if not _are_whole(minors) or not _is_whole(score):
        raise ValueError("minors and allocationScore must be integers")
    return Partition(tuple(minors), score, None if bandwidth is None else amount(bandwidth))


def _are_whole(values: Sequence[Any]) -> bool:
    return all(map(_is_whole, values))


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


class Sizes(Struct, frozen=True):
    """The bytes of the smallest and the largest healthy card; None if there is none.

    The largest isn't known where one's isn't.
    """

    smallest: int | None
    largest: int | None

    @classmethod
    def of(cls, found: Iterable[KoordinatorDevice]) -> Sizes:
        """The sizes of the cards of these nodes."""
        healthy = [cards for cards in found if cards.least is not None]
        known = [cards.largest for cards in healthy if cards.largest is not None]
        return cls(
            min((cards.least for cards in healthy if cards.least is not None), default=None),
            max(known) if known and len(known) == len(healthy) else None,
        )
