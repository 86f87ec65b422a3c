"""What a fleet promises and what it still has room for, by model: the figures of the page Overview (docs/ui.md).

The largest request is what Fit says of a pod of one container, not an estimate. It is looked for on the nodes in the
order of what their cards have free, which bounds what any request may get there, so that nearly always one node is
asked. Memory is MiB.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from hami_webhook.devices.model import BadRequest, Device, FixedMemory, NodeView, Request, ShareOfCard
from hami_webhook.devices.pod_fit import NodeFit, PodRequest, fit_pod
from hami_webhook.devices.registry import Vendors
from hami_webhook.devices.vendor import Vendor
from hami_webhook.kube.objects import Pod

COUNTS = (1, 2, 4, 8)
"""Numbers of cards for which the largest request is looked for."""
_MOST_NODES = 32
"""Nodes on which Fit is asked for one figure. More than one is needed only where Fit refuses what is free."""
_META = {"name": "largest", "namespace": "default"}
_SPEC = {"containers": [{"name": "main"}]}
_NO_ANNOTATIONS: Mapping[str, str] = {}


class LargestRequest(Struct, frozen=True):
    """The most memory of each of `cards` cards that a pod gets on a node now; 0 where a model's isn't counted."""

    cards: int
    memory: int
    node: str


class Capacity(Struct, frozen=True):
    """The cards of a model, of one pool of nodes where a label of the nodes names pools.

    `card_memory` is that of the smallest of the cards, `free` is memory that isn't promised, of cards that take pods;
    `free_on_empty` the part of it on cards that no pod holds. `largest` and `linked` have an entry for each of
    `COUNTS`, None where nothing fits; `linked` is what a pod gets that asks for linked cards, of a vendor without such
    an annotation what cards of one link group give; empty where no node registers links.
    """

    vendor: str
    model: str
    pool: str
    nodes: int
    cards: int
    healthy: int
    empty: int
    used_slots: int
    slots: int
    used_memory: int
    memory: int
    used_cores: int
    cores: int
    card_memory: int
    free: int
    free_on_empty: int
    largest: Sequence[LargestRequest | None]
    linked: Sequence[LargestRequest | None]

    @property
    def whole(self) -> Sequence[LargestRequest | None]:
        """Those of `largest` that are whole cards, as all cards of a model without memory are."""
        return [each if each is not None and each.memory >= self.card_memory else None for each in self.largest]

    @property
    def fragmentation(self) -> int:
        """The percentage of the free memory that is on cards which pods hold already."""
        return 100 - 100 * self.free_on_empty // self.free if self.free else 0


def capacities(
    views: Iterable[NodeView], vendors: Vendors, pool: str = "", closed: Collection[str] = ()
) -> list[Capacity]:
    """One for each model, and each value of the nodes' label `pool` if it is given; sorted.

    Nodes of the names `closed` take no new pods: their cards count, but nothing fits on them.
    """
    groups: dict[tuple[str, str, str], list[_Part]] = defaultdict(list)
    for view in views:
        place = view.node.labels.get(pool, "") if pool else ""
        for vendor, inventory in view.inventories.items():
            for model in sorted({device.type for device in inventory.devices}):
                devices = [device for device in inventory.devices if device.type == model]
                groups[vendor, model, place].append(_Part(view, vendor, devices, view.name not in closed))
    return [_capacity(key, parts, vendors) for key, parts in sorted(groups.items())]


class _Part(Struct, frozen=True):
    """The cards of one model on a node."""

    view: NodeView
    vendor: str
    devices: Sequence[Device]
    is_open: bool

    def free(self, devices: Iterable[Device]) -> list[int]:
        """The free memory of each card that has room for a container more, most first."""
        return sorted((self._left(device) for device in devices if self.view.has_free_slot(device)), reverse=True)

    def _left(self, device: Device) -> int:
        return max(0, device.memory - self.view.used(device.vendor, device.uuid).memory)

    def only(self, devices: Sequence[Device]) -> NodeView:
        """The node with no other cards."""
        inventory = self.view.inventories[self.vendor]
        if len(devices) == len(inventory.devices) and len(self.view.inventories) == 1:
            return self.view
        return replace(self.view, inventories={self.vendor: replace(inventory, devices=tuple(devices))})


def _capacity(key: tuple[str, str, str], parts: Sequence[_Part], vendors: Vendors) -> Capacity:
    vendor, model, place = key
    held = [(device, part.view.used(vendor, device.uuid)) for part in parts for device in part.devices]
    healthy = [part.view.is_healthy(device) for part in parts for device in part.devices]
    usable = [part for part in parts if part.is_open]
    whole = [_CardSet(part, part.devices, part.free(part.devices)) for part in usable]
    linked = [each for part in usable for each in _linked_sets(part, vendors[vendor])]
    asking = vendors[vendor].linked_annotations
    return Capacity(
        vendor,
        model,
        place,
        len(parts),
        len(held),
        sum(healthy),
        sum(is_healthy and not usage.slots for is_healthy, (_, usage) in zip(healthy, held, strict=True)),
        sum(usage.slots for _, usage in held),
        sum(device.slots for device, _ in held),
        sum(usage.memory for _, usage in held),
        sum(device.memory for device, _ in held),
        sum(usage.cores for _, usage in held),
        sum(device.cores for device, _ in held),
        min((device.memory for device, _ in held), default=0),
        sum(sum(cards.free) for cards in whole),
        sum(
            sum(part.free(device for device in part.devices if not part.view.used(vendor, device.uuid).slots))
            for part in usable
        ),
        [_largest(whole, count, vendors) for count in COUNTS],
        [_largest(linked, count, vendors, asking) for count in COUNTS if count > 1] if linked else [],
    )


def _linked_sets(part: _Part, vendor: Vendor) -> Iterator[_CardSet]:
    """Of a node with link groups all cards, if pods can ask for linked ones, else those of each group."""
    by_uuid = {device.uuid: device for device in part.devices}
    groups = vendor.link_groups(part.view.inventories[part.vendor])
    if groups and vendor.linked_annotations:
        groups = [list(by_uuid)]
    for group in groups:
        devices = [by_uuid[uuid] for uuid in group if uuid in by_uuid]
        yield _CardSet(part, devices, part.free(devices))


class _CardSet(NamedTuple):
    """Cards of which a container may get some together, and the free memory of those that have room, most first."""

    part: _Part
    devices: Sequence[Device]
    free: Sequence[int]


def _largest(
    sets: Sequence[_CardSet], count: int, vendors: Vendors, annotations: Mapping[str, str] = _NO_ANNOTATIONS
) -> LargestRequest | None:
    """The largest request of so many cards that fits on one of the sets of cards, for a pod with these annotations."""
    pod = Pod.from_object({"spec": _SPEC, "metadata": {**_META, "annotations": dict(annotations)}})
    large = [each for each in sets if len(each.free) >= count]
    best: LargestRequest | None = None
    for part, devices, free in sorted(large, key=lambda each: (-each.free[count - 1], each.part.view.name))[
        :_MOST_NODES
    ]:
        most = free[count - 1]
        if best is not None and most <= best.memory:
            break
        found = _most_memory(part.only(devices), vendors[part.vendor], pod, count, most, vendors)
        if found is not None and (best is None or found > best.memory):
            best = LargestRequest(count, found, part.view.name)
    return best


def _most_memory(view: NodeView, vendor: Vendor, pod: Pod, count: int, most: int, vendors: Vendors) -> int | None:
    """The most MiB of each card, at most `most`, that Fit finds there; None if the cards can't be had."""
    whole = _request(vendor, count)
    if whole is None:
        return None
    if not vendor.memory_name or whole.memory != ShareOfCard(100):
        return _fitted(view, vendor, pod, whole, vendors)  # whole cards are all that can be asked for
    unit = vendor.memory_factor
    fits, fails, found = 0, most // unit + 1, None
    while fails - fits > 1:
        # what is free is tried first: it fits but for vendors that give more than was asked for
        amount = fails - 1 if fails > most // unit else (fits + fails) // 2
        given = _fitted(view, vendor, pod, replace(whole, memory=FixedMemory(amount * unit)), vendors)
        if given is None:
            fails = amount
        else:
            fits, found = amount, given
    return found


def _request(vendor: Vendor, count: int) -> Request | None:
    """What a container requests that writes a number of cards and nothing else."""
    limits = {vendor.count_name: str(count)}
    manifest = {"spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]}, "metadata": _META}
    try:
        pod = Pod.from_object(manifest)
        return vendor.requests_of(pod)[0]
    except BadRequest:
        return None


def _fitted(view: NodeView, vendor: Vendor, pod: Pod, request: Request, vendors: Vendors) -> int | None:
    """The least MiB that the pod's container gets of each of its cards on the node; None if it doesn't fit."""
    found = fit_pod(view, PodRequest(pod, [{vendor.key: request}], {vendor.key: vendor.terms(pod, "")}), vendors, None)
    if not isinstance(found, NodeFit):
        return None
    return min(device.share.memory for device in found.rows[0][vendor.key].devices)
