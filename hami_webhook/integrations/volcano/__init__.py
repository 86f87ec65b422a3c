"""Volcano's vGPUs: pods with `volcano.sh/vgpu-*` (docs/spec/volcano.md). Costs: section 10.

Volcano places them. Here they are put into a form it can place, charged, and their debit is read from what it wrote;
`simulate` replaces it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from msgspec.structs import replace

from hami_webhook.devices.foreign_scheduler import ForeignCharge, ForeignScheduler, NodeLister, NoNode, Prediction
from hami_webhook.devices.model import BadRequest, Device, Request, Usage
from hami_webhook.integrations.sections import VolcanoSection
from hami_webhook.integrations.volcano.annotation_keys import (
    ALLOCATED,
    ASCEND,
    BIND_PHASE,
    BIND_TIME,
    MIG,
    NODE,
    OWNED,
    mode_of,
)
from hami_webhook.integrations.volcano.ids_annotation import AllocationEntry, assumption_expires_at, node_of, rows_of
from hami_webhook.integrations.volcano.normalisation import Admission
from hami_webhook.integrations.volcano.placement import instance_at, predict, requests_of, usage_of
from hami_webhook.integrations.volcano.registration import ClusterCards, Registry
from hami_webhook.integrations.volcano.vgpu_cards import VolcanoCards
from hami_webhook.kube.draft import ContainerDraft, PodDraft
from hami_webhook.kube.event_reasons import EventReason
from hami_webhook.kube.objects import Container, Node, Pod
from hami_webhook.kube.quantity import parse_whole


class Volcano(ForeignScheduler):
    key = "volcano"
    title = "Volcano"
    section_type = VolcanoSection
    watched = (ALLOCATED, BIND_PHASE, BIND_TIME, NODE)
    owned = OWNED
    keys = VolcanoCards.keys

    def __init__(self, section: VolcanoSection) -> None:
        self.scheduler_names = section.scheduler_names
        self.injects_scheduler = section.inject_scheduler_name
        self._cards = VolcanoCards(section)
        self._registry = Registry(section)
        self._admission = Admission(section, self._cards, self._registry)
        self._costs = Costs(self._cards, self._registry, counts_instances=section.mig_debit == "instance")
        self.resource_names = frozenset(self._cards.resource_names)
        keys = (self._costs.count_key, self._costs.memory_key, self._costs.core_key)
        self.quota_keys = tuple(key for key in keys if key)

    def writes(self, key: str) -> bool:
        return key in OWNED or ASCEND.fullmatch(key) is not None

    def requested_by(self, pod: Pod | PodDraft) -> bool:
        """A count of 0 takes away whatever else its container names."""
        return any(
            parse_whole(self._amount(container, self._cards.count_name)) != 0
            and any(parse_whole(self._amount(container, name) or 0) != 0 for name in self.resource_names)
            for container in pod.containers
        )

    @staticmethod
    def _amount(container: Container | ContainerDraft, name: str) -> Any:
        return container.limits.get(name, container.requests.get(name))

    def node_of(self, pod: Pod) -> str:
        return node_of(pod)

    def admit(self, pod: PodDraft, node_lister: NodeLister) -> None:
        self._admission.admit(pod, node_lister)

    def check(self, pod: Pod, node_lister: NodeLister) -> None:
        self._admission.check(pod)

    def concerns(self, pod: Pod) -> bool:
        return ALLOCATED in pod.annotations or self.named_by(pod)

    def waiting(self, pod: Pod, node_lister: NodeLister) -> ForeignCharge:
        return self._costs.waiting(pod, node_lister)

    def placed(self, pod: Pod, node_lister: NodeLister, now: float) -> ForeignCharge | None:
        return self._costs.placed(pod, node_lister, now)

    def predict(self, pod: Pod, node_lister: NodeLister, now: float) -> Prediction | NoNode:
        return predict(self._cards, self._registry, pod, node_lister, now)

    def cards(self, node: Node, node_lister: NodeLister) -> Iterable[tuple[Device, Usage]]:
        found = self._registry.registration(node)
        if found is None:
            return
        block = self._cards.block
        taken = usage_of(found, node_lister.foreign_pods_on(node.name), block, node_lister.now)
        for device in found.devices:
            usage = taken.get((self.key, device.uuid), Usage())
            yield (
                replace(device, memory=device.memory * block),
                Usage.of(tuple(replace(each, memory=each.memory * block) for each in usage.holders)),
            )

    def remarks(self, node: Node, node_lister: NodeLister) -> Iterable[tuple[EventReason, str]]:
        """MIG instances that more than one live entry names (section 13)."""
        return _held_twice(node, node_lister)


def _held_twice(node: Node, node_lister: NodeLister) -> Iterator[tuple[EventReason, str]]:
    holders: dict[str, list[str]] = {}
    for pod in node_lister.foreign_pods_on(node.name):
        for row in rows_of(pod, node_lister.now) or ():
            for entry in row:
                if entry.place is not None and node_of(pod) == node.name:
                    holders.setdefault(f"{entry.uuid}{entry.place}", []).append(pod.key)
    found = [f"{name} is held by {', '.join(pods)}" for name, pods in sorted(holders.items()) if len(pods) > 1]
    if found:
        yield "DuplicateMigInstance", "; ".join(found)


class Costs:
    """Charges and debits; memory is in blocks. `counts_instances`: a MIG instance costs its own size."""

    def __init__(self, cards: VolcanoCards, registry: Registry, *, counts_instances: bool) -> None:
        self._cards = cards
        self._registry = registry
        self._counts_instances = counts_instances
        self.count_key, self.memory_key, self.core_key = (
            f"limits.{name}" if name else "" for name in (cards.count_name, cards.memory_name, cards.core_name)
        )

    def waiting(self, pod: Pod, node_lister: NodeLister) -> ForeignCharge:
        """What the pod declares, or the least that any candidate card could give. Raises `BadRequest`."""
        requested = requests_of(self._cards, pod).values()
        as_instance = self._counts_instances and mode_of(pod.annotations) == MIG
        blind = as_instance or any(request.memory.declared is None for request in requested)
        found = self._registry.filtered(node_lister, pod.annotations) if requested and blind else None
        memory = sum(request.count * self._least(request, found, as_instance=as_instance) for request in requested)
        amounts = self._amounts(
            sum(request.count for request in requested),
            memory,
            sum(request.count * request.cores for request in requested),
        )
        return ForeignCharge(amounts, frozenset((self.memory_key,)) if requested and blind else frozenset())

    def placed(self, pod: Pod, node_lister: NodeLister, now: float) -> ForeignCharge | None:
        """What the pod got by the allocation it carries; None while that doesn't count."""
        rows = rows_of(pod, now)
        if rows is None:
            return None
        node = node_lister.node(node_of(pod))
        registered = self._registry.registration(node) if node is not None else None
        known = registered.by_uuid if registered is not None else {}
        requests = self._declared(pod)
        problems: list[str] = []
        memory = 0
        for row, entries in enumerate(rows):
            for entry in entries:
                amount = self._held(entry, known.get(entry.uuid), requests[row] if row < len(requests) else None)
                if amount is None:
                    problems.append(
                        f"{ALLOCATED}: the memory of {entry.uuid} counts as 0: Volcano wrote none, and the card isn't "
                        f"known on node {node_of(pod)}"
                    )
                memory += amount or 0
        every = [entry for entries in rows for entry in entries]
        amounts = self._amounts(len(every), memory, sum(entry.cores for entry in every))
        return ForeignCharge(amounts, problems=tuple(problems), until=assumption_expires_at(pod))

    def _least(self, request: Request, found: ClusterCards | None, *, as_instance: bool) -> int:
        """Blocks that the request surely gets of each card; 0 where no candidate is known."""
        declared = request.memory.declared
        if found is None:
            assert declared is not None
            return declared
        if declared is None:
            return min((request.memory.on(memory) for memory in found.memories()), default=0)
        if not as_instance:
            return declared
        sizes = (each.smallest(declared * self._cards.block) for each in found.geometries())
        return min((size // self._cards.block for size in sizes if size is not None), default=declared)

    def _held(self, entry: AllocationEntry, card: Device | None, request: Request | None) -> int | None:
        """Blocks of one entry; None where they aren't known."""
        instance = instance_at(entry, card) if self._counts_instances else None
        if instance is not None:
            return instance.kind.memory // self._cards.block
        if entry.memory:
            return entry.memory
        return request.memory.on(card.memory) if card is not None and request is not None else None

    def _declared(self, pod: Pod) -> list[Request]:
        """What the containers request, in order; nothing where that can't be meant."""
        try:
            return list(requests_of(self._cards, pod).values())
        except BadRequest:
            return []

    def _amounts(self, number: int, memory: int, cores: int) -> dict[str, int]:
        found: Iterable[tuple[str, int]] = (
            (self.count_key, number),
            (self.memory_key, memory),
            (self.core_key, cores),
        )
        return {key: amount for key, amount in found if key and amount}
