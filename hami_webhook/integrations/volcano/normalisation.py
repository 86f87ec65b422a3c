"""What admission does with Volcano's pods: gates, values, percentages, annotations, warnings.

Source: docs/spec/volcano.md#5.
"""

from __future__ import annotations

from collections.abc import Iterator

from hami_webhook.devices.amounts import check_bounds
from hami_webhook.devices.foreign_pods import drop_owned, refuse_node_name, refuse_owned
from hami_webhook.devices.foreign_scheduler import NodeLister
from hami_webhook.devices.model import BadRequest
from hami_webhook.devices.pod_preferences import split_list
from hami_webhook.integrations.priority import move_priority
from hami_webhook.integrations.sections import VolcanoSection
from hami_webhook.integrations.volcano.annotation_keys import (
    MIG,
    MODE,
    MODES,
    MPS,
    NOUSE_UUID,
    OWNED,
    USE_UUID,
    mode_of,
)
from hami_webhook.integrations.volcano.registration import ClusterCards, Registry
from hami_webhook.integrations.volcano.vgpu_cards import VolcanoCards
from hami_webhook.kube.draft import ContainerDraft, PodDraft
from hami_webhook.kube.objects import Container, ContainerKind, Pod
from hami_webhook.kube.quantity import parse_whole

_HAMI_UUIDS = ("nvidia.com/use-gpuuuid", "nvidia.com/nouse-gpuuuid")
_GPU_SHARE = ("volcano.sh/gpu-memory", "volcano.sh/gpu-number")
_OTHER_LEVELS = (
    "Volcano's queues and PriorityClasses (the queue's spec.priority, and priorityClassName of the PodGroup)"
)


