"""Birentech GPUs, whole or as hardware partitions (SVI). Source: docs/spec/amd-biren-vastai.md#B.

A partition is registered as a device of its own; which card it is cut from isn't registered. Partitions carry their
card's index, so indices repeat and only ids are unique.
"""

from __future__ import annotations

from typing import Annotated

from hami_webhook.config.devices import DeviceSection, Meaning
from hami_webhook.config.fields import ResourceName
from hami_webhook.devices.keys import DeviceKeys
from hami_webhook.devices.registration import NodeRegistration
from hami_webhook.devices.slots import SlotVendor


class BirenSection(DeviceSection):
    """`biren`: whole cards, or hardware partitions registered as devices."""

    resource_count_name: Annotated[ResourceName, Meaning("number of cards or partitions", "devices")] = ""


class Biren(SlotVendor):
    key = "Biren"
    section_name = "biren"
    section_type = BirenSection
    registration = NodeRegistration("hami.io/node-biren-register", "hami.io/node-handshake-biren")
    keys = DeviceKeys.usual("Biren", uuid="birentech.com/[no]use-gpuuuid")
