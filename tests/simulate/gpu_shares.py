"""Koordinator's GPU share by its page, read without the program: what pods ask, cost and hold, and where they fit.

Amounts are totals of a pod; memory is bytes. A pod is as its user wrote it, so what admission makes of it is here too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .families import GIB, JSON, MIB, Charge, containers, effective

SHARED, GPU = "koordinator.sh/gpu.shared", "koordinator.sh/gpu"
CORE, MEMORY, RATIO = "koordinator.sh/gpu-core", "koordinator.sh/gpu-memory", "koordinator.sh/gpu-memory-ratio"
NAMES = (SHARED, CORE, MEMORY, RATIO, GPU)
KEYS = tuple(f"limits.{name}" for name in NAMES)
ALIASES = {
    **{f"kubernetes.io/{name.partition('/')[2]}": name for name in NAMES[1:]},
    "koordinator.sh/gpu-shared": SHARED,
}
BYTES = f"limits.{MEMORY}"
ISOLATION = "koordinator.sh/gpu-isolation-provider"
OWN = "scheduling.koordinator.sh"
ALLOCATED, HINT, SPEC = f"{OWN}/device-allocated", f"{OWN}/device-allocate-hint", f"{OWN}/gpu-partition-spec"


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

    @property
    def uuid(self) -> str:
        return self.id or f"minor-{self.minor}"


@dataclass(frozen=True)
class Want:
    """What a pod asks of each of so many cards: percent of cores; percent of memory, or bytes."""

    number: int
    core: int | None
    ratio: int | None
    memory: int | None

    @property
    def fractional(self) -> bool:
        return self.ratio is None or self.ratio < 100


# what pods ask, and what they cost (5.2, 6 and 10.1)


def bytes_of(written: object) -> int:
    text = str(written)
    for suffix, scale in (("Ki", 2**10), ("Mi", MIB), ("Gi", GIB), ("G", 10**9)):
        if text.endswith(suffix):
            return int(text.removesuffix(suffix)) * scale
    return int(text)


def _asked(box: JSON, *, app: bool) -> dict[str, int]:
    """What a container asks after admission, by proper names."""
    resources = box.get("resources", {})
    written = {**resources.get("limits", {}), **resources.get("requests", {})}
    found = {ALIASES[name]: bytes_of(amount) for name, amount in written.items() if name in ALIASES}
    found |= {name: bytes_of(written[name]) for name in NAMES if name in written}
    found = {name: amount for name, amount in found.items() if amount}
    if not app:
        return found
    if GPU in found:
        found |= {CORE: found[GPU], RATIO: found[GPU]}
        del found[GPU]
    if found and SHARED not in found:
        percent = found.get(RATIO, found.get(CORE, 0))
        found[SHARED] = percent // 100 if percent > 100 and percent % 100 == 0 else 1
    return found


def total(manifest: JSON) -> dict[str, int]:
    """The pod's effective requests."""
    rows = [(kind, _asked(box, app=kind == "app")) for kind, box in containers(manifest)]
    sums = {name: effective([(kind, asked.get(name, 0)) for kind, asked in rows]) for name in NAMES}
    return {name: amount for name, amount in sums.items() if amount}


