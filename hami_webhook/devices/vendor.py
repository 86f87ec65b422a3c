"""What every vendor declares, and the behaviour most of them share: the base class of all vendor modules.

A subclass reads like a data sheet: its resource names, its annotation keys, how it reads a node, its checks in order,
how it resolves memory and cores on a card, its selection. Nothing here does I/O or reads a clock: webhook, extender,
controller and simulator call the same hooks, and must come to the same (Q4). docs/adding-a-vendor.md explains them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from datetime import tzinfo
from functools import cached_property
from types import MappingProxyType
from typing import Any, ClassVar

from hami_webhook.config.devices import DeviceSection, Factored
from hami_webhook.devices import reasons
from hami_webhook.devices.amounts import MAX_INT32, check_bounds, unit_of, warn_of_bytes
from hami_webhook.devices.codecs import (
    CardRecord,
    DeviceEntry,
    decode_cards,
    decode_pod_devices,
    encode_pod_devices,
    parse_bool,
)
from hami_webhook.devices.device_lister import DeviceLister
from hami_webhook.devices.fit_request import (
    FIRST_FIT,
    USUAL_CHECKS,
    Candidate,
    Check,
    Constraints,
    FitRequest,
    Selection,
)
from hami_webhook.devices.handshake import Health, common_health
from hami_webhook.devices.keys import DeviceKeys, Dimension, QuotaKey, ReservedKeys
from hami_webhook.devices.lock_annotations import COMMON_LOCK, NodeLock
from hami_webhook.devices.model import (
    IDLE,
    AllocatedDevice,
    Device,
    DeviceShare,
    FixedMemory,
    Inventory,
    MemoryRequest,
    NodeView,
    RegistrationError,
    Request,
    Requests,
    Rows,
    ShareOfCard,
    Usage,
    WholeCard,
)
from hami_webhook.devices.occupancy import AMOUNTS_ALONE, Occupancy
from hami_webhook.devices.pod_preferences import NUMA_BIND, CardPolicy, ListRule, order, parse_weights
from hami_webhook.devices.reasons import Rejection
from hami_webhook.devices.registration import NodeRegistration
from hami_webhook.kube.draft import ContainerDraft, PodDraft
from hami_webhook.kube.objects import Container, Node, Pod
from hami_webhook.kube.quantity import parse_whole


class Vendor:
    """One accelerator family. Subclasses set the class attributes and override what is peculiar to them.

    Setting `section_name` registers the class: this section of device-config.yaml, of the model `section_type` (a tuple
    for a list of chips), enables its vendors.

    `section_fields`: the section's fields of the count's, the memory's and the core's name, in this order.
    `reserved`: annotations besides those of `keys` that only scheduler and device plugin write.
    `touches_every_container`: admission has something to do in containers that request none of the resources too.
    `is_2_11`: read pods as HAMi 2.11 does (docs/spec/core.md#2.5). `hides_cards`: admission then changes every
    container.
    `default_cores`: the cores of a container that requests none. `max_cores`: the upper bound; larger requests count as
    this number.
    `lock`: what is taken on the node while a pod that requests the vendor's cards is bound; None for nothing.
    `cores_in_units`: cards and annotations count cores in units, while pods, quotas and people speak of percent.
    `masks_cores`: the vendor distinguishes a card's cores, and the cores field of an entry on the wire is their mask.
    `multi_is_exclusive`: a container that requests several devices gets whole cards, whatever memory and cores it
    requests.
    `explains_memory`: a refused amount of memory is answered with an example, as people write `16Gi`.
    `limits_only`: an amount that is written in requests alone is checked, but requests nothing.
    `claims_by_name`: a pod that names a resource in limits belongs to our scheduler, even if it requests no card by it.
    `most_memory`: the most MiB that may be written for a device; `memory_may_be_bytes`: a binary suffix means bytes.
    `memory_is_percentage`: the resource of memory is a percentage of a card, in place of MiB.
    """

    classes: ClassVar[tuple[type[Vendor], ...]] = ()
    section_name: ClassVar[str] = ""
    section_type: ClassVar[Any] = None
    section_fields: ClassVar[tuple[str, ...]] = ("resource_count_name", "resource_memory_name", "resource_core_name")
    reserved: ClassVar[ReservedKeys] = ReservedKeys()
    key: str
    count_name: str = ""
    memory_name: str = ""
    core_name: str = ""
    memory_factor: int = 1
    keys: DeviceKeys
    registration: NodeRegistration = NodeRegistration()
    touches_every_container: bool = False
    lock: NodeLock | None = COMMON_LOCK
    checks: tuple[Check, ...] = USUAL_CHECKS
    occupancy: Occupancy = AMOUNTS_ALONE
    unresolvable: str = reasons.CARD_INSUFFICIENT_MEMORY
    linked_annotations: Mapping[str, str] = MappingProxyType({})  # what a pod carries that asks for linked cards
    shared_mode: Mapping[str, str] = MappingProxyType({})  # by its key what admits cards as ResourceClaims share them
    topology_ranks_nodes: bool = True
    default_cores: int = 0
    max_cores: int = 100
    cores_in_units: bool = False
    masks_cores: bool = False
    multi_is_exclusive: bool = False
    explains_memory: bool = False
    limits_only: bool = False
    claims_by_name: bool = False
    most_memory: int = MAX_INT32
    memory_may_be_bytes: bool = False
    memory_is_percentage: bool = False
    hides_cards: bool = False
    is_2_11: bool

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "section_name" in vars(cls):
            Vendor.classes = (*Vendor.classes, cls)

    def __init__(self, section: DeviceSection | None = None, *, is_2_11: bool = False) -> None:
        self.is_2_11 = is_2_11
        if section is None:
            return
        names = (getattr(section, field, "") for field in self.section_fields)
        self.count_name, self.memory_name, self.core_name = (*names, "", "", "")[:3]
        if isinstance(section, Factored):
            self.memory_factor = section.factor

    @classmethod
    def of(cls, section: Any, *, is_2_11: bool = False) -> Iterable[Vendor]:
        """Return the vendors that a section describes, including those without a resource name."""
        return (cls(section, is_2_11=is_2_11),)

    @property
    def known_as(self) -> str:
        """What the vendor is called in pod annotations, and to people; vendors that share it keep different cards."""
        return self.key

    # names: what a container has to write for its pod to be the vendor's concern

    @property
    def resource_names(self) -> tuple[str, ...]:
        """Every resource name of the vendor that a pod may request."""
        return tuple(name for name in (self.count_name, self.memory_name, self.core_name) if name)

    @property
    def kubelet_counted(self) -> tuple[str, ...]:
        """Those that a device plugin advertises in the units that pods ask in: kube-scheduler's own count is kept."""
        return ()

    def named_by(self, container: Container | ContainerDraft) -> bool:
        """Whether the container names any of the vendor's resources."""
        names = self._resource_names
        return not (names.isdisjoint(container.limits) and names.isdisjoint(container.requests))

    @cached_property
    def _resource_names(self) -> frozenset[str]:
        return frozenset(self.resource_names)

    # admission: `admit` and `admit_pod` alone change pods; the checks refuse, also on paths that mutate nothing

    def admit(self, container: ContainerDraft, pod: PodDraft, device_lister: DeviceLister) -> bool:
        """Normalise the container; True if it requests the vendor's cards. Raises `BadRequest`."""
        self.check_amounts(container.container)
        self.check_servable(container.container, device_lister)
        requested = self.request(container.container) is not None
        if requested:
            for warning in filter(None, (warn_of_bytes(container, self), *self.warnings_of(container))):
                pod.warn(f"container {container.name}: {warning}")
        return requested or (self.claims_by_name and any(name in container.limits for name in self.resource_names))

    def admit_pod(self, pod: PodDraft, device_lister: DeviceLister) -> None:
        """Normalise the pod as a whole, after its containers, if one of them requests the vendor's cards.

        Raises `BadRequest`.
        """

    def warnings_of(self, container: ContainerDraft) -> Iterator[str]:
        """Yield a warning for each valid but probably unintended setting of a container that requests cards."""
        if self.multi_is_exclusive and (count := self.amount(container, self.count_name) or 0) > 1:
            for name in (self.memory_name, self.core_name):
                if container.names_resource(name):
                    yield f"{name} isn't enforced, because {self.count_name} {count} gives whole cards"

    def check_amounts(self, container: Container) -> None:
        """Raises `BadRequest` for an amount that can't be meant, in limits or in requests."""
        check_bounds(container, self._bounds, self)

    def check_servable(self, container: Container, device_lister: DeviceLister) -> None:
        """Raises `BadRequest` for an amount that no registered node could serve, however empty it is."""

    def check_pod(self, pod: Pod) -> None:
        """Raise `BadRequest` for an invalid pod that requests the vendor's cards; amounts are checked elsewhere.

        Read only its containers and annotations, also in `requests_of`.
        """

    def bounds(self) -> Iterator[tuple[str, int, int, str]]:
        """Yield for each resource its name, the smallest and largest valid amount, and a description of the amount for
        refusals.

        A vendor with `memory_may_be_bytes` checks its memory amounts itself.
        """
        unit = unit_of(self.memory_factor, explained=self.explains_memory)
        yield self.count_name, 0, MAX_INT32, "an integer"
        if not self.memory_may_be_bytes:
            yield self.memory_name, 0, self.most_memory // self.memory_factor, f"an integer number of {unit}"
        yield self.core_name, 0, MAX_INT32, "an integer"

    @cached_property
    def _bounds(self) -> tuple[tuple[str, int, int, str], ...]:
        return tuple(self.bounds())

    @cached_property
    def _representable(self) -> tuple[tuple[str, int, int, str], ...]:
        """The bounds beyond which no request can hold an amount."""
        return tuple(Vendor.bounds(self))

    # requests: what is written means the same on every node; what a node or a card decides is left open in it

    def amount(self, container: Container | ContainerDraft, resource: str) -> int | None:
        """The whole number written for a resource, limits before requests; None for no name, nothing or no number."""
        if not resource:
            return None
        return parse_whole(container.limits.get(resource) if self.limits_only else container.amount(resource))

    def request(self, container: Container) -> Request | None:
        """The container's request, None for nothing. Raises `BadRequest` for a value admission would have refused."""
        check_bounds(container, self._representable)
        count = self.amount(container, self.count_name)
        if not count:
            return None
        memory = self.mebibytes(container)
        if self.multi_is_exclusive and count > 1:
            return Request(count, WholeCard(memory), self.max_cores)
        cores = self.amount(container, self.core_name)
        return Request(
            count, self.memory(container, memory), min(self.default_cores if cores is None else cores, self.max_cores)
        )

    def request_in_pod(self, container: Container, pod: Pod) -> Request | None:
        """As `request`, for a vendor whose reading of a container depends on the pod's annotations too."""
        return self.request(container)

    def unplaced_request(self, container: Container, inventory: Inventory) -> Request | None:
        """Return what a container without a placement holds, from the resources that kubelet counts.

        Raises `BadRequest`.
        """
        return self.request(container)

    def requests_of(self, pod: Pod) -> Requests:
        """What each container of the pod requests. Raises `BadRequest`."""
        return [self.request_in_pod(each, pod) if self.named_by(each) else None for each in pod.containers]

    def mebibytes(self, container: Container) -> int:
        """The MiB written for the memory resource, 0 for none."""
        return (self.amount(container, self.memory_name) or 0) * self.memory_factor

    def memory(self, container: Container, mebibytes: int) -> MemoryRequest:
        """The memory requested for each device, given the MiB written for it (0: none)."""
        return FixedMemory(mebibytes) if mebibytes else ShareOfCard(100)

    # before placement: the least that a request may come to on any card, which is charged meanwhile (Q11)

    def decided_later(self, request: Request) -> frozenset[Dimension]:
        """Return the dimensions of the request that only a node or card decides; until then, quotas charge a floor for
        them.
        """
        blind = bool(self.memory_name) and request.memory.declared is None
        return frozenset((Dimension.MEMORY,)) if blind else frozenset()

    def least(self, request: Request, device_lister: DeviceLister, eligible: Sequence[Device]) -> Request:
        """Return the smallest request that any node, or any eligible card, would turn this request into; `floor`
        computes memory.
        """
        return request

    def floor(self, request: Request, device: Device) -> int | None:
        """MiB that an idle card of this kind would be charged with; None if no card like it ever serves the request."""
        share = self.resolve_share(request, device, IDLE)
        return share.memory if share else self.needed(request, device)[0]

    # nodes: which cards are registered and may be used

    @property
    def source(self) -> str:
        """Where a node registers the vendor's cards, for people who look for what is missing."""
        if self.registration.annotation:
            return f"annotation {self.registration.annotation}"
        return f"status.capacity[{self.core_name or self.count_name}]"

    def inventory(self, node: Node) -> Inventory | None:
        """The vendor's cards on the node, None if it registers none. Raises `RegistrationError`.

        Here: what the node's register annotation lists, in JSON or in the colon form.
        """
        devices = self.registered(node)
        return Inventory(devices) if devices else None

    def registered(self, node: Node) -> tuple[Device, ...]:
        """The cards of the node's register annotation. Raises `RegistrationError`."""
        how = self.registration
        text = node.annotations.get(how.annotation)
        if text is None:
            return ()
        try:
            records = decode_cards(text, how.fields, unended=how.unterminated)
            return tuple(self.device(record, position) for position, record in enumerate(records))
        except RegistrationError as error:
            raise RegistrationError(f"{how.annotation}: {error}") from error

    def device(self, record: CardRecord, position: int) -> Device:
        """A registered card as the vendor reads it; `position` is its place in the list."""
        return Device(
            vendor=self.key,
            uuid=record.id,
            index=record.index,
            slots=record.count,
            memory=record.devmem,
            cores=record.devcore,
            type=record.type,
            numa=record.numa,
            mode=record.mode,
            healthy=record.health,
        )

    def health(self, node: Node, now: float, zone: tzinfo | None = None) -> Health:
        """The common handshake rule (docs/spec/core.md#3.2); `zone` is that of handshakes' times (None: local)."""
        if not self.registration.handshake:
            return Health(healthy=True)
        handshake = node.annotations.get(self.registration.handshake, "")
        return common_health(handshake, self.allocatable(node), now, zone)

    def allocatable(self, node: Node) -> int:
        """How many of the vendor's count resource kubelet offers on the node."""
        return parse_whole(node.allocatable.get(self.count_name)) or 0

    # Fit of one container on one node, in the order of `fit_pipeline`: the node, each card, the choice, the refusal

    def terms(self, pod: Pod, default_policy: str) -> Constraints:
        """Return the pod's constraints on this vendor's cards, from its annotations.

        Raises ValueError for bad scoring weights.
        """
        annotations = pod.annotations
        uuids, types = self.lists(annotations)
        return Constraints(
            policy=CardPolicy.of(annotations, default_policy, is_2_11=self.is_2_11),
            weights=parse_weights(annotations, pod.name),
            uuids=uuids,
            types=types,
            numa_bound=parse_bool(annotations.get(NUMA_BIND, "")) is True,
        )

    def lists(self, annotations: Mapping[str, str]) -> tuple[ListRule, ListRule]:
        """What a pod's annotations say of the UUIDs and the types of the cards it may get."""
        keys = self.keys
        return (
            ListRule.read(annotations, keys.use_uuid, keys.nouse_uuid),
            ListRule.read(annotations, keys.use_type, keys.nouse_type, fold=True),
        )

    def resolve(self, request: Request, fit_request: FitRequest) -> Request | Rejection:
        """The request on this node, where that depends on the node; or why the node can't serve it."""
        return request

    def refuses_node(self, fit_request: FitRequest) -> Rejection | None:
        """A reason to refuse the node before any card is looked at."""
        if fit_request.request.count > len(fit_request.inventory.devices):
            return Rejection(bare=reasons.NODE_INSUFFICIENT_DEVICE)
        return None

    def order(self, cards: Sequence[Candidate], terms: Constraints, *, numa_bound: bool) -> list[int]:
        """The indices of the cards in the order they are tried; here by the pod's policy (docs/spec/core.md#7.4)."""
        return order(cards, terms.policy, terms.weights, numa_bound=numa_bound)

    def needed(self, request: Request, device: Device) -> tuple[int, int]:
        """MiB and cores that the request needs on this card; cores in the unit in which the card's are registered."""
        return request.memory.on(device.memory), request.cores

    def resolve_share(self, request: Request, device: Device, usage: Usage) -> DeviceShare | None:
        """What the card would be charged with; None if there is no way, which counts under `unresolvable`."""
        return DeviceShare(*self.needed(request, device), request.profile, slots=request.slots)

    def selection(self, fit_request: FitRequest) -> Selection:
        return FIRST_FIT

    def refusal(self, fit_request: FitRequest, cards: Sequence[Candidate], usual: Rejection) -> Rejection:
        """The rejection of a node that can't serve the request; `cards` are all it has.

        `usual`: the selection's own reason, otherwise the number of cards by failed check, and of cards that passed but
        weren't enough.
        """
        return usual

    # nodes compared, and what people read of them

    def traits(self, inventory: Inventory, places: Mapping[str, int]) -> Hashable:
        """What Fit and `score` read of a node's facts and its cards' `extra`, with cards by `places`, not by UUID."""
        return inventory.facts, tuple(device.extra for device in inventory.devices)

    def score(self, pod: Pod, view: NodeView, rows: Rows, policy: str) -> float:
        """What a placement of the pod (rows) adds to the node's score; `view` is the node before it.

        The highest total wins, or, if `policy` (the pod's node policy as written, else the default) is `spread`, the
        lowest.
        """
        return 0.0

    def hint(self, label: str, views: Sequence[NodeView]) -> str:
        """Return a hint for the owner of a pod that these nodes reject with `label`, or an empty text."""
        return ""

    def link_groups(self, inventory: Inventory) -> Sequence[Sequence[str]]:
        """The UUIDs of the cards of each group that fast links join, as far as the node registers them."""
        return ()

    # the wire: what placement writes for the device plugin, and what is read back of it

    def word(self, device: AllocatedDevice) -> str:
        """Return the second field of an entry, by which the device plugin finds its entries: nearly always the backend
        key.
        """
        return self.known_as

    def encode(self, pod: Pod, rows: Rows, node: Node, now: float) -> dict[str, str]:
        """The vendor's annotations for a placement at `now` (Unix seconds); rows without its cards are empty slots."""
        found = [row.get(self.key) for row in rows]
        entries = [
            [
                DeviceEntry(d.uuid, self.word(d), d.share.memory, d.share.mask if self.masks_cores else d.share.cores)
                for d in allocation.devices
            ]
            if allocation
            else []
            for allocation in found
        ]
        text = encode_pod_devices(entries)
        return {key: text for key in (self.keys.to_allocate, self.keys.allocated) if key}

    def decode(self, pod: Pod) -> list[list[DeviceEntry]] | None:
        """What the pod was allocated of this vendor, row by row; None if nothing. Raises `BadAnnotation`."""
        text = pod.annotations.get(self.keys.allocated)
        if text is None:
            return None
        rows = decode_pod_devices(text)
        return rows if any(rows) else None

    # quota: what an entry on the wire counts, and under which keys

    def slots_held(self, entry: DeviceEntry, container: Container | None, card: Device | None) -> int:
        """The slots an entry of a placed pod takes; None where its container or its registered card isn't known."""
        return 1

    def quota_keys(self) -> tuple[QuotaKey, ...]:
        """The keys of a ResourceQuota that the vendor's resources are charged to."""
        named = (
            (self.count_name, Dimension.COUNT, 1, False),
            (self.memory_name, Dimension.MEMORY, self.memory_factor, self.memory_may_be_bytes),
            (self.core_name, Dimension.CORES, 1, False),
        )
        return tuple(
            QuotaKey(f"limits.{name}", dimension, factor, in_bytes, self.memory_is_percentage)
            for name, dimension, factor, in_bytes in named
            if name
        )
