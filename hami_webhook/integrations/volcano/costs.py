"""What Volcano's pods cost the namespace's quota, before and after they are placed (docs/spec/volcano.md#10)."""

from __future__ import annotations

from collections.abc import Iterable

from hami_webhook.devices.foreign_scheduler import ForeignCharge, NodeLister
from hami_webhook.devices.model import BadRequest, Device, Request
from hami_webhook.integrations.volcano.annotation_keys import ALLOCATED, MIG, mode_of
from hami_webhook.integrations.volcano.ids_annotation import AllocationEntry, assumption_expires_at, node_of, rows_of
from hami_webhook.integrations.volcano.placement import instance_at, requests_of
from hami_webhook.integrations.volcano.registration import ClusterCards, Registry
from hami_webhook.integrations.volcano.vgpu_cards import VolcanoCards
from hami_webhook.kube.objects import Pod


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
