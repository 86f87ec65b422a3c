"""The value types of the program's core: devices, usage, requests and allocations.

Memory is MiB; cores are percent of a card unless the vendor says otherwise; a slot is one container's place on a card.
`mask` has bit b for core b if the vendor numbers cores, and `cores` is then their number; otherwise `mask` is 0. Masks
are joined by OR, never added.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct

from hami_webhook.kube.objects import ContainerKind, Node, Pod


class Device(Struct, frozen=True):
    """One card as its node registered it. `vendor` is the backend key; `extra` holds what only the vendor knows."""

    vendor: str
    uuid: str
    index: int
    slots: int
    memory: int
    cores: int
    type: str
    numa: int = 0
    mode: str = ""
    healthy: bool = True
    extra: Any = None


class PodUsage(Struct, frozen=True):
    """A pod on a card, with what it holds there at its peak; `mask` has every core that it may use at some time."""

    pod: Pod
    slots: int
    memory: int
    cores: int
    mask: int = 0


class Usage(Struct, frozen=True):
    """What is taken of a card, by which pods, and the vendor's own marks on it (MIG placements, …)."""

    slots: int = 0
    memory: int = 0
    cores: int = 0
    holders: tuple[PodUsage, ...] = ()
    marks: tuple[Any, ...] = ()
    mask: int = 0

    @classmethod
    def of(cls, holders: tuple[PodUsage, ...], marks: tuple[Any, ...] = ()) -> Usage:
        """What pods take of a card together."""
        slots = memory = cores = mask = 0
        for holder in holders:
            slots += holder.slots
            memory += holder.memory
            cores += holder.cores
            mask |= holder.mask
        return cls(slots, memory, mask.bit_count() or cores, holders, marks, mask)

    def plus(self, share: DeviceShare) -> Usage:
        """The usage after one more container took `share`."""
        mask = self.mask | share.mask
        return Usage(
            self.slots + share.slots,
            self.memory + share.memory,
            mask.bit_count() or self.cores + share.cores,
            self.holders,
            self.marks if share.mark is None else (*self.marks, share.mark),
            mask,
        )


IDLE = Usage()


class FixedMemory(Struct, frozen=True):
    """An amount per card."""

    mebibytes: int

    @property
    def declared(self) -> int | None:
        """MiB that are known before a card is chosen; None if they depend on the card."""
        return self.mebibytes

    def on(self, card_memory: int) -> int:
        return self.mebibytes


class ShareOfCard(Struct, frozen=True):
    """A percentage of whatever card it lands on, rounded down; 100 is the whole card."""

    percent: int

    @property
    def declared(self) -> int | None:
        return None

    def on(self, card_memory: int) -> int:
        return card_memory * self.percent // 100


class WholeCard(Struct, frozen=True):
    """The whole memory of a card with at least `least` MiB.

    Before placement, the quota charges the written MiB: `least`, or `stated` if a card of any size serves the request.
    0 means that nothing was written.
    """

    least: int = 0
    stated: int = 0

    @property
    def declared(self) -> int | None:
        return self.stated or self.least or None

    def on(self, card_memory: int) -> int:
        return max(card_memory, self.least)


class MemoryRequest(Protocol):
    """How much of a card's memory a request wants; a vendor may have kinds of its own."""

    @property
    def declared(self) -> int | None:
        """MiB that are known before a card is chosen; None if they depend on the card."""
        ...

    def on(self, card_memory: int) -> int:
        """MiB of a card that has `card_memory`."""
        ...


class Request(Struct, frozen=True):
    """What one container requests of one vendor: `count` devices with this memory and these cores each.

    `slots`: the slots that it takes on each card; more than 1 if a slot is a slice of the card. `profile` names the
    hardware slice requested, where it is known before a card is chosen.
    """

    count: int
    memory: MemoryRequest
    cores: int
    slots: int = 1
    profile: str | None = None


Requests = Sequence[Request | None]
"""What each container of a pod requests of one vendor, in their order."""


class BadRequest(ValueError):
    """A container's request is invalid; the text is the refusal that the user sees."""


class DeviceShare(Struct, frozen=True):
    """One container's share of a card.

    `mark`: the vendor's mark in the card's usage. `profile`: the name shown to users. `counted`: the cores in the
    quota's unit; None if that is the card's unit.
    """

    memory: int
    cores: int
    profile: str | None = None
    mark: Any = None
    counted: int | None = None
    slots: int = 1
    mask: int = 0

    @property
    def quota_cores(self) -> int:
        """The cores quota counts."""
        return self.cores if self.counted is None else self.counted


class AllocatedDevice(Struct, frozen=True):
    """A card a container got, what it was charged with, and the model it is registered as."""

    uuid: str
    share: DeviceShare
    type: str = ""


class Allocation(Struct, frozen=True):
    """The cards one container got of one vendor, in the order chosen.

    The rest is for the choice among nodes and only set where the selection is topology-aware: `candidates`: the number
    of cards that passed every check. `link_quality`: larger is better. `fully_linked`: NVLink joins each chosen pair.
    `left_in_groups`: the number of passed cards left in the link groups that the choice breaks.
    """

    vendor: str
    devices: tuple[AllocatedDevice, ...]
    candidates: int = 0
    link_quality: int = 0
    fully_linked: bool = False
    left_in_groups: int = 0


