"""What placed pods hold of a node's cards, pod by pod."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from hami_webhook.devices.model import Device, Holder
from hami_webhook.devices.placed import read_placed
from hami_webhook.devices.vendor import Vendor
from hami_webhook.kube.objects import Pod

Card = tuple[str, str]
"""A card's backend key and UUID."""


@dataclass(frozen=True, slots=True)
class Share:
    """What one pod takes of one card: amounts (None where only its marks are left there) and the vendor's marks."""

    holder: Holder | None
    marks: tuple[object, ...] = ()


@dataclass(frozen=True, slots=True)
class Resident:
    """A pod that holds cards of a node: its share of each card's usage."""

    pod: Pod
    node: str
    shares: Mapping[Card, Share]

    @property
    def vendors(self) -> frozenset[str]:
        return frozenset(vendor for vendor, _ in self.shares)


def shares_of(vendor: Vendor, pod: Pod, cards: Mapping[str, Device]) -> dict[Card, Share]:
    """What the pod takes of the vendor's cards, of which `cards` are known. Raises `BadAnnotation`."""
    placed = read_placed(vendor, pod, cards)
    if placed is None:
        return {}
    debits = placed.per_device(init_finished=pod.init_finished)
    marks = {(vendor.key, uuid): found for uuid, found in vendor.marks(pod).items()}
    shares = {card: Share(None, found) for card, found in marks.items()}
    for card, debit in debits.items():
        shares[card] = Share(Holder(pod, debit.slots, debit.memory, debit.cores, debit.mask), marks.get(card, ()))
    return shares


def same_resident(one: Resident, other: Resident) -> bool:
    """Whether the same is held in the same place, by a pod of which nothing that is read differs."""
    return (
        one.node == other.node
        and _amounts(one) == _amounts(other)
        and replace(one.pod, resource_version="") == replace(other.pod, resource_version="")
    )


def _amounts(resident: Resident) -> dict[Card, tuple[object, ...]]:
    return {
        card: (share.marks, *((h.slots, h.memory, h.cores, h.mask) if (h := share.holder) else ()))
        for card, share in resident.shares.items()
    }
