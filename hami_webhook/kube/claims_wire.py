"""The fields that are read of the objects of `resource.k8s.io/v1`, as `kube/wire.py` has those of other groups."""

from __future__ import annotations

from typing import Any

from hami_webhook.kube.wire import Amounts, NodeSelectorRequirement, ObjectMeta, Wire


class CELSelector(Wire, frozen=True):
    expression: str | None = None


class DeviceSelector(Wire, frozen=True):
    cel: CELSelector | None = None


class CapacityRequirements(Wire, frozen=True):
    requests: Amounts | None = None


class ExactRequest(Wire, frozen=True):
    """What is requested of one class; an alternative of `firstAvailable` is the same without `adminAccess`."""

    name: str | None = None
    device_class_name: str | None = None
    selectors: tuple[DeviceSelector, ...] | None = None
    allocation_mode: str | None = None
    count: int | None = None
    admin_access: bool | None = None
    capacity: CapacityRequirements | None = None


class DeviceRequest(Wire, frozen=True):
    name: str | None = None
    exactly: ExactRequest | None = None
    first_available: tuple[ExactRequest, ...] | None = None


class DeviceClaim(Wire, frozen=True):
    requests: tuple[DeviceRequest, ...] | None = None


class ClaimSpec(Wire, frozen=True):
    devices: DeviceClaim | None = None


class AllocationResult(Wire, frozen=True):
    """A device that a request got, or a share of one."""

    request: str | None = None
    driver: str | None = None
    pool: str | None = None
    device: str | None = None
    admin_access: bool | None = None
    consumed_capacity: Amounts | None = None


class DeviceAllocation(Wire, frozen=True):
    results: tuple[AllocationResult, ...] | None = None


class NodeTerm(Wire, frozen=True):
    match_fields: tuple[NodeSelectorRequirement, ...] | None = None


class AllocationNodes(Wire, frozen=True):
    """The nodes that the devices of an allocation can be used on; one that is of a node names it by a field."""

    node_selector_terms: tuple[NodeTerm, ...] | None = None


class Allocation(Wire, frozen=True):
    devices: DeviceAllocation | None = None
    node_selector: AllocationNodes | None = None


class ClaimStatus(Wire, frozen=True):
    allocation: Allocation | None = None


class OwnerReference(Wire, frozen=True):
    kind: str | None = None
    name: str | None = None
    uid: str | None = None
    controller: bool | None = None


class ClaimMeta(ObjectMeta, frozen=True):
    owner_references: tuple[OwnerReference, ...] | None = None


class ResourceClaim(Wire, frozen=True):
    metadata: ClaimMeta | None = None
    spec: ClaimSpec | None = None
    status: ClaimStatus | None = None


class ClassSpec(Wire, frozen=True):
    selectors: tuple[DeviceSelector, ...] | None = None
    extended_resource_name: str | None = None


class DeviceClass(Wire, frozen=True):
    metadata: ObjectMeta | None = None
    spec: ClassSpec | None = None


class ValidRange(Wire, frozen=True):
    min: Any = None
    max: Any = None
    step: Any = None


class RequestPolicy(Wire, frozen=True):
    default: Any = None
    valid_values: tuple[Any, ...] | None = None
    valid_range: ValidRange | None = None


class DeviceCapacity(Wire, frozen=True):
    value: Any = None
    request_policy: RequestPolicy | None = None


class SliceDevice(Wire, frozen=True):
    """`attributes` have one member each, which is named after the type of its value."""

    name: str | None = None
    attributes: dict[str, dict[str, Any]] | None = None
    capacity: dict[str, DeviceCapacity] | None = None
    allow_multiple_allocations: bool | None = None
    node_name: str | None = None


class Pool(Wire, frozen=True):
    name: str | None = None
    generation: int | None = None


class SliceSpec(Wire, frozen=True):
    driver: str | None = None
    pool: Pool | None = None
    node_name: str | None = None
    devices: tuple[SliceDevice, ...] | None = None


class ResourceSlice(Wire, frozen=True):
    metadata: ObjectMeta | None = None
    spec: SliceSpec | None = None


class TemplateSpec(Wire, frozen=True):
    spec: ClaimSpec | None = None


class ResourceClaimTemplate(Wire, frozen=True):
    metadata: ObjectMeta | None = None
    spec: TemplateSpec | None = None
