"""device-config.yaml as frozen models, one for each section (section 2 of every vendor's chapter; docs/spec/core.md#2.2
and 2.3).

A key that is absent has the value its chapter gives for that, most often an empty resource name, which matches
nothing. Keys only device plugins read are known here, so that HAMi's own file raises no warning. What concerns several
sections is in `conflicts`.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from hami_webhook.config.fields import (
    CommonWord,
    Flag,
    FlagOrText,
    LogLevel,
    Number,
    Percent,
    Positive,
    Ratio,
    ResourceName,
    RuntimeClassName,
    Section,
    Text,
    Word,
    not_empty,
    one_of,
    refuse,
    text_check,
)
from hami_webhook.config.schedulers import KoordinatorSection, VolcanoSection

GpuCorePolicy = Literal["", "default", "force", "disable"]


def _mig_profile_complaint(profile: str) -> str | None:
    slices, dot, rest = profile.partition(".")
    if dot and rest and len(slices) > 1 and slices.endswith("g"):
        return None
    return "must be a MIG profile such as 1g.10gb"


MigProfile = Annotated[str, text_check(_mig_profile_complaint)]


class Factored(Section):
    """A section whose memory resource has a configurable unit."""

    memory_factor: Number = 0

    @property
    def factor(self) -> int:
        """MiB of one unit of the memory resource; 0 counts as 1."""
        return self.memory_factor or 1


class CountMemoryCore(Section):
    """A section with the three names most vendors have."""

    resource_count_name: ResourceName = ""
    resource_memory_name: ResourceName = ""
    resource_core_name: ResourceName = ""


class MigProfileAllowance(Section):
    """The MIG profiles the device plugin may use on cards whose model contains one of `models`."""

    models: Annotated[tuple[Word, ...], not_empty("model")]
    profiles: Annotated[tuple[MigProfile, ...], not_empty("MIG profile")]


class NvidiaSection(CountMemoryCore, Factored):
    """`nvidia`. `default_memory` is MiB a card and never multiplied by the factor; `default_cores` is percent of a
    card.
    """

    resource_memory_percentage_name: ResourceName = ""
    resource_priority_name: ResourceName = ""
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


class MetaxSection(Section):
    """`metax`: whole cards (`resource_count_name`) and shared ones (the three others; a bare memory number is GiB)."""

    resource_count_name: ResourceName = ""
    resource_vcount_name: ResourceName = ""
    resource_vcore_name: ResourceName = ""
    resource_vmemory_name: ResourceName = ""
    sgpu_topology_aware: FlagOrText = False


class HygonSection(CountMemoryCore, Factored):
    """`hygon`. One unit of the memory resource is `factor` MiB."""


class CambriconSection(CountMemoryCore):
    """`cambricon`. One unit of the memory resource is 256 MiB, whatever the file says."""


class MthreadsSection(CountMemoryCore):
    """`mthreads`. One unit of memory is 512 MiB and one of compute is a core group, of which a card has 16."""


class IluvatarChip(CountMemoryCore):
    """An entry of `iluvatars`: a backend of its own, whose key is `common_word`. One unit of memory is 256 MiB."""

    chip_name: Text = ""
    common_word: CommonWord


class IluvatarSection(CountMemoryCore):
    """`iluvatar`, the single family of HAMi 2.7, backend key `Iluvatar`. One unit of memory is 256 MiB."""


class EnflameSection(Section):
    """`enflame`. A name that is absent has its default; only `""` switches one off."""

    OLD_SPELLINGS: ClassVar[Mapping[str, str]] = {
        "resourceCountName": "resourceNameVGCU",
        "resourcePercentageName": "resourceNameVGCUPercentage",
    }

    resource_name_gcu: ResourceName = "enflame.com/gcu"
    resource_name_vgcu: ResourceName = "enflame.com/vgcu"
    resource_name_vgcu_percentage: ResourceName = "enflame.com/vgcu-percentage"
    resource_name_drs_gcu: ResourceName = "enflame.com/drs-gcu"
    resource_name_gcu_memory: ResourceName = "enflame.com/gcu-memory"
    resource_name_gcu_core: ResourceName = "enflame.com/gcu-core"

    @model_validator(mode="before")
    @classmethod
    def _old_spellings(cls, written: object) -> object:
        """HAMi 2.7 spelt the two vGCU names like every vendor's; the later spelling wins nothing, so two values are a
        fault.
        """
        if not isinstance(written, Mapping):
            return written
        names = dict(written)
        for old, new in cls.OLD_SPELLINGS.items():
            if old in names:
                value = names.pop(old)
                if names.setdefault(new, value) != value:
                    refuse(f"{old} is the old spelling of {new}, and they differ; keep only {new}")
        return names


class KunlunSection(Section):
    """`kunlun`: whole cards (`resource_count_name`) and vXPU slices; one unit of the slice's memory is 1 MiB."""

    resource_count_name: ResourceName = ""
    resource_vcount_name: ResourceName = ""
    resource_vmemory_name: ResourceName = ""


