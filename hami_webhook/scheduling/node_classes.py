"""Equivalence classes of nodes: those that differ in nothing but names, of nodes and cards, give a pod equal answers.

Fit and the scores compare UUIDs, and never read or order them, so two nodes give equal answers whose cards, by their
places, are registered and used equally. What a pod names makes nodes different for that pod alone: cards in its UUID
lists, and labels in the selectors of its quotas.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from weakref import WeakValueDictionary

from hami_webhook.devices.model import Inventory, NodeView
from hami_webhook.devices.pod_fit import PodRequest
from hami_webhook.devices.registry import Vendors
from hami_webhook.devices.vendor import Vendor
from hami_webhook.kube.derived import DerivedValues
from hami_webhook.quota.budget import PodBudget
from hami_webhook.state.pod_allocations import CardKey


class _Token:
    """What stands for all values that are equal: compared and hashed by identity, which takes no time."""

    __slots__ = ("__weakref__",)


class NodeClass(_Token):
    """The nodes that are equal up to names."""

    __slots__ = ()


class _Cards(_Token):
    """A vendor's cards on nodes where they are registered equally."""

    __slots__ = ()


class NodeClasses:
    """Finds the class of nodes."""

    def __init__(self, vendors: Vendors) -> None:
        self._vendors = vendors
        self._cards: DerivedValues[Inventory, tuple[_Cards, Sequence[CardKey]]] = DerivedValues()
        self._known: WeakValueDictionary[Hashable, NodeClass] = WeakValueDictionary()
        self._known_cards: WeakValueDictionary[Hashable, _Cards] = WeakValueDictionary()

    def of(self, view: NodeView) -> NodeClass:
        """The class of a node: one object for all equal nodes, as long as somebody has it.

        A node on which a vendor's rules fail is equal to no other.
        """
        try:
            return self._known.setdefault(self._key(view), NodeClass())
        except Exception as error:
            self._vendors.faults.record("fit", view.name, error)
            return NodeClass()

    @staticmethod
    def distinction(request: PodRequest, budget: PodBudget | None) -> Callable[[NodeView], Hashable] | None:
        """By what the nodes of a class differ for this pod, on this budget; None if by nothing."""
        named, selecting = request.named_cards, budget if budget is not None and budget.selects_cards else None
        if not named and selecting is None:
            return None

        def of(view: NodeView) -> Hashable:
            if named and any(device.uuid in named for each in view.inventories.values() for device in each.devices):
                return view.name
            return () if selecting is None else selecting.selections_on(view.node)

        return of

    def _key(self, view: NodeView) -> Hashable:
        """The node with cards by their places, not their names."""
        parts: list[Hashable] = []
        names: list[CardKey] = []
        for key, inventory in view.inventories.items():
            cards, own_names = self._cards.get(inventory) or self._cards.keep(inventory, self._read(key, inventory))
            occupancy, used = self._vendors[key].occupancy, view.usage
            parts.append(cards)
            parts += [occupancy.traits(used[name]) if name in used else None for name in own_names]
            names += own_names
        if view.closed or view.unhealthy:
            shut = (place for place, name in enumerate(names) if name in view.closed or name[1] in view.unhealthy)
            parts.append(tuple(shut))
        if not view.usage.keys() <= set(names):  # cards of a plugin that is gone
            parts.append(view.name)
        return tuple(parts)

    def _read(self, key: str, inventory: Inventory) -> tuple[_Cards, Sequence[CardKey]]:
        """What stands for all cards that are registered like these, and their names, each once."""
        names = list(dict.fromkeys((key, device.uuid) for device in inventory.devices))
        return self._known_cards.setdefault((key, _registered(self._vendors[key], inventory)), _Cards()), names


def _registered(vendor: Vendor, inventory: Inventory) -> Hashable:
    """The cards as they are registered, with their places instead of their UUIDs; one may be registered twice."""
    places: dict[str, int] = {}
    cards = [
        (
            *(places.setdefault(device.uuid, len(places)), device.index, device.slots, device.memory, device.cores),
            *(device.type, device.numa, device.mode, device.healthy),
        )
        for device in inventory.devices
    ]
    return tuple(cards), vendor.traits(inventory, places)
