"""The charges of placed pods by their annotations, and the quotas' accounts, computed without the program.

Quota page 5, and the vendors' on quota (10; AMD A9). Memory is MiB until the end.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from . import gpu_shares, vgpus
from .families import (
    FAMILIES,
    GIB,
    JSON,
    MANAGED,
    MIB,
    Charge,
    Family,
    amounts,
    containers,
    effective,
    effective_mask,
    in_units,
    limit,
)


@dataclass(frozen=True)
class Entry:
    """A device of a container, as an allocation has it."""

    uuid: str
    memory: int
    cores: int


def entries(family: Family, annotations: Mapping[str, str]) -> list[list[Entry]]:
    """The allocation, container by container; of Enflame's two kinds, which share a key, the family's."""
    rows = []
    for row in annotations.get(family.annotation, "").split(";")[:-1]:
        found = [Entry(u, int(m), int(c)) for u, m, c in re.findall(r"([^,;]+?),[^,;]*,(\d+),(\d+)(?::|$)", row)]
        if family.known_as:
            found = [entry for entry in found if ("-enflame-drs-" in entry.uuid) == (family.name == "Enflame-DRS")]
        rows.append(found)
    return rows if any(rows) else []


@dataclass(frozen=True)
class LockValue:
    """What a pod holds of one card at its peak: as the card is filled, and `counted` as quota counts cores."""

    slots: int
    memory: int
    cores: int
    counted: int


def held(family: Family, manifest: JSON, annotations: Mapping[str, str]) -> dict[str, LockValue]:
    """What a placed pod holds, card by card."""
    boxes = containers(manifest)
    rows = entries(family, annotations)
    uuids = list(dict.fromkeys(entry.uuid for row in rows for entry in row))
    assert not rows or len(rows) == len(boxes)
    found = {}
    for uuid in uuids:
        slots, memory, cores, counted = [], [], [], []
        for (kind, box), row in zip(boxes, rows, strict=True):
            mine = [entry for entry in row if entry.uuid == uuid]
            sizes = [_slots(family, entry) for entry in mine]
            slots.append((kind, max(sizes, default=0) if kind == "init" else sum(sizes)))
            memory.append((kind, sum(entry.memory for entry in mine)))
            cores.append((kind, sum(entry.cores for entry in mine)))
            percent = int(limit(box, "amd.com/gpucores", 100))
            counted.append((kind, percent * len(mine) if family.name == "AMD" else cores[-1][1]))
        peak = effective_mask(cores) if family.name == "AWSNeuron" else effective(counted)
        found[uuid] = LockValue(effective(slots), effective(memory), effective(cores), peak)
    return found


def _slots(family: Family, entry: Entry) -> int:
    """Slices of a DRS partition, by its percent of a card of six; else an entry is one slot."""
    return max(1, entry.cores * 6 // 100) if family.name == "Enflame-DRS" else 1


def placed(manifest: JSON, annotations: Mapping[str, str]) -> Charge:
    """What a pod costs by its allocation of our vendors' cards: of every card its peak, summed."""
    found: Charge = {}
    for family in FAMILIES:
        cards = held(family, manifest, annotations).values()
        memory = sum(card.memory for card in cards)
        found |= amounts(family, sum(card.slots for card in cards), memory, sum(card.counted for card in cards))
    return found


class QuotaAccount:
    """Quotas and what they hold; `class_of` is the priority class whose pods alone one counts."""

    def __init__(self, quotas: Iterable[JSON]) -> None:
        self.hard: dict[tuple[str, str], dict[str, int]] = {}
        self.in_bytes: set[tuple[str, str, str]] = set()
        self.class_of: dict[tuple[str, str], str] = {}
        for made in quotas:
            where = made["metadata"]["namespace"], made["metadata"]["name"]
            self.hard[where] = {}
            for key, written in made["spec"]["hard"].items():
                if key not in MANAGED.union(vgpus.KEYS, gpu_shares.KEYS):
                    continue
                if written.endswith("Gi") and key != gpu_shares.BYTES:  # which counts bytes anyway
                    self.in_bytes.add((*where, key))
                self.hard[where][key] = int(written[:-2]) * GIB if written.endswith("Gi") else int(written)
            terms = made["spec"].get("scopeSelector", {}).get("matchExpressions", [])
            if terms:
                self.class_of[where] = terms[0]["values"][0]
        self.used: dict[tuple[str, str], dict[str, int]] = {w: defaultdict(int) for w in self.hard}

    def matching(self, namespace: str, manifest: JSON) -> list[tuple[str, str]]:
        priority = manifest["spec"].get("priorityClassName")
        return sorted(w for w in self.hard if w[0] == namespace and self.class_of.get(w, priority) == priority)

    def counted(self, where: tuple[str, str], charge: Charge) -> Charge:
        """The charge in this quota's own terms: its keys only, memory in units or in bytes."""
        units = in_units(charge)
        return {
            key: charge[key] * MIB if (*where, key) in self.in_bytes else units[key]
            for key in charge
            if key in self.hard[where]
        }

    def over(self, where: tuple[str, str], charge: Charge, before: Charge | None = None) -> list[str]:
        """The keys that the charge, which takes the place of `before`, would push over their hard."""
        old, new = self.counted(where, before or {}), self.counted(where, charge)
        return sorted(
            key
            for key, amount in new.items()
            if amount > old.get(key, 0) and self.used[where][key] - old.get(key, 0) + amount > self.hard[where][key]
        )

    def add(self, namespace: str, manifest: JSON, charge: Charge) -> None:
        for where in self.matching(namespace, manifest):
            for key, amount in self.counted(where, charge).items():
                self.used[where][key] += amount
