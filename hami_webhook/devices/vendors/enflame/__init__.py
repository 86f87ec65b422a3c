"""Enflame GCUs: whole cards, cards shared by percentage (vGCU), DRS slices. Source: docs/spec/enflame.md.

Each form is requested, counted and limited by itself, so each is a vendor here; shared and DRS cards are the same
silicon in two modes and have one type word and one annotation on the wire.
"""

from __future__ import annotations

from hami_webhook.devices.capacity_devices import capacity, counted
from hami_webhook.devices.fit_request import HEALTHY, NOT_SHARED_WHOLE, WITHIN_QUOTA
from hami_webhook.devices.keys import DeviceKeys
from hami_webhook.devices.model import Inventory
from hami_webhook.devices.vendor import Vendor
from hami_webhook.devices.vendors.enflame.drs import DrsGcu
from hami_webhook.devices.vendors.enflame.section import EnflameSection
from hami_webhook.devices.vendors.enflame.shared import SharedGcu
from hami_webhook.kube.objects import Node


class WholeGcu(Vendor):
    """Cards that the vendor's own plugin picks: their ids aren't hardware, memory and cores are percent."""

    key = "GCU"
    section_name = "enflame"
    section_type = EnflameSection
    section_fields = ("resource_name_gcu",)
    keys = DeviceKeys.usual("enflame-gcu")
    lock = None
    checks = (HEALTHY, NOT_SHARED_WHOLE, WITHIN_QUOTA)
    default_cores = 100

    def inventory(self, node: Node) -> Inventory | None:
        count = capacity(node, self.count_name)
        cards = tuple(counted(self.key, node, "GCU", count, slots=1, memory=100, cores=100))
        return Inventory(cards) if cards else None


__all__ = ["DrsGcu", "SharedGcu", "WholeGcu"]
