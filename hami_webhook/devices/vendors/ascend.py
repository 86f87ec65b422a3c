"""Huawei Ascend NPUs, every chip model of `vnpus` a vendor of its own. Source: docs/spec/ascend.md.

A container gets whole NPUs, or a slice of one: in template mode one of the few sizes the driver can cut, in soft mode
(hami-core) any memory and any share of the compute, of several NPUs too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, ClassVar

import orjson
from msgspec import Struct
from msgspec.structs import replace
from pydantic import Field, field_validator

from hami_webhook.config.devices import (
    FACTOR_MIB,
    PERCENT,
    Chip,
    DeviceSection,
    Factored,
    Meaning,
    runtime_class_note,
)
from hami_webhook.config.fields import (
    Flag,
    Number,
    Positive,
    ResourceName,
    RuntimeClassName,
    Section,
    Text,
    Word,
    checked,
    refuse,
)
from hami_webhook.devices import reasons
from hami_webhook.devices.amounts import sixteen_gib
from hami_webhook.devices.codecs import CardRecord, custom_info
from hami_webhook.devices.device_lister import DeviceLister
from hami_webhook.devices.fit_request import (
    ACCESS_CHECKS,
    AMOUNT_CHECKS,
    FIRST_FIT,
    WITHIN_QUOTA,
    Candidate,
    Choice,
    Constraints,
    FitRequest,
    Selection,
)
from hami_webhook.devices.groups import LargestGroups, togetherness
from hami_webhook.devices.keys import DeviceKeys, ReservedKeys
from hami_webhook.devices.model import BadRequest, Device, FixedMemory, Inventory, NodeView, Request, Rows
from hami_webhook.devices.newer_annotations import overwrites_env
from hami_webhook.devices.pod_preferences import split_list
from hami_webhook.devices.reasons import Rejection
from hami_webhook.devices.registration import NodeRegistration
from hami_webhook.devices.vendor import Vendor
from hami_webhook.kube.draft import ContainerDraft, PodDraft
from hami_webhook.kube.message_text import found, quoted
from hami_webhook.kube.objects import Container, Node, Pod
from hami_webhook.kube.quantity import parse_whole
from hami_webhook.kube.yaml_reader import Path

MODE = "huawei.com/vnpu-mode"
SOFT_MODE = "hami-core"
NODE_MODE = "hami-vnpu-core"
_ENPU_MODES = ("enpu", "ubs-virt", "vcann-rt")
PLACED_AT = "predicate-time"
VISIBLE_DEVICES = "ASCEND_VISIBLE_DEVICES"
PAIRED = "Ascend910C"
"""The model of which two NPUs make a module."""
GROUPED = "Ascend910"
"""What the models with HCCS groups begin with."""
ROUNDED = "hami.io/superpod-rounded"
"""The containers whose count admission rounded up to a module, so that it knows its own work when it sees it again."""


_MODES = ("template", "hamicore", SOFT_MODE, "enpu")


def _vnpu_mode(value: object) -> str:
    """A mode as HAMi reads it: case and blanks around it mean nothing, and soft mode has two spellings."""
    mode = value.strip().lower() if isinstance(value, str) else value
    if mode not in ("", *_MODES):
        refuse(f"must be template, hami-core (or hamiCore) or enpu, found {found(value)}")
    return SOFT_MODE if mode == "hamicore" else str(mode)


def _any_case(word: str) -> str:
    """A regular expression of a word in capitals or not: those of JSON schemas have no flags."""
    return "".join(f"[{letter}{letter.upper()}]" if letter.isalpha() else letter for letter in word)


VnpuMode = Annotated[str, checked(_vnpu_mode, type="string", pattern=rf"^\s*({'|'.join(map(_any_case, _MODES))})?\s*$")]


class AscendTemplate(Section):
    """A slice the driver can cut: MiB, and the AI cores and CPUs that come with it (information only)."""

    name: Word
    memory: Positive
    ai_core: Number = 0
    ai_cpu: Number = 0


class AscendChip(Chip, Factored):
    """An entry of `vnpus`: a backend of its own, whose key is `common_word`. Memory is MiB, `templates` ascend by
    memory.
    """

    COUNT_KEYS: ClassVar[Mapping[str, tuple[str, ...]]] = {"resourceName": ("resourceMemoryName", "resourceCoreName")}

    resource_name: Annotated[ResourceName, Meaning("number of NPUs", "cards")] = ""
    resource_memory_name: Annotated[ResourceName, Meaning("memory of each NPU", FACTOR_MIB)] = ""
    resource_core_name: Annotated[ResourceName, Meaning("compute of each NPU, in soft mode only", PERCENT)] = ""
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

    def faults(self) -> Iterator[tuple[str, str]]:
        if self.memory_capacity < self.memory_allocatable:
            yield (
                "memoryCapacity",
                f"must be at least memoryAllocatable, {self.memory_allocatable} MiB, found {self.memory_capacity}",
            )
        names: set[str] = set()
        for template in self.templates:
            if template.memory > self.memory_allocatable:
                yield (
                    "templates",
                    f"template {quoted(template.name)} has {template.memory} MiB, more than memoryAllocatable, "
                    f"{self.memory_allocatable} MiB",
                )
            if template.name in names:
                yield "templates", f"two templates are called {quoted(template.name)}; names must be unique"
            names.add(template.name)

    def remarks(self) -> Iterator[tuple[str, str]]:
        if self.topology_pairs is not None:
            yield "topologyPairs", "ignored: topology comes from the nodes' registration"

    def notes(self) -> Iterator[str]:
        yield f"a whole card gives {self.memory_allocatable} of its {self.memory_capacity} MiB"
        if self.templates:
            yield "templates: " + ", ".join(f"{template.name} {template.memory} MiB" for template in self.templates)
        if self.super_pod:
            yield "the two dies of a module are bound together"
        if self.overwrite_env:
            yield "containers that request no card see none"
        yield from runtime_class_note(self.runtime_class_name)


class VnpusSection(DeviceSection):
    """`vnpus`. In HAMi 2.7 and 2.8 it was the list of chips itself, which means `hamiVnpuCore: false`.

    `runtime_class_name` and `overwrite_env` are those of every chip, where HAMi since 2.11 has them.
    """

    LIST_KEY: ClassVar[str] = "configs"

    hami_vnpu_mode: VnpuMode = ""
    hami_vnpu_core: Flag = False
    enpu_policy: Text = ""
    vnpu_device_split_count: Positive = 10
    runtime_class_name: RuntimeClassName = ""
    overwrite_env: Flag = False
    configs: tuple[AscendChip, ...] = ()

    @property
    def nodes_are_soft(self) -> bool:
        """Whether nodes do soft mode that don't say it themselves: by the mode, without one by the older key."""
        return self.hami_vnpu_mode == SOFT_MODE if self.hami_vnpu_mode else self.hami_vnpu_core

    def remarks_on_parts(self) -> Iterator[tuple[str, str]]:
        if self.hami_vnpu_mode == "enpu":
            yield "hamiVnpuMode", f"enpu isn't served: nodes do templates, unless their annotation {NODE_MODE} is true"
            if self.enpu_policy:
                yield "enpuPolicy", "ignored, as enpu isn't served"

    def parts(self) -> Mapping[Path, DeviceSection]:
        return {("configs", index): chip for index, chip in enumerate(self.configs)}

    def notes_on_parts(self) -> Iterator[str]:
        if self.nodes_are_soft:
            yield "nodes offer soft mode unless they say otherwise"


