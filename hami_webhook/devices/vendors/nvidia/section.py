"""The section `nvidia` of device-config.yaml (docs/spec/nvidia.md#2)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Literal

from hami_webhook.config.devices import MEMORY_PERCENTAGE, CountMemoryCore, Factored, Meaning, runtime_class_note
from hami_webhook.config.fields import (
    Flag,
    LogLevel,
    Number,
    Percent,
    Ratio,
    ResourceName,
    RuntimeClassName,
    Section,
    Word,
    not_empty,
    one_of,
    text_check,
)

_SLICES = "nvidia.com/mig-"
"""What NVIDIA's own plugin calls slices, with the strategy `mixed`."""

GpuCorePolicy = Literal["", "default", "force", "disable"]


def _mig_profile_complaint(profile: str) -> str | None:
    slices, dot, rest = profile.partition(".")
    if dot and rest and len(slices) > 1 and slices.endswith("g"):
        return None
    return "must be a MIG profile such as 1g.10gb"


MigProfile = Annotated[str, text_check(_mig_profile_complaint, r"^[^.]+g\..+$")]


class MigProfileAllowance(Section):
    """The MIG profiles the device plugin may use on cards whose model contains one of `models`."""

    models: Annotated[tuple[Word, ...], not_empty("model")]
    profiles: Annotated[tuple[MigProfile, ...], not_empty("MIG profile")]


class NvidiaSection(CountMemoryCore, Factored):
    """`nvidia`. `default_memory` is MiB a card and never multiplied by the factor; `default_cores` is percent of a
    card.
    """

    COUNT_KEYS: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "resourceCountName": ("resourceMemoryName", "resourceMemoryPercentageName", "resourceCoreName")
    }

    resource_memory_percentage_name: Annotated[ResourceName, MEMORY_PERCENTAGE] = ""
    resource_priority_name: Annotated[
        ResourceName, Meaning("priority at run time on a shared card", "0 high, 1 low", is_charged=False)
    ] = ""
    overwrite_env: Flag = False
    default_memory: Number = 0
    default_cores: Percent = 0
    default_gpu_num: Number = 0
    gpu_core_policy: Annotated[GpuCorePolicy, one_of("", "default", "force", "disable")] = ""
    runtime_class_name: RuntimeClassName = ""
    # What follows is the device plugin's.
    mig_profile_allowlist: tuple[MigProfileAllowance, ...] = ()
    known_mig_geometries: object = None
    disable_core_limit: Flag = False
    device_split_count: Number = 10
    device_memory_scaling: Ratio = 1.0
    device_core_scaling: Ratio = 1.0
    pre_configured_device_memory: Number = 0
    lib_cuda_log_level: LogLevel = 1
    enable_numa_topology: Flag = False

    def faults(self) -> Iterator[tuple[str, str]]:
        if self.resource_count_name.startswith(_SLICES):
            yield (
                "resourceCountName",
                f"{self.resource_count_name} is a MIG slice of NVIDIA's plugin, and would be charged as a whole card; "
                "use the count of cards, nvidia.com/gpu, and let pods request memory of cards in MIG mode",
            )

    def remarks(self) -> Iterator[tuple[str, str]]:
        if self.known_mig_geometries is not None:
            yield "knownMigGeometries", "ignored: HAMi 2.10 replaced it by migProfileAllowlist"

    def notes(self) -> Iterator[str]:
        memory = f"{self.default_memory} MiB" if self.default_memory else "the whole card's memory"
        yield f"a container that names no memory gets {memory} of each card"
        yield f"a container that names no cores gets {self.default_cores} percent of each card"
        if self.default_gpu_num:
            yield f"a container that names memory or cores only gets {self.default_gpu_num} card(s)"
        else:
            yield "a container that names memory or cores only gets no card"
        if self.gpu_core_policy:
            yield f"core policy {self.gpu_core_policy} is put into containers"
        if self.overwrite_env:
            yield "containers that request no card see none"
        yield from runtime_class_note(self.runtime_class_name)
