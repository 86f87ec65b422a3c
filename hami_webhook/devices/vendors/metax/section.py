"""The section `metax` of device-config.yaml (docs/spec/metax.md#2)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar

from hami_webhook.config.devices import PERCENT, DeviceSection, Meaning
from hami_webhook.config.fields import FlagOrText, ResourceName


class MetaxSection(DeviceSection):
    """`metax`: whole cards (`resource_count_name`) and shared ones (the three others; a bare memory number is GiB)."""

    COUNT_KEYS: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "resourceVCountName": ("resourceVCoreName", "resourceVMemoryName")
    }

    resource_count_name: Annotated[ResourceName, Meaning("number of whole cards", "cards")] = ""
    resource_vcount_name: Annotated[ResourceName, Meaning("number of shared cards", "cards")] = ""
    resource_vmemory_name: Annotated[ResourceName, Meaning("memory of each shared card", "1024 MiB")] = ""
    resource_vcore_name: Annotated[ResourceName, Meaning("compute of each shared card", PERCENT)] = ""
    sgpu_topology_aware: FlagOrText = False

    def notes(self) -> Iterator[str]:
        if self.sgpu_topology_aware:
            yield "topology counts in the choice of node unless the pod says otherwise"
