"""device-config.yaml with the sections of every vendor and integration: HAMi's own file, or the ConfigMap with it.

Here the sections that vendors and integrations declare come together (docs/spec/core.md#2.2).
"""

from __future__ import annotations

import functools
import re
import typing
from collections.abc import Sequence
from pathlib import Path

from pydantic import create_model

from hami_webhook.config import FILE_NAME, ConfigError, DeviceConfig, LoadedDeviceConfig, read_text
from hami_webhook.config.drivers import DraSection
from hami_webhook.config.hami import HamiSection
from hami_webhook.config.load import builtin_text, load
from hami_webhook.devices import registry
from hami_webhook.devices.registry import Vendors
from hami_webhook.devices.vendor import Vendor
from hami_webhook.integrations import SCHEDULERS
from hami_webhook.integrations.mixing import Mixing
from hami_webhook.usage.exporters import Exporter, ExportersSection

_SECTION = re.compile(r"^(\w+):", re.MULTILINE)


def device_config_model() -> type[DeviceConfig]:
    """The model of a whole file, its sections in the order of the built-in one.

    Raises `ConfigError` for vendors that are registered wrongly.
    """
    return _model(Vendor.classes)


@functools.lru_cache(maxsize=4)
def _model(classes: tuple[type[Vendor], ...]) -> type[DeviceConfig]:
    faults = list(registry.registration_faults())
    if faults:
        raise ConfigError(faults)
    schedulers = {name: scheduler.section_type for name, scheduler in SCHEDULERS.items()}
    types = (
        registry.section_types() | schedulers | {"hami": HamiSection, "dra": DraSection, "exporters": ExportersSection}
    )
    known = [name for name in _SECTION.findall(builtin_text()) if name in types]
    fields: dict[str, typing.Any] = {
        name: (types[name], ()) if typing.get_args(types[name]) else (types[name] | None, None)
        for name in dict.fromkeys((*known, *types))
    }
    model = create_model("DeviceConfig", __base__=DeviceConfig, **fields)
    model.reserved_words = registry.reserved_words()
    words: dict[str, dict[str, None]] = {name: {scheduler.key: None} for name, scheduler in SCHEDULERS.items()}
    for vendor in registry.declared():
        words.setdefault(vendor.section_name, {})[vendor.known_as] = None
    model.backends = {name: tuple(known) for name, known in words.items()}
    return model


def load_device_config(text: str, source: str) -> LoadedDeviceConfig:
    """The configuration in `text`; `source` is what messages call it.

    Raises `ConfigError` with every fault found: first those of single values, and if there are none those between them.
    """
    return load(text, source, device_config_model())


def read_device_config(path: str | Path) -> LoadedDeviceConfig:
    """The configuration in a file. Raises `ConfigError` when it can't be read, isn't UTF-8 or can't be used."""
    return load_device_config(read_text(path), str(path))


def builtin_device_config() -> LoadedDeviceConfig:
    """What HAMi's chart renders with its default values, every vendor enabled."""
    return load_device_config(builtin_text(), f"built-in {FILE_NAME}")


def enabled_vendors(config: DeviceConfig) -> Vendors:
    """The vendors of a configuration with the schedulers of other projects that it enables."""
    sections = ((config.section(name), scheduler) for name, scheduler in SCHEDULERS.items())
    foreign = [scheduler(section) for section, scheduler in sections if section is not None and section.enabled]
    return Vendors.from_config(config, foreign, Mixing.from_config(config))


def exporters_of(config: DeviceConfig) -> Sequence[Exporter]:
    """The exporters that a configuration names; those that are known, where it names none."""
    section = config.section("exporters") or ExportersSection()
    found: Sequence[Exporter] = section.cards
    return found


@functools.cache
def builtin_vendors() -> Vendors:
    """The vendors that HAMi's chart enables with its default values."""
    return enabled_vendors(builtin_device_config().config)
