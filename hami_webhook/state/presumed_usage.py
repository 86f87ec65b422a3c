"""Presume which cards are held by bound pods whose annotations don't name their cards.

Source: docs/spec/core.md#10.5.

Such pods were bound without a placement of ours, or theirs can't be read. kubelet counts them by the resources that
the node offers. Their cards are unknown, so the program presumes idle cards first, and among these the last
registered ones first. A card counts once: either for a pod that names it, or for a pod presumed on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from hami_webhook.devices.fit_request import Candidate, FitRequest
from hami_webhook.devices.model import (
    BadRequest,
    Device,
    DeviceShare,
    Inventory,
    NodeView,
    Overlay,
    PodUsage,
    Request,
    Usage,
)
from hami_webhook.devices.placement_annotations import NODE
from hami_webhook.devices.reasons import Rejection
from hami_webhook.devices.registry import Vendors
from hami_webhook.devices.vendor import Vendor
from hami_webhook.kube.message_text import first_of
from hami_webhook.kube.objects import Container, ContainerKind, Node, Pod
from hami_webhook.kube.quantity import parse_whole
from hami_webhook.kube.requests import effective
from hami_webhook.state.pod_allocations import shares

MOST_SHARES = 1024
"""Shares of a vendor's cards that a node's pods are presumed to hold; for more each card is taken as full."""

_NO_ANNOTATIONS: Mapping[str, str] = {}
_NO_CARDS: Mapping[str, Device] = {}


class _Presumed(Struct):
    """What pods are presumed to hold of one vendor's cards, by UUID."""

    holders: dict[str, list[PodUsage]] = {}
    shares: int = 0


def unplaced_vendors(pod: Pod, vendors: Vendors) -> frozenset[str]:
    """The backend keys of the vendors whose cards a bound pod may hold without saying which.

    Vendors whose cards the pod gets by a ResourceClaim, or whose resources another scheduler counts, aren't included.
    """
    if not pod.node_name or pod.terminal or pod.extended_claim:
        return frozenset()
    names = pod.named
    if vendors.own_names.isdisjoint(names):
        return frozenset()
    for scheduler in vendors.foreign_to(pod, names):
        names = names - scheduler.resource_names
    named = vendors.named_among(names)
    return named - _placed(pod, vendors) if NODE in pod.annotations else named


def _placed(pod: Pod, vendors: Vendors) -> set[str]:
    """The backend keys of the vendors whose annotation of a placement says which cards the pod holds.

    Forms of one vendor share an annotation: what one of them reads there is the whole.
    """
    written = vendors.allocated_in(pod.annotations)
    read = {vendor.keys.allocated for vendor in written if _says_which(vendor, pod)}
    return {vendor.key for vendor in written if vendor.keys.allocated in read}


def _says_which(vendor: Vendor, pod: Pod) -> bool:
    try:
        return bool(shares(vendor, pod, _NO_CARDS))
    except Exception:  # the cluster cache notes it
        return False


def presumed(view: NodeView, pods: Sequence[Pod], vendors: Vendors) -> NodeView:
    """Return the node with the presumed usage of `pods`: bound pods whose annotations don't name their cards."""
    if not pods:
        return view
    admitted = [*_admitted(view.node, pods, vendors)]
    usage, closed = dict(view.usage), set(view.closed)
    for key, inventory in view.inventories.items():
        mine = [pod for pod in admitted if key in unplaced_vendors(pod, vendors)]
        if not mine:
            continue
        try:
            usage |= _of_vendor(replace(view, usage=usage), vendors[key], inventory, mine)
        except Exception as error:
            vendors.faults.record("usage", view.name, error)
            closed |= {(key, device.uuid) for device in inventory.devices}
    return replace(view, usage=usage, closed=frozenset(closed), unplaced=tuple(admitted))


def _admitted(node: Node, pods: Iterable[Pod], vendors: Vendors) -> Iterable[Pod]:
    """The pods whose requests kubelet would admit, by what the node has; those that run first, then the oldest."""
    left: dict[str, int] = {}
    for pod in sorted(pods, key=lambda pod: (pod.phase != "Running", pod.created or 0.0, pod.uid)):
        requested = {name: _amount(pod, name) for name in pod.named & vendors.own_names if _offered(node, name)}
        if any(requested.values()) and all(
            amount <= left.setdefault(name, _offered(node, name)) for name, amount in requested.items()
        ):
            for name, amount in requested.items():
                left[name] -= amount
            yield pod


def _offered(node: Node, resource: str) -> int:
    """How many of a resource the node has; allocatable falls to 0 while a device plugin starts."""
    return max(parse_whole(amounts.get(resource)) or 0 for amounts in (node.capacity, node.allocatable))


def _amount(pod: Pod, resource: str) -> int:
    rows = ((each.kind, parse_whole(each.amount(resource)) or 0) for each in pod.containers)
    return effective(rows, init_finished=pod.init_finished)


def _of_vendor(
    view: NodeView, vendor: Vendor, inventory: Inventory, pods: Sequence[Pod]
) -> dict[tuple[str, str], Usage]:
    """The usage of the vendor's cards with what the pods are presumed to hold."""
    found, overlay = _Presumed(), Overlay(view)
    for pod in pods:
        for row, kind, request in _held_at_once(view.node, vendor, inventory, pod):
            _presume(vendor, found, pod, row, kind, request, inventory, overlay)
    return {(vendor.key, uuid): _joined(view, vendor.key, uuid, overlay, found) for uuid in found.holders}


def _joined(view: NodeView, key: str, uuid: str, overlay: Overlay, found: _Presumed) -> Usage:
    holders = (*view.used(key, uuid).holders, *found.holders[uuid])
    return replace(overlay.used(key, uuid), holders=holders)


