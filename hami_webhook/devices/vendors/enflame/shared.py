"""Shared GCUs (vGCU): a percentage of a card's memory and cores, in the slices its plugin cuts it into.

Source: docs/spec/enflame.md. f is the slices of a card, which the plugin's `--slice-count` sets for a node.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import orjson
from msgspec.structs import replace

from hami_webhook.devices import reasons
from hami_webhook.devices.amounts import MAX_INT32
from hami_webhook.devices.capacity_devices import SHARED_SLOTS, capacity, counted
from hami_webhook.devices.device_lister import DeviceLister
from hami_webhook.devices.fit_request import FitRequest
from hami_webhook.devices.model import Allocation, BadRequest, FixedMemory, Inventory, MemoryRequest, Request
from hami_webhook.devices.reasons import Rejection
from hami_webhook.devices.vendors.enflame.section import EnflameSection
from hami_webhook.devices.vendors.enflame.sliced import (
    GCU_COUNT,
    REQUEST_SIZE,
    SHARED,
    SHARED_GCU,
    SHARED_WORD,
    SlicedGcu,
    requests_drs,
)
from hami_webhook.kube.draft import ContainerDraft
from hami_webhook.kube.objects import Container, Node

SHARED_CAPACITY = "enflame.com/gcu-shared-capacity"
USUAL_SLICES = 6
"""Slices of a card where no node reports them."""
_NUMBER = re.compile(r"[0-9]{1,9}", re.ASCII)


def slices_for(percent: int, per_card: int) -> int:
    """The slices that cover a percentage of a card."""
    return -(-percent * per_card // 100)


def rounded(percent: int, per_card: int) -> int:
    """The percentage that the slices covering `percent` are, rounded down; rounding it again changes nothing."""
    return slices_for(percent, per_card) * 100 // per_card


def _numbers_in_order(text: str | None, count: int) -> frozenset[int]:
    """The numbers of the cards that have slices in order, by `enflame.com/gcu-shared-capacity`; all if it is no use."""
    everything = frozenset(range(count))
    try:
        written = orjson.loads(text) if text is not None else None
    except orjson.JSONDecodeError:
        return everything
    if not isinstance(written, dict) or not all(_NUMBER.fullmatch(key) and int(key) < count for key in written):
        return everything
    return frozenset(int(key) for key, slices in written.items() if _above_zero(slices))


def _above_zero(slices: Any) -> bool:
    return int(slices) > 0 if isinstance(slices, str) and _NUMBER.fullmatch(slices) else bool(slices)


class SharedGcu(SlicedGcu):
    """Cards `<node>-enflame-<i>` of 100 percent memory. More than one card means whole cards."""

    key = SHARED
    section_name = "enflame"
    section_type = EnflameSection
    section_fields = ("resource_name_vgcu", "resource_name_vgcu_percentage")
    memory_is_percentage = True

    @property
    def resource_names(self) -> tuple[str, ...]:
        return (*super().resource_names, SHARED_GCU)

    @property
    def kubelet_counted(self) -> tuple[str, ...]:
        return (SHARED_GCU,)

    # node side (docs/spec/enflame.md#3)

    def inventory(self, node: Node) -> Inventory | None:
        """With the node's f for facts."""
        count = capacity(node, GCU_COUNT)
        per_card = capacity(node, SHARED_GCU) // count if count else 0
        if per_card == 0:
            return None
        cards = tuple(
            counted(self.key, node, SHARED_WORD, count, slots=SHARED_SLOTS, memory=100, cores=100, model=self.known_as)
        )
        healthy = _numbers_in_order(node.annotations.get(SHARED_CAPACITY), len(cards))
        return Inventory(tuple(replace(card, healthy=card.index in healthy) for card in cards), per_card)

    # admission (5)

    def bounds(self) -> Iterator[tuple[str, int, int, str]]:
        yield self.count_name, 0, MAX_INT32, "an integer"
        yield self.memory_name, 0, 100, "an integer percentage of a card"
        yield SHARED_GCU, 0, MAX_INT32, "an integer"

    def check_amounts(self, container: Container) -> None:
        super().check_amounts(container)
        if self.amount(container, SHARED_GCU) and not self.amount(container, self.count_name):
            raise BadRequest(
                f"container {container.name}: {SHARED_GCU} is written at admission for {self.count_name} "
                f"and {self.memory_name}; ask by those"
            )

    def normalise(self, container: ContainerDraft, device_lister: DeviceLister) -> Iterator[str]:
        per_card = self._slices_per_card(device_lister)
        requested = self.request(container.container)
        assert requested is not None
        assert isinstance(requested.memory, FixedMemory)
        written = self.amount(container, self.memory_name)
        percent = rounded(requested.memory.mebibytes, per_card)
        if self.memory_name:
            container.set_both(self.memory_name, percent)
        container.set_both(SHARED_GCU, requested.count * slices_for(percent, per_card))
        if written is not None and written != percent:
            why = "more than one card means whole cards" if requested.count > 1 else f"a card has {per_card} slices"
            yield f"{self.memory_name} {written} becomes {percent}, as {why}"

    def _slices_per_card(self, device_lister: DeviceLister) -> int:
        """f of most cards, of equally many the smaller."""
        cards: Counter[int] = Counter()
        for inventory in device_lister.inventories(self.key):
            if inventory.devices:
                cards[inventory.facts] += len(inventory.devices)
        return min(cards, key=lambda per_card: (-cards[per_card], per_card), default=USUAL_SLICES)

    # request extraction (6)

    def request(self, container: Container) -> Request | None:
        self.check_amounts(container)
        return None if requests_drs(self.section, container) else super().request(container)

    def unplaced_request(self, container: Container, inventory: Inventory) -> Request | None:
        """kubelet counts slices."""
        slices, per_card = self.amount(container, SHARED_GCU), inventory.facts
        return Request(slices, FixedMemory(100 // per_card), 0) if slices and per_card else None

    def memory(self, container: Container, mebibytes: int) -> MemoryRequest:
        """Percent of each card."""
        written = self.amount(container, self.memory_name)
        several = (self.amount(container, self.count_name) or 0) > 1
        return FixedMemory(100 if several or written is None else max(1, written))

    # Fit (7)

    def resolve(self, request: Request, fit_request: FitRequest) -> Request:
        """In the node's own slices, also for pods that our admission hasn't seen."""
        assert isinstance(request.memory, FixedMemory)
        per_card = fit_request.inventory.facts
        return (
            replace(request, memory=FixedMemory(rounded(request.memory.mebibytes, per_card))) if per_card else request
        )

    def refuses_node(self, fit_request: FitRequest) -> Rejection | None:
        mixed = any(requests_drs(self.section, container) for container in fit_request.pod.containers)
        other = mixed or self._rounded_for_others(fit_request)
        mode = Rejection({reasons.MODE_NOT_FIT: 1}, len(fit_request.inventory.devices)) if other else None
        return super().refuses_node(fit_request) or mode

    def _rounded_for_others(self, fit_request: FitRequest) -> bool:
        """Whether the slices that admission wrote aren't what the percentage takes here."""
        written = self.amount(fit_request.pod.containers[fit_request.row], SHARED_GCU)
        per_card = fit_request.inventory.facts
        if not written or not per_card:
            return False
        return written != fit_request.request.count * slices_for(fit_request.request.memory.on(100), per_card)

    # outputs (9)

    def stamps(self, allocations: Sequence[Allocation], node: Node) -> dict[str, str]:
        inventory = self.inventory(node)
        assert inventory is not None
        devices = [device for allocation in allocations for device in allocation.devices]
        return {REQUEST_SIZE: str(sum(slices_for(d.share.memory, inventory.facts) for d in devices))}
