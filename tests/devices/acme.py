"""A vendor that doesn't exist, as somebody would write it outside of the package; see test_made_up_vendor.py.

A container gets a share of one card, in MiB and percent of compute, or shares of several.
"""

from __future__ import annotations

from hami_webhook.config.devices import CountMemoryCore
from hami_webhook.devices.keys import DeviceKeys, ReservedKeys
from hami_webhook.devices.registration import NodeRegistration
from hami_webhook.devices.vendor import Vendor


class AcmeSection(CountMemoryCore):
    """`acme`: shared cards."""


class Acme(Vendor):
    key = "ACME"
    section_name = "acme"
    section_type = AcmeSection
    registration = NodeRegistration("hami.io/node-acme-register")
    keys = DeviceKeys.usual("acme", uuid="acme.example/[no]use-uuid", extra=("acme.example/plan",))
    reserved = ReservedKeys(("acme.example/started",))