def want(manifest: JSON) -> Want | None:
    asked = total(manifest)
    if not asked:
        return None
    number = asked[SHARED]
    core, ratio = (asked[name] // number if name in asked else None for name in (CORE, RATIO))
    return Want(number, core, ratio, asked[MEMORY] // number if ratio is None else None)


def waiting(manifest: JSON, cards: Sequence[Gpu]) -> Charge:
    """What a pod costs that has no place: the smallest card by percent, the largest by bytes."""
    one = want(manifest)
    if one is None:
        return {}
    sizes = [card.memory for card in cards if card.healthy]
    memory, ratio = one.memory or 0, one.ratio or 0
    if one.ratio is not None:
        memory = min(sizes) * one.ratio // 100
    else:
        ratio = memory * 100 // max(sizes)
    core = one.core or 0
    each = (1, core, memory, ratio, max(core, ratio))
    return {key: one.number * amount for key, amount in zip(KEYS, each, strict=True) if amount}


# what pods have (9 and 10.2)


@dataclass(frozen=True)
class Share:
    """What a pod has of one card."""

    minor: int
    id: str
    core: int
    memory: int
    ratio: int


def shares(annotations: Mapping[str, str]) -> list[Share]:
    return [
        Share(
            entry["minor"],
            entry.get("id", ""),
            int(entry["resources"].get(CORE, 0)),
            bytes_of(entry["resources"][MEMORY]),
            int(entry["resources"][RATIO]),
        )
        for entry in json.loads(annotations.get(ALLOCATED, "{}")).get("gpu", [])
    ]


def placed(annotations: Mapping[str, str]) -> Charge:
    """What a pod costs by its allocation."""
    rows = [(1, s.core, s.memory, s.ratio, max(s.core, s.ratio)) for s in shares(annotations)]
    sums = zip(KEYS, (sum(column) for column in zip(*rows, strict=True)), strict=False)
    return {key: amount for key, amount in sums if amount}


# where they fit (7)

Used = tuple[int, int, int]
"""Of a card: percent of cores, bytes, percent of memory."""


def suits(card: Gpu, used: Used, one: Want, selector: Mapping[str, str]) -> bool:
    core, memory, ratio = used
    return (
        card.healthy
        and selector.items() <= card.labels.items()
        and core + (one.core or 0) <= 100
        and (ratio + one.ratio <= 100 if one.ratio is not None else memory + (one.memory or 0) <= card.memory)
    )


def has_room(
    manifest: JSON, one: Want, node: JSON, here: Sequence[Gpu], used: Mapping[tuple[str, int], Used], honors: bool
) -> bool:
    """Whether the node could serve the pod; `honors`: its Device says that whole cards make partitions."""
    meta = manifest["metadata"]
    notes = meta.get("annotations", {})
    label = meta.get("labels", {}).get(ISOLATION, "")
    label = "HAMi-core" if label.lower() == "hami-core" else label
    hint = json.loads(notes.get(HINT, "{}")).get("gpu", {})
    if not manifest["spec"].get("nodeSelector", {}).items() <= node["metadata"]["labels"].items():
        return False
    if one.fractional and label and node["metadata"]["labels"].get(ISOLATION) != label:
        return False
    empty = (0, 0, 0)
    selector = hint.get("selector", {}).get("matchLabels", {})
    able = [c for c in here if suits(c, used.get((c.node, c.minor), empty), one, selector)]
    if not one.fractional and (SPEC in notes or honors):
        if node["metadata"]["labels"].get("node.koordinator.sh/gpu-model") != "H100":
            return False  # no other node has a table
        if json.loads(notes.get(SPEC, "{}")).get("ringBusBandwidth"):
            return False  # the table has none
        idle = {c.minor for c in able if used.get((c.node, c.minor), empty) == empty}
        blocks = [set(range(first, first + one.number)) for first in range(0, 8, one.number)]
        return one.number in (1, 2, 4, 8) and any(block <= idle for block in blocks)
    scope = hint.get("requiredTopologyScope", "Node")
    if scope == "Node":
        return len(able) >= one.number
    if any(c.spot is None for c in here) or (one.fractional and one.number > 1):
        return False
    depth = 1 if scope == "NUMANode" else 2
    spots = [c.spot[:depth] for c in able if c.spot]
    return any(spots.count(spot) >= one.number for spot in spots)


# nodes and their Devices (3)


def nodes() -> Iterator[tuple[str, list[Gpu], JSON, JSON | None, bool]]:
    """Name, cards, labels, Device, and whether its partitions must be kept to."""
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
    yield "koord-a10", cards, isolated, device(cards), False
    cards = [
        Gpu("koord-a100", i, 80 * GIB, f"koord-a100-g{i}", labels={"link": f"l{i // 4}"}, spot=(i // 4, f"pci{i // 2}"))
        for i in range(8)
    ]
    yield "koord-a100", cards, {}, device(cards), False
    cards = made("koord-h100", 8, 80)
    honors = {**model, "node.koordinator.sh/gpu-partition-policy": "Honor"}
    yield "koord-h100", cards, {**isolated, **model}, device(cards, **honors), True
    cards = [Gpu("koord-old", i, 16 * GIB, healthy=i != 1) for i in range(3)]
    yield "koord-old", cards, isolated, device(cards), False
    yield "koord-none", [], isolated, None, False
