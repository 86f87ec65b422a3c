"""Kunlunxin XPUs: whole cards, and vXPU slices of P800-OAM cards. Source: the kunlun chapter of the specification.

A server has two wings of four cards; which cards work together is decided by their indices. Whole cards are never
shared. A slice is a quarter or half of a card, or all of it; a card is split one way only, and the driver has handles
for so many splits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from hami_webhook.config import KunlunSection
from hami_webhook.devices import reasons
from hami_webhook.devices.derived import SHARED_SLOTS, capacity, counted
from hami_webhook.devices.kunlun import wings
from hami_webhook.devices.model import (
    BadRequest,
    Booking,
    Device,
    FixedMemory,
    Inventory,
    Memory,
    NodeView,
    Request,
    Rows,
    Usage,
)
from hami_webhook.devices.reasons import Rejection
from hami_webhook.devices.trial import (
    FREE_MEMORY,
    HEALTHY,
    MUTEX,
    UUID_LISTS,
    Candidate,
    Check,
    Choice,
    Selection,
    Trial,
)
from hami_webhook.devices.vendor import DeviceKeys, Fleet, Vendor
from hami_webhook.kube.draft import ContainerDraft, PodDraft
from hami_webhook.kube.objects import Container, Node, Pod
from hami_webhook.kube.quantity import parse_whole

QUARTER, HALF, WHOLE = 24576, 49152, 98304
"""The sizes of a slice in MiB."""

HANDLES = 32
"""What a node's driver has: one for each card, and so many for each card that is split."""

HANDLES_OF_SPLIT = {QUARTER: 4, HALF: 2}
MOST_QUARTERS = 6
"""More cards of one node than this can't be split in quarters, whatever else it runs: 7 cards would need 35 handles."""

DEVICE_INDEX = "BAIDU_COM_DEVICE_IDX"

_PARTS = {QUARTER: "a quarter of a card", HALF: "half a card", WHOLE: "a whole card"}
_BYTES = 1_000_000
"""MiB from which on an amount was hardly meant as such."""

_TWINS = {"kunlun": "XPU", "XPU": "kunlun"}
_USE = ("hami.io/use-xpu-uuid", "baidu.com/use-gpuuuid")
_NOUSE = ("hami.io/no-use-xpu-uuid", "baidu.com/nouse-gpuuuid")


def align(mebibytes: int) -> int:
    """The slice size that holds so many MiB; all of a card for more than it has."""
    return next((size for size in (QUARTER, HALF) if mebibytes <= size), WHOLE)


def _unused_by_twin(candidate: Candidate) -> bool:
    """Where a node runs both plugins, the card of this index isn't used through the other one."""
    overlay, twin = candidate.trial.overlay, _TWINS[candidate.device.vendor]
    inventory = overlay.view.inventories.get(twin)
    return inventory is None or not any(
        card.index == candidate.device.index and overlay.used(twin, card.uuid).slots for card in inventory.devices
    )


def _split_alike(candidate: Candidate) -> bool:
    usage = candidate.usage
    return usage.slots == 0 or usage.memory // usage.slots == candidate.memory


IN_A_WING = Check(reasons.NUMA_NOT_FIT, lambda c: c.device.index in wings.INDICES)
UNUSED = Check(reasons.EXCLUSIVE_DEVICE_ALLOCATE_CONFLICT, lambda c: c.usage.slots == 0)
UNUSED_BY_TWIN = Check(reasons.EXCLUSIVE_DEVICE_ALLOCATE_CONFLICT, _unused_by_twin)
SPLIT_ALIKE = Check(reasons.NUMA_NOT_FIT, _split_alike)


def _best_admitted(trial: Trial, passed: Sequence[Candidate], *, sliced: bool) -> Choice | Rejection:
    """The best set of cards that the quota admits."""
    cards = {card.device.index: card for card in passed}
    shared = frozenset(index for index, card in cards.items() if card.usage.slots)
    label = reasons.NUMA_NOT_FIT
    for chosen in wings.card_sets(trial.request.count, frozenset(cards), shared, sliced=sliced):
        found = [cards[index] for index in chosen]
        if trial.admits(found):
            return Choice(found)
        label = reasons.RESOURCE_QUOTA_NOT_FIT
    return Rejection({label: 1}, len(trial.inventory.devices))