class AwsNeuronSection(Section):
    """`awsneuron`: whole devices, and single NeuronCores."""

    resource_count_name: ResourceName = ""
    resource_core_name: ResourceName = ""


class AmdSection(CountMemoryCore):
    """`amd`. Without a memory name cards are whole; without a core name pods get all compute units."""

    resource_memory_percentage_name: ResourceName = ""


class VastaiSection(Section):
    """`vastai`: whole cards, or dies registered as devices."""

    resource_count_name: ResourceName = ""


class BirenSection(Section):
    """`biren`: whole cards, or hardware partitions registered as devices."""

    resource_count_name: ResourceName = ""


class AscendTemplate(Section):
    """A slice the driver can cut: MiB, and the AI cores and CPUs that come with it (information only)."""

    name: Word
    memory: Positive
    ai_core: Number = 0
    ai_cpu: Number = 0


class AscendChip(Factored):
    """An entry of `vnpus`: a backend of its own, whose key is `common_word`. Memory is MiB, `templates` ascend by
    memory.
    """

    chip_name: Text = ""
    common_word: CommonWord
    resource_name: ResourceName = ""
    resource_memory_name: ResourceName = ""
    resource_core_name: ResourceName = ""
    memory_allocatable: Positive
    memory_capacity: Positive = Field(default_factory=lambda chip: chip.get("memory_allocatable", 0))
    ai_core: Number = 0
    ai_cpu: Number = 0
    runtime_class_name: RuntimeClassName = ""
    overwrite_env: Flag = False
    super_pod: Flag = False
    templates: tuple[AscendTemplate, ...] = ()
    topology_pairs: object = None

    @field_validator("templates")
    @classmethod
    def _ascending(cls, templates: tuple[AscendTemplate, ...]) -> tuple[AscendTemplate, ...]:
        return tuple(sorted(templates, key=lambda template: template.memory))


class VnpusSection(Section):
    """`vnpus`. In HAMi 2.7 and 2.8 it was the list of chips itself, which means `hamiVnpuCore: false`."""

    hami_vnpu_core: Flag = False
    configs: tuple[AscendChip, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _list_of_chips(cls, written: object) -> object:
        return {"configs": written} if isinstance(written, (list, tuple)) else written


SECTION_SWITCHES: Mapping[str, str] = {"vnpus": "enable_ascend", "iluvatars": "enable_iluvatar"}
"""The sections that `serve` ignores without a switch, by the name of that setting: vendors' own plugins use the same
resource names."""


class DeviceConfig(Section):
    """A whole device-config.yaml. A section that is None is absent and its vendor disabled; no `iluvatars` is an
    empty tuple.
    """

    nvidia: NvidiaSection | None = None
    metax: MetaxSection | None = None
    hygon: HygonSection | None = None
    cambricon: CambriconSection | None = None
    mthreads: MthreadsSection | None = None
    iluvatars: tuple[IluvatarChip, ...] = ()
    iluvatar: IluvatarSection | None = None
    enflame: EnflameSection | None = None
    kunlun: KunlunSection | None = None
    awsneuron: AwsNeuronSection | None = None
    amd: AmdSection | None = None
    vastai: VastaiSection | None = None
    biren: BirenSection | None = None
    vnpus: VnpusSection | None = None
    volcano: VolcanoSection | None = None
    koordinator: KoordinatorSection | None = None

    def without(self, sections: Iterable[str]) -> "DeviceConfig":
        """The configuration as if the file lacked these sections."""
        return self.model_copy(update={name: type(self).model_fields[name].default for name in sections})

    def parts(self) -> dict[tuple[str | int, ...], Section]:
        """Every section that names resources, and every entry of a list of chips, by its path in the file."""
        found: dict[tuple[str | int, ...], Section] = {}
        for name in type(self).model_fields:
            part: Any = getattr(self, name)
            if isinstance(part, VnpusSection):
                found |= {(name, "configs", index): chip for index, chip in enumerate(part.configs)}
            elif isinstance(part, tuple):
                found |= {(name, index): chip for index, chip in enumerate(part)}
            elif part is not None:
                found[(name,)] = part
        return found
