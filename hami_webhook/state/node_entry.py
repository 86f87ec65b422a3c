"""What the cluster cache keeps of one node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from datetime import tzinfo

from msgspec import Struct
from msgspec.structs import replace

from hami_webhook.devices.model import Inventory, NodeView, PodUsage, RegistrationError, Usage
from hami_webhook.devices.registry import Vendors
from hami_webhook.devices.unhealthy_cards import unhealthy_cards
from hami_webhook.devices.vendor import Vendor
from hami_webhook.kube.message_text import cut, first_of
from hami_webhook.kube.objects import Node, Pod
from hami_webhook.kube.quantity import parse_whole
from hami_webhook.state.pod_allocations import CardKey, PodAllocation, unusable_cards, usage_by_card, with_claimed
from hami_webhook.state.presumed_usage import presumed


class NodeEntry(Struct):
    """A node, its registered cards, and the shares of them that pods hold.

    `health_until` is when a handshake expires (Unix seconds).
    """

    name: str
    node: Node | None = None
    inventories: dict[str, Inventory] = {}
    registrations: dict[str, str] = {}
    types: dict[CardKey, str] = {}
    """Of cards also after their plugin is gone: pods may still hold them."""
    dropped: dict[str, str | None] = {}
    allocatable: dict[str, int] = {}
    health_until: float | None = None
    due: float | None = None
    allocations: dict[str, PodAllocation] = {}
    usage: dict[CardKey, Usage] = {}
    recounted: dict[CardKey, None] = {}
    """Cards of which something else is taken than `usage` has: it is summed up when the node is asked for."""
    unhealthy: Mapping[str, str] = {}
    generation: int = 0
    view: NodeView | None = None

    def viewed(
        self, vendors: Vendors, claimed: Mapping[CardKey, tuple[PodUsage, ...]], unplaced: Sequence[Pod]
    ) -> NodeView:
        """The node as it is now; `claimed` is what claims hold of its devices, `unplaced` are the pods there that hold
        cards without saying which.
        """
        assert self.node is not None
        self._recount()
        registered = {(key, card.uuid) for key, each in self.inventories.items() for card in each.devices}
        of_cards = {card: holders for card, holders in claimed.items() if card in registered}
        unusable = unusable_cards(self.name, self.inventories, [*self.allocations.values()], vendors)
        usage = with_claimed(self.usage, of_cards)
        view = NodeView(self.node, dict(self.inventories), usage, unusable, self.generation, self.unhealthy, of_cards)
        return presumed(view, unplaced, vendors) if unplaced else view

    def _recount(self) -> None:
        """Recompute the usage of the cards."""
        for card in self.recounted:
            self.usage.pop(card, None)
        self.usage |= usage_by_card(self.allocations.values(), self.recounted)
        self.recounted = {}

    def read(self, vendors: Vendors, now: float, zone: tzinfo | None) -> list[str]:
        """Read the node's cards again, and leave out vendors without a live plugin. Return the faults as sentences."""
        node = self.node
        assert node is not None
        before, self.inventories, self.health_until = self.inventories, {}, None
        self.registrations = {}
        self.unhealthy, problem = unhealthy_cards(node.annotations)
        texts = [problem] if problem else []
        named = vendors.named_on(node)
        for key, vendor in vendors.items():
            if key not in self.allocatable and key not in named:
                continue
            try:
                texts += self._read_vendor(key, vendor, before.get(key), now, zone)
            except Exception as error:
                vendors.faults.record("registration", node.name, error)
                texts.append(f"the {key} cards can't be read, by a fault of ours ({type(error).__name__})")
                self.registrations[key] = "unreadable"
        return texts

    def _read_vendor(
        self, key: str, vendor: Vendor, known: Inventory | None, now: float, zone: tzinfo | None
    ) -> list[str]:
        """Read one vendor's cards again; `known` are the cards of the last reading."""
        node, texts = self.node, list[str]()
        assert node is not None
        allocatable = parse_whole(node.allocatable.get(vendor.count_name)) or 0
        register = node.annotations.get(vendor.registration.annotation)
        if vendor.registration.gone_with_allocatable and allocatable == 0 and self.allocatable.get(key, 0) > 0:
            self.dropped[key] = register
        elif allocatable > 0 or self.dropped.get(key, register) != register:
            self.dropped.pop(key, None)
        self.allocatable[key] = allocatable
        health = vendor.health(node, now, zone)
        if health.until is not None:
            self.health_until = min(health.until, self.health_until or health.until)
        if key in self.dropped or not health.healthy:
            if register is not None:
                self.registrations[key] = "silent"
            return []
        try:
            inventory = vendor.inventory(node)
        except RegistrationError as error:
            texts.append(str(error))
            self.registrations[key] = "unreadable"
            inventory = None if vendor.registration.drop_on_error else known
        if inventory is not None:
            self.inventories[key] = inventory
            self.registrations.setdefault(key, "ready")
            self.types |= {(key, device.uuid): device.type for device in inventory.devices}
            texts += [*inventory.warnings, *_unusable(vendor, inventory)]
        return texts


def _unusable(vendor: Vendor, inventory: Inventory) -> Iterator[str]:
    """The cards of which so little is registered that nobody can use them, in words."""
    slots = [device.uuid for device in inventory.devices if device.slots <= 0]
    memory = [device.uuid for device in inventory.devices if device.memory <= 0] if vendor.memory_name else []
    for what, cards in (("count", slots), ("memory", memory)):
        if cards:
            of = f"{len(cards)} of {len(inventory.devices)} {vendor.key} cards"
            yield f"{of} are registered without {what}, so they can't be used: {first_of([*map(cut, cards)])}"


def same_node(one: Node, other: Node, but_for: Set[str] = frozenset()) -> bool:
    """Whether nothing that is read of a node differs, except these annotations."""
    if but_for:
        one, other = (
            replace(each, annotations={key: text for key, text in each.annotations.items() if key not in but_for})
            for each in (one, other)
        )
    return replace(one, resource_version=other.resource_version) == other
