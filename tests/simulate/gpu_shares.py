"""Nodes of Koordinator's GPU share with their Devices, and the names that pods ask by. Memory is bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .families import GIB, JSON, MIB

SHARED, GPU = "koordinator.sh/gpu.shared", "koordinator.sh/gpu"
CORE, MEMORY, RATIO = "koordinator.sh/gpu-core", "koordinator.sh/gpu-memory", "koordinator.sh/gpu-memory-ratio"
NAMES = (SHARED, CORE, MEMORY, RATIO, GPU)
KEYS = tuple(f"limits.{name}" for name in NAMES)
BYTES = f"limits.{MEMORY}"
ISOLATION = "koordinator.sh/gpu-isolation-provider"
OWN = "scheduling.koordinator.sh"


@dataclass(frozen=True)
class Gpu:
    """A card as the Device of its node has it; `spot` is its NUMA node and its switch, if that is told."""

    node: str
    minor: int
    memory: int
    id: str = ""
    healthy: bool = True
    labels: Mapping[str, str] = field(default_factory=dict)
    spot: tuple[int, str] | None = None


def nodes() -> Iterator[tuple[str, list[Gpu], JSON, JSON | None]]:
    """Name, cards, labels, and the Device if there is one."""
    isolated = {ISOLATION: "HAMi-core"}

    def device(cards: Sequence[Gpu], **labels: str) -> JSON:
        def one(card: Gpu) -> JSON:
            made: JSON = {"type": "gpu", "minor": card.minor, "health": card.healthy, "labels": dict(card.labels)}
            if card.id:
                made["id"] = card.id
            if card.healthy:
                made["resources"] = {CORE: "100", MEMORY: f"{card.memory // MIB}Mi", RATIO: "100"}
            if card.spot:
                made["topology"] = {"socketID": -1, "nodeID": card.spot[0], "pcieID": card.spot[1]}
            return made

        rdma = {"type": "rdma", "minor": 0, "health": True}
        return {
            "apiVersion": "scheduling.koordinator.sh/v1alpha1",
            "kind": "Device",
            "metadata": {"name": cards[0].node, "labels": labels},
            "spec": {"devices": [rdma, *map(one, cards)]},
        }

    def made(name: str, count: int, gib: float, **more: Any) -> list[Gpu]:
        return [Gpu(name, i, int(gib * GIB), f"{name}-g{i}", **more) for i in range(count)]

    model = {"node.koordinator.sh/gpu-model": "H100"}
    cards = made("koord-a10", 4, 22.5)
    yield "koord-a10", cards, isolated, device(cards)
    cards = [
        Gpu("koord-a100", i, 80 * GIB, f"koord-a100-g{i}", labels={"link": f"l{i // 4}"}, spot=(i // 4, f"pci{i // 2}"))
        for i in range(8)
    ]
    yield "koord-a100", cards, {}, device(cards)
    cards = made("koord-h100", 8, 80)
    honors = {**model, "node.koordinator.sh/gpu-partition-policy": "Honor"}
    yield "koord-h100", cards, {**isolated, **model}, device(cards, **honors)
    cards = [Gpu("koord-old", i, 16 * GIB, healthy=i != 1) for i in range(3)]
    yield "koord-old", cards, isolated, device(cards)
    yield "koord-none", [], isolated, None
