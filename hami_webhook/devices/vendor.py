"""What every vendor declares, and the behaviour most of them share: the base class of all vendor modules.

A subclass reads like a data sheet: its resource names, its annotation keys, how it reads a node, its checks in order,
how it resolves memory and cores on a card, its selection. Nothing here does I/O.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from enum import Enum

from hami_webhook.devices import reasons
from hami_webhook.devices.codecs import DeviceEntry, decode_pod_devices, encode_pod_devices, parse_bool
from hami_webhook.devices.model import (
    IDLE,
    BadRequest,
    Booking,
    Device,
    Inventory,
    Request,
    Rows,
    Usage,
)
from hami_webhook.devices.policy import GPU_POLICY, CardPolicy, ListRule, parse_weights
from hami_webhook.devices.reasons import Rejection
from hami_webhook.devices.trial import FIRST_FIT, Check, Selection, Terms, Trial
from hami_webhook.kube.draft import ContainerDraft, PodDraft
from hami_webhook.kube.objects import Container, Node, Pod
from hami_webhook.kube.quantity import parse_whole

MAX_INT32 = 2**31 - 1
_HANDSHAKE_SECONDS = 60.0
_HANDSHAKE_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}", re.ASCII)


class Dimension(Enum):
    """What a quota key counts."""

    COUNT = "count"
    MEMORY = "memory"
    CORES = "cores"


@dataclass(frozen=True, slots=True)
class QuotaKey:
    """A managed key `limits.<resource>`; for memory, `factor` is the MiB per unit."""

    name: str
    dimension: Dimension
    factor: int = 1


@dataclass(frozen=True, slots=True)
class DeviceKeys:
    """A vendor's annotation keys: what placement writes, and the lists users select devices with.

    Where a vendor has alias keys, all are read and the first is written; an empty tuple means the vendor has none.
    """

    allocated: str
    to_allocate: str = ""
    extra: tuple[str, ...] = ()
    use_uuid: tuple[str, ...] = ()
    nouse_uuid: tuple[str, ...] = ()
    use_type: tuple[str, ...] = ()
    nouse_type: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()

    @property
    def owned(self) -> tuple[str, ...]:
        """The scheduler-owned keys: users may not set them."""
        return tuple(key for key in (self.allocated, self.to_allocate, *self.extra) if key)


@dataclass(frozen=True, slots=True)
class Health:
    """Whether a vendor's cards on a node may be used, until when that holds if nothing changes, and what to do.

    `until` is Unix seconds (None: for good); `request_handshake` asks the leader to write a new handshake.
    """

    healthy: bool
    until: float | None = None
    request_handshake: bool = False


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A pod's placement of this vendor can't be read; the text says why."""

    reason: str


