"""Moore Threads GPUs, sliced by sGPU. Source: docs/spec/mthreads.md.

A container gets core groups of a card (16 make it whole) and units of 512 MiB, or several whole cards. Amounts are
those of all its cards together. The plugin reads a pod's cards once, so its containers share the first one's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import field_validator

from hami_webhook.config.devices import CountMemoryCore, Meaning
from hami_webhook.config.fields import ResourceName, whole_number
from hami_webhook.devices import capacity_devices
from hami_webhook.devices.amounts import MAX_INT32, check_bounds
from hami_webhook.devices.device_lister import DeviceLister
from hami_webhook.devices.fit_request import (
    ACCESS_CHECKS,
    FREE_CORES,
    FREE_MEMORY,
    ONE_CARD_AT_A_TIME,
    UNITS_LEFT,
    WHOLE_CARD_UNSHARED,
    WITHIN_QUOTA,
)
from hami_webhook.devices.keys import DeviceKeys
from hami_webhook.devices.model import (
    BadRequest,
    FixedMemory,
    Inventory,
    MemoryRequest,
    Request,
    Rows,
    ShareOfCard,
    WholeCard,
)
from hami_webhook.devices.placement_annotations import nanoseconds
from hami_webhook.devices.vendor import Vendor
from hami_webhook.kube.draft import ContainerDraft, PodDraft
from hami_webhook.kube.objects import Container, ContainerKind, Node, Pod
from hami_webhook.kube.quantity import parse_whole

CORE_GROUPS = 16
"""Of a card."""
S4000_UNITS = 96
"""The memory of a card where the section doesn't say it: 48 GiB."""
CardUnits = Annotated[int, whole_number(2, MAX_INT32 // 512)]
CARDS_REQUESTED = "mthreads.com/request-gpu-num"


class MthreadsSection(CountMemoryCore):
    """`mthreads`. One unit of memory is 512 MiB and one of compute is a core group, of which a card has 16."""

    resource_memory_name: Annotated[ResourceName, Meaning("memory of all cards of a container together", "512 MiB")] = (
        ""
    )
    resource_core_name: Annotated[
        ResourceName, Meaning("compute of all cards of a container together", "core groups, 16 a card")
    ] = ""
    memory_per_card: tuple[CardUnits, ...] = (S4000_UNITS,)

    @field_validator("memory_per_card", mode="before", json_schema_input_type=CardUnits | tuple[CardUnits, ...])
    @classmethod
    def _one_or_several(cls, written: object) -> object:
        """A number alone is that of all cards; an empty list says as little as none."""
        return ([written] if isinstance(written, int) else written) or (S4000_UNITS,)

    def notes(self) -> Iterator[str]:
        if self.memory_per_card != (S4000_UNITS,):
            yield f"cards have {' or '.join(map(str, self.memory_per_card))} units of memory"


def slices(card: int) -> Iterator[int]:
    """The units of 512 MiB that sGPU can cut of a card with so many: powers of two, and all of them."""
    yield from (2**power for power in range(1, card.bit_length()) if 2**power < card)
    yield card


class Mthreads(Vendor):
    key = "Mthreads"
    section_name = "mthreads"
    section_type = MthreadsSection
    memory_factor = 512
    lock = None
    keys = DeviceKeys(
        allocated="hami.io/mthreads-vgpu-devices-allocated",
        extra=("mthreads.com/gpu-index", "mthreads.com/predicate-node", "mthreads.com/predicate-time"),
        use_uuid=("mthreads.ai/use-gpuuuid",),
        nouse_uuid=("mthreads.ai/nouse-gpuuuid",),
    )
    checks = (
        *ACCESS_CHECKS,
        WITHIN_QUOTA,
        FREE_MEMORY,
        FREE_CORES,
        WHOLE_CARD_UNSHARED,
        UNITS_LEFT,
        ONE_CARD_AT_A_TIME,
    )

    def __init__(self, section: MthreadsSection, *, is_2_11: bool = False) -> None:
        super().__init__(section, is_2_11=is_2_11)
        self.cards = frozenset(section.memory_per_card)
        self.card_units = min(self.cards)  # what admission writes for a whole card, whichever it will be
        self.slices = sorted({units for card in self.cards for units in slices(card)})

    @property
    def kubelet_counted(self) -> tuple[str, ...]:
        return self.memory_name, self.core_name

    # admission (docs/spec/mthreads.md#5)

    def bounds(self) -> Iterator[tuple[str, int, int, str]]:
        """So many cards at most that the memory written for them is an amount too."""
        most = MAX_INT32 // self.memory_factor
        yield self.count_name, 1, most // self.card_units, "a whole number"
        yield self.memory_name, 0, most, f"a whole number of 512 MiB units (of one card: {self.slices})"
        yield self.core_name, 0, MAX_INT32, "a whole number of core groups"

    def check_amounts(self, container: Container) -> None:
        """Two sentences are HAMi's."""
        count = self.amount(container, self.count_name)
        if count is not None and count <= 0:
            raise BadRequest(f"{self.count_name} must be greater than 0")
        super().check_amounts(container)
        units = container.limits.get(self.memory_name)
        if count == 1 and units is not None and parse_whole(units) not in self.slices:
            raise BadRequest(f"sGPU memory request value is invalid, valid values are {self.slices}")
        groups = self.amount(container, self.core_name) or 0
        if count == 1 and units is not None and groups > CORE_GROUPS:
            raise BadRequest(
                f"{self.core_name} {groups} in container {container.name} is more than the {CORE_GROUPS} core groups "
                f"of a card, so the pod would never start; ask for at most {CORE_GROUPS}, or for more cards"
            )

    def check_pod(self, pod: Pod) -> None:
        """All containers of a pod share one card."""
        for kind in (ContainerKind.APP, ContainerKind.INIT):
            together = [self._count(c) for c in pod.containers if c.kind in (kind, ContainerKind.SIDECAR)]
            if max(together, default=0) > 1 and sum(count > 0 for count in together) > 1:
                raise BadRequest(
                    f"a container that asks for several of {self.count_name} must be the only one to ask: all "
                    f"containers of a pod share one card, so the pod would never start; use a pod for each container"
                )

    def admit(self, container: ContainerDraft, pod: PodDraft, device_lister: DeviceLister) -> bool:
        """Whole cards are requested by what a whole card has, which kube-scheduler itself counts on the node."""
        count = self._count(container)
        if self.memory_name in container.listed:  # by the memory's limit whole cards are known
            container.forget_default(self.core_name, CORE_GROUPS * count)
            container.forget_default(self.memory_name, self.card_units * count)
        if not super().admit(container, pod, device_lister):
            return False
        if container.limits.get(self.count_name) is None:
            container.set_limit(self.count_name, count)
        if self._wants_whole_cards(container):
            write = container.set_limit if container.names_resource(self.memory_name) else container.default_limit
            write(self.core_name, CORE_GROUPS * count)
            write(self.memory_name, self.card_units * count)
            pod.note(f"container {container.name}: limits set to those of whole cards, {count} of them")
        return True

    def admit_pod(self, pod: PodDraft, device_lister: DeviceLister) -> None:
        """The plugin trusts the number of cards it finds on the pod, so a user's own doesn't stay."""
        several = [count for count in map(self._count, pod.containers) if count > 1]
        if several:
            pod.annotations[CARDS_REQUESTED] = str(several[-1])
        elif CARDS_REQUESTED in pod.annotations:
            del pod.annotations[CARDS_REQUESTED]
            pod.note(f"{CARDS_REQUESTED} removed, because no container requests several cards")

    def warnings_of(self, container: ContainerDraft) -> Iterator[str]:
        count = self._count(container)
        if not self._wants_whole_cards(container):
            if self.amount(container, self.core_name) is None:
                yield f"no compute is reserved without {self.core_name}"
            return
        why = "several cards are" if count > 1 else f"without a limit of {self.memory_name} the card is"
        for name, each in ((self.memory_name, self.card_units), (self.core_name, CORE_GROUPS)):
            written = self.amount(container, name)
            if written not in (None, each * count):
                yield f"{name} {written} is ignored: {why} given whole"

    def _wants_whole_cards(self, container: ContainerDraft) -> bool:
        return self._count(container) > 1 or container.limits.get(self.memory_name) is None

    def _count(self, container: Container | ContainerDraft) -> int:
        return self.amount(container, self.count_name) or 0

    # request extraction (6)

    def request(self, container: Container) -> Request | None:
        """Amounts are for all cards together; the memory of whole cards is theirs, though quota checks 48 GiB first."""
        check_bounds(container, Vendor.bounds(self))
        count = self._count(container)
        if not count:
            return None
        units = self.amount(container, self.memory_name) or 0
        groups = self.amount(container, self.core_name) or 0
        each = units * self.memory_factor // count
        if count > 1 or (units in self.cards and groups == CORE_GROUPS):
            return Request(count, WholeCard(stated=each), CORE_GROUPS)
        memory: MemoryRequest = FixedMemory(each) if units else ShareOfCard(100)
        return Request(count, memory, min(groups, self.max_cores))

    # node side (3)

    def inventory(self, node: Node) -> Inventory | None:
        return capacity_devices.summed(self, node, "mthreads", CORE_GROUPS)

    # outputs (9)

    def encode(self, pod: Pod, rows: Rows, node: Node, now: float) -> dict[str, str]:
        """The indices are the last container's: the pod's, as the containers of a pod share their card."""
        last = next(row[self.key] for row in reversed(rows) if self.key in row)
        return super().encode(pod, rows, node, now) | {
            "mthreads.com/gpu-index": ",".join(str(capacity_devices.index_of(device.uuid)) for device in last.devices),
            "mthreads.com/predicate-node": node.name,
            "mthreads.com/predicate-time": nanoseconds(now),
        }
