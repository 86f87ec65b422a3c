"""Slices of P800-OAM cards: a quarter or half of a card, or all of it, as the vXPU plugin gives them out.

A card is split one way only, and the driver has handles for so many splits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from hami_webhook.devices import reasons
from hami_webhook.devices.device_lister import DeviceLister
from hami_webhook.devices.fit_request import (
    FREE_MEMORY,
    HEALTHY,
    MUTEX,
    UUID_LISTS,
    Candidate,
    Check,
    Choice,
    FitRequest,
    Selection,
)
from hami_webhook.devices.keys import DeviceKeys
from hami_webhook.devices.model import BadRequest, Device, FixedMemory, Inventory, MemoryRequest, Request
from hami_webhook.devices.reasons import Rejection
from hami_webhook.devices.registration import NodeRegistration
from hami_webhook.devices.vendors.kunlun import boards, wings
from hami_webhook.devices.vendors.kunlun.boards import WHOLE, KunlunSection, Kunlunxin
from hami_webhook.kube.draft import ContainerDraft, PodDraft
from hami_webhook.kube.objects import Container, Node
from hami_webhook.kube.quantity import parse_whole

QUARTER, HALF = 24576, 49152
"""MiB of a slice that isn't a whole card."""

HANDLES = 32
"""What a node's driver has: one for each card, and so many for each card that is split."""

HANDLES_OF_SPLIT = {QUARTER: 4, HALF: 2}
MOST_QUARTERS = 6
"""More cards of one node than this can't be split in quarters, whatever else it runs: 7 cards would need 35 handles."""

_PARTS = {QUARTER: "a quarter of a card", HALF: "half a card", WHOLE: "a whole card"}
_BYTES = 1_000_000
"""MiB beyond which an amount was hardly meant as such."""


def align(mebibytes: int) -> int:
    """The slice size that holds so many MiB; all of a card for more than it has."""
    return next((size for size in (QUARTER, HALF) if mebibytes <= size), WHOLE)


def _split_alike(candidate: Candidate) -> bool:
    usage = candidate.usage
    return usage.slots == 0 or usage.memory // usage.slots == candidate.memory


SPLIT_ALIKE = Check(reasons.NUMA_NOT_FIT, _split_alike)


class Slices(Selection):
    """Slices on as many cards: where equal slices are already, then as for whole cards, within the handles (7.3)."""

    def choose(self, fit_request: FitRequest, passed: Sequence[Candidate]) -> Choice | Rejection:
        per_split = HANDLES_OF_SPLIT[passed[0].memory]
        first = boards.best_admitted(fit_request, passed, sliced=True)
        room = max(0, HANDLES - _handles(fit_request)) // per_split
        if isinstance(first, Rejection) or sum(card.usage.slots == 0 for card in first.chosen) <= room:
            return first
        idle = sorted(card.device.index for card in passed if card.usage.slots == 0)
        second = boards.best_admitted(
            fit_request, [card for card in passed if card.device.index not in idle[room:]], sliced=True
        )
        if isinstance(second, Choice):
            return second
        return Rejection({reasons.NODE_INSUFFICIENT_HANDLE: 1}, len(fit_request.inventory.devices))


def _handles(fit_request: FitRequest) -> int:
    """The driver handles taken on the node as the container would find it."""
    devices = fit_request.inventory.devices
    usages = (fit_request.overlay.used(card.vendor, card.uuid) for card in devices)
    return len(devices) + sum(HANDLES_OF_SPLIT.get(align(u.memory // u.slots), 0) for u in usages if u.slots)


SLICES = Slices()


class KunlunVxpu(Kunlunxin):
    """Slices of P800-OAM cards."""

    key = "XPU"
    section_name = "kunlun"
    section_type = KunlunSection
    section_fields = ("resource_vcount_name", "resource_vmemory_name")
    registration = NodeRegistration("hami.io/node-register-xpu", "hami.io/node-handshake-xpu")
    keys = DeviceKeys(
        to_allocate="hami.io/xpu-devices-to-allocate",
        allocated="hami.io/xpu-devices-allocated",
        use_uuid=boards.USE_UUID,
        nouse_uuid=boards.NOUSE_UUID,
    )
    checks = (UUID_LISTS, boards.IN_A_WING, HEALTHY, FREE_MEMORY, SPLIT_ALIKE, boards.UNUSED_BY_TWIN, MUTEX)
    most_memory = 2**50  # what was meant as bytes still gets a whole card, with a warning (docs/spec/kunlun.md#4)

    # admission (docs/spec/kunlun.md#5)

    def check_amounts(self, container: Container) -> None:
        for written in (container.limits, container.requests):
            if self.memory_name and (parse_whole(written.get(self.memory_name)) or 0) < 0:
                raise BadRequest(f"{self.memory_name} must not be negative")
        super().check_amounts(container)

    def admit(self, container: ContainerDraft, pod: PodDraft, device_lister: DeviceLister) -> bool:
        if not super().admit(container, pod, device_lister):
            if not container.names_resource(self.count_name):
                pod.warn(f"container {container.name}: {self.memory_name} means nothing without {self.count_name}")
            return False
        written = parse_whole(container.limits.get(self.memory_name)) if self.memory_name else None
        if written is not None:
            container.set_both(self.memory_name, align(written))
        return True

    def warnings_of(self, container: ContainerDraft) -> Iterator[str]:
        written = self.amount(container, self.memory_name)
        size = WHOLE if written is None else align(written)
        if written is not None and written != size:
            shown = f"{self.memory_name} {container.amount(self.memory_name)}"
            if written < size:
                yield f"{shown} is aligned up to {size} MiB, {_PARTS[size]}"
            elif written <= _BYTES:
                yield f"{shown} is capped to {size} MiB, {_PARTS[size]}"
            else:
                yield f"{shown} looks like bytes, but counts MiB; it is capped to {size} MiB, {_PARTS[size]}"

    def misfits(self, container: Container) -> Iterator[str]:
        count = self.amount(container, self.count_name) or 0
        written = self.amount(container, self.memory_name)
        size = WHOLE if written is None else align(written)
        yield from boards.misfits(self.count_name, count, whole=size == WHOLE)
        if size == QUARTER and MOST_QUARTERS < count <= len(wings.INDICES):
            yield (
                f"{self.count_name} {count} can't be placed: "
                f"a node's driver can split {MOST_QUARTERS} cards in quarters at most"
            )

    # request extraction (6)

    def request(self, container: Container) -> Request | None:
        requested = super().request(container)
        return requested and replace(requested, cores=requested.memory.on(WHOLE) * 100 // WHOLE)

    def memory(self, container: Container, mebibytes: int) -> MemoryRequest:
        """0 MiB is the smallest slice; nothing written is a whole card."""
        written = self.amount(container, self.memory_name) is not None
        return FixedMemory(align(mebibytes) if written else WHOLE)

    # node side (3)

    def inventory(self, node: Node) -> Inventory | None:
        """A card that repeats another's index has no place of its own in a wing, so it isn't used."""
        devices: list[Device] = []
        warnings = []
        for card in self.registered(node):
            if any(card.index == other.index for other in devices):
                warnings.append(
                    f"{self.registration.annotation}: card {card.uuid} isn't used, as another has its index "
                    f"{card.index}"
                )
                card = replace(card, index=-1)
            devices.append(card)
        return Inventory(tuple(devices), warnings=tuple(warnings)) if devices else None

    # Fit (7)

    def selection(self, fit_request: FitRequest) -> Selection:
        return SLICES if fit_request.request.memory.on(WHOLE) < WHOLE else boards.WHOLE_CARDS
