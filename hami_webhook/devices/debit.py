"""Compute the cost of a placement: its effective usage of each device, for both the usage of cards and quotas.

A device's usage is E of `kube.requests` over its containers' entries, separately for slots, memory and cores. An
ordinary init container takes the slots of at most one entry on a card. A pod's debit is the sum over its devices
(docs/spec/quota.md#5). If a vendor numbers its cores, sets of cores are united, not added: two containers on the same
core hold one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from functools import reduce
from operator import or_

from msgspec import Struct

from hami_webhook.devices.model import DeviceHold, Kinds
from hami_webhook.kube.objects import ContainerKind
from hami_webhook.kube.requests import effective


class Debit(Struct, frozen=True):
    """Slots, MiB and cores at the peak.

    `mask`, only for a single device: a bit for each core that is held at some time.
    """

    slots: int = 0
    memory: int = 0
    cores: int = 0
    mask: int = 0

    def __add__(self, other: Debit) -> Debit:
        return Debit(self.slots + other.slots, self.memory + other.memory, self.cores + other.cores)

    def at_least(self, other: Debit) -> Debit:
        """Return the maximum of two debits of the same cards, amount by amount."""
        return Debit(max(self.slots, other.slots), max(self.memory, other.memory), max(self.cores, other.cores))


def per_device(
    claims: Iterable[DeviceHold], kinds: Kinds, *, init_finished: bool = False
) -> dict[tuple[str, str], Debit]:
    """The effective usage of each device, by (vendor, uuid). A row beyond `kinds` counts as an app container."""
    by_device: dict[tuple[str, str], list[DeviceHold]] = defaultdict(list)
    for claim in claims:
        by_device[claim.vendor, claim.uuid].append(claim)
    debits = {}
    for device, entries in by_device.items():
        if len(entries) == 1:
            debits[device] = _alone(entries[0], kinds, init_finished=init_finished)
            continue
        rows: dict[int, list[int]] = {}
        for claim in entries:
            sums = rows.setdefault(claim.row, [0, 0, 0, 0, 0])
            sums[0] += claim.slots
            sums[1] += claim.memory
            sums[2] += claim.cores
            sums[3] = max(sums[3], claim.slots)
            sums[4] |= claim.mask
        ordered = [(kinds[row] if row < len(kinds) else ContainerKind.APP, rows[row]) for row in sorted(rows)]
        slots = [(kind, s[3] if kind is ContainerKind.INIT else s[0]) for kind, s in ordered]
        masks = [(kind, s[4]) for kind, s in ordered]
        mask = reduce(or_, (m for kind, m in masks if not (init_finished and kind is ContainerKind.INIT)), 0)
        debits[device] = Debit(
            effective(slots, init_finished=init_finished),
            effective(((kind, s[1]) for kind, s in ordered), init_finished=init_finished),
            effective(masks, init_finished=init_finished, join=or_, size=int.bit_count)
            if mask
            else effective(((kind, s[2]) for kind, s in ordered), init_finished=init_finished),
            mask,
        )
    return {device: debit for device, debit in debits.items() if debit != Debit()}


def _alone(claim: DeviceHold, kinds: Kinds, *, init_finished: bool) -> Debit:
    """The effective usage of a device by its only entry, as nearly all have: a third of what adding up takes."""
    if init_finished and claim.row < len(kinds) and kinds[claim.row] is ContainerKind.INIT:
        return Debit()
    return Debit(claim.slots, claim.memory, claim.mask.bit_count() if claim.mask else claim.cores, claim.mask)


def per_vendor(claims: Iterable[DeviceHold], kinds: Kinds, *, init_finished: bool = False) -> dict[str, Debit]:
    """The pod's debit for each vendor: the sum over its devices."""
    totals: dict[str, Debit] = {}
    for (vendor, _), debit in per_device(claims, kinds, init_finished=init_finished).items():
        totals[vendor] = totals.get(vendor, Debit()) + debit
    return totals
