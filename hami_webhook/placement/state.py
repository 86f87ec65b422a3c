"""The cluster as devices and usage, kept incrementally from what is told of nodes and pods (core chapter 3 and 10.4).

A node has a generation that grows with every change; its `NodeView` is immutable and made anew only then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import tzinfo
from itertools import count

from hami_webhook.devices.codecs import BadAnnotation
from hami_webhook.devices.model import Device, Holder, Inventory, NodeView, RegistrationError, Usage
from hami_webhook.devices.placed import NODE, TIME, Placed, placement_counts, read_placed
from hami_webhook.devices.policy import ListRule
from hami_webhook.devices.registry import Vendors
from hami_webhook.devices.vendor import Vendor
from hami_webhook.kube.objects import Node, Pod
from hami_webhook.kube.quantity import parse_whole

Card = tuple[str, str]
"""A card's backend key and UUID."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something about an object that takes it, or part of it, out of the books: for an event and a metric."""

    kind: str
    namespace: str
    name: str
    text: str


@dataclass(slots=True)
class _Resident:
    """A pod that holds cards of a node, and its share of each card's usage."""

    pod: Pod
    shares: Mapping[Card, tuple[Holder, tuple[object, ...]]]


@dataclass(slots=True)
class _NodeEntry:
    name: str
    node: Node | None = None
    inventories: dict[str, Inventory] = field(default_factory=dict)
    dropped: dict[str, str | None] = field(default_factory=dict)
    allocatable: dict[str, int] = field(default_factory=dict)
    judge_again: float | None = None
    residents: dict[str, _Resident] = field(default_factory=dict)
    usage: dict[Card, Usage] = field(default_factory=dict)
    generation: int = 0
    view: NodeView | None = None


