"""Hygon's cards, sliced by the vendor's hy-virtual: DCUs, which are HCUs since 2026. Source: docs/spec/hygon.md.

A container gets one virtual card, by memory (MiB) and compute (percent), or one or more whole cards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field, model_validator

from hami_webhook.config.devices import FACTOR_MIB, PERCENT, CountMemoryCore, Factored, Meaning
from hami_webhook.config.fields import ResourceName, key_of
from hami_webhook.devices.keys import DeviceKeys
from hami_webhook.devices.registration import NodeRegistration
from hami_webhook.devices.vendor import Vendor
from hami_webhook.kube.draft import ContainerDraft

_DCU_FIELDS = ("resource_count_name", "resource_memory_name", "resource_core_name")
_HCU_FIELDS = ("resource_hcu_count_name", "resource_hcu_memory_name", "resource_hcu_core_name")


def _twin(field: str) -> Callable[[dict[str, Any]], str]:
    """The name of the HCUs' resource, by that of the DCUs' in `field`; none where one of these isn't named dcu."""

    def name(section: dict[str, Any]) -> str:
        dcu = [section.get(each, "") for each in _DCU_FIELDS]
        return (
            _renamed(section.get(field, ""), "dcu", "hcu") if all(not each or _is(each, "dcu") for each in dcu) else ""
        )

    return name


class HygonSection(CountMemoryCore, Factored):
    """`hygon`. One unit of the memory resources is `factor` MiB.

    HAMi names the DCUs' resources in it, or since 2.11 the HCUs': those in whose name is hcu. The others' are called
    in the same way, unless the section names them.
    """

    resource_hcu_count_name: Annotated[ResourceName, Meaning("number of HCUs", "cards")] = Field(
        default_factory=_twin("resource_count_name")
    )
    resource_hcu_memory_name: Annotated[ResourceName, Meaning("memory of each HCU", FACTOR_MIB)] = Field(
        default_factory=_twin("resource_memory_name")
    )
    resource_hcu_core_name: Annotated[ResourceName, Meaning("compute of each HCU", PERCENT)] = Field(
        default_factory=_twin("resource_core_name")
    )

    @model_validator(mode="before")
    @classmethod
    def _names_of_hcus(cls, written: object) -> object:
        """The layout of HAMi 2.11, whose three names are the HCUs', as ours."""
        if not isinstance(written, Mapping):
            return written
        names = dict(written)
        for dcu, hcu in zip(map(key_of, _DCU_FIELDS), map(key_of, _HCU_FIELDS), strict=True):
            name = names.get(dcu)
            if isinstance(name, str) and _is(name, "hcu") and hcu not in names:
                names |= {dcu: _renamed(name, "hcu", "dcu"), hcu: name}
        return names


def _is(resource: str, word: str) -> bool:
    return word in resource.rpartition("/")[2]


def _renamed(resource: str, before: str, after: str) -> str:
    domain, slash, name = resource.rpartition("/")
    return f"{domain}{slash}{name.replace(before, after)}"


class HygonDcu(Vendor):
    key = "DCU"
    section_name = "hygon"
    section_type = HygonSection
    registration = NodeRegistration(
        "hami.io/node-dcu-register",
        "hami.io/node-handshake-dcu",
        missing="no live node registers DCUs in hami.io/node-dcu-register; HAMi's own DCU device plugin writes it, "
        "Hygon's, which offers hygon.com/dcu, does not",
    )
    keys = DeviceKeys.usual("dcu", uuid="hygon.com/[no]use-gpuuuid", model="hygon.com/[no]use-dcutype", twin="HCU")
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


class HygonHcu(HygonDcu):
    """The same cards under the name that they have since HAMi 2.11 and Hygon's own plugin for HAMi."""

    key = "HCU"
    section_name = "hygon"
    section_fields = _HCU_FIELDS
    registration = NodeRegistration(
        "hami.io/node-hcu-register",
        "hami.io/node-handshake-hcu",
        missing="no live node registers HCUs in hami.io/node-hcu-register; Hygon's HCU device plugin writes it with "
        "--strategy=hami only",
    )
    keys = DeviceKeys.usual("hcu", uuid="hygon.com/[no]use-gpuuuid", model="hygon.com/[no]use-hcutype", twin="DCU")