class DeviceHold(Struct, frozen=True):
    """One entry of a pod's placement: the container in row `row` (init containers first) holds slots of a card.

    `cores` are in the card's unit for usage, and in the quota's unit for charges.
    """

    vendor: str
    uuid: str
    row: int
    memory: int
    cores: int
    slots: int = 1
    mask: int = 0


class Inventory(Struct, frozen=True, weakref=True):
    """What one vendor's cards on a node are, in registered order, and what else of the node its rules need.

    `links_unknown`: a topology-aware choice lacks its input, as the node doesn't register how its cards are linked.
    """

    devices: tuple[Device, ...]
    facts: Any = None
    warnings: tuple[str, ...] = ()
    links_unknown: bool = False


class HardwareInstance(Struct, frozen=True):
    """An instance that a device plugin has cut from a card: its own UUID and ids, and the slices it takes."""

    card: str
    uuid: str
    gpu_instance: str
    compute_instance: str
    profile: str
    start: int
    size: int


class RegistrationError(ValueError):
    """A node's device registration can't be read; the text says where and why."""


class NodeView(Struct, frozen=True):
    """One node as of one generation: its cards and what is taken of them. Never changed; a new one replaces it.

    `unhealthy` are cards that the node's monitor found so, by UUID, with the reason in words. `claimed`: the part of
    `usage` that ResourceClaims hold. `unplaced`: pods whose cards are unknown; `usage` has them on presumed cards
    (docs/spec/core.md#10.5).
    """

    node: Node
    inventories: Mapping[str, Inventory] = {}
    usage: Mapping[tuple[str, str], Usage] = {}
    closed: frozenset[tuple[str, str]] = frozenset()
    generation: int = 0
    unhealthy: Mapping[str, str] = {}
    claimed: Mapping[tuple[str, str], tuple[PodUsage, ...]] = {}
    unplaced: tuple[Pod, ...] = ()

    @property
    def name(self) -> str:
        return self.node.name

    def used(self, vendor: str, uuid: str) -> Usage:
        return self.usage.get((vendor, uuid), IDLE)

    def is_healthy(self, device: Device) -> bool:
        """Whether the device is registered as healthy, and the node's monitor doesn't say otherwise."""
        return device.healthy and device.uuid not in self.unhealthy

    def is_open(self, device: Device) -> bool:
        """Whether new pods may get the device at all."""
        uuid = device.uuid  # a filter asks for every card: `is_healthy` is written out
        return device.healthy and uuid not in self.unhealthy and (device.vendor, uuid) not in self.closed

    def has_free_slot(self, device: Device) -> bool:
        """Whether a container more could get a slot of the device: it is open to new pods, and not full."""
        return self.is_open(device) and self.used(device.vendor, device.uuid).slots < device.slots

    def overcommitted(self, more: Mapping[tuple[str, str], Usage] | None = None) -> Iterator[Device]:
        """Yield the devices with more used than they have.

        `more` is used besides, by vendor and UUID: then only devices with a slot in it are checked.
        """
        for inventory in self.inventories.values():
            for device in inventory.devices:
                used = self.used(device.vendor, device.uuid)
                besides = IDLE if more is None else more.get((device.vendor, device.uuid), IDLE)
                if (more is None or besides.slots) and (
                    used.slots + besides.slots > device.slots
                    or used.memory + besides.memory > device.memory
                    or used.cores + besides.cores > device.cores
                ):
                    yield device


class Overlay:
    """The usage of a node's cards plus the shares of the pod that is being fitted. The node itself isn't changed."""

    __slots__ = ("_taken", "view")

    def __init__(self, view: NodeView, taken: Mapping[tuple[str, str], Usage] | None = None) -> None:
        self.view = view
        self._taken = dict(taken) if taken else {}

    def copy(self) -> Overlay:
        return Overlay(self.view, self._taken)

    def used(self, vendor: str, uuid: str) -> Usage:
        taken = self._taken.get((vendor, uuid))
        return self.view.used(vendor, uuid) if taken is None else taken

    def take(self, vendor: str, uuid: str, share: DeviceShare) -> None:
        self._taken[vendor, uuid] = self.used(vendor, uuid).plus(share)


def claim_of(vendor: str, uuid: str, row: int, share: DeviceShare) -> DeviceHold:
    """Return a container's hold on a card, in the quota's units."""
    return DeviceHold(vendor, uuid, row, share.memory, share.quota_cores, share.slots, share.mask)


def claims_of(allocations: Iterable[tuple[int, Allocation]]) -> list[DeviceHold]:
    """Return the device holds of `(row, allocation)` pairs, in the quota's units."""
    return [
        claim_of(allocation.vendor, device.uuid, row, device.share)
        for row, allocation in allocations
        for device in allocation.devices
    ]


Rows = Sequence[Mapping[str, Allocation]]
"""A pod's placement: per container, init containers first, what it got of each vendor."""

Kinds = Sequence[ContainerKind]
"""The kinds of a pod's containers, init containers first."""
