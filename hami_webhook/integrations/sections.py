"""The sections of device-config.yaml for pods that Volcano, Koordinator or KAI place.

Sources: docs/spec/volcano.md#2, docs/spec/koordinator.md#2, docs/spec/kai.md#2.

HAMi has none of them; a key that is absent has the default of its page in docs/spec, which for Volcano is that of its
device plugin.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Literal

from hami_webhook.config.devices import FACTOR_MIB, MEMORY_PERCENTAGE, PERCENT, DeviceSection, Meaning
from hami_webhook.config.fields import (
    Flag,
    LabelValue,
    MixedNameSets,
    Number,
    Percent,
    Positive,
    Ratio,
    ResourceName,
    SchedulerName,
    Section,
    Word,
    not_empty,
    one_of,
    text_check,
)

_SPLIT_CHARACTERS = frozenset("-,:;[]")


def _group_complaint(group: str) -> str | None:
    if _SPLIT_CHARACTERS.isdisjoint(group):
        return None
    return "must not contain - , : ; [ or ] (the group's name becomes part of an annotation that is split on them)"


GroupName = Annotated[str, text_check(_group_complaint, r"^[^-,:;[\]]*[^-,:;[\]\s][^-,:;[\]]*$")]
SchedulerNames = Annotated[tuple[SchedulerName, ...], not_empty("scheduler")]


class MigInstanceKind(Section):
    """Instances of one kind in a geometry: the profile's name, MiB of one instance, and how many there are."""

    name: Word
    memory: Positive
    count: Positive


class MigGroup(Section):
    """One way to cut a card into instances. The order of the kinds is part of the wire format."""

    group: GroupName
    geometries: Annotated[tuple[MigInstanceKind, ...], not_empty("kind of instance")]


class MigGeometries(Section):
    """The ways to cut the cards whose registered type contains one of `models`."""

    models: Annotated[tuple[Word, ...], not_empty("model")]
    allowed_geometries: Annotated[tuple[MigGroup, ...], not_empty("group")]


def _table(models: tuple[str, ...], *groups: tuple[tuple[str, int, int], ...]) -> MigGeometries:
    return MigGeometries(
        models=models,
        allowed_geometries=tuple(
            MigGroup(
                group=f"group{number}",
                geometries=tuple(
                    MigInstanceKind(name=name, memory=memory, count=count) for name, memory, count in kinds
                ),
            )
            for number, kinds in enumerate(groups, start=1)
        ),
    )


PLUGIN_MIG_GEOMETRIES = (
    _table(
        ("A30",),
        (("1g.6gb", 6144, 4),),
        (("2g.12gb", 12288, 2),),
        (("4g.24gb", 24576, 1),),
    ),
    _table(
        ("A100-SXM4-40GB", "A100-40GB-PCIe", "A100-PCIE-40GB"),
        (("1g.5gb", 5120, 7),),
        (("2g.10gb", 10240, 3), ("1g.5gb", 5120, 1)),
        (("3g.20gb", 20480, 2),),
        (("7g.40gb", 40960, 1),),
    ),
    _table(
        ("A100-SXM4-80GB", "A100-80GB-PCIe", "A100-PCIE-80GB"),
        (("1g.10gb", 9728, 7),),
        (("2g.20gb", 19968, 3), ("1g.10gb", 9728, 1)),
        (("3g.40gb", 40192, 2),),
        (("7g.80gb", 80896, 1),),
    ),
)
"""What the chart of Volcano's device plugin configures; memory in MiB of one instance."""


_KOORDINATOR_MEANINGS = {
    "koordinator.sh/gpu.shared": Meaning("number of cards", "cards"),
    "koordinator.sh/gpu-core": Meaning("compute of all cards", PERCENT),
    "koordinator.sh/gpu-memory": Meaning("memory of all cards", "bytes"),
    "koordinator.sh/gpu-memory-ratio": Meaning("memory of all cards, as a share", PERCENT),
    "koordinator.sh/gpu": Meaning("compute and memory of all cards, as a share", PERCENT),
}

KOORDINATOR_RESOURCES = tuple(_KOORDINATOR_MEANINGS)

_VOLCANO_MOST_BLOCKS = 60_000


class SchedulerSection(DeviceSection):
    """What both sections say: whether they count, and what becomes of pods that name several GPU managers."""

    MAY_NAME_NOTHING: ClassVar[bool] = True

    enabled: Flag = True
    inject_scheduler_name: Flag = True
    mixed_name_sets: MixedNameSets = "warn"

    @property
    def denies_mixed_names_explicitly(self) -> bool:
        """Whether the file itself says `mixedNameSets: deny`; between Volcano and Koordinator only that refuses a
        pod.
        """
        return self.mixed_name_sets == "deny" and "mixed_name_sets" in self.model_fields_set

    def names_of_schedulers(self) -> tuple[str, ...]:
        """`spec.schedulerName` of the pods that the scheduler places; the first is the one injected."""
        raise NotImplementedError

    def notes(self) -> Iterator[str]:
        if not self.enabled:
            yield "switched off"
        if self.inject_scheduler_name:
            yield f"pods without a scheduler get {self.names_of_schedulers()[0]}"
        yield f"pods that mix several GPU managers' names: {self.mixed_name_sets}"


