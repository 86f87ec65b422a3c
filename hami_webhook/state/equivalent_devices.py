"""Group the cluster's cards into kinds: cards of one kind differ only in identity, such as their UUID.

What a pod is charged while it waits depends on the smallest card it may get. A fleet has tens of thousands of cards
and a handful of kinds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from hami_webhook.devices.model import Device, Inventory
from hami_webhook.devices.pod_preferences import MOST_LETTERS, ListRule
from hami_webhook.devices.vendor import Vendor
from hami_webhook.kube.objects import Pod
from hami_webhook.quota.card_selection import CardSelection

_Class = tuple[Any, ...]

_REMEMBERED = 256
"""Requests for particular cards or nodes whose answer is kept."""


def _class_of(device: Device) -> _Class:
    """All of a card that a charge can depend on."""
    return device.slots, device.memory, device.cores, device.type, device.mode, device.extra


class _OnNode(Struct, frozen=True):
    labels: Mapping[str, str]
    inventories: Mapping[str, Inventory]
    examples: Mapping[str, Mapping[_Class, Device]]
    """By vendor, a card of each sort."""


class EquivalentDevices:
    """The cards of every node, by sort.

    A query takes time in proportion to the sorts. If a pod wants particular cards or nodes, the first query after a
    change takes time in proportion to the nodes.
    """

    def __init__(self) -> None:
        self._nodes: dict[str, _OnNode] = {}
        self._examples: dict[str, dict[_Class, Device]] = {}
        self._counts: Counter[tuple[str, _Class]] = Counter()
        self._answers: dict[object, tuple[Device, ...]] = {}
        self._confined: dict[object, bool] = {}

    def put(self, name: str, labels: Mapping[str, str], inventories: Mapping[str, Inventory]) -> None:
        """A node has these labels and cards now."""
        examples = {
            vendor: {_class_of(device): device for device in inventory.devices}
            for vendor, inventory in inventories.items()
        }
        gone = self._nodes.get(name)
        self._nodes[name] = _OnNode(labels, inventories, examples)
        for vendor, classes in examples.items():
            self._counts.update((vendor, device_class) for device_class in classes)
            known = self._examples.setdefault(vendor, {})
            for device_class, device in classes.items():
                known.setdefault(device_class, device)
        self._forget(gone)

    def remove(self, name: str) -> None:
        """A node is gone."""
        self._forget(self._nodes.pop(name, None))

    def _forget(self, node: _OnNode | None) -> None:
        self._answers.clear()
        self._confined.clear()
        for vendor, classes in node.examples.items() if node is not None else ():
            for device_class in classes:
                self._counts[vendor, device_class] -= 1
                if not self._counts[vendor, device_class]:
                    del self._counts[vendor, device_class], self._examples[vendor][device_class]

    def eligible(self, vendor: Vendor, pod: Pod) -> Sequence[Device]:
        """Return one card of each kind that the pod's lists allow, on nodes that match its nodeSelector."""
        uuids, types = vendor.lists(pod.annotations)
        selector = tuple(sorted((pod.node_selector or {}).items()))
        if not selector and uuids == ListRule():
            found: Iterable[Device] = self._examples.get(vendor.key, {}).values()
            return tuple(device for device in found if types.admits_type(device.type))
        question = (vendor.key, uuids, types, selector)
        answer = self._answers.get(question)
        if answer is None:
            answer = self._search(vendor.key, uuids, types, selector)
            if uuids.length + types.length + sum(len(key) + len(value) for key, value in selector) <= MOST_LETTERS:
                if len(self._answers) >= _REMEMBERED:
                    self._answers.clear()
                self._answers[question] = answer
        return answer

    def only_counted_devices(self, cards: CardSelection, vendor: Vendor, pod: Pod) -> bool:
        """Return whether every card that `eligible` would yield is selected; False if there is none."""
        uuids, types = vendor.lists(pod.annotations)
        selector = tuple(sorted((pod.node_selector or {}).items()))
        question = (cards, vendor.key, uuids, types, selector)
        answer = self._confined.get(question)
        if answer is None:
            if len(self._confined) >= _REMEMBERED:
                self._confined.clear()
            answer = self._confined[question] = self._search_confined(cards, vendor.key, uuids, types, selector)
        return answer

    def _search_confined(
        self, cards: CardSelection, vendor: str, uuids: ListRule, types: ListRule, selector: Sequence[tuple[str, str]]
    ) -> bool:
        found = False
        for node in self._nodes.values():
            inventory = node.inventories.get(vendor)
            if inventory is None or any(node.labels.get(key) != value for key, value in selector):
                continue
            for device in inventory.devices:
                if uuids.admits(device.uuid) and types.admits_type(device.type):
                    if not cards.admits(device.type, node.labels):
                        return False
                    found = True
        return found

    def _search(
        self, vendor: str, uuids: ListRule, types: ListRule, selector: Sequence[tuple[str, str]]
    ) -> tuple[Device, ...]:
        found: dict[_Class, Device] = {}
        everywhere = uuids == ListRule()
        for node in self._nodes.values():
            classes = node.examples.get(vendor)
            if classes is None or any(node.labels.get(key) != value for key, value in selector):
                continue
            if everywhere:
                found.update(classes)
            elif not classes.keys() <= found.keys():
                found.update((_class_of(d), d) for d in node.inventories[vendor].devices if uuids.admits(d.uuid))
        return tuple(device for device in found.values() if types.admits_type(device.type))
