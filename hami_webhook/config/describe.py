"""What a device configuration means, as plain values for `config check` to print.

The meanings and units are those of docs/spec/quota.md#2, and of the vendors' pages there.
"""

from dataclasses import dataclass

from hami_webhook.config.devices import SECTION_SWITCHES, Chip, DeviceConfig, DeviceSection
from hami_webhook.config.load import LoadedDeviceConfig
from hami_webhook.kube.message_text import path_text
from hami_webhook.kube.yaml_reader import Path


@dataclass(frozen=True, slots=True)
class ResourceMeaning:
    """A resource name: what a request for it means, in which unit, and the quota key it makes (empty: none)."""

    name: str
    meaning: str
    unit: str
    quota_key: str


@dataclass(frozen=True, slots=True)
class SectionDescription:
    """A section, or one chip of a list: its path in the file, its backend keys, and what follows from it.

    `needs_flag` names the switch without which `serve` ignores it (empty: none); `notes` are sentences on its settings.
    """

    path: str
    backends: tuple[str, ...]
    resources: tuple[ResourceMeaning, ...]
    notes: tuple[str, ...]
    needs_flag: str = ""


def describe(loaded: LoadedDeviceConfig) -> list[SectionDescription]:
    """One description for each section, and for each chip of a list, in the order of the models."""
    return [_described(loaded.config, path, part) for path, part in loaded.config.parts().items()]


def _described(config: DeviceConfig, path: Path, part: DeviceSection) -> SectionDescription:
    name = str(path[0])
    names = part.resource_names()
    is_enabled: bool = getattr(part, "enabled", True)
    resources = tuple(
        ResourceMeaning(
            names[key],
            each.meaning,
            each.unit.format(factor=part.factor),
            f"limits.{names[key]}" if each.is_charged and is_enabled else "",
        )
        for key, each in part.meanings().items()
        if key in names
    )
    whole = config.section(name)
    notes = (*part.notes(), *(whole.notes_on_parts() if isinstance(whole, DeviceSection) else ()))
    backends = (part.common_word,) if isinstance(part, Chip) else config.backends[name]
    switch = SECTION_SWITCHES.get(name, "")
    flag = f"--{switch.replace('_', '-')}" if switch else ""
    return SectionDescription(path_text(path), backends, resources, notes, flag)
