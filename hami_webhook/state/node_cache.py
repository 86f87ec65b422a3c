"""The nodes of the cluster with the cards that they register, kept incrementally: what pods may be charged by.

Source: docs/spec/core.md#3. A node has a generation that grows with every change. No I/O, no clock.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import tzinfo
from heapq import heappop, heappush
from typing import Any

from msgspec import Struct

from hami_webhook.devices.model import Device, Inventory
from hami_webhook.devices.registry import Vendors
from hami_webhook.devices.vendor import Vendor
from hami_webhook.kube.objects import Node, Pod
from hami_webhook.quota.card_selection import CardSelection
from hami_webhook.state.equivalent_devices import EquivalentDevices
from hami_webhook.state.generations import Generations
from hami_webhook.state.node_entry import NodeEntry, same_node

logger = logging.getLogger(__name__)


class Problem(Struct, frozen=True):
    """A fault because of which an object, or a part of it, isn't counted: for an event and a metric."""

    kind: str
    namespace: str
    name: str
    text: str


class NodeCache:
    """Nodes, their cards, and Koordinator's Device objects. All times are Unix seconds and come in as arguments."""

    def __init__(self, vendors: Vendors, zone: tzinfo | None = None) -> None:
        self._vendors = vendors
        self._zone = zone
        self._nodes: dict[str, NodeEntry] = {}
        self._devices: dict[str, Mapping[str, Any]] = {}
        self._problems: dict[tuple[str, str], Problem] = {}
        self._locks = frozenset(vendor.lock.annotation for vendor in vendors.values() if vendor.lock is not None)
        """Annotations of nodes that change with each pod, and say nothing of cards."""
        self._due: list[tuple[float, str]] = []
        self.generations = Generations()
        """Which nodes changed when: a node's view is another one after each."""
        self._device_classes = EquivalentDevices()
        self.now = 0.0
        """The latest time that was passed in."""
        self.version = 0
        """Grows with every change of a node or its Device object; its pods don't count."""
        self._node_watchers: list[Callable[[str], None]] = []

    # events

    def watch_nodes(self, changed: Callable[[str], None]) -> None:
        """Call `changed` with a node's name whenever the node or its pods change."""
        self._node_watchers.append(changed)

    def set_node(self, node: Node, now: float) -> None:
        """A node was added or changed."""
        self.now = max(self.now, now)
        entry = self._nodes.setdefault(node.name, NodeEntry(node.name))
        before, entry.node = entry.node, node
        if before is None or not same_node(before, node):
            self.version += 1
        self._read_cards(entry, now, before)

    def remove_node(self, name: str) -> None:
        entry = self._nodes.get(name)
        if entry is None:
            return
        entry.node, entry.inventories, entry.unhealthy, entry.health_until = None, {}, {}, None
        entry.dropped, entry.allocatable, entry.registrations = {}, {}, {}
        self._device_classes.remove(name)
        self.version += 1
        self._problems.pop(("Node", name), None)
        self._touch(entry)
        if not entry.allocations:
            self._drop(name)

    def set_device(self, node: str, obj: Mapping[str, Any]) -> None:
        """Koordinator's Device object of a node was added or changed."""
        self._devices[node] = obj
        self.version += 1

    def remove_device(self, node: str) -> None:
        self._devices.pop(node, None)
        self.version += 1

    def tick(self, now: float) -> None:
        """Expire handshakes."""
        self.now = max(self.now, now)
        due = []
        while self._due and self._due[0][0] <= now:
            due.append(heappop(self._due)[1])
        for name in due:
            entry = self._nodes.get(name)
            if entry is not None and entry.health_until is not None and now >= entry.health_until:
                self._read_cards(entry, now, entry.node)

    # queries

    def nodes(self) -> Iterator[Node]:
        """Every known node, by name."""
        for name in sorted(self._nodes):
            node = self._nodes[name].node
            if node is not None:
                yield node

    def node(self, name: str) -> Node | None:
        """The node; None if it isn't known."""
        return self._nodes[name].node if name in self._nodes else None

    def registrations(self, node: str) -> Mapping[str, str]:
        """Return the state of each vendor's registration on a node: `ready`, `unreadable` or `silent`."""
        return self._nodes[node].registrations if node in self._nodes else {}

    def device(self, node: str) -> Mapping[str, Any] | None:
        """Koordinator's Device object of a node; None if there is none."""
        return self._devices.get(node)

    def problems(self) -> list[Problem]:
        """What can't be read at present, by kind and name."""
        return sorted(self._problems.values(), key=lambda problem: (problem.kind, problem.namespace, problem.name))

    def inventories(self, vendor: str) -> Iterator[Inventory]:
        """What each node has registered of a vendor, by the nodes' names."""
        for name in sorted(self._nodes):
            inventory = self._nodes[name].inventories.get(vendor)
            if inventory is not None:
                yield inventory

    def eligible(self, vendor: Vendor, pod: Pod) -> Sequence[Device]:
        """Return one card of each kind that the pod's lists allow, on nodes that match its nodeSelector."""
        return self._device_classes.eligible(vendor, pod)

    def is_selected(self, cards: CardSelection, node: str, vendor: str, uuid: str) -> bool:
        entry = self._nodes.get(node)
        if entry is None or entry.node is None:
            return True
        found, labels = entry.types.get((vendor, uuid)), entry.node.labels
        return cards.on_node(labels) if found is None else cards.admits(found, labels)

    def only_counted_devices(self, cards: CardSelection, vendor: Vendor, pod: Pod) -> bool:
        return self._device_classes.only_counted_devices(cards, vendor, pod)

    # how it is kept

    def _read_cards(self, entry: NodeEntry, now: float, known: Node | None) -> bool:
        """Read the node's cards again, and leave out vendors without a live plugin; `known` is the node as it was.

        Return whether they are other ones. Cards aren't read again where only locks changed, and no handshake expired.
        """
        node = entry.node
        assert node is not None
        if known is not None and (entry.health_until is None or now < entry.health_until):
            if same_node(known, node):
                return False
            if same_node(known, node, but_for=self._locks):
                self._touch(entry)
                return False
        before = entry.inventories
        texts = entry.read(self._vendors, now, self._zone)
        if entry.health_until is not None and entry.health_until != entry.due:
            entry.due = entry.health_until
            heappush(self._due, (entry.due, entry.name))
        self._note(("Node", node.name), Problem("Node", "", node.name, "; ".join(texts)))
        if known is None or not same_node(known, node) or entry.inventories != before:
            self._touch(entry)
        if known is None or known.labels != node.labels or entry.inventories != before:
            self._device_classes.put(node.name, node.labels, entry.inventories)
        return entry.inventories != before

    def _drop(self, name: str) -> None:
        del self._nodes[name]
        self.generations.keep_only(self._nodes, len(self._nodes))

    def _touch_all(self, names: Iterable[str]) -> None:
        for name in names:
            if name in self._nodes:
                self._touch(self._nodes[name])

    def _touch(self, entry: NodeEntry) -> None:
        entry.generation = self.generations.changed(entry.name)
        entry.view = None
        for changed in self._node_watchers:
            changed(entry.name)

    def _note(self, key: tuple[str, str], problem: Problem) -> None:
        if problem.text:
            if self._problems.get(key) != problem:
                logger.info("%s %s: %s", problem.kind, problem.name, problem.text)
            self._problems[key] = problem
        else:
            self._problems.pop(key, None)
