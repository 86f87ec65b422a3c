"""device-config.yaml, and what it enables: vendors, and schedulers of other projects."""

from __future__ import annotations

from hami_webhook.config import DeviceConfig, builtin_device_config, load_device_config, read_device_config
from hami_webhook.devices.registry import Vendors
from hami_webhook.integrations import SCHEDULERS
from hami_webhook.integrations.mixing import Mixing

__all__ = ["builtin_device_config", "enabled_vendors", "load_device_config", "read_device_config"]


def enabled_vendors(config: DeviceConfig) -> Vendors:
    """The vendors of a configuration with the schedulers of other projects that it enables."""
    sections = ((getattr(config, name), scheduler) for name, scheduler in SCHEDULERS.items())
    foreign = [scheduler(section) for section, scheduler in sections if section is not None and section.enabled]
    return Vendors.from_config(config, foreign, Mixing.from_config(config))
