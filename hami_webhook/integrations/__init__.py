"""Schedulers of other projects whose pods are normalised, validated, charged and predicted here, never placed.

The core knows the port `ForeignScheduler` only; `enabled_vendors` of `device_config` puts those of a configuration
behind it.
"""

from __future__ import annotations

from collections.abc import Mapping

from hami_webhook.integrations.kai import Kai
from hami_webhook.integrations.koordinator import Koordinator
from hami_webhook.integrations.volcano import Volcano

SCHEDULERS: Mapping[str, type[Volcano] | type[Koordinator] | type[Kai]] = {
    "volcano": Volcano,
    "koordinator": Koordinator,
    "kai": Kai,
}
"""The schedulers by the section of device-config.yaml that describes them.

The first whose resources a pod names gives it a scheduler.
"""