class WholeCards:
    """Cards nobody shares: the best set of a wing, or of linked cards in both (7.2)."""

    looks_at_all = True

    def choose(self, trial: Trial, passed: Sequence[Candidate]) -> Choice | Rejection:
        return _best_admitted(trial, passed, sliced=False)


class Slices:
    """Slices on as many cards: where equal slices are already, then as for whole cards, within the handles (7.3)."""

    looks_at_all = True

    def choose(self, trial: Trial, passed: Sequence[Candidate]) -> Choice | Rejection:
        per_split = HANDLES_OF_SPLIT[passed[0].memory]
        first = _best_admitted(trial, passed, sliced=True)
        room = max(0, HANDLES - _handles(trial)) // per_split
        if isinstance(first, Rejection) or sum(card.usage.slots == 0 for card in first.chosen) <= room:
            return first
        idle = sorted(card.device.index for card in passed if card.usage.slots == 0)
        second = _best_admitted(trial, [card for card in passed if card.device.index not in idle[room:]], sliced=True)
        if isinstance(second, Choice):
            return second
        return Rejection({reasons.NODE_INSUFFICIENT_HANDLE: 1}, len(trial.inventory.devices))


def _handles(trial: Trial) -> int:
    """The driver handles taken on the node as the container would find it."""
    devices = trial.inventory.devices
    usages = (trial.overlay.used(card.vendor, card.uuid) for card in devices)
    return len(devices) + sum(HANDLES_OF_SPLIT.get(align(u.memory // u.slots), 0) for u in usages if u.slots)


WHOLE_CARDS = WholeCards()
SLICES = Slices()


class _Kunlunxin(Vendor):
    """What both backends share."""

    def admit(self, container: ContainerDraft, pod: PodDraft, fleet: Fleet) -> bool:
        """Whatever the number, a container that limits its count is ours to schedule."""
        super().admit(container, pod, fleet)
        return self.count_name in container.limits

    def refusal(self, trial: Trial, cards: Sequence[Candidate], usual: Rejection) -> Rejection:
        """The first line that applies in the table of 7.4; where too few cards fit, what the others failed too."""
        if not usual.counts.keys().isdisjoint((reasons.NODE_INSUFFICIENT_HANDLE, reasons.RESOURCE_QUOTA_NOT_FIT)):
            return usual
        told = dict(usual.counts)
        told.pop(reasons.ALLOCATED_CARDS_INSUFFICIENT_REQUEST, None)
        apart = told.pop(reasons.NUMA_NOT_FIT, 0) > 0
        taken = sum(self._only_taken(card) for card in cards) if trial.terms.policy.mutex else 0
        excluded = sum(not UUID_LISTS.passes(card) for card in cards)
        if taken:
            told[reasons.EXCLUSIVE_DEVICE_ALLOCATE_CONFLICT] = taken
        elif excluded:
            told[reasons.CARD_UUID_MISMATCH] = excluded
        if not taken and (apart or not excluded):
            told[reasons.NUMA_NOT_FIT] = 1
        return Rejection(told, len(cards))

    def _only_taken(self, card: Candidate) -> bool:
        """Whether a card in use would fit if it needn't be idle; UUID lists aside."""
        others = (check for check in self.checks if check not in (UUID_LISTS, MUTEX))
        return card.usage.slots > 0 and all(check.passes(card) for check in others)


class KunlunXpu(_Kunlunxin):
    """Whole cards, one by one counted by their plugin's capacity."""

    key = "kunlun"
    lock = None
    keys = DeviceKeys(allocated="hami.io/kunlun-allocated", extra=(DEVICE_INDEX,), use_uuid=_USE, nouse_uuid=_NOUSE)
    checks = (UUID_LISTS, IN_A_WING, HEALTHY, UNUSED, UNUSED_BY_TWIN)

    def __init__(self, section: KunlunSection) -> None:
        self.count_name = section.resource_count_name

    def doubts(self, container: ContainerDraft) -> Iterator[str]:
        yield from _misfits(self.count_name, self.amount(container, self.count_name) or 0, WHOLE)

    def inventory(self, node: Node) -> Inventory | None:
        count = capacity(node, self.count_name)
        cards = counted(self.key, node, "kunlun", count, slots=SHARED_SLOTS, memory=WHOLE, cores=100)
        devices = tuple(replace(card, numa=int(card.index >= count // 2)) for card in cards)
        return Inventory(devices) if devices else None

    def book(self, request: Request, device: Device, usage: Usage) -> Booking | None:
        return Booking(device.memory, device.cores)

    def selection(self, trial: Trial) -> Selection:
        return WHOLE_CARDS

    def score(self, pod: Pod, view: NodeView, rows: Rows, policy: str) -> float:
        devices = [device for inventory in view.inventories.values() for device in inventory.devices]
        if any("kunlun" not in device.type for device in devices):
            return 0.0
        index_of = {card.uuid: card.index for card in view.inventories[self.key].devices}
        before = {index for uuid, index in index_of.items() if view.used(self.key, uuid).slots}
        given = {index_of[device.uuid] for row in rows if self.key in row for device in row[self.key].devices}
        better = wings.score(before, before | given)
        return float(-better if policy == "spread" else better)

    def encode(self, rows: Rows, node: Node, now: float) -> dict[str, str]:
        uuids = (device.uuid for row in rows if self.key in row for device in row[self.key].devices)
        indices = dict.fromkeys(uuid.rpartition("-")[2] for uuid in uuids)
        return super().encode(rows, node, now) | {DEVICE_INDEX: ",".join(indices)}


class KunlunVxpu(_Kunlunxin):
    """Slices of P800-OAM cards."""

    key = "XPU"
    register_annotation = "hami.io/node-register-xpu"
    handshake_annotation = "hami.io/node-handshake-xpu"
    keys = DeviceKeys(
        to_allocate="hami.io/xpu-devices-to-allocate",
        allocated="hami.io/xpu-devices-allocated",
        use_uuid=_USE,
        nouse_uuid=_NOUSE,
    )
    checks = (UUID_LISTS, IN_A_WING, HEALTHY, FREE_MEMORY, SPLIT_ALIKE, UNUSED_BY_TWIN, MUTEX)
    most_memory = 2**50  # what was meant as bytes still gets a whole card, with a warning (chapter section 4)

    def __init__(self, section: KunlunSection) -> None:
        self.count_name = section.resource_vcount_name
        self.memory_name = section.resource_vmemory_name

    # admission (chapter section 5)

    def check_amounts(self, container: Container) -> None:
        for written in (container.limits, container.requests):
            if self.memory_name and (parse_whole(written.get(self.memory_name)) or 0) < 0:
                raise BadRequest(f"{self.memory_name} must not be negative")
        super().check_amounts(container)

    def admit(self, container: ContainerDraft, pod: PodDraft, fleet: Fleet) -> bool:
        if not super().admit(container, pod, fleet):
            if not container.asks_for(self.count_name):
                pod.warn(f"container {container.name}: {self.memory_name} means nothing without {self.count_name}")
            return False
        written = parse_whole(container.limits.get(self.memory_name)) if self.memory_name else None
        if written is not None:
            container.set_both(self.memory_name, align(written))
        return True

    def doubts(self, container: ContainerDraft) -> Iterator[str]:
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
        yield from _misfits(self.count_name, self.amount(container, self.count_name) or 0, size)

    # request extraction (6)

    def request(self, container: Container) -> Request | None:
        asked = super().request(container)
        return asked and replace(asked, cores=asked.memory.on(WHOLE) * 100 // WHOLE)

    def memory(self, container: Container, mebibytes: int) -> Memory:
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
                    f"{self.register_annotation}: card {card.uuid} isn't used, as another has its index {card.index}"
                )
                card = replace(card, index=-1)
            devices.append(card)
        return Inventory(tuple(devices), warnings=tuple(warnings)) if devices else None

    # Fit (7)

    def selection(self, trial: Trial) -> Selection:
        return SLICES if trial.request.memory.on(WHOLE) < WHOLE else WHOLE_CARDS


def _misfits(name: str, count: int, size: int) -> Iterator[str]:
    """Why so many cards, or slices of this size, can't be placed on any node."""
    if count > len(wings.INDICES):
        yield f"{name} {count} can't be placed: a node has {len(wings.INDICES)} cards"
    elif size == WHOLE and count not in wings.LINKED_COUNTS:
        yield f"{name} {count} can't be placed: whole cards are given out by 1, 2, 4 or 8"
    elif size == QUARTER and count > MOST_QUARTERS:
        yield f"{name} {count} can't be placed: a node's driver can split {MOST_QUARTERS} cards in quarters at most"
