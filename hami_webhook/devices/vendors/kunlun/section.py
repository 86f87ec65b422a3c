"""The section `kunlun` of device-config.yaml (docs/spec/kunlun.md#2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

from hami_webhook.config.devices import DeviceSection, Meaning
from hami_webhook.config.fields import ResourceName


class KunlunSection(DeviceSection):
    """`kunlun`: whole cards (`resource_count_name`) and vXPU slices; one unit of the slice's memory is 1 MiB."""

    COUNT_KEYS: ClassVar[Mapping[str, tuple[str, ...]]] = {"resourceVCountName": ("resourceVMemoryName",)}

    resource_count_name: Annotated[ResourceName, Meaning("number of whole cards", "cards")] = ""
    resource_vcount_name: Annotated[ResourceName, Meaning("number of vXPU slices", "slices")] = ""
    resource_vmemory_name: Annotated[ResourceName, Meaning("memory of each slice", "1 MiB")] = ""