class Admission:
    """Puts new pods into the form that Volcano can place, and says what is hardly meant."""

    def __init__(self, section: VolcanoSection, cards: VolcanoCards, registry: Registry) -> None:
        self._section = section
        self._cards = cards
        self._registry = registry
        self._names = cards.resource_names
        self._memory, self._percentage = cards.memory_name, cards.percentage_name

    def admit(self, draft: PodDraft, node_lister: NodeLister) -> None:
        """Normalise a new pod, in the order of docs/spec/volcano.md. Raises `BadRequest`."""
        pod = draft.original
        self._refuse(pod)
        app_containers = [container for container in draft.containers if container.kind is ContainerKind.APP]
        for container in app_containers:
            self._values(container)
        found = self._registry.filtered(node_lister, draft.annotations)
        both = [c.name for c in app_containers if self._amount(c, self._memory) and self._amount(c, self._percentage)]
        for container in app_containers:
            self._expand(container, found, draft)
        self._annotations(draft)
        move_priority(draft, _OTHER_LEVELS)
        for name in both:
            draft.warn(f"[volcano/both] container {name}: {self._percentage} wins over {self._memory}")
        for warning in self._doubts(draft, found):
            draft.warn(warning)

    def check(self, pod: Pod) -> None:
        """Raises `BadRequest` for what a pod must not be when it is stored."""
        self._refuse(pod)
        for container in pod.containers:
            check_bounds(container, self._cards.bounds())
        refuse_bad_mode(pod.annotations.get(MODE))
        refuse_owned(pod.annotations, OWNED)

    # 5.1, 5.2

    def _refuse(self, pod: Pod) -> None:
        refuse_node_name(pod)
        for container in pod.containers:
            if container.kind is not ContainerKind.APP and self._asks_for_something(container):
                raise BadRequest(f"volcano.sh/vgpu resources are not supported in init container {container.name}")

    def _asks_for_something(self, container: Container) -> bool:
        amounts = (written.get(name) for written in (container.limits, container.requests) for name in self._names)
        return any(amount is not None and parse_whole(amount) != 0 for amount in amounts)

    def _values(self, container: ContainerDraft) -> None:
        """Remove zeros, add what is left open, refuse what can't be meant."""
        cards = self._cards
        if self._amount(container, cards.count_name) == 0:
            for name in self._names:
                _remove(container, name)
        for name in (self._memory, self._percentage):
            if self._amount(container, name) == 0:
                _remove(container, name)
        named = [name for name in self._names if container.names_resource(name)]
        cores = cards.core_name in named and self._amount(container, cards.core_name) != 0
        counted = cards.count_name in named
        if not counted and (cores or self._memory in named or self._percentage in named):
            counted = self._section.default_gpu_num > 0
            self._add(container, cards.count_name, self._section.default_gpu_num)
        check_bounds(container.container, cards.bounds())
        if counted and self._memory not in named and self._percentage not in named:
            self._add(container, self._memory, self._section.default_memory)
        if counted and cards.core_name not in named:
            self._add(container, cards.core_name, self._section.default_cores)

    def _amount(self, container: ContainerDraft, name: str) -> int | None:
        return self._cards.amount(container, name)

    def _add(self, container: ContainerDraft, name: str, amount: int) -> None:
        """Write an amount, in requests too where they name any of the resources; 0 means that there is none."""
        if not name or not amount:
            return
        if any(each in container.requests for each in self._names):
            container.set_both(name, amount)
        else:
            container.set_limit(name, amount)

    # 5.3

    def _expand(self, container: ContainerDraft, found: ClusterCards, draft: PodDraft) -> None:
        """Write a percentage as memory, where every card that the pod may get has as much of it."""
        percent = self._amount(container, self._percentage)
        if not self._section.expand_percentage or not percent:
            return
        memories = set(found.memories())
        if len(memories) != 1 or 0 in memories:
            draft.warn(
                f"[volcano/percentage] container {container.name}: {self._percentage} can't be written as "
                f"{self._memory}, because {_why_not(memories)}; Volcano 1.13 and later leaves the pod pending, "
                "as no node offers the percentage"
            )
            return
        blocks = max(1, memories.pop() * percent // 100)  # 0 would mean the whole card
        self._add(container, self._memory, blocks)
        _remove(container, self._percentage)

    # 5.4

    def _annotations(self, draft: PodDraft) -> None:
        annotations = draft.annotations
        refuse_bad_mode(annotations.get(MODE))
        lists = ((key, ",".join(split_list(annotations[key]))) for key in (USE_UUID, NOUSE_UUID) if key in annotations)
        modes = ((MODE, mode_of(annotations)),) if MODE in annotations else ()
        for key, text in (*modes, *lists):
            if text:
                annotations[key] = text
            else:
                del annotations[key]
        if annotations.get(MODE) == MPS:
            draft.warn(f"[volcano/mps] {MODE}: no node ever has mode {MPS}, so the pod can't be placed")
        drop_owned(draft, OWNED)

    # 5.7

    def _doubts(self, draft: PodDraft, found: ClusterCards) -> Iterator[str]:
        cards, annotations = self._cards, draft.annotations
        is_mig = annotations.get(MODE) == MIG
        most_memory = self._largest(found, is_mig=is_mig)
        for container in draft.containers:
            count, memory, cores = (
                self._amount(container, name) or 0 for name in (cards.count_name, self._memory, cards.core_name)
            )
            where = f"container {container.name}"
            if found.most is not None and count > found.most:
                yield (
                    f"[volcano/count] {where}: {cards.count_name} {count} is more than the {found.most} healthy cards "
                    "that any node of the right mode has, and each comes from a card of its own"
                )
            if most_memory is not None and memory * cards.block > most_memory:
                what = "MIG instance" if is_mig else "card"
                yield (
                    f"[volcano/memory] {where}: {self._memory} {memory} is {memory * cards.block} MiB, more than any "
                    f"{what} the pod may get has ({most_memory} MiB)"
                )
            if is_mig and cores:
                yield (
                    f"[volcano/mig-cores] {where}: {cards.core_name} is counted for the card, and not enforced in the "
                    "MIG instance"
                )
            if container.container.privileged:
                yield f"[volcano/privileged] {where} is privileged, so it sees every card of the node"
        yield from self._uuid_doubts(draft)
        shared = [name for name in _GPU_SHARE if any(c.names_resource(name) for c in draft.containers)]
        if shared:
            yield f"[volcano/gpu-share] {', '.join(shared)}: Volcano doesn't run gpu-share and vGPU together"

    def _largest(self, found: ClusterCards, *, is_mig: bool) -> int | None:
        """The most MiB that a container can get of a card; None if no candidate is known."""
        if is_mig:
            return max((size for geometry in found.geometries() for size in geometry.sizes()), default=None)
        return max((memory * self._cards.block for memory in found.memories()), default=None)

    def _uuid_doubts(self, draft: PodDraft) -> Iterator[str]:
        annotations = draft.annotations
        denied = split_list(annotations.get(NOUSE_UUID, ""))
        twice = [uuid for uuid in split_list(annotations.get(USE_UUID, "")) if uuid in denied]
        if twice:
            yield f"[volcano/uuid] {', '.join(twice)}: both in {USE_UUID} and in {NOUSE_UUID}, which wins"
        for key in _HAMI_UUIDS:
            if key in annotations:
                proper = NOUSE_UUID if "nouse" in key else USE_UUID
                yield f"[volcano/uuid] {key} isn't read by Volcano; use {proper}"


def refuse_bad_mode(text: str | None) -> None:
    """Raises `BadRequest` for a mode that isn't known."""
    mode = (text or "").strip().lower()
    if mode and mode not in MODES:
        shown = mode if len(mode) <= 40 else mode[:37] + "..."
        raise BadRequest(f"invalid {MODE} annotation {shown!r}: must be one of {', '.join(MODES)}")


def _why_not(memories: set[int]) -> str:
    return "the cards that the pod may get differ in size" if memories - {0} else "no card that it may get is known"


def _remove(container: ContainerDraft, name: str) -> None:
    for written in (container.limits, container.requests):
        if name in written:
            del written[name]
