"""The state, besides used amounts, that pods cause on their cards. Most vendors need none."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from hami_webhook.devices.model import Device, HardwareInstance, Inventory, Request, Usage
from hami_webhook.kube.objects import Pod


class Occupancy:
    """The default for vendors whose cards have no state besides used amounts."""

    def marks(self, pod: Pod) -> Mapping[str, tuple[object, ...]]:
        """What a placed pod's annotations add to the usage of its cards, by UUID."""
        return {}

    def unusable_devices(self, inventory: Inventory, pods: Sequence[Pod]) -> frozenset[str]:
        """Return the cards that the annotations of the node's `pods` close to new pods."""
        return frozenset()

    def realised(self, pod: Pod) -> Sequence[HardwareInstance]:
        """The instances that the plugin has cut from cards for a placed pod."""
        return ()

    def multi_share(self, request: Request, device: Device) -> bool:
        """Whether one container may take several shares of this card, as far as marks on it leave room."""
        return False

    def traits(self, usage: Usage) -> Hashable:
        """Return the part of a card's usage that Fit and `score` read; by default, everything except the holders."""
        return usage.slots, usage.memory, usage.cores, usage.mask, usage.marks


AMOUNTS_ALONE = Occupancy()
