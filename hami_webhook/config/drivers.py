"""The section `dra` of device-config.yaml: which drivers' devices are which vendor's (docs/spec/dra.md#2).

A driver is data: a row says where its devices have what quotas count, and nothing else here knows a driver.
"""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Self

from pydantic import model_validator

from hami_webhook.config.devices import DeviceSection
from hami_webhook.config.fields import Flag, Percent, Section, Text, Word, checked, not_empty, refuse
from hami_webhook.kube.message_text import found
from hami_webhook.kube.names import LONGEST_SUBDOMAIN, SUBDOMAIN, is_subdomain
from hami_webhook.kube.yaml_reader import Path

_LONGEST_ID = 32
_ID = r"[A-Za-z_][A-Za-z0-9_]*"
WHOLE_CARD = 100
"""Percent of a card's compute."""


def _subdomain(value: object) -> str:
    if not isinstance(value, str) or not is_subdomain(value):
        refuse(f"must be a DNS subdomain such as gpu.example.com, found {found(value)}")
    return value


def _qualified(value: object) -> str:
    if not isinstance(value, str):
        refuse(f"must be the name of an attribute or a capacity, or empty, found {found(value)}")
    domain, slash, name = value.rpartition("/")
    is_id = name.isidentifier() and name.isascii() and len(name) <= _LONGEST_ID
    if value and not (is_id and (is_subdomain(domain) if slash else True)):
        refuse(f"must be a name of the form memory or gpu.example.com/memory, or empty, found {found(value)}")
    return value


Subdomain = Annotated[str, checked(_subdomain, type="string", pattern=f"^{SUBDOMAIN}$", maxLength=LONGEST_SUBDOMAIN)]
WrittenQualifiedName = Annotated[str, checked(_qualified, type="string", pattern=f"^(({SUBDOMAIN}/)?{_ID})?$")]


class DriverDevices(Section):
    """The devices of a driver, or those of one `type`, that requests for any of `device_classes` may get.

    `vendor` is the one whose quota keys they count for. `memory` and `cores` name the capacities with their bytes and
    their percent of a card; `whole_cores` is the percent of one that has no such capacity. `shares` names the capacity
    with the number of claims that may share a device whose memory nobody limits. `model` and `uuid` name
    attributes, and so do `numa` and `link_group`: those that are the same for cards of one NUMA node, and for cards
    each two of which are linked. A name without a domain is of the driver's. `convert`: limits may become claims for
    these devices.
    """

    driver: Subdomain
    device_classes: Annotated[tuple[Subdomain, ...], not_empty("DeviceClass")]
    type: Text = ""
    vendor: Word
    memory: WrittenQualifiedName = ""
    cores: WrittenQualifiedName = ""
    whole_cores: Percent = WHOLE_CARD
    shares: WrittenQualifiedName = ""
    model: WrittenQualifiedName = "productName"
    uuid: WrittenQualifiedName = "uuid"
    numa: WrittenQualifiedName = ""
    link_group: WrittenQualifiedName = ""
    convert: Flag = True

    @model_validator(mode="after")
    def _names_a_capacity(self) -> Self:
        if not (self.memory or self.cores):
            refuse("names no capacity, so its devices would cost no memory; set memory, cores or both")
        return self


_HAMI_CORE = DriverDevices(
    driver="hami-core-gpu.project-hami.io",
    device_classes=("hami-core-gpu.project-hami.io",),
    vendor="NVIDIA",
    memory="memory",
    cores="cores",
)
_NVIDIA_CARDS = DriverDevices(
    driver="gpu.nvidia.com",
    device_classes=("gpu.nvidia.com",),
    type="gpu",
    vendor="NVIDIA",
    memory="memory",
    shares="shares",
)
_NVIDIA_MIG = DriverDevices(
    driver="gpu.nvidia.com",
    device_classes=("mig.nvidia.com",),
    type="mig",
    vendor="NVIDIA",
    memory="memory",
    whole_cores=0,  # an instance has multiprocessors, and no percent of its card
    shares="shares",
)
_NVIDIA_PASSTHROUGH = DriverDevices(
    driver="gpu.nvidia.com",
    device_classes=("vfio.gpu.nvidia.com",),
    type="vfio",
    vendor="NVIDIA",
    memory="addressableMemory",
    convert=False,  # a container gets the PCI device and no GPU
)


class DraSection(DeviceSection):
    """`dra`: whether claims are counted, and the devices that they may be for."""

    MAY_NAME_NOTHING: ClassVar[bool] = True

    enabled: Flag = False
    devices: tuple[DriverDevices, ...] = (_HAMI_CORE, _NVIDIA_CARDS, _NVIDIA_MIG, _NVIDIA_PASSTHROUGH)

    def parts(self) -> Mapping[Path, DeviceSection]:
        """None: its rows name no resources."""
        return {}

    @model_validator(mode="after")
    def _rows_differ(self) -> Self:
        rows = [(row.driver, row.type) for row in self.devices]
        for index, (driver, kind) in enumerate(rows):
            if (driver, kind) in rows[:index]:
                devices = f"devices of type {kind}" if kind else "devices"
                refuse(f"devices has two rows for the {devices} of {driver}; keep one")
        return self
