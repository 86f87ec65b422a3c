"""What must hold between the values of a device-config.yaml: conflicts refuse the file, doubts only earn a warning.

The rules are those of the vendors' chapters (section 2 each) and of docs/spec/quota.md#2. Paths are those of
`DeviceConfig.parts`.
"""

from collections.abc import Callable, Iterator

from hami_webhook.config.devices import (
    AscendChip,
    DeviceConfig,
    EnflameSection,
    IluvatarChip,
    KunlunSection,
    MetaxSection,
    NvidiaSection,
)
from hami_webhook.config.errors import quoted
from hami_webhook.config.schedulers import SchedulerSection

Path = tuple[str | int, ...]
Remark = tuple[Path, str]
Spelling = Callable[[Path], str]

BACKEND_KEYS = frozenset(
    {"NVIDIA", "MLU", "DCU", "Mthreads", "Metax-GPU", "Metax-SGPU", "GCU", "Enflame", "kunlun", "XPU", "AWSNeuron"}
    | {"AMD", "Vastai", "Biren", "Iluvatar", "Enflame-DRS"}
)
"""The backend keys that are fixed (docs/spec/core.md#2.3); those of Ascend and Iluvatar chips are their common words.

Enflame's two kinds of shares are one backend there and two here.
"""

_ANNOTATION_WORDS = frozenset(
    {"vgpu", "cambricon-mlu", "dcu", "mthreads-vgpu", "metax-gpu", "metax-sgpu", "enflame-gcu", "enflame-vgpu", "xpu"}
    | {"aws-neuron", "amd", "iluvatar"}
)


def conflicts(config: DeviceConfig, spelling: Spelling) -> Iterator[Remark]:
    """Faults that no single value shows, each with its path and a sentence, in which `spelling` writes other paths."""
    if not any(part.resource_names() for part in config.parts().values()):
        yield (), "all configurations are empty: no section names a resource"
    yield from _names_used_twice_in_a_part(config)
    yield from _common_words(config, spelling)
    yield from _names_of_both_iluvatar_sections(config)
    for path, part in config.parts().items():
        if isinstance(part, AscendChip):
            for key, sentence in _chip_faults(part):
                yield (*path, key), sentence


def warnings_of(config: DeviceConfig, spelling: Spelling) -> Iterator[Remark]:
    """What is allowed but hardly meant, or known but without effect, each with its path and a sentence."""
    nvidia = config.nvidia
    if nvidia is not None and nvidia.known_mig_geometries is not None:
        yield ("nvidia", "knownMigGeometries"), "ignored: HAMi 2.10 replaced it by migProfileAllowlist"
    users: dict[str, Path] = {}
    for path, part in config.parts().items():
        names = part.resource_names()
        if not names and not isinstance(part, SchedulerSection):
            yield path, "names no resource, so it has no effect"
        for count, others in _count_keys(part):
            if count not in names and any(other in names for other in others):
                yield (*path, count), "is empty, so nothing can ask for these devices by count"
        for key, name in names.items():
            first = users.setdefault(name, path)
            if first != path:
                yield (
                    (*path, key),
                    f"{name} is also a resource of {spelling(first)}: what a pod asks of it is charged for both",
                )
        if isinstance(part, AscendChip) and part.topology_pairs is not None:
            yield (*path, "topologyPairs"), "ignored: topology comes from the nodes' registration"


def _names_used_twice_in_a_part(config: DeviceConfig) -> Iterator[Remark]:
    for path, part in config.parts().items():
        first_key: dict[str, str] = {}
        for key, name in part.resource_names().items():
            if name in first_key:
                yield (*path, key), f"{name} is already the {first_key[name]}; each needs a name of its own"
            first_key.setdefault(name, key)


def _common_words(config: DeviceConfig, spelling: Spelling) -> Iterator[Remark]:
    owners: dict[str, Path] = {}
    for path, part in config.parts().items():
        if not isinstance(part, (AscendChip, IluvatarChip)):
            continue
        word = part.common_word
        if word in BACKEND_KEYS or word in _ANNOTATION_WORDS:
            yield (
                (*path, "commonWord"),
                f"{quoted(word)} is what another vendor's annotations are called; choose another word",
            )
        if word in owners:
            yield (
                (*path, "commonWord"),
                f"{quoted(word)} is already the commonWord of {spelling(owners[word])}; it must be unique",
            )
        owners.setdefault(word, path)


def _names_of_both_iluvatar_sections(config: DeviceConfig) -> Iterator[Remark]:
    if config.iluvatar is None:
        return
    of_chips = {name: index for index, chip in enumerate(config.iluvatars) for name in chip.resource_names().values()}
    for key, name in config.iluvatar.resource_names().items():
        if name in of_chips:
            yield (
                ("iluvatar", key),
                f"{name} is already used by iluvatars[{of_chips[name]}]; a name can't be used by both sections",
            )


def _chip_faults(chip: AscendChip) -> Iterator[tuple[str, str]]:
    if chip.memory_capacity < chip.memory_allocatable:
        yield (
            "memoryCapacity",
            f"must be at least memoryAllocatable, {chip.memory_allocatable} MiB, found {chip.memory_capacity}",
        )
    names: set[str] = set()
    for template in chip.templates:
        if template.memory > chip.memory_allocatable:
            yield (
                "templates",
                f"template {quoted(template.name)} has {template.memory} MiB, more than memoryAllocatable, "
                f"{chip.memory_allocatable} MiB",
            )
        if template.name in names:
            yield "templates", f"two templates are called {quoted(template.name)}; names must be unique"
        names.add(template.name)


def _count_keys(part: object) -> Iterator[tuple[str, tuple[str, ...]]]:
    """For each backend of a section, the key of its count and the keys that are useless without it."""
    match part:
        case MetaxSection():
            yield "resourceVCountName", ("resourceVCoreName", "resourceVMemoryName")
        case KunlunSection():
            yield "resourceVCountName", ("resourceVMemoryName",)
        case AscendChip():
            yield "resourceName", ("resourceMemoryName", "resourceCoreName")
        case EnflameSection():
            yield "resourceNameVGCU", ("resourceNameVGCUPercentage",)
        case NvidiaSection():
            yield "resourceCountName", ("resourceMemoryName", "resourceMemoryPercentageName", "resourceCoreName")
        case _:
            return
