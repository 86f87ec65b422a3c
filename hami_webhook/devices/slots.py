"""The common rules of vendors whose cards are counted only by slots: pods request, and quotas charge, neither memory
nor compute.
"""

from __future__ import annotations

from msgspec.structs import replace

from hami_webhook.devices.codecs import CardRecord
from hami_webhook.devices.fit_request import ACCESS_CHECKS, WITHIN_QUOTA
from hami_webhook.devices.model import Device, FixedMemory, MemoryRequest
from hami_webhook.devices.vendor import Vendor
from hami_webhook.kube.objects import Container


class SlotVendor(Vendor):
    """A vendor with a count resource and nothing else; quota counts the slots."""

    claims_by_name = True
    checks = (*ACCESS_CHECKS, WITHIN_QUOTA)

    def memory(self, container: Container, mebibytes: int) -> MemoryRequest:
        return FixedMemory(0)

    def device(self, record: CardRecord, position: int) -> Device:
        """Return the card with 100 cores, because plugins without compute register none, and a card without cores would
        have no score.
        """
        return replace(super().device(record, position), cores=100)
