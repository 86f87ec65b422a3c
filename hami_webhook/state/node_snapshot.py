"""A simulated node, without victims and with nominated pods, on which the search for victims runs Fit."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from hami_webhook.devices.model import DeviceShare, NodeView
from hami_webhook.devices.pod_fit import NodeFit
from hami_webhook.devices.registry import Vendors
from hami_webhook.state.pod_allocations import CardKey, PodAllocation, unusable_cards, usage_by_card, with_claimed
from hami_webhook.state.presumed_usage import presumed

Shares = Mapping[CardKey, Sequence[DeviceShare]]
"""What is taken of cards besides what their pods hold."""


def shares_of(fit: NodeFit) -> Shares:
    """Return the shares of cards that a placement takes."""
    taken: dict[CardKey, list[DeviceShare]] = {}
    for row in fit.rows:
        for vendor, allocation in row.items():
            for device in allocation.devices:
                taken.setdefault((vendor, device.uuid), []).append(device.share)
    return taken


def joined(shares: Shares, more: Shares) -> Shares:
    """Return the union of two sets of shares, card by card."""
    return {card: [*shares.get(card, ()), *more.get(card, ())] for card in {**shares, **more}}


class NodeSnapshot(Struct, frozen=True):
    """A node, the pods that hold its devices, and what is kept there for nominated pods, by card.

    `ending`: the UIDs of pods that are already being deleted or evicted.
    """

    view: NodeView
    allocations: Sequence[PodAllocation]
    reserved: Shares
    ending: Collection[str] = ()

    @property
    def name(self) -> str:
        return self.view.name

    def same_as(self, other: NodeSnapshot) -> bool:
        """Whether nothing of the node changed between the two."""
        return self.view is other.view and self.reserved == other.reserved and set(self.ending) == set(other.ending)

    def without(self, victims: Collection[str], vendors: Vendors) -> NodeView:
        """The node as it is when the pods with these UIDs and those that are ending are gone, and the nominated pods
        have come.
        """
        view, gone = self.view, {*victims, *self.ending}
        left = [allocation for allocation in self.allocations if allocation.pod.uid not in gone]
        if len(left) < len(self.allocations):
            freed = {card for each in self.allocations if each.pod.uid in gone for card in each.shares}
            if view.unplaced:  # may be presumed on other cards then
                freed |= view.usage.keys()
            kept = {card: usage for card, usage in view.usage.items() if card not in freed}
            closed = unusable_cards(view.name, view.inventories, left, vendors) if view.closed else view.closed
            claimed = {card: holders for card, holders in view.claimed.items() if card in freed}
            usage = kept | with_claimed(usage_by_card(left, freed), claimed)
            view = presumed(replace(view, usage=usage, closed=closed), view.unplaced, vendors)
        return with_reserved(view, self.reserved)


def with_reserved(view: NodeView, reserved: Shares) -> NodeView:
    """Return the node with these shares of its cards reserved in addition."""
    if not reserved:
        return view
    usage = dict(view.usage)
    for card, reservations in reserved.items():
        used = view.used(*card)
        for reservation in reservations:
            used = used.plus(reservation)
        usage[card] = used
    return replace(view, usage=usage)
