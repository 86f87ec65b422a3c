"""What a device configuration means, as plain values for `config check` to print.

The meanings and units are those of docs/spec/quota.md#2, and of the vendors' chapters.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from hami_webhook.config.checks import Path
from hami_webhook.config.devices import (
    SECTION_SWITCHES,
    AmdSection,
    AscendChip,
    AwsNeuronSection,
    BirenSection,
    CambriconSection,
    EnflameSection,
    HygonSection,
    IluvatarChip,
    IluvatarSection,
    KunlunSection,
    MetaxSection,
    MthreadsSection,
    NvidiaSection,
    VastaiSection,
)
from hami_webhook.config.errors import path_text
from hami_webhook.config.fields import Section
from hami_webhook.config.load import LoadedDeviceConfig
from hami_webhook.config.schedulers import KoordinatorSection, VolcanoSection

_VOLCANO_MOST_BLOCKS = 60_000


@dataclass(frozen=True, slots=True)
class ResourceMeaning:
    """A resource name: what asking for it means, in which unit, and the quota key it makes (empty: none)."""

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


@dataclass(frozen=True, slots=True)
class _Meaning:
    key: str
    meaning: str
    unit: str
    is_charged: bool = True


@dataclass(frozen=True, slots=True)
class _SectionMeaning:
    """What a kind of section means. Without `backends` the section's own common word is its backend key."""

    meanings: tuple[_Meaning, ...]
    backends: tuple[str, ...] = ()
    notes: Callable[[Any], Iterator[str]] | None = None


def describe(loaded: LoadedDeviceConfig) -> list[SectionDescription]:
    """One description for each section, and for each chip of a list, in the order of the models."""
    vnpus = loaded.config.vnpus
    soft = ("nodes offer soft mode unless they say otherwise",) if vnpus is not None and vnpus.hami_vnpu_core else ()
    return [
        _described(path, part, soft if isinstance(part, AscendChip) else ())
        for path, part in loaded.config.parts().items()
    ]


def _described(path: Path, part: Section, more_notes: tuple[str, ...]) -> SectionDescription:
    sheet = _SHEETS[type(part)]
    names = part.resource_names()
    factor: int = getattr(part, "factor", 1)
    is_enabled: bool = getattr(part, "enabled", True)
    resources = tuple(
        ResourceMeaning(
            names[entry.key],
            entry.meaning,
            entry.unit.format(factor=factor),
            f"limits.{names[entry.key]}" if entry.is_charged and is_enabled else "",
        )
        for entry in sheet.meanings
        if entry.key in names
    )
    backends = sheet.backends or (str(getattr(part, "common_word", path_text(path))),)
    switch = SECTION_SWITCHES.get(str(path[0]), "")
    flag = f"--{switch.replace('_', '-')}" if switch else ""
    notes = tuple(sheet.notes(part)) if sheet.notes is not None else ()
    return SectionDescription(path_text(path), backends, resources, notes + more_notes, flag)


def _nvidia_notes(section: NvidiaSection) -> Iterator[str]:
    memory = f"{section.default_memory} MiB" if section.default_memory else "the whole card's memory"
    yield f"a container that names no memory gets {memory} of each card"
    yield f"a container that names no cores gets {section.default_cores} percent of each card"
    if section.default_gpu_num:
        yield f"a container that names memory or cores only gets {section.default_gpu_num} card(s)"
    else:
        yield "a container that names memory or cores only gets no card"
    if section.gpu_core_policy:
        yield f"core policy {section.gpu_core_policy} is put into containers"
    if section.overwrite_env:
        yield "containers that ask for no card see none"
    yield from _runtime_class(section.runtime_class_name)


def _metax_notes(section: MetaxSection) -> Iterator[str]:
    if section.sgpu_topology_aware:
        yield "topology counts in the choice of node unless the pod says otherwise"


def _amd_notes(section: AmdSection) -> Iterator[str]:
    if not section.resource_memory_name:
        yield "without a memory name every card is given whole"


def _chip_notes(chip: AscendChip) -> Iterator[str]:
    yield f"a whole card gives {chip.memory_allocatable} of its {chip.memory_capacity} MiB"
    if chip.templates:
        yield "templates: " + ", ".join(f"{template.name} {template.memory} MiB" for template in chip.templates)
    if chip.super_pod:
        yield "the two dies of a module are bound together"
    if chip.overwrite_env:
        yield "containers that ask for no card see none"
    yield from _runtime_class(chip.runtime_class_name)


def _volcano_notes(section: VolcanoSection) -> Iterator[str]:
    yield from _scheduler_notes(section)
    most = _VOLCANO_MOST_BLOCKS * section.factor
    yield (
        f"nodes of up to {most} MiB in all are counted right; the smallest safe gpuMemoryFactor is the MiB of all "
        f"cards of the largest node / {_VOLCANO_MOST_BLOCKS}, rounded up"
    )
    if any("A30" in entry.models for entry in section.mig_geometries):
        yield "the model text A30 also matches A300 and RTX A3000"


def _scheduler_notes(section: VolcanoSection | KoordinatorSection) -> Iterator[str]:
    if not section.enabled:
        yield "switched off"
    if section.inject_scheduler_name:
        yield f"pods without a scheduler get {section.scheduler_names[0]}"
    yield f"pods that mix several GPU managers' names: {section.mixed_name_sets}"


