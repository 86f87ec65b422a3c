"""Volcano's cards as the one Fit pipeline sees them: the requests, the checks, the order (sections 6 and 7).

Memory is counted in blocks throughout, as Volcano does; a block is `block` MiB.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from hami_webhook.devices import reasons
from hami_webhook.devices.amounts import MAX_INT32, check_bounds
from hami_webhook.devices.fit_request import (
    AMOUNT_CHECKS,
    FREE_SLOT,
    HEALTHY,
    UUID_LISTS,
    Candidate,
    Check,
    Constraints,
    FitRequest,
)
from hami_webhook.devices.keys import DeviceKeys
from hami_webhook.devices.model import Device, DeviceShare, FixedMemory, Request, ShareOfCard, Usage
from hami_webhook.devices.pod_preferences import CardPolicy, Weights
from hami_webhook.devices.reasons import Rejection
from hami_webhook.devices.vendor import Vendor
from hami_webhook.integrations.sections import VolcanoSection
from hami_webhook.integrations.volcano.annotation_keys import (
    ALLOCATED,
    MIG,
    MODE,
    NOUSE_TYPE,
    NOUSE_UUID,
    OWNED,
    POD_GROUP_POLICY,
    TO_ALLOCATE,
    USE_TYPE,
    USE_UUID,
    mode_of,
    pod_group,
    types_of,
    uuids_of,
)
from hami_webhook.integrations.volcano.geometry import Geometry, GeometryInstance
from hami_webhook.integrations.volcano.registration import Registration
from hami_webhook.kube.objects import Container, Pod

MOST_BLOCKS = 2**24
"""Volcano squeezes an amount of memory into 32 bits: more than this can't be meant."""


class Cut(Struct, frozen=True):
    """A mark on a MIG card: the instance that a container got, None if unknown, and the blocks it requested."""

    instance: GeometryInstance | None
    requested: int


def _no_pod_of_its_group(candidate: Candidate) -> bool:
    pod = candidate.fit_request.pod
    mine = pod_group(pod.namespace, pod.annotations)
    if not mine or pod.annotations.get(POD_GROUP_POLICY) != "spread":
        return True
    return not any(
        (holder.memory or holder.cores) and pod_group(holder.pod.namespace, holder.pod.annotations) == mine
        for holder in candidate.usage.holders
    )


def _right_type(candidate: Candidate) -> bool:
    return "NVIDIA" in candidate.device.type and candidate.fit_request.terms.types.admits_type(candidate.device.type)


class VolcanoCards(Vendor):
    """NVIDIA cards that Volcano's device plugin registers."""

    key = "volcano"
    keys = DeviceKeys(
        ALLOCATED,
        TO_ALLOCATE,
        tuple(key for key in OWNED if key not in (ALLOCATED, TO_ALLOCATE)),
        use_uuid=(USE_UUID,),
        nouse_uuid=(NOUSE_UUID,),
        use_type=(USE_TYPE,),
        nouse_type=(NOUSE_TYPE,),
        choices=(MODE,),
        folds_choices=True,
        general=False,
    )
    lock = None
    checks = (
        HEALTHY,
        UUID_LISTS,
        FREE_SLOT,
        Check(reasons.EXCLUSIVE_DEVICE_ALLOCATE_CONFLICT, _no_pod_of_its_group),
        *AMOUNT_CHECKS,
        Check(reasons.CARD_TYPE_MISMATCH, _right_type),
    )
    unresolvable = reasons.CARD_MIG_TOPOLOGY_INFEASIBLE

    def __init__(self, section: VolcanoSection) -> None:
        super().__init__(section)
        self.percentage_name = section.resource_memory_percentage_name
        self.block = section.factor
        self.policy = section.schedule_policy

    @property
    def resource_names(self) -> tuple[str, ...]:
        return tuple(name for name in (*super().resource_names, self.percentage_name) if name)

    # requests (5.2, 6)

    def bounds(self) -> Iterator[tuple[str, int, int, str]]:
        example = f"4 GiB is {-(-4096 // self.block)}, not 4Gi"
        yield self.count_name, 0, MAX_INT32, "a whole number of cards"
        yield self.percentage_name, 0, 100, "a whole number"
        yield self.core_name, 0, 100, "a whole number"
        yield self.memory_name, 0, MOST_BLOCKS, f"a whole number of blocks of {self.block} MiB ({example})"

    def request(self, container: Container) -> Request | None:
        """Only limits make a container take part: its count, or else its memory."""
        check_bounds(container, self.bounds())
        memory, percent = self.amount(container, self.memory_name), self.amount(container, self.percentage_name)
        if self.count_name in container.limits:
            count = self.amount(container, self.count_name)
        else:
            count = 1 if memory and self.memory_name in container.limits else 0
        if not count:
            return None
        wanted = FixedMemory(memory) if memory and not percent else ShareOfCard(percent or 100)
        return Request(count, wanted, self.amount(container, self.core_name) or 0)

    def terms(self, pod: Pod, default_policy: str = "") -> Constraints:
        annotations = pod.annotations
        return Constraints(CardPolicy(("",)), Weights(), uuids_of(annotations), types_of(annotations))

    # Fit (7.2 to 7.5)

    def refuses_node(self, fit_request: FitRequest) -> Rejection | None:
        registered = fit_request.inventory.facts
        assert isinstance(registered, Registration)
        wanted = mode_of(fit_request.pod.annotations)
        if wanted and wanted != registered.mode:
            return Rejection({reasons.MODE_NOT_FIT: 1}, len(registered.devices))
        return super().refuses_node(fit_request)

    def order(self, cards: Sequence[Candidate], terms: Constraints, *, numa_bound: bool) -> list[int]:
        by_index = sorted(range(len(cards)), key=lambda i: cards[i].device.index)
        if self.policy == "binpack":
            return sorted(by_index, key=lambda i: -cards[i].usage.memory)
        if self.policy == "spread":
            return sorted(by_index, key=lambda i: cards[i].usage.slots)
        return by_index[::-1]

    def resolve_share(self, request: Request, device: Device, usage: Usage) -> DeviceShare | None:
        requested = request.memory.on(device.memory)
        if device.mode != MIG:
            return DeviceShare(requested, request.cores)
        found = self.cut(device, usage, requested)
        if found is None:
            return None
        return DeviceShare(found.kind.memory // self.block, request.cores, found.kind.name, Cut(found, requested))

    def cut(self, device: Device, usage: Usage, requested: int) -> GeometryInstance | None:
        """The MIG instance for so many blocks; None if the card has none, or has one in use that isn't known."""
        marks = [mark for mark in usage.marks if isinstance(mark, Cut)]
        taken = {mark.instance.place for mark in marks if mark.instance is not None}
        if not isinstance(device.extra, Geometry) or any(mark.instance is None for mark in marks):
            return None
        return device.extra.choose(requested * self.block, taken)

    # what was given

    def given(self, share: DeviceShare) -> int:
        """The MiB a container really gets by its share."""
        if isinstance(share.mark, Cut) and share.mark.instance is not None:
            return share.mark.instance.kind.memory
        return share.memory * self.block
