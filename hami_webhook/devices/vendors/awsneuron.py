"""AWS Neuron: Inferentia and Trainium devices and NeuronCores. Source: docs/spec/awsneuron.md.

A container requests whole devices or single cores; there is no memory to account for. Several devices must lie side
by side, and the instance type alone says how. On the wire the cores of a device are a bit mask. No check looks at the
device's type: all of this vendor's devices have one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Annotated

from msgspec import Struct
from msgspec.structs import replace

from hami_webhook.config.devices import DeviceSection, Meaning
from hami_webhook.config.fields import ResourceName
from hami_webhook.devices import capacity_devices, reasons
from hami_webhook.devices.amounts import MAX_INT32
from hami_webhook.devices.device_lister import DeviceLister
from hami_webhook.devices.fit_request import (
    ACCESS_CHECKS,
    WITHIN_QUOTA,
    Candidate,
    Check,
    Choice,
    FitRequest,
    Selection,
)
from hami_webhook.devices.keys import DeviceKeys, Dimension
from hami_webhook.devices.model import (
    BadRequest,
    Device,
    DeviceShare,
    FixedMemory,
    Inventory,
    NodeView,
    RegistrationError,
    Request,
    Rows,
    Usage,
)
from hami_webhook.devices.placement_annotations import nanoseconds
from hami_webhook.devices.reasons import Rejection
from hami_webhook.devices.vendor import Vendor
from hami_webhook.kube.draft import ContainerDraft, PodDraft
from hami_webhook.kube.names import INSTANCE_TYPE
from hami_webhook.kube.objects import Container, Node, Pod
from hami_webhook.kube.quantity import parse_whole

IDS = "AWS_NEURON_IDS"
RESOURCE_TYPE = "NEURON_RESOURCE_TYPE"
TIME = "NEURON_ALLOC_TIME"
ALLOCATED = "NEURON_ALLOCATED"
NODE = "aws.amazon.com/predicate-node"

MOST_CORES_ASKED = 2 * MAX_INT32
MOST_CORES_OF_A_DEVICE = 31
USUAL_CORES = 2
"""Cores of a device where no node is registered yet."""

TRAINIUM_GROUPS = (1, 4, 8, 16)


class NeuronRequest(Request, frozen=True):
    """What a container requests: `count` whole devices, or, if `of_cores`, single cores.

    Until a node says how many cores a device has, a whole device has none here, and all single cores are of one device.
    """

    of_cores: bool = False

    def on(self, per_device: int) -> NeuronRequest | None:
        """The request where a device has `per_device` cores; None if no devices make up the cores requested."""
        if not self.of_cores:
            return replace(self, cores=per_device)
        requested = self.count * self.cores
        if requested <= per_device:
            return replace(self, count=1, cores=requested)
        return None if requested % per_device else replace(self, count=requested // per_device, cores=per_device)


class Numbers(Struct, frozen=True):
    """What the device plugin reads of one device given: its index, or the numbers of its cores on the node."""

    numbers: tuple[int, ...]
    of_cores: bool


def lowest_run(taken: int, cores: int, length: int) -> int:
    """The mask of the lowest `length` adjacent free cores of a device with `cores`, 0 if there is no such run."""
    run = (1 << length) - 1
    return next((run << start for start in range(cores - length + 1) if not taken & run << start), 0)


def blocks(instance_type: str, devices: int, count: int) -> Iterator[range]:
    """The runs of `count` neighbouring devices that may be given together, in the order they are tried.

    Inferentia: any; every other type counts as Trainium, whose groups are aligned.
    """
    inferentia = "inf" in instance_type.lower()
    if inferentia or count in TRAINIUM_GROUPS:
        for start in range(0, devices - count + 1, 1 if inferentia else count):
            yield range(start, start + count)


def usable_blocks(fit_request: FitRequest, usable: Collection[int]) -> Iterator[range]:
    """The blocks of the node all of whose devices, by index, are `usable`."""
    inventory = fit_request.inventory
    for block in blocks(inventory.facts, len(inventory.devices), fit_request.request.count):
        if all(index in usable for index in block):
            yield block


class FirstBlock(Selection):
    """The first block that passed as a whole and that the quota allows, lowest index first."""

    def choose(self, fit_request: FitRequest, passed: Sequence[Candidate]) -> Choice | None:
        by_index = {candidate.device.index: candidate for candidate in passed}
        for block in usable_blocks(fit_request, by_index):
            chosen = [by_index[index] for index in block]
            if fit_request.admits(chosen):
                return Choice(chosen, len(passed))
        return None


FIRST_BLOCK = FirstBlock()

USABLE = (*ACCESS_CHECKS, Check(reasons.CARD_INSUFFICIENT_CORE, lambda candidate: candidate.share is not None))
"""What a device must pass whatever the quota says."""


class AwsNeuronSection(DeviceSection):
    """`awsneuron`: whole devices, and single NeuronCores."""

    resource_count_name: Annotated[ResourceName, Meaning("number of whole devices", "devices")] = ""
    resource_core_name: Annotated[ResourceName, Meaning("number of NeuronCores", "cores")] = ""


class AwsNeuron(Vendor):
    key = "AWSNeuron"
    section_name = "awsneuron"
    section_type = AwsNeuronSection
    keys = DeviceKeys(
        allocated="hami.io/aws-neuron-devices-allocated",
        extra=(IDS, RESOURCE_TYPE, TIME, ALLOCATED, NODE),
        use_uuid=("aws.amazon.com/use-neuron-uuid",),
        nouse_uuid=("aws.amazon.com/nouse-neuron-uuid",),
    )
    lock = None
    masks_cores = True
    topology_ranks_nodes = False
    checks = (*USABLE, WITHIN_QUOTA)

    # admission (docs/spec/awsneuron.md#5)

    def check_amounts(self, container: Container) -> None:
        """The device resource's amount; the core resource's only where that is absent."""
        name, most, amount = self._asked(container)
        if amount is None:
            return
        value = parse_whole(amount)
        if value is None:
            raise BadRequest(f"{name} must be an integer")
        if value <= 0:
            raise BadRequest(f"{name} must be greater than 0")
        if value > most:
            raise BadRequest(f"{name} must not exceed {most}")

    def check_servable(self, container: Container, device_lister: DeviceLister) -> None:
        request = self.request(container)
        geometries = self._geometries(device_lister)
        if request is not None and not any(request.on(cores) for cores in geometries):
            raise BadRequest(f"{self.core_name} must be 1 or a multiple of {min(geometries)}, got {request.cores}")

    def warnings_of(self, container: ContainerDraft) -> Iterator[str]:
        if container.names_resource(self.count_name) and container.names_resource(self.core_name):
            yield f"{self.core_name} is ignored, because {self.count_name} is given too"

    def admit_pod(self, pod: PodDraft, device_lister: DeviceLister) -> None:
        requests = [self.request(draft.container) for draft in pod.containers]
        if len({request.of_cores for request in requests if request is not None}) > 1:
            pod.warn(
                f"some containers request {self.count_name} and some {self.core_name}: "
                f"{IDS} then has device numbers and core numbers in one list"
            )

    def _asked(self, container: Container) -> tuple[str, int, object]:
        """The resource that counts, the most of it that may be requested, and what is written for it."""
        devices = container.amount(self.count_name)
        if devices is not None:
            return self.count_name, MAX_INT32, devices
        return self.core_name, MOST_CORES_ASKED, container.amount(self.core_name) if self.core_name else None

    def _geometries(self, device_lister: DeviceLister) -> list[int]:
        """The numbers of cores that the registered nodes' devices have."""
        return sorted({found.devices[0].cores for found in device_lister.inventories(self.key)}) or [USUAL_CORES]

    # request extraction (6)

    def request(self, container: Container) -> NeuronRequest | None:
        """An amount that admission would have refused is no request."""
        name, most, written = self._asked(container)
        amount = parse_whole(written)
        if amount is None or not 0 < amount <= most:
            return None
        if name == self.core_name:
            return NeuronRequest(1, FixedMemory(0), amount, of_cores=True)
        return NeuronRequest(amount, FixedMemory(0), 0)

    def decided_later(self, request: Request) -> frozenset[Dimension]:
        return frozenset((Dimension.COUNT if _neuron(request).of_cores else Dimension.CORES,))

    def least(self, request: Request, device_lister: DeviceLister, eligible: Sequence[Device]) -> Request:
        requested = _neuron(request)
        suiting = [found for cores in self._geometries(device_lister) if (found := requested.on(cores)) is not None]
        return min(suiting, key=lambda found: (found.count, found.cores), default=requested)

    # node side (3)

    def inventory(self, node: Node) -> Inventory | None:
        """The devices that kubelet counts; `facts` is the instance type, which is all there is to topology."""
        devices, cores = (capacity_devices.capacity(node, name) for name in (self.count_name, self.core_name))
        if not devices or not cores:
            return None
        per_device, rest = divmod(cores, devices)
        if rest or per_device > MOST_CORES_OF_A_DEVICE:
            raise RegistrationError(
                f"capacity {self.core_name} {cores} is not 1 to {MOST_CORES_OF_A_DEVICE} cores for each of the "
                f"{devices} {self.count_name}"
            )
        instance_type = node.labels.get(INSTANCE_TYPE, "")
        unlabelled = f"label {INSTANCE_TYPE} is missing, so the rules of Trainium hold"
        cards = capacity_devices.counted(
            self.key, node, self.key, devices, slots=per_device, memory=0, cores=per_device
        )
        return Inventory(tuple(cards), instance_type, () if instance_type else (unlabelled,))

    # Fit (7)

    def resolve(self, request: Request, fit_request: FitRequest) -> Request | Rejection:
        devices = fit_request.inventory.devices
        cards = len(devices)
        return _neuron(request).on(devices[0].cores) or Rejection({reasons.CARD_INSUFFICIENT_CORE: cards}, cards)

    def refuses_node(self, fit_request: FitRequest) -> Rejection | None:
        """Too few devices; or no block of usable ones, which has a label of its own, alone."""
        refusal = super().refuses_node(fit_request)
        if refusal is not None or fit_request.request.count == 1:
            return refusal
        candidates = (
            Candidate(self, fit_request, device, fit_request.overlay.used(self.key, device.uuid), device.index)
            for device in fit_request.inventory.devices
        )
        usable = {card.device.index for card in candidates if all(check.passes(card) for check in USABLE)}
        if any(usable_blocks(fit_request, usable)):
            return None
        return Rejection({reasons.NUMA_NOT_FIT: 1}, len(fit_request.inventory.devices))

    def resolve_share(self, request: Request, device: Device, usage: Usage) -> DeviceShare | None:
        """The lowest free run of cores; of several devices each must be idle."""
        mask = lowest_run(usage.mask, device.cores, request.cores)
        if not mask or (request.count > 1 and usage.slots > 0):
            return None
        of_cores = _neuron(request).of_cores
        first = device.index * device.cores
        cores = tuple(first + bit for bit in range(device.cores) if mask >> bit & 1)
        return DeviceShare(0, request.cores, mark=Numbers(cores if of_cores else (device.index,), of_cores), mask=mask)

    def selection(self, fit_request: FitRequest) -> Selection:
        return FIRST_BLOCK if fit_request.request.count > 1 else super().selection(fit_request)

    # node score (8)

    def score(self, pod: Pod, view: NodeView, rows: Rows, policy: str) -> float:
        """10 × busy/all cores: without memory the general score is 0 everywhere."""
        devices = view.inventories[self.key].devices
        busy = sum(view.used(self.key, device.uuid).cores for device in devices)
        return 10 * busy / sum(device.cores for device in devices)

    # outputs (9)

    def encode(self, pod: Pod, rows: Rows, node: Node, now: float) -> dict[str, str]:
        given = [device.share.mark for row in rows if self.key in row for device in row[self.key].devices]
        known = [numbers for numbers in given if isinstance(numbers, Numbers)]
        resource = {RESOURCE_TYPE: self.core_name} if any(numbers.of_cores for numbers in known) else {}
        return {
            **super().encode(pod, rows, node, now),
            IDS: ",".join(str(number) for numbers in known for number in numbers.numbers),
            **resource,
            TIME: nanoseconds(now),
            ALLOCATED: "false",
            NODE: node.name,
        }


def _neuron(request: Request) -> NeuronRequest:
    assert isinstance(request, NeuronRequest)
    return request
