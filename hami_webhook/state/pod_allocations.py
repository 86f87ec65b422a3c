"""The shares of cards that pods hold, and the annotations that show a placement."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from hami_webhook.devices.model import IDLE, Device, Inventory, PodUsage, Usage
from hami_webhook.devices.placement_annotations import read_placed
from hami_webhook.devices.registry import Vendors
from hami_webhook.devices.vendor import Vendor
from hami_webhook.kube.objects import Pod

CardKey = tuple[str, str]
"""A card's backend key and UUID."""


class PodShare(Struct, frozen=True):
    """One pod's share of one card: amounts (None if the pod has only marks there) and the vendor's marks."""

    holder: PodUsage | None
    marks: tuple[object, ...] = ()


class PodAllocation(Struct, frozen=True):
    """A pod that holds cards of a node: its share of each card's usage."""

    pod: Pod
    node: str
    shares: Mapping[CardKey, PodShare]

    @property
    def vendors(self) -> frozenset[str]:
        return frozenset(vendor for vendor, _ in self.shares)

    def same_as(self, other: PodAllocation) -> bool:
        """Return whether both allocations have equal shares on the same node, of pods that differ at most in
        version.
        """
        return (
            self.node == other.node
            and _amounts(self) == _amounts(other)
            and replace(self.pod, resource_version="") == replace(other.pod, resource_version="")
        )


def shares(vendor: Vendor, pod: Pod, cards: Mapping[str, Device]) -> dict[CardKey, PodShare]:
    """What the pod takes of the vendor's cards, of which `cards` are known. Raises `BadAnnotation`."""
    placed = read_placed(vendor, pod, cards)
    if placed is None:
        return {}
    debits = placed.per_device(init_finished=pod.init_finished)
    marks = {(vendor.key, uuid): found for uuid, found in vendor.occupancy.marks(pod).items()}
    found_on = {card: PodShare(None, found) for card, found in marks.items()}
    for card, debit in debits.items():
        found_on[card] = PodShare(
            PodUsage(pod, debit.slots, debit.memory, debit.cores, debit.mask), marks.get(card, ())
        )
    return found_on


def usage_by_card(allocations: Iterable[PodAllocation], cards: Iterable[CardKey]) -> dict[CardKey, Usage]:
    """What pods take together of each of the given cards; cards that none of them holds are left out."""
    of_card: dict[CardKey, list[PodShare]] = {card: [] for card in cards}
    for allocation in allocations:
        for card, share in allocation.shares.items():
            if card in of_card:
                of_card[card].append(share)
    return {
        card: Usage.of(
            tuple(part.holder for part in parts if part.holder is not None),
            tuple(mark for part in parts for mark in part.marks),
        )
        for card, parts in of_card.items()
        if parts
    }


def with_claimed(
    usage: Mapping[CardKey, Usage], claimed: Mapping[CardKey, tuple[PodUsage, ...]]
) -> dict[CardKey, Usage]:
    """Return the usage of cards by pods and by ResourceClaims together."""
    found = dict(usage)
    for card, holders in claimed.items():
        used = found.get(card, IDLE)
        found[card] = Usage.of((*used.holders, *holders), used.marks)
    return found


def unusable_cards(
    node: str, inventories: Mapping[str, Inventory], allocations: Sequence[PodAllocation], vendors: Vendors
) -> frozenset[CardKey]:
    """Return the cards that the annotations of the node's pods close to new pods.

    If a vendor's rules fail, return all its cards.
    """
    found: set[CardKey] = set()
    for key, inventory in inventories.items():
        pods = [allocation.pod for allocation in allocations if key in allocation.vendors]
        try:
            unusable = vendors[key].occupancy.unusable_devices(inventory, pods)
        except Exception as error:
            vendors.faults.record("usage", node, error)
            unusable = frozenset(device.uuid for device in inventory.devices)
        found.update((key, uuid) for uuid in unusable)
    return frozenset(found)


def _amounts(allocation: PodAllocation) -> dict[CardKey, tuple[object, ...]]:
    return {
        card: (share.marks, *((h.slots, h.memory, h.cores, h.mask) if (h := share.holder) else ()))
        for card, share in allocation.shares.items()
    }
