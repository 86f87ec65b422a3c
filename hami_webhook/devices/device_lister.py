"""What is registered in the whole cluster, as admission queries it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from hami_webhook.devices.foreign_scheduler import NodeLister, NoNodes
from hami_webhook.devices.model import Inventory


class DeviceLister(NodeLister, Protocol):
    """The cards registered in the cluster, for admission rules that depend on them."""

    def inventories(self, vendor: str) -> Iterable[Inventory]:
        """What each node has registered of a vendor, by backend key, in the order of the nodes' names."""
        ...


class NoDevices(NoNodes):
    """No node is known."""

    def inventories(self, vendor: str) -> Iterable[Inventory]:
        return ()


NO_DEVICES = NoDevices()