class Vendor:
    """One accelerator family. Subclasses set the class attributes and override what is peculiar to them.

    `gone_with_allocatable`: the cards are dropped at once when the node's allocatable count falls to 0.
    `touches_every_container`: admission has something to do in containers that ask for none of the resources too.
    """

    key: str
    count_name: str = ""
    memory_name: str = ""
    core_name: str = ""
    memory_factor: int = 1
    keys: DeviceKeys
    register_annotation: str = ""
    handshake_annotation: str = ""
    gone_with_allocatable: bool = False
    touches_every_container: bool = False
    locks_node: bool = True
    checks: tuple[Check, ...] = ()
    unbookable: str = reasons.CARD_INSUFFICIENT_MEMORY
    topology_ranks_nodes: bool = True

    # what is asked

    @property
    def resource_names(self) -> tuple[str, ...]:
        """Every resource name of the vendor that a pod may ask for."""
        return tuple(name for name in (self.count_name, self.memory_name, self.core_name) if name)

    def asks(self, container: Container | ContainerDraft) -> bool:
        """Whether the container names any of the vendor's resources."""
        return any(container.asks_for(name) for name in self.resource_names)

    def admit(self, container: ContainerDraft, pod: PodDraft) -> bool:
        """Normalise the container; True if it asks for the vendor's cards. Raises `BadRequest`."""
        raise NotImplementedError

    def check_amounts(self, container: Container) -> None:
        """Raises `BadRequest` for an amount that can't be meant, in limits or in requests."""

    def request(self, container: Container) -> Request | None:
        """What the container asks, None for nothing. Raises `BadRequest` for a value admission would have refused."""
        raise NotImplementedError

    # what is registered

    def inventory(self, node: Node) -> Inventory | None:
        """The vendor's cards on the node, None if it registers none. Raises `RegistrationError`."""
        raise NotImplementedError

    def health(self, node: Node, now: float, zone: tzinfo | None = None) -> Health:
        """The common handshake rule (core chapter 3.2); `zone` is that of the times in handshakes (None: local)."""
        if not self.handshake_annotation:
            return Health(healthy=True)
        handshake = node.annotations.get(self.handshake_annotation, "")
        if "Requesting" not in handshake:
            return Health(healthy=True, request_handshake=True)
        asked = _handshake_time(handshake, zone)
        if asked is None or self.allocatable(node) > 0:
            return Health(healthy=True)
        deadline = asked + _HANDSHAKE_SECONDS
        return Health(healthy=True, until=deadline) if now < deadline else Health(healthy=False)

    def allocatable(self, node: Node) -> int:
        """How many of the vendor's count resource kubelet offers on the node."""
        return parse_whole(node.allocatable.get(self.count_name)) or 0

    def closed_cards(self, inventory: Inventory, residents: Sequence[Pod]) -> frozenset[str]:
        """Cards that must take nobody new because of what the node's pods say; `residents` are the pods on the node."""
        return frozenset()

    def marks(self, pod: Pod) -> Mapping[str, tuple[object, ...]]:
        """What a placed pod's annotations add to the usage of its cards beyond amounts, by UUID."""
        return {}

    # Fit

    def terms(self, pod: Pod, default_policy: str) -> Terms:
        """What the pod's annotations ask of this vendor's cards. Raises ValueError for bad scoring weights."""
        notes, keys = pod.annotations, self.keys
        return Terms(
            policy=CardPolicy.parse(notes.get(GPU_POLICY, default_policy)),
            weights=parse_weights(notes, pod.name),
            uuids=ListRule.read(notes, keys.use_uuid, keys.nouse_uuid),
            types=ListRule.read(notes, keys.use_type, keys.nouse_type, fold=True),
            numa_bound=parse_bool(notes.get("nvidia.com/numa-bind", "")) is True,
        )

    def refuses_node(self, trial: Trial) -> Rejection | None:
        """A reason to refuse the node before any card is looked at."""
        if trial.request.count > len(trial.inventory.devices):
            return Rejection(bare=reasons.NODE_INSUFFICIENT_DEVICE)
        return None

    def memory_needed(self, request: Request, device: Device) -> int:
        """MiB the request needs on this card."""
        return request.memory.on(device.memory)

    def book(self, request: Request, device: Device, usage: Usage) -> Booking | None:
        """What the card would be booked with; None if there is no way, which counts under `unbookable`."""
        return Booking(self.memory_needed(request, device), request.cores)

    def floor(self, request: Request, device: Device) -> int:
        """MiB that an idle card of this kind would be booked with."""
        booking = self.book(request, device, IDLE)
        return booking.memory if booking else self.memory_needed(request, device)

    def retakes(self, request: Request, device: Device) -> bool:
        """Whether one container may take several shares of this card."""
        return False

    def links_unknown(self, inventory: Inventory) -> bool:
        """Whether a topology-aware choice would be blind here, as the node doesn't tell how its cards are linked."""
        return False

    def selection(self, trial: Trial) -> Selection:
        return FIRST_FIT

    # what placement writes, and reads back

    def countable_cores(self, cores: int) -> int:
        """The cores quota counts for the cores field of an entry."""
        return cores

    def encode(self, rows: Rows, node: Node) -> dict[str, str]:
        """The vendor's annotations for a placement; rows without its cards keep an empty slot."""
        found = [row.get(self.key) for row in rows]
        entries = [
            [DeviceEntry(d.uuid, self.key, d.booking.memory, d.booking.cores) for d in allocation.devices]
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

    # quota

    def quota_keys(self) -> tuple[QuotaKey, ...]:
        """The keys of a ResourceQuota that the vendor's resources are charged to."""
        named = (
            (self.count_name, Dimension.COUNT, 1),
            (self.memory_name, Dimension.MEMORY, self.memory_factor),
            (self.core_name, Dimension.CORES, 1),
        )
        return tuple(QuotaKey(f"limits.{name}", dimension, factor) for name, dimension, factor in named if name)


def check_whole(container: str, written: Mapping[str, object], resource: str, most: int, what: str) -> None:
    """Raises `BadRequest` unless the amount of `resource` in `written` is absent or an integer from 0 to `most`."""
    value = written.get(resource)
    if not resource or value is None:
        return
    amount = parse_whole(value)
    if amount is None or not 0 <= amount <= most:
        text = value if isinstance(value, str) else repr(value)
        shown = text if len(text) <= 40 else text[:37] + "..."
        raise BadRequest(
            f"invalid {resource} value {shown} in container {container}: must be {what} between 0 and {most}"
        )


def _handshake_time(handshake: str, zone: tzinfo | None) -> float | None:
    """The time behind the first `_`, `YYYY-MM-DD HH:MM:SS`; None if there is none."""
    text = handshake.partition("_")[2].strip()
    if not _HANDSHAKE_TIME.fullmatch(text):
        return None
    try:
        return datetime.fromisoformat(text).replace(tzinfo=zone).timestamp()
    except (ValueError, OverflowError):
        return None
