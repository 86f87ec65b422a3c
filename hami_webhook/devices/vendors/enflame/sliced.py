"""What Enflame's shared and DRS forms have in common: card ids, annotations, and that a card is in one mode only.

The shared card i and the DRS card with minor i are the same silicon (docs/spec/enflame.md#3 and #9).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from hami_webhook.devices import reasons
from hami_webhook.devices.capacity_devices import index_of
from hami_webhook.devices.codecs import DeviceEntry
from hami_webhook.devices.device_lister import DeviceLister
from hami_webhook.devices.fit_request import (
    FREE_MEMORY,
    FREE_SLOT,
    HEALTHY,
    MUTEX,
    ONE_CARD_PER_POD,
    UUID_LISTS,
    WITHIN_QUOTA,
    Candidate,
    Check,
)
from hami_webhook.devices.keys import DeviceKeys
from hami_webhook.devices.model import Allocation, Device, NodeView, Rows
from hami_webhook.devices.placement_annotations import nanoseconds
from hami_webhook.devices.vendor import Vendor
from hami_webhook.devices.vendors.enflame.profiles import DrsCard
from hami_webhook.devices.vendors.enflame.section import EnflameSection
from hami_webhook.kube.draft import ContainerDraft, PodDraft
from hami_webhook.kube.objects import Container, ContainerKind, Node, Pod

SHARED, DRS = "Enflame", "Enflame-DRS"
"""The backend keys of the two forms; on the wire both are `Enflame`."""

GCU_COUNT = "enflame.com/gcu-count"
SHARED_GCU = "enflame.com/shared-gcu"
"""What kubelet counts for shared slices: in a node's capacity, and in containers, where only admission writes it."""
DRS_CAPACITY = "enflame.com/gcu-drs-capacity"

ASSIGNED = "enflame.com/gcu-assigned"
ASSIGNED_TIME = "enflame.com/gcu-assigned-time"
ASSIGNED_ID = "enflame.com/gcu-assigned-id"
ASSIGNED_INDEX = "enflame.com/gcu-assigned-index"
ASSIGNED_MINOR = "enflame.com/gcu-assigned-minor"
REQUEST_SIZE = "enflame.com/gcu-request-size"
CONTAINERS = "assigned-containers"

DRS_WORD = "enflame-drs"
SHARED_WORD = "enflame"
_DRS_CARD = re.compile(rf".*-{DRS_WORD}-[0-9]+", re.ASCII)


def requests_drs(section: EnflameSection, container: Container | ContainerDraft) -> bool:
    """Whether the container requests DRS slices, by number or by need."""
    slices, memory, core = (
        section.resource_name_drs_gcu,
        section.resource_name_gcu_memory,
        section.resource_name_gcu_core,
    )
    return bool(slices) and any(name and container.names_resource(name) for name in (slices, memory, core))


def _same_silicon(view: NodeView, device: Device) -> Iterator[tuple[str, str]]:
    """The card, by backend key and UUID, that this one is in the other mode.

    A DRS card that is no longer registered, but may still be held, is taken to have its index for a minor.
    """
    if isinstance(device.extra, DrsCard):
        yield SHARED, f"{view.name}-{SHARED_WORD}-{device.extra.minor}"
        return
    number = str(device.index)
    registered = view.inventories.get(DRS)
    cards = registered.devices if registered else ()
    yield from ((DRS, card.uuid) for card in cards if card.extra.minor == number)
    usual = f"{view.name}-{DRS_WORD}-{number}"
    if all(card.uuid != usual for card in cards):
        yield DRS, usual


def _idle_in_other_mode(candidate: Candidate) -> bool:
    overlay = candidate.fit_request.overlay
    candidate.fit_request.take_steps_of(DRS)
    return not any(overlay.used(*card).slots for card in _same_silicon(overlay.view, candidate.device))


IN_MODE = Check(reasons.MODE_NOT_FIT, _idle_in_other_mode)


class SlicedGcu(Vendor):
    """What the two sliced forms share."""

    keys = DeviceKeys(
        allocated="hami.io/enflame-vgpu-devices-allocated",
        extra=(
            *(ASSIGNED, ASSIGNED_TIME, ASSIGNED_ID, ASSIGNED_INDEX, ASSIGNED_MINOR),
            *(REQUEST_SIZE, CONTAINERS),
        ),
        use_uuid=("enflame.com/use-gpuuuid",),
        nouse_uuid=("enflame.com/nouse-gpuuuid",),
    )
    lock = None
    checks: tuple[Check, ...] = (
        *(HEALTHY, IN_MODE, ONE_CARD_PER_POD, UUID_LISTS),
        *(FREE_SLOT, MUTEX, WITHIN_QUOTA, FREE_MEMORY),
    )

    def __init__(self, section: EnflameSection, *, is_2_11: bool = False) -> None:
        super().__init__(section, is_2_11=is_2_11)
        self.section = section

    @property
    def known_as(self) -> str:
        return "Enflame"

    # admission (docs/spec/enflame.md#5)

    def admit(self, container: ContainerDraft, pod: PodDraft, device_lister: DeviceLister) -> bool:
        if self.request(container.container) is None:
            return False
        for warning in self.normalise(container, device_lister):
            pod.warn(f"container {container.name}: {warning}")
        if container.kind is not ContainerKind.APP:
            pod.warn(
                f"container {container.name}: {self.count_name} in an init container is placed and counted, but the "
                "device plugin serves app containers only"
            )
        return True

    def normalise(self, container: ContainerDraft, device_lister: DeviceLister) -> Iterator[str]:
        """Put the container's request into the plugin's form; what the user should know of that, a sentence each."""
        raise NotImplementedError

    # outputs (9)

    def encode(self, pod: Pod, rows: Rows, node: Node, now: float) -> dict[str, str]:
        allocations = [row[self.key] for row in rows if self.key in row]
        numbers = ",".join(str(index_of(device.uuid)) for device in allocations[0].devices)
        written = super().encode(pod, rows, node, now)
        written |= {ASSIGNED: "false", ASSIGNED_TIME: nanoseconds(now), ASSIGNED_ID: numbers, ASSIGNED_MINOR: numbers}
        return written | self.stamps(allocations, node)

    def stamps(self, allocations: Sequence[Allocation], node: Node) -> dict[str, str]:
        """What the form writes for the plugin beyond that, or otherwise."""
        raise NotImplementedError

    def decode(self, pod: Pod) -> list[list[DeviceEntry]] | None:
        """The entries of this form; the other's are in the same annotation."""
        drs = self.key == DRS
        rows = [
            [entry for entry in row if (_DRS_CARD.fullmatch(entry.uuid) is not None) is drs]
            for row in super().decode(pod) or ()
        ]
        return rows if any(rows) else None