class ClusterState:
    """What the scheduler knows. All times are Unix seconds and come in as arguments."""

    def __init__(self, vendors: Vendors, *, lapse: float = 300.0, zone: tzinfo | None = None) -> None:
        self._vendors = vendors
        self._lapse = lapse
        self._zone = zone
        self._nodes: dict[str, _NodeEntry] = {}
        self._pods: dict[str, Pod] = {}
        self._by_namespace: dict[str, dict[str, Pod]] = {}
        self._node_of: dict[str, str] = {}
        self._unbound: dict[str, float] = {}
        self._problems: dict[tuple[str, str, str], Problem] = {}
        self._generations = count(1)

    # what is told

    def set_node(self, node: Node, now: float) -> None:
        """A node was added or changed."""
        entry = self._nodes.setdefault(node.name, _NodeEntry(node.name))
        entry.node = node
        self._judge(entry, now)

    def remove_node(self, name: str) -> None:
        entry = self._nodes.get(name)
        if entry is None:
            return
        entry.node, entry.inventories, entry.judge_again = None, {}, None
        self._problems.pop(("Node", "", name), None)
        self._touch(entry)
        if not entry.residents:
            del self._nodes[name]

    def set_pod(self, pod: Pod, now: float) -> None:
        """A pod was added or changed."""
        before = self._pods.get(pod.uid)
        if before is not None and before.namespace != pod.namespace:
            self.remove_pod(pod.uid)
        self._pods[pod.uid] = pod
        self._by_namespace.setdefault(pod.namespace, {})[pod.uid] = pod
        self._leave(pod.uid)
        self._problems.pop(("Pod", pod.namespace, pod.name), None)
        if pod.terminal or NODE not in pod.annotations or not placement_counts(pod, now, self._lapse):
            return
        if not pod.node_name:
            self._unbound[pod.uid] = int(pod.annotations[TIME]) + self._lapse
        self._settle(pod)

    def remove_pod(self, uid: str) -> None:
        """A pod is gone."""
        pod = self._pods.pop(uid, None)
        if pod is not None:
            pods = self._by_namespace[pod.namespace]
            del pods[uid]
            if not pods:
                del self._by_namespace[pod.namespace]
            self._problems.pop(("Pod", pod.namespace, pod.name), None)
        self._leave(uid)

    def tick(self, now: float) -> None:
        """Let time pass: placements that were never bound lapse, handshakes expire."""
        for uid in [uid for uid, deadline in self._unbound.items() if now >= deadline]:
            self._leave(uid)
        for entry in self._nodes.values():
            if entry.judge_again is not None and now >= entry.judge_again:
                self._judge(entry, now)

    # what is asked

    def view(self, name: str) -> NodeView | None:
        """The node as it is now; None if it isn't known."""
        entry = self._nodes.get(name)
        if entry is None or entry.node is None:
            return None
        if entry.view is None:
            entry.view = NodeView(
                entry.node, dict(entry.inventories), dict(entry.usage), self._closed(entry), entry.generation
            )
        return entry.view

    def views(self) -> Iterator[NodeView]:
        """Every known node, by name."""
        for name in sorted(self._nodes):
            view = self.view(name)
            if view is not None:
                yield view

    def pods_in(self, namespace: str) -> list[Pod]:
        return list(self._by_namespace.get(namespace, {}).values())

    def pod(self, uid: str) -> Pod | None:
        return self._pods.get(uid)

    def pods(self) -> Iterable[Pod]:
        return self._pods.values()

    def problems(self) -> list[Problem]:
        """What can't be read at present, by kind and name."""
        return [self._problems[key] for key in sorted(self._problems)]

    def eligible(self, vendor: Vendor, pod: Pod) -> Iterator[Device]:
        """The vendor's cards the pod's lists allow, on nodes that match its nodeSelector (the quota's catalog)."""
        keys, notes = vendor.keys, pod.annotations
        uuids = ListRule.read(notes, keys.use_uuid, keys.nouse_uuid)
        types = ListRule.read(notes, keys.use_type, keys.nouse_type, fold=True)
        selector = (pod.node_selector or {}).items()
        for entry in self._nodes.values():
            inventory = entry.inventories.get(vendor.key)
            if inventory is None or entry.node is None:
                continue
            if any(entry.node.labels.get(key) != value for key, value in selector):
                continue
            yield from (d for d in inventory.devices if uuids.admits(d.uuid) and types.admits_type(d.type))

    # how it is kept

    def _judge(self, entry: _NodeEntry, now: float) -> None:
        """Read the node's cards anew, and leave out vendors whose plugin is gone."""
        node = entry.node
        assert node is not None
        entry.inventories, entry.judge_again = {}, None
        texts: list[str] = []
        for key, vendor in self._vendors.items():
            allocatable = parse_whole(node.allocatable.get(vendor.count_name)) or 0
            register = node.annotations.get(vendor.register_annotation)
            if vendor.gone_with_allocatable and allocatable == 0 and entry.allocatable.get(key, 0) > 0:
                entry.dropped[key] = register
            elif allocatable > 0 or entry.dropped.get(key, register) != register:
                entry.dropped.pop(key, None)
            entry.allocatable[key] = allocatable
            health = vendor.health(node, now, self._zone)
            if health.until is not None:
                entry.judge_again = min(health.until, entry.judge_again or health.until)
            if key in entry.dropped or not health.healthy:
                continue
            try:
                inventory = vendor.inventory(node)
            except RegistrationError as error:
                texts.append(str(error))
                continue
            if inventory is not None:
                entry.inventories[key] = inventory
                texts.extend(inventory.warnings)
        self._note(("Node", "", node.name), texts)
        self._touch(entry)

    def _settle(self, pod: Pod) -> None:
        """Count what the pod's annotations say it holds."""
        placed: dict[str, Placed] = {}
        texts = []
        for key, vendor in self._vendors.items():
            try:
                found = read_placed(vendor, pod)
            except BadAnnotation as error:
                texts.append(f"{vendor.keys.allocated} can't be read, so its cards aren't counted as used: {error}")
                continue
            if found is not None:
                placed[key] = found
        self._note(("Pod", pod.namespace, pod.name), texts)
        if not placed:
            return
        shares: dict[Card, tuple[Holder, tuple[object, ...]]] = {}
        for key, part in placed.items():
            marks = self._vendors[key].marks(pod)
            for card, debit in part.per_device(init_finished=pod.init_finished).items():
                shares[card] = (Holder(pod, debit.slots, debit.memory, debit.cores), marks.get(card[1], ()))
        name = pod.node_name or pod.annotations[NODE]
        entry = self._nodes.setdefault(name, _NodeEntry(name))
        entry.residents[pod.uid] = _Resident(pod, shares)
        self._node_of[pod.uid] = name
        self._recount(entry, shares)

    def _leave(self, uid: str) -> None:
        self._unbound.pop(uid, None)
        name = self._node_of.pop(uid, None)
        if name is None:
            return
        entry = self._nodes[name]
        gone = entry.residents.pop(uid)
        self._recount(entry, gone.shares)
        if entry.node is None and not entry.residents:
            del self._nodes[name]

    def _recount(self, entry: _NodeEntry, cards: Iterable[Card]) -> None:
        """Sum up anew what is taken of the given cards."""
        for card in cards:
            parts = [resident.shares[card] for resident in entry.residents.values() if card in resident.shares]
            if not parts:
                entry.usage.pop(card, None)
                continue
            holders = tuple(holder for holder, _ in parts)
            entry.usage[card] = Usage(
                sum(holder.slots for holder in holders),
                sum(holder.memory for holder in holders),
                sum(holder.cores for holder in holders),
                holders,
                tuple(mark for _, marks in parts for mark in marks),
            )
        self._touch(entry)

    def _closed(self, entry: _NodeEntry) -> frozenset[Card]:
        residents = [resident.pod for resident in entry.residents.values()]
        return frozenset(
            (key, uuid)
            for key, inventory in entry.inventories.items()
            for uuid in self._vendors[key].closed_cards(inventory, residents)
        )

    def _touch(self, entry: _NodeEntry) -> None:
        entry.generation = next(self._generations)
        entry.view = None

    def _note(self, key: tuple[str, str, str], texts: list[str]) -> None:
        if texts:
            self._problems[key] = Problem(*key, "; ".join(texts))
        else:
            self._problems.pop(key, None)
