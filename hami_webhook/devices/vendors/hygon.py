"""Hygon DCUs, sliced by the vendor's hy-virtual. Source: docs/spec/hygon.md.

A container gets one virtual DCU, by memory (MiB) and compute (percent), or one or more whole cards.
"""

from __future__ import annotations

from collections.abc import Iterator

from hami_webhook.config.devices import CountMemoryCore, Factored
from hami_webhook.devices.keys import DeviceKeys
from hami_webhook.devices.registration import NodeRegistration
from hami_webhook.devices.vendor import Vendor
from hami_webhook.kube.draft import ContainerDraft


class HygonSection(CountMemoryCore, Factored):
    """`hygon`. One unit of the memory resource is `factor` MiB."""


class Hygon(Vendor):
    key = "DCU"
    section_name = "hygon"
    section_type = HygonSection
    registration = NodeRegistration(
        "hami.io/node-dcu-register",
        "hami.io/node-handshake-dcu",
        missing="no live node registers DCUs in hami.io/node-dcu-register; HAMi's own DCU device plugin writes it, "
        "Hygon's, which offers hygon.com/dcu, does not",
    )
    keys = DeviceKeys.usual("dcu", uuid="hygon.com/[no]use-gpuuuid", model="hygon.com/[no]use-dcutype")
    default_cores = 100
    multi_is_exclusive = True
    explains_memory = True

    def warnings_of(self, container: ContainerDraft) -> Iterator[str]:
        """What concerns a single card comes from the defaults: no cores are all cores, no memory is all of it (5)."""
        yield from super().warnings_of(container)
        if self.amount(container, self.count_name) != 1:
            return
        memory, has_cores = self.amount(container, self.memory_name), container.names_resource(self.core_name)
        if memory and not has_cores:
            yield f"{self.memory_name} without {self.core_name} takes the card for itself, as cores are then all 100"
        if has_cores and not memory:
            yield (
                f"{self.core_name} without {self.memory_name} isn't enforced, because the device plugin limits no "
                "container that has a card's whole memory"
            )
