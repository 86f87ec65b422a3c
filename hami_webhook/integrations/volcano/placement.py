"""What is taken of a node's cards, and where Volcano would place a pod (docs/spec/volcano.md#7 to #9)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from hami_webhook.devices import reasons
from hami_webhook.devices.fit_pipeline import fit
from hami_webhook.devices.fit_request import FitRequest
from hami_webhook.devices.foreign_scheduler import NodeLister, NoNode, Part, Prediction
from hami_webhook.devices.model import (
    Allocation,
    Device,
    DeviceShare,
    Inventory,
    NodeView,
    Overlay,
    PodUsage,
    Request,
    Usage,
)
from hami_webhook.devices.reasons import Rejection
from hami_webhook.integrations.volcano.annotation_keys import (
    ALLOCATED,
    BIND_PHASE,
    BIND_TIME,
    NODE,
    TIME,
    TO_ALLOCATE,
)
from hami_webhook.integrations.volcano.geometry import Geometry, GeometryInstance
from hami_webhook.integrations.volcano.ids_annotation import AllocationEntry, encode, node_of, rows_of
from hami_webhook.integrations.volcano.registration import Registration, Registry
from hami_webhook.integrations.volcano.vgpu_cards import Cut, VolcanoCards
from hami_webhook.kube.objects import ContainerKind, Node, Pod


def instance_at(entry: AllocationEntry, card: Device | None) -> GeometryInstance | None:
    """The MIG instance that an entry names, if the card, its type and the group are known."""
    if entry.place is None or card is None or not isinstance(card.extra, Geometry):
        return None
    return card.extra.instance(entry.place)


def usage_of(
    registration: Registration, foreign_pods_on: Iterable[Pod], block: int, now: float
) -> dict[tuple[str, str], Usage]:
    """What placed pods take of a node's cards: every entry counts."""
    holders: dict[str, list[PodUsage]] = {}
    marks: dict[str, list[Cut]] = {}
    for pod in foreign_pods_on:
        for entry in (entry for row in rows_of(pod, now) or () for entry in row):
            instance = instance_at(entry, registration.by_uuid.get(entry.uuid))
            memory = instance.kind.memory // block if instance is not None else entry.memory
            holders.setdefault(entry.uuid, []).append(PodUsage(pod, 1, memory, entry.cores))
            if entry.place is not None:
                marks.setdefault(entry.uuid, []).append(Cut(instance, entry.memory))
    return {("volcano", uuid): Usage.of(tuple(found), tuple(marks.get(uuid, ()))) for uuid, found in holders.items()}


class _Fitted(Struct, frozen=True):
    """A pod on a node: the score, and what each requesting container got."""

    score: float
    allocations: Mapping[int, Allocation]


def predict(
    cards: VolcanoCards, registry: Registry, pod: Pod, node_lister: NodeLister, now: float
) -> Prediction | NoNode:
    """Where Volcano would place a pod at `now` (Unix seconds): the highest score, then the node's name."""
    requested = requests_of(cards, pod)
    failed: dict[str, str] = {}
    best: tuple[str, _Fitted] | None = None
    for node in sorted(node_lister.nodes(), key=lambda node: node.name):
        result = _fit(cards, registry, pod, requested, node, node_lister, now)
        if isinstance(result, Rejection):
            failed[node.name] = str(result)
        elif best is None or result.score > best[1].score:
            best = (node.name, result)
    if best is None:
        return NoNode(failed)
    name, fitted = best
    parts = {
        row: tuple(
            Part(device.uuid, cards.given(device.share), device.share.cores, device.share.profile or "")
            for device in allocation.devices
        )
        for row, allocation in fitted.allocations.items()
    }
    return Prediction(name, fitted.score, parts, _written(name, fitted.allocations.values(), now), failed)


def requests_of(cards: VolcanoCards, pod: Pod) -> dict[int, Request]:
    """What the app containers request, by the index of the container. Raises `BadRequest`."""
    found = {}
    for index, container in enumerate(pod.containers):
        request = cards.request(container) if container.kind is ContainerKind.APP else None
        if request is not None:
            found[index] = request
    return found


def _fit(
    cards: VolcanoCards,
    registry: Registry,
    pod: Pod,
    requested: Mapping[int, Request],
    node: Node,
    node_lister: NodeLister,
    now: float,
) -> _Fitted | Rejection:
    registered = registry.taking_part(node, now)
    if registered is None:
        return Rejection(bare=reasons.NODE_UNREGISTERED)
    inventory = Inventory(registered.devices, registered)
    others = [
        other
        for other in node_lister.foreign_pods_on(node.name)
        if other.uid != pod.uid and node_of(other) == node.name
    ]
    view = NodeView(node, {cards.key: inventory}, usage_of(registered, others, cards.block, now))
    overlay = Overlay(view)
    terms = cards.terms(pod)
    fit_requests = {
        row: FitRequest(pod, terms, request, row, ContainerKind.APP, inventory, overlay)
        for row, request in requested.items()
    }
    for fit_request in fit_requests.values():
        refusal = cards.refuses_node(fit_request)
        if refusal is not None:
            return refusal
    allocations: dict[int, Allocation] = {}
    for row, fit_request in fit_requests.items():
        result = fit(cards, fit_request)
        if isinstance(result, Rejection):
            return result
        allocations[row] = result
        for device in result.devices:
            overlay.take(cards.key, device.uuid, device.share)
    chosen = {device.uuid for allocation in allocations.values() for device in allocation.devices}
    devices = [device for device in registered.devices if device.uuid in chosen]
    return _Fitted(_score(cards, devices, view, overlay), allocations)


def _score(cards: VolcanoCards, chosen: Sequence[Device], before: NodeView, after: Overlay) -> float:
    """The node's score (section 8), in which the state before the pod decides whether a card was idle."""
    if cards.policy == "binpack":
        return sum(100 * after.used(cards.key, d.uuid).memory / d.memory for d in chosen if d.memory)
    if cards.policy == "spread":
        return sum(100.0 for d in chosen if before.used(cards.key, d.uuid).slots == 0)
    return 0.0


def _written(node: str, allocations: Iterable[Allocation], now: float) -> dict[str, str]:
    """The annotations of a placement."""
    text = encode([[_entry(device.uuid, device.share) for device in each.devices] for each in allocations])
    stamp = str(int(now))
    return {
        ALLOCATED: text,
        TO_ALLOCATE: text,
        NODE: node,
        TIME: stamp,
        BIND_TIME: stamp,
        BIND_PHASE: "allocating",
    }


def _entry(uuid: str, share: DeviceShare) -> AllocationEntry:
    """A card as Volcano writes it: with the memory requested, for an instance too."""
    if not isinstance(share.mark, Cut) or share.mark.instance is None:
        return AllocationEntry(uuid, share.memory, share.cores)
    return AllocationEntry(uuid, share.mark.requested, share.cores, share.mark.instance.place)