def _held_at_once(
    node: Node, vendor: Vendor, inventory: Inventory, pod: Pod
) -> list[tuple[int, ContainerKind, Request]]:
    """The containers' requests that are held together when the pod holds most, by their rows."""
    rows = []
    for row, container in enumerate(pod.containers):
        try:
            request = _request(vendor, container, pod, node, inventory)
        except (BadRequest, ValueError):
            continue
        if request is not None and request.count > 0:
            rows.append((row, container.kind, request))
    stay = [each for each in rows if each[1] is not ContainerKind.INIT]
    together = [stay]
    for init in rows:
        if init[1] is ContainerKind.INIT and not pod.init_finished:
            together.append([*[each for each in stay if each[1] is ContainerKind.SIDECAR and each[0] < init[0]], init])
    return max(together, key=lambda held: sum(request.count for _, _, request in held))


def _request(vendor: Vendor, container: Container, pod: Pod, node: Node, inventory: Inventory) -> Request | None:
    """What a container holds: with a placement that can't be read what it asked for, as it got no more."""
    if NODE in pod.annotations and vendor.keys.allocated in pod.annotations:
        return vendor.request_in_pod(container, pod)
    return vendor.unplaced_request(_counted(container, node), inventory)


def _counted(container: Container, node: Node) -> Container:
    """The container with those of its resources that kubelet counts: nothing else that it names is kept by anybody."""
    amounts = [
        {name: amount for name, amount in written.items() if name in node.capacity or name in node.allocatable}
        for written in (container.limits, container.requests)
    ]
    return replace(container, limits=amounts[0], requests=amounts[1])


def _presume(
    vendor: Vendor,
    found: _Presumed,
    pod: Pod,
    row: int,
    kind: ContainerKind,
    request: Request,
    inventory: Inventory,
    overlay: Overlay,
) -> None:
    """Take cards for one container: where its request fits, else what is left of one card for each that it requests."""
    bare = replace(pod, annotations=_NO_ANNOTATIONS)
    fit_request = FitRequest(bare, vendor.terms(bare, ""), request, row, kind, inventory, overlay)
    resolved = vendor.resolve(request, fit_request)
    if not isinstance(resolved, Rejection):
        fit_request.request = resolved
    left = fit_request.request.count
    cards = _by_preference(overlay, inventory, found)
    for position, device in cards:
        while left and found.shares < MOST_SHARES:
            candidate = Candidate(vendor, fit_request, device, overlay.used(vendor.key, device.uuid), position)
            share = candidate.share
            if share is None or not all(check.passes(candidate) for check in vendor.checks):
                break
            left -= 1
            _take(vendor, found, pod, device, share, overlay)
    for _, device in cards:
        if left and (found.shares >= MOST_SHARES or device.uuid not in found.holders):
            left -= 1
            _take(vendor, found, pod, device, _rest_of(vendor, device, overlay), overlay)


def _by_preference(overlay: Overlay, inventory: Inventory, found: _Presumed) -> list[tuple[int, Device]]:
    """The cards with their places: open ones first; of these those where such pods are presumed already, idle ones, and
    the ones of which least is taken; the last registered first.
    """

    def key(each: tuple[int, Device]) -> tuple[bool, bool, int, int]:
        position, device = each
        presumed_here = device.uuid in found.holders
        slots = 0 if presumed_here else overlay.used(device.vendor, device.uuid).slots
        return not overlay.view.is_open(device), slots > 0, 0 if presumed_here else 1 + slots, -position

    return sorted(enumerate(inventory.devices), key=key)


def _take(vendor: Vendor, found: _Presumed, pod: Pod, device: Device, share: DeviceShare, overlay: Overlay) -> None:
    overlay.take(vendor.key, device.uuid, share)
    holder = PodUsage(pod, share.slots, share.memory, share.cores, share.mask)
    found.holders.setdefault(device.uuid, []).append(holder)
    found.shares += 1


def _rest_of(vendor: Vendor, device: Device, overlay: Overlay) -> DeviceShare:
    """All that is left of a card."""
    used = overlay.used(vendor.key, device.uuid)
    mask = ((1 << device.cores) - 1) & ~used.mask if vendor.masks_cores else 0
    left = (device.memory - used.memory, device.cores - used.cores, device.slots - used.slots)
    memory, cores, slots = (max(0, each) for each in left)
    return DeviceShare(memory, cores, slots=max(1, slots), mask=mask)


def remark(view: NodeView, vendors: Iterable[str] | None = None, *, unreadable: bool = True) -> str:
    """Name the pods that hold unknown cards of the node, with how many cards we presume for them.

    Empty if there are none.

    `vendors` are the backend keys that matter, all if it isn't given. If `unreadable` is False, pods whose placement
    can't be read are left out: an event on them says it.
    """
    uids = {pod.uid for pod in view.unplaced if unreadable or NODE not in pod.annotations}
    names: set[str] = set()
    numbers = []
    for key in view.inventories if vendors is None else vendors:
        devices = view.inventories[key].devices if uids and key in view.inventories else ()
        found = [
            [each.pod.key for each in view.used(key, device.uuid).holders if each.pod.uid in uids] for device in devices
        ]
        if any(found):
            names.update(*found)
            numbers.append(f"{sum(map(bool, found))} of {len(devices)} {key} cards")
    if not names:
        return ""
    return (
        f"{' and '.join(numbers)} count as held by pods whose cards aren't known: they were bound without a placement "
        f"of ours, or theirs can't be read: {first_of(sorted(names))}"
    )
