"""The section `enflame` of device-config.yaml (docs/spec/enflame.md#2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

from hami_webhook.config.devices import PERCENT, DeviceSection, Meaning
from hami_webhook.config.fields import ResourceName


class EnflameSection(DeviceSection):
    """`enflame`. A name that is absent has its default; only `""` switches one off."""

    # HAMi 2.7 spelt the two vGCU names like every vendor's
    OLD_SPELLINGS: ClassVar[Mapping[str, str]] = {
        "resourceCountName": "resourceNameVGCU",
        "resourcePercentageName": "resourceNameVGCUPercentage",
    }
    COUNT_KEYS: ClassVar[Mapping[str, tuple[str, ...]]] = {"resourceNameVGCU": ("resourceNameVGCUPercentage",)}

    resource_name_gcu: Annotated[ResourceName, Meaning("number of whole cards", "cards")] = "enflame.com/gcu"
    resource_name_vgcu: Annotated[ResourceName, Meaning("number of shared cards", "cards")] = "enflame.com/vgcu"
    resource_name_vgcu_percentage: Annotated[ResourceName, Meaning("share of each shared card", PERCENT)] = (
        "enflame.com/vgcu-percentage"
    )
    resource_name_drs_gcu: Annotated[ResourceName, Meaning("number of DRS slices", "slices")] = "enflame.com/drs-gcu"
    resource_name_gcu_memory: Annotated[ResourceName, Meaning("memory of a DRS profile", "1 MiB")] = (
        "enflame.com/gcu-memory"
    )
    resource_name_gcu_core: Annotated[ResourceName, Meaning("cores of a DRS profile", PERCENT)] = "enflame.com/gcu-core"