def _runtime_class(name: str) -> Iterator[str]:
    if name:
        yield f"pods without a runtime class get {name}"


def _three(count: str, memory: str, core: str) -> tuple[_Meaning, ...]:
    """The meanings of the three names most vendors have, by the unit of each."""
    return (
        _Meaning("resourceCountName", "number of cards", count),
        _Meaning("resourceMemoryName", "memory of each card", memory),
        _Meaning("resourceCoreName", "compute of each card", core),
    )


_PERCENT = "percent of a card"
_FACTOR_MIB = "{factor} MiB"
_PERCENTAGE_OF_MEMORY = _Meaning(
    "resourceMemoryPercentageName", "memory of each card, as a share of it", _PERCENT, is_charged=False
)
_WHOLE_CARDS = _Meaning("resourceCountName", "number of whole cards", "cards")

_SHEETS: dict[type[Section], _SectionMeaning] = {
    NvidiaSection: _SectionMeaning(
        (
            *_three("cards", _FACTOR_MIB, _PERCENT),
            _PERCENTAGE_OF_MEMORY,
            _Meaning(
                "resourcePriorityName", "priority at run time on a shared card", "0 high, 1 low", is_charged=False
            ),
        ),
        ("NVIDIA",),
        _nvidia_notes,
    ),
    MetaxSection: _SectionMeaning(
        (
            _WHOLE_CARDS,
            _Meaning("resourceVCountName", "number of shared cards", "cards"),
            _Meaning("resourceVMemoryName", "memory of each shared card", "1024 MiB"),
            _Meaning("resourceVCoreName", "compute of each shared card", _PERCENT),
        ),
        ("Metax-GPU", "Metax-SGPU"),
        _metax_notes,
    ),
    HygonSection: _SectionMeaning(_three("cards", _FACTOR_MIB, _PERCENT), ("DCU",)),
    CambriconSection: _SectionMeaning(_three("cards", "256 MiB", _PERCENT), ("MLU",)),
    MthreadsSection: _SectionMeaning(
        (
            _Meaning("resourceCountName", "number of cards", "cards"),
            _Meaning("resourceMemoryName", "memory of all cards of a container together", "512 MiB"),
            _Meaning("resourceCoreName", "compute of all cards of a container together", "core groups, 16 a card"),
        ),
        ("Mthreads",),
    ),
    IluvatarChip: _SectionMeaning(_three("cards", "256 MiB", _PERCENT)),
    IluvatarSection: _SectionMeaning(_three("cards", "256 MiB", _PERCENT), ("Iluvatar",)),
    EnflameSection: _SectionMeaning(
        (
            _Meaning("resourceNameGCU", "number of whole cards", "cards"),
            _Meaning("resourceNameVGCU", "number of shared cards", "cards"),
            _Meaning("resourceNameVGCUPercentage", "share of each shared card", _PERCENT),
            _Meaning("resourceNameDRSGCU", "number of DRS slices", "slices"),
            _Meaning("resourceNameGCUMemory", "memory of a DRS profile", "1 MiB"),
            _Meaning("resourceNameGCUCore", "cores of a DRS profile", _PERCENT),
        ),
        ("GCU", "Enflame"),
    ),
    KunlunSection: _SectionMeaning(
        (
            _WHOLE_CARDS,
            _Meaning("resourceVCountName", "number of vXPU slices", "slices"),
            _Meaning("resourceVMemoryName", "memory of each slice", "1 MiB"),
        ),
        ("kunlun", "XPU"),
    ),
    AwsNeuronSection: _SectionMeaning(
        (
            _Meaning("resourceCountName", "number of whole devices", "devices"),
            _Meaning("resourceCoreName", "number of NeuronCores", "cores"),
        ),
        ("AWSNeuron",),
    ),
    AmdSection: _SectionMeaning((*_three("cards", "1 MiB", _PERCENT), _PERCENTAGE_OF_MEMORY), ("AMD",), _amd_notes),
    VastaiSection: _SectionMeaning((_Meaning("resourceCountName", "number of cards or dies", "devices"),), ("Vastai",)),
    BirenSection: _SectionMeaning(
        (_Meaning("resourceCountName", "number of cards or partitions", "devices"),), ("Biren",)
    ),
    AscendChip: _SectionMeaning(
        (
            _Meaning("resourceName", "number of NPUs", "cards"),
            _Meaning("resourceMemoryName", "memory of each NPU", _FACTOR_MIB),
            _Meaning("resourceCoreName", "compute of each NPU, in soft mode only", _PERCENT),
        ),
        notes=_chip_notes,
    ),
    VolcanoSection: _SectionMeaning(
        (*_three("cards", _FACTOR_MIB, _PERCENT), _PERCENTAGE_OF_MEMORY), ("volcano",), _volcano_notes
    ),
    KoordinatorSection: _SectionMeaning(
        (
            _Meaning("koordinator.sh/gpu.shared", "number of cards", "cards"),
            _Meaning("koordinator.sh/gpu-core", "compute of all cards", _PERCENT),
            _Meaning("koordinator.sh/gpu-memory", "memory of all cards", "bytes"),
            _Meaning("koordinator.sh/gpu-memory-ratio", "memory of all cards, as a share", _PERCENT),
            _Meaning("koordinator.sh/gpu", "compute and memory of all cards, as a share", _PERCENT),
        ),
        ("koordinator",),
        _scheduler_notes,
    ),
}
