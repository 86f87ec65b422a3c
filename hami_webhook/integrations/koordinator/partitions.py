"""Whole cards in partitions: groups that are linked with each other (docs/spec/koordinator.md#7.4, step 1)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hami_webhook.integrations.koordinator.device_object import KoordinatorDevice, Partition, Table
from hami_webhook.integrations.koordinator.hints import PartitionSpec
from hami_webhook.integrations.koordinator.keys import MODEL, PARTITION_POLICY, VENDOR

_HOPPER = ("H100", "H800", "H20")
_WEIGHTS = {8: 10_000, 4: 100, 2: 1}
"""What an untouched partition of so many cards is worth."""

_EIGHT_LINKED: Table = {
    size: tuple(Partition(tuple(range(first, first + size))) for first in range(0, 8, size)) for size in (1, 2, 4, 8)
}


def table_of(cards: KoordinatorDevice, node_labels: Mapping[str, str]) -> Table | None:
    """The node's partitions: its Device's, else the ones its model has."""
    if cards.table is not None:
        return cards.table
    if node_labels.get(MODEL) in _HOPPER and node_labels.get(VENDOR, "nvidia") in ("nvidia", ""):
        return _EIGHT_LINKED
    return None


def binds(cards: KoordinatorDevice, node_labels: Mapping[str, str], spec: PartitionSpec | None) -> bool:
    """Whether whole cards may only be a partition on this node."""
    return spec is not None or "Honor" in (cards.labels.get(PARTITION_POLICY), node_labels.get(PARTITION_POLICY))


def pick(
    table: Table, size: int, spec: PartitionSpec | None, suits: Callable[[int], bool], idle: Callable[[int], bool]
) -> Partition | None:
    """The partition of `size` cards to take, None if there is none.

    `suits` says of a card, by minor, whether the pod may have it, `idle` whether it is healthy and entirely unused.
    """
    spec = spec or PartitionSpec()
    listed = table.get(size, ())
    scores = sorted({partition.score for partition in listed}, reverse=True)
    for score in scores[:1] if spec.restricted else scores:
        free = [
            partition
            for partition in listed
            if partition.score == score
            and len({*partition.minors}) == size
            and (spec.bandwidth is None or (partition.bandwidth or 0) >= spec.bandwidth)
            and all(idle(minor) and suits(minor) for minor in partition.minors)
        ]
        if free:
            return max(free, key=lambda partition: _left(table, size, partition, idle))  # of equals the first
    return None


def _left(table: Table, size: int, taken: Partition, idle: Callable[[int], bool]) -> int:
    """What the untouched partitions of at least `size` cards are worth once `taken` is gone."""
    gone = set(taken.minors)
    return sum(
        _WEIGHTS.get(other, 0) * partition.score
        for other, partitions in table.items()
        if other >= size
        for partition in partitions
        if gone.isdisjoint(partition.minors) and all(map(idle, partition.minors))
    )
