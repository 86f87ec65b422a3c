"""What pods make of the cards they hold beyond amounts: a part of a vendor, of which most need none."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from hami_webhook.devices.model import Device, HardwareInstance, Inventory, Request, Usage
from hami_webhook.kube.objects import Pod


class Occupancy:
    """Amounts are all there is to know."""

    def marks(self, pod: Pod) -> Mapping[str, tuple[object, ...]]:
        """What a placed pod's annotations add to the usage of its cards, by UUID."""
        return {}

    def unusable_devices(self, inventory: Inventory, pods: Sequence[Pod]) -> frozenset[str]:
        """Cards that must take nobody new because of what the node's pods say; `pods` are the pods on the node."""
        return frozenset()

    def realised(self, pod: Pod) -> Sequence[HardwareInstance]:
        """The instances that the plugin has cut from cards for a placed pod."""
        return ()

    def multi_share(self, request: Request, device: Device) -> bool:
        """Whether one container may take several shares of this card, as far as marks on it leave room."""
        return False

    def traits(self, usage: Usage) -> Hashable:
        """What Fit and `score` read of a card's usage; here all but who holds it."""
        return usage.slots, usage.memory, usage.cores, usage.mask, usage.marks


AMOUNTS_ALONE = Occupancy()
