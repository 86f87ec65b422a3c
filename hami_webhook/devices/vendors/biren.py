"""Birentech GPUs, whole or as hardware partitions (SVI). Source: docs/spec/amd-biren-vastai.md#B.

A partition is registered as a device of its own; nobody is told which card it is cut from. Partitions carry their
card's index, so indices repeat and only ids tell them apart.
"""

from __future__ import annotations

from hami_webhook.devices.keys import DeviceKeys
from hami_webhook.devices.slots import SlotVendor


class Biren(SlotVendor):
    key = "Biren"
    register_annotation = "hami.io/node-biren-register"
    handshake_annotation = "hami.io/node-handshake-biren"
    keys = DeviceKeys.usual("Biren", uuid="birentech.com/[no]use-gpuuuid")
