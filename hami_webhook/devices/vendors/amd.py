"""AMD GPUs, shared by memory (MiB) and compute units. Source: docs/spec/amd-biren-vastai.md#A.

Users and quotas speak of percent of a card's compute units, while cards, usage and annotations hold the units (CUs):
the plugin makes masks of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import tzinfo
from typing import Annotated

from msgspec.structs import replace

from hami_webhook.config.devices import MEMORY_PERCENTAGE, CountMemoryCore, runtime_class_note
from hami_webhook.config.fields import ResourceName, RuntimeClassName
from hami_webhook.devices.amounts import MAX_INT32
from hami_webhook.devices.capacity_devices import capacity
from hami_webhook.devices.codecs import CardRecord, custom_info, parse_bool
from hami_webhook.devices.device_lister import DeviceLister
from hami_webhook.devices.fit_request import (
    FREE_CORES,
    FREE_MEMORY,
    FREE_SLOT,
    HEALTHY,
    MUTEX,
    NUMA_GROUP,
    TYPE_LISTS,
    UUID_LISTS,
    WITHIN_QUOTA,
    Check,
    Constraints,
)
from hami_webhook.devices.handshake import Health
from hami_webhook.devices.keys import DeviceKeys, ReservedKeys
from hami_webhook.devices.model import (
    AllocatedDevice,
    BadRequest,
    Device,
    DeviceShare,
    FixedMemory,
    MemoryRequest,
    Request,
    ShareOfCard,
    Usage,
)
from hami_webhook.devices.newer_annotations import AMD_NUMA_BIND
from hami_webhook.devices.registration import NodeRegistration
from hami_webhook.devices.vendor import Vendor
from hami_webhook.kube.draft import ContainerDraft, PodDraft
from hami_webhook.kube.objects import Container, Node, Pod
from hami_webhook.kube.quantity import parse_whole


class AmdSection(CountMemoryCore):
    """`amd`. Without a memory name cards are whole; without a core name pods get all compute units."""

    resource_memory_percentage_name: Annotated[ResourceName, MEMORY_PERCENTAGE] = ""
    runtime_class_name: RuntimeClassName = ""

    def notes(self) -> Iterator[str]:
        if not self.resource_memory_name:
            yield "without a memory name every card is given whole"
        yield from runtime_class_note(self.runtime_class_name)


_CHECKS = (HEALTHY, TYPE_LISTS, UUID_LISTS, FREE_SLOT, MUTEX, WITHIN_QUOTA, FREE_MEMORY, FREE_CORES)
_IN_NUMA_GROUPS = (HEALTHY, TYPE_LISTS, NUMA_GROUP, *_CHECKS[2:])


class Amd(Vendor):
    key = "AMD"
    section_name = "amd"
    section_type = AmdSection
    reserved = ReservedKeys(kept=("hami.io/amd-cu-allocated",))
    registration = NodeRegistration("hami.io/node-amd-register")
    keys = DeviceKeys.usual(
        "amd", uuid="amd.com/[no]use-gpu-uuid", model="amd.com/[no]use-gputype", choices=(AMD_NUMA_BIND,)
    )
    default_cores = 100
    cores_in_units = True
    limits_only = True
    claims_by_name = True

    def __init__(self, section: AmdSection, *, is_2_11: bool = False) -> None:
        super().__init__(section, is_2_11=is_2_11)
        self.percentage_name = section.resource_memory_percentage_name
        self.runtime_class_name = section.runtime_class_name

    # admission and request (A5, A6)

    @property
    def resource_names(self) -> tuple[str, ...]:
        return (*super().resource_names, *((self.percentage_name,) if self.percentage_name else ()))

    def admit(self, container: ContainerDraft, pod: PodDraft, device_lister: DeviceLister) -> bool:
        ours = super().admit(container, pod, device_lister)
        if ours and not self.amount(container, self.count_name):
            others = [name for name in self.resource_names if name != self.count_name and name in container.limits]
            if others:
                pod.warn(f"container {container.name}: {others[0]} without {self.count_name} gives no card")
        elif ours and self.runtime_class_name and not pod.runtime_class_name:
            pod.runtime_class_name = self.runtime_class_name
        return ours

    def warnings_of(self, container: ContainerDraft) -> Iterator[str]:
        if self.amount(container, self.memory_name) and self.amount(container, self.percentage_name):
            yield f"{self.percentage_name} is ignored, because {self.memory_name} is given too"

    def check_amounts(self, container: Container) -> None:
        limits = container.limits
        if self.count_name in limits and self.core_name in limits:
            percent = parse_whole(limits[self.core_name])
            if percent is None or not 1 <= percent <= 100:
                raise BadRequest(f"{self.core_name} must be an integer percentage between 1 and 100")
        super().check_amounts(container)

    def bounds(self) -> Iterator[tuple[str, int, int, str]]:
        yield from super().bounds()
        yield self.percentage_name, 1, 100, "an integer"

    def request(self, container: Container) -> Request | None:
        self.check_amounts(container)
        return super().request(container)

    def memory(self, container: Container, mebibytes: int) -> MemoryRequest:
        return FixedMemory(mebibytes) if mebibytes else ShareOfCard(self.amount(container, self.percentage_name) or 100)

    # node side (A3)

    def device(self, record: CardRecord, position: int) -> Device:
        """The CUs that the plugin gives together are the card's `extra`, None where it doesn't say."""
        written = custom_info(record).get("cuperwgp")
        whole = isinstance(written, int | float) and 1 < written <= MAX_INT32 and written == int(written)
        return replace(super().device(record, position), extra=int(written or 0) if whole else None)

    def health(self, node: Node, now: float, zone: tzinfo | None = None) -> Health:
        """There is no handshake: a plugin that is gone takes the node's capacity with it."""
        return Health(healthy=capacity(node, self.count_name) > 0)

    # Fit (A7)

    @property
    def checks(self) -> tuple[Check, ...]:  # type: ignore[override]  # nobody sets it, and it depends on HAMi's version
        return _IN_NUMA_GROUPS if self.is_2_11 else _CHECKS

    def terms(self, pod: Pod, default_policy: str) -> Constraints:
        """Since HAMi 2.11 with a key of its own for cards of one NUMA node."""
        terms = super().terms(pod, default_policy)
        bound = parse_bool(pod.annotations.get(AMD_NUMA_BIND, "")) is True
        return replace(terms, numa_bound=bound) if self.is_2_11 else terms

    def needed(self, request: Request, device: Device) -> tuple[int, int]:
        """The percentage in CUs, at least one; so a card that has none never has enough. In all that the plugin gives
        together, where it says that it does.
        """
        units = max(1, device.cores * request.cores // 100)
        together = device.extra or 1
        return request.memory.on(device.memory), min(-(-units // together) * together, max(device.cores, units))

    def resolve_share(self, request: Request, device: Device, usage: Usage) -> DeviceShare:
        return DeviceShare(*self.needed(request, device), counted=request.cores)

    # outputs (A8)

    def word(self, device: AllocatedDevice) -> str:
        """The product name, as long as the plugin finds `AMD` in it and the annotation stays readable."""
        fits = "AMD" in device.type.upper() and not any(mark in device.type for mark in ",:;")
        return device.type if fits else self.key
