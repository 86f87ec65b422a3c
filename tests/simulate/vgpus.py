"""Nodes of Volcano's vGPUs, and the names that pods ask by. Memory is counted in blocks, as Volcano does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from .families import JSON, Card

BLOCK = 4
"""MiB."""
NUMBER, MEMORY, CORES = "volcano.sh/vgpu-number", "volcano.sh/vgpu-memory", "volcano.sh/vgpu-cores"
PERCENTAGE = "volcano.sh/vgpu-memory-percentage"
MODE, IDS = "volcano.sh/vgpu-mode", "volcano.sh/vgpu-ids-new"
KEYS = tuple(f"limits.{name}" for name in (NUMBER, MEMORY, CORES))


TESLA, A30, A100, A100_80 = (
    f"NVIDIA-{model}" for model in ("Tesla T4", "NVIDIA A30", "NVIDIA A100-PCIE-40GB", "NVIDIA A100-SXM4-80GB")
)


def nodes() -> Iterator[tuple[str, list[Card], JSON, JSON]]:
    """Name, cards, annotations and capacity; of a node that takes no part the cards are in the annotation alone."""

    def registered(cards: Sequence[Card]) -> str:
        return "".join(f"{c.uuid},{c.slots},{c.memory},{c.model},{str(c.healthy).lower()},{c.mode}:" for c in cards)

    def made(name: str, *cards: tuple[str, int], mode: str = "hami-core") -> list[Card]:
        return [
            Card("volcano", f"{name}-c{i}", name, memory // BLOCK, 100, 10, model, mode)
            for i, (model, memory) in enumerate(cards)
        ]

    def written(cards: list[Card], text: str = "", **notes: str) -> tuple[str, list[Card], JSON, JSON]:
        offered = {NUMBER: 10 * len(cards), MEMORY: sum(c.memory for c in cards), CORES: 100 * len(cards)}
        return cards[0].node, cards, {"volcano.sh/node-vgpu-register": text or registered(cards), **notes}, offered

    yield written(made("volcano-t4", *[(TESLA, 15361)] * 4))  # the kubelet's MiB needn't be whole blocks
    yield written(made("volcano-a30", *[(A30, 24576)] * 2, (TESLA, 15361)))
    yield written(made("volcano-mig40", *[(A100, 40960)] * 2, mode="mig"))
    yield written(made("volcano-mig30", *[(A30, 24576)] * 2, mode="mig"))
    yield written(made("volcano-mig80", *[(A100_80, 81920)] * 2, mode="mig"))
    # the last card says what the node is, and one that can't be cut says hami-core
    odd = made("volcano-odd", (A100, 40960), (TESLA, 15361))
    as_mig = [replace(card, mode="mig") for card in odd]
    yield written(odd, registered(as_mig), **{"volcano.sh/node-vgpu-handshake": "Reported 2026-08-01"})
    sick = made("volcano-sick", *[(A100_80, 81920)] * 2)
    yield written([sick[0], replace(sick[1], healthy=False)])
    for name, notes, offered in (
        ("volcano-gone", {"volcano.sh/node-vgpu-handshake": "Deleted_2026.08.01 10:00:00"}, {}),
        ("volcano-many", {}, {MEMORY: 0}),
    ):
        _, _, text, capacity = written(made(name, *[(TESLA, 16384)] * 8))
        yield name, [], {**text, **notes}, {**capacity, **offered}