def is_soft(annotations: Mapping[str, str]) -> bool:
    """Whether a pod's annotations select soft mode."""
    return annotations.get(MODE) == SOFT_MODE


class AscendNode(Struct, frozen=True):
    """What else of a node the rules read: whether it does soft mode, and whether every NPU names its HCCS group."""

    soft: bool
    grouped: bool


def _facts(fit_request: FitRequest) -> AscendNode:
    facts = fit_request.inventory.facts
    assert isinstance(facts, AscendNode)
    return facts


class WholeModules(Struct, Selection, frozen=True):
    """Modules of which both NPUs passed; with `splits` one NPU more for an odd count, best one without its sibling."""

    splits: bool

    def choose(self, fit_request: FitRequest, passed: Sequence[Candidate]) -> Choice | None:
        chosen = self.pick(passed, fit_request.request.count, fit_request.admits)
        return Choice(chosen, len(passed)) if len(chosen) == fit_request.request.count else None

    def usable(self, passed: Sequence[Candidate], count: int) -> int:
        return len(self.pick(passed, count))

    def pick(
        self,
        passed: Sequence[Candidate],
        count: int,
        admits: Callable[[Sequence[Candidate]], bool] = lambda candidates: True,
    ) -> list[Candidate]:
        """The NPUs of at most `count`; modules come by the first of their NPUs, each in the order tried."""
        modules: dict[int, list[Candidate]] = {}
        for card in passed:
            modules.setdefault(card.device.index // 2, []).append(card)
        chosen: list[Candidate] = []
        for module in modules.values():
            if len(module) == 2 and len(chosen) + 2 <= count and admits([*chosen, *module]):
                chosen += module
        if self.splits and count % 2 and len(chosen) == count - 1:
            taken = set(chosen)
            left = [card for card in passed if card not in taken and admits([*chosen, card])]
            chosen += sorted(left, key=lambda card: len(modules[card.device.index // 2]))[:1]
        return chosen


BY_GROUP = LargestGroups(lambda device: device.extra)
"""By HCCS group."""


class Ascend(Vendor):
    section_name = "vnpus"
    section_type = VnpusSection
    # a chip's JSON of templates, which none of its other resources is
    reserved = ReservedKeys((PLACED_AT,), of_chips=r"huawei\.com/Ascend(?!\S*-(?:memory|core)$)[-A-Za-z0-9_.]*")
    section_fields = ("resource_name", "resource_memory_name", "resource_core_name")
    checks = (*ACCESS_CHECKS, WITHIN_QUOTA, *AMOUNT_CHECKS)
    explains_memory = True
    hides_cards = True

    @classmethod
    def of(cls, section: VnpusSection, *, is_2_11: bool = False) -> Iterable[Vendor]:
        """A vendor for each chip."""
        return [cls(chip, section, is_2_11=is_2_11) for chip in section.configs]

    def __init__(self, chip: AscendChip, section: VnpusSection, *, is_2_11: bool = False) -> None:
        super().__init__(chip, is_2_11=is_2_11)
        word = chip.common_word
        self.chip = chip
        self.key = word
        self.keys = DeviceKeys.usual(
            word, uuid=f"hami.io/[no-]use-{word}-uuid", extra=(f"huawei.com/{word}", PLACED_AT), choices=(MODE,)
        )
        self.registration = NodeRegistration(f"hami.io/node-register-{word}", f"hami.io/node-handshake-{word}")
        self.paired = word == PAIRED
        self.bound_pairs = self.paired and chip.super_pod
        self.modules = WholeModules(splits=not chip.super_pod)
        self.nodes_are_soft = section.nodes_are_soft
        self.runtime_class_name = chip.runtime_class_name or section.runtime_class_name
        self.any_npu = tuple(each.resource_name for each in section.configs)
        self.any_core = tuple(each.resource_core_name for each in section.configs)
        self.touches_every_container = section.overwrite_env or any(each.overwrite_env for each in section.configs)

    # admission (docs/spec/ascend.md#5)

    def admit(self, container: ContainerDraft, pod: PodDraft, device_lister: DeviceLister) -> bool:
        self.check_amounts(container.container)
        if not any(self.amount(container, name) for name in self.any_npu):
            usual = self.touches_every_container
            if overwrites_env(pod.annotations, container.name, usual=usual) if self.is_2_11 else usual:
                container.set_env(VISIBLE_DEVICES, "", once=True)
        if self.named_by(container):
            self._choose_mode(pod)
        count = parse_whole(container.limits.get(self.count_name))
        if count:
            self._complete(container, pod, count)
        return bool(self.amount(container, self.count_name))

    def _choose_mode(self, pod: PodDraft) -> None:
        """Soft mode where a container asks for cores and the pod names no mode, as HAMi 2.11 reads it; what can't be
        served is refused then. HAMi 2.10 takes all other modes for templates.
        """
        mode = pod.annotations.get(MODE, "")
        if mode in _ENPU_MODES:
            text = f"annotation {MODE}: {mode} isn't served; remove it for slices by templates, or write {SOFT_MODE}"
            if self.is_2_11:
                raise BadRequest(text)
            pod.warn(text)
        elif (
            not mode
            and self.is_2_11
            and any(self.amount(each, name) for each in pod.containers for name in self.any_core)
        ):
            pod.annotations[MODE] = SOFT_MODE
            pod.note(f"annotation {MODE} set to {SOFT_MODE}, because a container asks for cores")

    def _complete(self, container: ContainerDraft, pod: PodDraft, count: int) -> None:
        """Write what a container that requests `count` NPUs leaves open, as the driver will have it."""
        soft = is_soft(pod.annotations)
        rounded = split_list(pod.annotations.get(ROUNDED, ""))
        written = 1 if count == 2 and self.bound_pairs and container.name in rounded else count
        if self.bound_pairs:
            self._complete_module(container, pod, count)
        if not soft:
            self._refuse_cores(container)
        if self.memory_name:
            template = self._write_memory(container, pod, soft=soft)
            if template is not None and written > 1:
                raise BadRequest(
                    f"vNPU not supported for multiple devices: container {container.name} asks for {written} "
                    f"{self.count_name} with a slice of each; ask for one, or for whole NPUs (no {self.memory_name}), "
                    f"or set the annotation {MODE}: {SOFT_MODE}"
                )
            if template is not None and self.bound_pairs and container.name not in rounded:
                pod.annotations[ROUNDED] = ",".join((*rounded, container.name))
        if self.runtime_class_name and not pod.runtime_class_name:
            pod.runtime_class_name = self.runtime_class_name

    def _complete_module(self, container: ContainerDraft, pod: PodDraft, count: int) -> None:
        """The two NPUs of a bound module are given together."""
        if count == 1:
            container.set_limit(self.count_name, 2)
            pod.warn(f"container {container.name}: {self.count_name} 1 becomes 2, as the NPUs of a module are bound")
        elif count % 2:
            raise BadRequest(
                f"{self.key} device request must be 1 or 2*n, got {count}: in container {container.name} ask for "
                f"{count - 1} or {count + 1} {self.count_name}, as the two NPUs of a module are bound"
            )

    def _refuse_cores(self, container: ContainerDraft) -> None:
        if self.amount(container, self.core_name):
            raise BadRequest(
                f"{self.core_name} is only supported in hami-core (soft split) mode: container {container.name} asks "
                f"for {container.amount(self.core_name)}; remove it, or set the annotation {MODE}: {SOFT_MODE}"
            )

    def _write_memory(self, container: ContainerDraft, pod: PodDraft, *, soft: bool) -> AscendTemplate | None:
        """Write the memory of each NPU; the template it is a slice of, None for whole NPUs and in soft mode."""
        chip, name = self.chip, self.memory_name
        units = parse_whole(container.limits.get(name))
        if units is None:
            container.set_both(name, chip.memory_allocatable // self.memory_factor)
            return None
        mebibytes = units * self.memory_factor
        if mebibytes > chip.memory_capacity:
            most = chip.memory_capacity // self.memory_factor
            raise BadRequest(
                f"{name} {units} is invalid: container {container.name} may ask for at most {most}, in units of "
                f"{self.memory_factor} MiB (16 GiB is {sixteen_gib(self.memory_factor)}, not 16Gi), or for none to get "
                "whole NPUs"
            )
        if soft:
            container.set_both(name, units)
            return None
        template = self.template(mebibytes)
        carved = (template.memory if template else chip.memory_allocatable) // self.memory_factor
        if carved != units:
            what = f"the template {template.name}" if template else "a whole NPU"
            pod.warn(f"container {container.name}: {name} {units} becomes {carved}, {what}")
        container.set_both(name, carved)
        return template

    def template(self, mebibytes: int) -> AscendTemplate | None:
        """The smallest template with so many MiB; None where only a whole NPU has them."""
        return next((each for each in self.chip.templates if each.memory >= mebibytes), None)

    # request extraction (6)

    def request_in_pod(self, container: Container, pod: Pod) -> Request | None:
        """The driver carves no other sizes, so a pod that admission didn't see is rounded here."""
        request = self.request(container)
        if request is None or not isinstance(request.memory, FixedMemory) or is_soft(pod.annotations):
            return request
        template = self.template(request.memory.mebibytes)
        if template is not None:
            return replace(request, memory=FixedMemory(template.memory), profile=template.name)
        if request.memory.mebibytes <= self.chip.memory_capacity:
            return replace(request, memory=FixedMemory(self.chip.memory_allocatable))
        return request

    # node side (3)

    def device(self, record: CardRecord, position: int) -> Device:
        """The card's HCCS group is its `extra`, None where it names none."""
        group = custom_info(record).get("networkid")
        known = isinstance(group, int | float) and not isinstance(group, bool)
        return replace(super().device(record, position), extra=group if known else None)

    def inventory(self, node: Node) -> Inventory | None:
        devices = self.registered(node)
        mode = node.annotations.get(NODE_MODE)
        facts = AscendNode(
            soft=self.nodes_are_soft if mode is None else mode == "true",
            grouped=self.key.startswith(GROUPED) and all(device.extra is not None for device in devices),
        )
        return Inventory(devices, facts) if devices else None

    # Fit (7)

    def refuses_node(self, fit_request: FitRequest) -> Rejection | None:
        refusal = super().refuses_node(fit_request)
        if refusal is None and is_soft(fit_request.pod.annotations) and not _facts(fit_request).soft:
            return Rejection({reasons.MODE_NOT_FIT: 1}, len(fit_request.inventory.devices))
        return refusal

    def terms(self, pod: Pod, default_policy: str) -> Constraints:
        terms = super().terms(pod, default_policy)
        return replace(terms, total_cores=100) if is_soft(pod.annotations) else terms

    def selection(self, fit_request: FitRequest) -> Selection:
        if fit_request.request.count == 1:
            return FIRST_FIT
        if self.paired:
            return self.modules
        return BY_GROUP if _facts(fit_request).grouped else FIRST_FIT

    def refusal(self, fit_request: FitRequest, cards: Sequence[Candidate], usual: Rejection) -> Rejection:
        """NPUs that must come in modules are counted out of those wanted, also where there are none."""
        count = fit_request.request.count
        if not self.paired or count == 1:
            return usual
        return Rejection({reasons.ALLOCATED_CARDS_INSUFFICIENT_REQUEST: 0, **usual.counts}, count)

    # node choice (8)

    def score(self, pod: Pod, view: NodeView, rows: Rows, policy: str) -> float:
        """How much of each container's NPUs are in one HCCS group; 0 if the group of any is unknown."""
        if not self.key.startswith(GROUPED):
            return 0.0
        group = {device.uuid: device.extra for device in view.inventories[self.key].devices}
        given = [device.uuid for row in rows if self.key in row for device in row[self.key].devices]
        if any(group[uuid] is None for uuid in given):
            return 0.0
        reward = 10 * togetherness(self.key, rows, group)
        return -reward if policy == "spread" else reward

    def hint(self, label: str, views: Sequence[NodeView]) -> str:
        if label == reasons.MODE_NOT_FIT:
            otherwise = "do" if self.nodes_are_soft else "don't"
            return (
                f'{MODE}: {SOFT_MODE} needs a node whose annotation {NODE_MODE} is "true"; '
                f"nodes without that annotation {otherwise}, by vnpus.hamiVnpuMode"
            )
        if label == reasons.CARD_TIME_SLICING_EXHAUSTED:
            slots = max(device.slots for view in views for device in view.inventories[self.key].devices)
            return f"an {self.key} takes at most {slots} containers, as its device plugin registered it"
        return super().hint(label, views)

    # outputs (9)

    def encode(self, pod: Pod, rows: Rows, node: Node, now: float) -> dict[str, str]:
        entries = [
            {"UUID": d.uuid, "temp": d.share.profile, "memory": d.share.memory, "core": d.share.cores}
            for row in rows
            if self.key in row
            for d in row[self.key].devices
        ]
        listed = orjson.dumps([{key: value for key, value in entry.items() if value} for entry in entries])
        written = {f"huawei.com/{self.key}": listed.decode(), PLACED_AT: str(int(now))}
        return super().encode(pod, rows, node, now) | written