class VolcanoSection(SchedulerSection):
    """`volcano`: pods with Volcano's vGPU resources. Memory is counted in blocks of `factor` MiB."""

    scheduler_names: SchedulerNames = ("volcano",)
    resource_count_name: Annotated[ResourceName, Meaning("number of cards", "cards")] = "volcano.sh/vgpu-number"
    resource_memory_name: Annotated[ResourceName, Meaning("memory of each card", FACTOR_MIB)] = "volcano.sh/vgpu-memory"
    resource_core_name: Annotated[ResourceName, Meaning("compute of each card", PERCENT)] = "volcano.sh/vgpu-cores"
    resource_memory_percentage_name: Annotated[ResourceName, MEMORY_PERCENTAGE] = "volcano.sh/vgpu-memory-percentage"
    default_memory: Number = 0
    default_cores: Percent = 0
    default_gpu_num: Number = 1
    device_split_count: Number = 10
    device_memory_scaling: Ratio = 1.0
    device_core_scaling: Ratio = 1.0
    gpu_memory_factor: Number = 1
    schedule_policy: Annotated[Literal["", "binpack", "spread"], one_of("", "binpack", "spread")] = ""
    expand_percentage: Flag = True
    mig_debit: Annotated[Literal["instance", "request"], one_of("instance", "request")] = "instance"
    known_mig_geometries: tuple[MigGeometries, ...] = ()
    # Keys of the device plugin that mean nothing here.
    overwrite_env: object = None
    resource_priority_name: object = None
    disable_core_limit: object = None
    pass_device_specs: object = None

    @property
    def factor(self) -> int:
        """MiB of one memory block; 0 counts as 1."""
        return self.gpu_memory_factor or 1

    @property
    def mig_geometries(self) -> tuple[MigGeometries, ...]:
        """The geometries that hold: the file's, or the plugin chart's when the file has none."""
        return self.known_mig_geometries or PLUGIN_MIG_GEOMETRIES

    def resource_names(self) -> dict[str, str]:
        """The non-empty resource names that count; the plugin's priority name doesn't."""
        names = super().resource_names()
        names.pop("resourcePriorityName", None)
        return names

    def names_of_schedulers(self) -> tuple[str, ...]:
        return self.scheduler_names

    def notes(self) -> Iterator[str]:
        yield from super().notes()
        most = _VOLCANO_MOST_BLOCKS * self.factor
        yield (
            f"nodes of up to {most} MiB in all are counted right; the smallest safe gpuMemoryFactor is the MiB of all "
            f"cards of the largest node / {_VOLCANO_MOST_BLOCKS}, rounded up"
        )
        if any("A30" in entry.models for entry in self.mig_geometries):
            yield "the model text A30 also matches A300 and RTX A3000"


class KoordinatorSection(SchedulerSection):
    """`koordinator`: pods with Koordinator's GPU share. Its resource names are fixed and its memory is in bytes."""

    scheduler_names: SchedulerNames = ("koord-scheduler",)
    isolation_provider: LabelValue = "HAMi-core"
    inject_isolation_label: Flag = False
    mixed_name_sets: MixedNameSets = "deny"
    scoring: Annotated[Literal["LeastAllocated", "MostAllocated"], one_of("LeastAllocated", "MostAllocated")] = (
        "LeastAllocated"
    )

    def resource_names(self) -> dict[str, str]:
        """The fixed names; no key of the file changes them."""
        return {name: name for name in KOORDINATOR_RESOURCES}

    @classmethod
    def meanings(cls) -> Mapping[str, Meaning]:
        return _KOORDINATOR_MEANINGS

    def names_of_schedulers(self) -> tuple[str, ...]:
        return self.scheduler_names


class KaiSection(DeviceSection):
    """`kai`: pods with shares of NVIDIA's cards, or whole ones, that KAI places. They name no resource of its own."""

    MAY_NAME_NOTHING: ClassVar[bool] = True

    enabled: Flag = True
    scheduler_names: SchedulerNames = ("kai-scheduler",)
    reservation_namespace: LabelValue = "kai-resource-reservation"

    def notes(self) -> Iterator[str]:
        if not self.enabled:
            yield "switched off"
        yield f"only KAI makes pods with cards in namespace {self.reservation_namespace}; they cost no quota anything"
