"""Iluvatar CoreX GPUs, one backend per chip and the old family of HAMi 2.7. Source: docs/spec/iluvatar.md.

A container gets a slice of one card (units of 256 MiB, percent of compute) or several whole cards; the isolation is
Iluvatar's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import ClassVar

from msgspec.structs import replace

from hami_webhook.config.devices import Chip, CountMemoryCore
from hami_webhook.devices import capacity_devices, reasons
from hami_webhook.devices.amounts import MAX_INT32
from hami_webhook.devices.codecs import CardRecord
from hami_webhook.devices.device_lister import DeviceLister
from hami_webhook.devices.fit_request import (
    ACCESS_CHECKS,
    FREE_CORES,
    FREE_MEMORY,
    UNITS_LEFT,
    WITHIN_QUOTA,
    Candidate,
    Check,
)
from hami_webhook.devices.keys import DeviceKeys, ReservedKeys
from hami_webhook.devices.model import Device, Inventory, Rows
from hami_webhook.devices.placement_annotations import nanoseconds
from hami_webhook.devices.registration import NodeRegistration
from hami_webhook.devices.vendor import Vendor
from hami_webhook.kube.draft import ContainerDraft, PodDraft
from hami_webhook.kube.objects import ContainerKind, Node, Pod
from hami_webhook.kube.quantity import parse_whole

UNIT = 256
"""MiB of a unit of memory."""

WHOLE = 100
"""Percent of compute that are a card."""


def _all_cores_alone(candidate: Candidate) -> bool:
    """A container that requests every core of a card shares it with nobody."""
    every = 0 < candidate.cores == candidate.device.cores
    return not (every and candidate.usage.slots > 0)


ALL_CORES_ALONE = Check(reasons.EXCLUSIVE_DEVICE_ALLOCATE_CONFLICT, _all_cores_alone)


class IluvatarNames(CountMemoryCore):
    """The names of both sections. One unit of memory is 256 MiB."""

    @property
    def factor(self) -> int:
        return UNIT


class IluvatarChip(IluvatarNames, Chip):
    """An entry of `iluvatars`: a backend of its own, whose key is `common_word`."""


class IluvatarSection(IluvatarNames):
    """`iluvatar`, the single family of HAMi 2.7, backend key `Iluvatar`."""

    APART_FROM: ClassVar[str] = "iluvatars"


class Iluvatar(Vendor):
    """What both families have in common."""

    memory_factor = UNIT
    multi_is_exclusive = True
    checks = (*ACCESS_CHECKS, WITHIN_QUOTA, FREE_MEMORY, FREE_CORES, ALL_CORES_ALONE, UNITS_LEFT)

    # admission (docs/spec/iluvatar.md#5)

    def bounds(self) -> Iterator[tuple[str, int, int, str]]:
        """So many cards at most that the cores written for them are an amount too."""
        yield self.count_name, 0, MAX_INT32 // WHOLE, "a whole number"
        yield self.memory_name, 0, MAX_INT32 // self.memory_factor, "a whole number of 256 MiB units (16 GiB is 64)"
        yield self.core_name, 0, MAX_INT32, "a whole number"

    def admit(self, container: ContainerDraft, pod: PodDraft, device_lister: DeviceLister) -> bool:
        """A count of 0 is a request too, though it gets no card."""
        super().admit(container, pod, device_lister)
        count = parse_whole(container.limits.get(self.count_name))
        if count is not None and count > 1:
            container.set_limit(self.core_name, WHOLE * count)
            pod.note(f"container {container.name}: {self.core_name} set to {WHOLE * count}: several cards are whole")
        return count is not None

    def warnings_of(self, container: ContainerDraft) -> Iterator[str]:
        count = self.amount(container, self.count_name) or 0
        memory, cores = self.amount(container, self.memory_name), self.amount(container, self.core_name)
        if count > 1:
            if memory:
                yield f"{self.memory_name} is only the least each card must have: several cards are given whole"
            if cores not in (None, WHOLE * count):
                yield f"{self.core_name} {cores} is ignored: several cards are given whole"
        elif cores is None:
            if memory:
                yield f"no compute of the shared card is reserved without {self.core_name}"
        elif cores > WHOLE:
            yield f"{self.core_name} {cores} counts as {WHOLE}, all of a card"


class PerChip(Iluvatar):
    """A chip of `iluvatars`: its key is its common word, its devices come from Iluvatar's HAMi-aware plugin."""

    section_name = "iluvatars"
    section_type = tuple[IluvatarChip, ...]

    @classmethod
    def of(cls, section: Iterable[IluvatarChip], *, is_2_11: bool = False) -> Iterable[Vendor]:
        return (cls(chip, is_2_11=is_2_11) for chip in section)

    def __init__(self, chip: IluvatarChip, *, is_2_11: bool = False) -> None:
        super().__init__(chip, is_2_11=is_2_11)
        word = self.key = chip.common_word
        self.registration = NodeRegistration(f"hami.io/node-{word}-register", f"hami.io/node-handshake-{word}")
        self.keys = DeviceKeys.usual(word, uuid=f"hami.io/[no-]use-{word}-uuid")

    def admit(self, container: ContainerDraft, pod: PodDraft, device_lister: DeviceLister) -> bool:
        claimed = super().admit(container, pod, device_lister)
        if claimed and container.name:
            container.default_env("SOL_CONTINER_NAME", container.name)  # as Iluvatar's runtime spells it
        return claimed

    def device(self, record: CardRecord, position: int) -> Device:
        card = super().device(record, position)
        return card if record.indexed else replace(card, index=position)


class OldFamily(Iluvatar):
    """`iluvatar`: devices from capacity, annotations for Iluvatar's gpu-manager, which releases no node lock."""

    key = "Iluvatar"
    section_name = "iluvatar"
    section_type = IluvatarSection
    reserved = ReservedKeys(pattern=r"iluvatar\.ai/predicate-gpu-idx-[0-9]+")  # one for each container
    lock = None
    keys = DeviceKeys.usual(
        "iluvatar-vgpu",
        uuid="iluvatar.ai/[no]use-gpuuuid",
        extra=("iluvatar.ai/gpu-assigned", "iluvatar.ai/predicate-time"),
    )

    def warnings_of(self, container: ContainerDraft) -> Iterator[str]:
        yield from super().warnings_of(container)
        if container.kind is not ContainerKind.APP:
            yield f"gpu-manager doesn't support init containers, so it can't assign its card of {self.count_name}"

    def inventory(self, node: Node) -> Inventory | None:
        return capacity_devices.summed(self, node, "iluvatar", WHOLE)

    def encode(self, pod: Pod, rows: Rows, node: Node, now: float) -> dict[str, str]:
        """`gpu-assigned` is gpu-manager's to set to true."""
        stamp = {"iluvatar.ai/gpu-assigned": "false", "iluvatar.ai/predicate-time": nanoseconds(now)}
        return super().encode(pod, rows, node, now) | stamp | self._by_place(pod, rows)

    def _by_place(self, pod: Pod, rows: Rows) -> dict[str, str]:
        """The cards of each app container, by its place among them."""
        apps = [row.get(self.key) for row, kind in zip(rows, pod.kinds, strict=True) if kind is ContainerKind.APP]
        return {
            f"iluvatar.ai/predicate-gpu-idx-{place}": ",".join(
                str(capacity_devices.index_of(device.uuid)) for device in found.devices
            )
            for place, found in enumerate(apps)
            if found is not None
        }
