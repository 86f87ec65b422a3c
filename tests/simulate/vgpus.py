"""Volcano's vGPUs by their page, read without the program: what pods ask, cost and hold, and where they go.

Memory is counted in blocks, as Volcano does. A pod is as its user wrote it, so what admission makes of it is here too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace

from .families import JSON, Card, Charge, limit

BLOCK = 4
"""MiB."""
NUMBER, MEMORY, CORES = "volcano.sh/vgpu-number", "volcano.sh/vgpu-memory", "volcano.sh/vgpu-cores"
PERCENTAGE = "volcano.sh/vgpu-memory-percentage"
MODE, IDS = "volcano.sh/vgpu-mode", "volcano.sh/vgpu-ids-new"
KEYS = tuple(f"limits.{name}" for name in (NUMBER, MEMORY, CORES))

Groups = Mapping[str, Sequence[tuple[str, int, int]]]
"""The ways to cut a card, in order: instances with their MiB and how many."""
_A30: Groups = {
    "group1": [("1g.6gb", 6144, 4)],
    "group2": [("2g.12gb", 12288, 2)],
    "group3": [("4g.24gb", 24576, 1)],
}
_A100_40: Groups = {
    "group1": [("1g.5gb", 5120, 7)],
    "group2": [("2g.10gb", 10240, 3), ("1g.5gb", 5120, 1)],
    "group3": [("3g.20gb", 20480, 2)],
    "group4": [("7g.40gb", 40960, 1)],
}
_A100_80: Groups = {
    "group1": [("1g.10gb", 9728, 7)],
    "group2": [("2g.20gb", 19968, 3), ("1g.10gb", 9728, 1)],
    "group3": [("3g.40gb", 40192, 2)],
    "group4": [("7g.80gb", 80896, 1)],
}
GEOMETRIES = {"A30": _A30, "A100-PCIE-40GB": _A100_40, "A100-SXM4-80GB": _A100_80}
"""By what the model's name contains (2)."""


def groups_of(card: Card) -> Groups:
    return next((groups for model, groups in GEOMETRIES.items() if model in card.model), {})


def positions(card: Card, group: str) -> list[int]:
    """The MiB of the instance at each position of a group."""
    return [memory for _, memory, count in groups_of(card)[group] for _ in range(count)]


@dataclass(frozen=True)
class ChargeRequest:
    """What an app container asks of each of so many cards: blocks, or percent of the card where they are None."""

    number: int
    memory: int | None
    percent: int
    cores: int

    def on(self, card: Card) -> int:
        return card.memory * self.percent // 100 if self.memory is None else self.memory


# what pods ask, and what they cost (5, 6 and 10)


def _listed(notes: Mapping[str, str], key: str) -> list[str]:
    return [item.strip() for item in notes.get(key, "").split(",") if item.strip()]


def _notes(manifest: JSON) -> Mapping[str, str]:
    found: Mapping[str, str] = manifest["metadata"].get("annotations", {})
    return found


def mode_of(manifest: JSON) -> str:
    return _notes(manifest).get(MODE, "").strip().lower()


def right_uuid(card: Card, manifest: JSON) -> bool:
    notes = _notes(manifest)
    use, nouse = (_listed(notes, f"volcano.sh/vgpu-{word}-gpuuuid") for word in ("use", "nouse"))
    return (not use or card.uuid in use) and card.uuid not in nouse


def right_type(card: Card, manifest: JSON) -> bool:
    """With an allow list nobody looks at the deny list."""
    notes, model = _notes(manifest), card.model.lower()
    if "nvidia.com/use-gputype" in notes:
        use = _listed(notes, "nvidia.com/use-gputype")
        return not use or any(word.lower() in model for word in use)
    return not any(word.lower() in model for word in _listed(notes, "nvidia.com/nouse-gputype"))


def candidates(manifest: JSON, cards: Sequence[Card]) -> list[Card]:
    """The cards that admission takes into account, wherever the pod may go (5.3)."""
    mode = mode_of(manifest)
    return [
        card
        for card in cards
        if card.healthy and mode in ("", card.mode) and right_uuid(card, manifest) and right_type(card, manifest)
    ]


def charge_requests(manifest: JSON, cards: Sequence[Card]) -> list[tuple[str, ChargeRequest]]:
    """What the app containers ask after admission, by their names."""
    sizes = {card.memory for card in candidates(manifest, cards)}
    found = []
    for box in manifest["spec"]["containers"]:
        number, memory, percent, cores = (
            None if (written := limit(box, name)) is None else int(written)
            for name in (NUMBER, MEMORY, PERCENTAGE, CORES)
        )
        if number == 0 or not any((number, memory, percent, cores)):
            continue
        if percent and len(sizes) == 1:
            memory, percent = next(iter(sizes)) * percent // 100, None
        blocks = None if percent else memory or None
        found.append((str(box["name"]), ChargeRequest(number or 1, blocks, percent or 100, cores or 0)))
    return found


def _charge(number: int, memory: int, cores: int) -> Charge:
    return {key: amount for key, amount in zip(KEYS, (number, memory, cores), strict=True) if amount}


def waiting(manifest: JSON, cards: Sequence[Card]) -> Charge:
    """What a pod costs that has no place (10.1)."""
    may = candidates(manifest, cards)
    sizes = sorted({size for card in may for group in groups_of(card) for size in positions(card, group)})
    total = 0
    wanted = [ask for _, ask in charge_requests(manifest, cards)]
    for ask in wanted:
        least = min((ask.on(card) for card in may), default=ask.memory or 0)
        if mode_of(manifest) == "mig" and ask.memory is not None:
            least = next((size // BLOCK for size in sizes if size >= ask.memory * BLOCK), ask.memory)
        total += ask.number * least
    return _charge(sum(a.number for a in wanted), total, sum(a.number * a.cores for a in wanted))


# what pods have (7.1, 9 and 10.2)


@dataclass(frozen=True)
class Entry:
    """A card of a container as it is written: blocks as asked, and the instance; `blocks` are what it takes."""

    uuid: str
    asked: int
    cores: int
    group: str
    position: int
    blocks: int

    @property
    def mebibytes(self) -> int:
        return self.blocks * BLOCK


_ENTRY = re.compile(r"(?P<uuid>[^,:;\[]+)(?:\[(?P<group>\w+)-(?P<position>\d+)\])?,NVIDIA,(\d+),(\d+):")


def entries(annotations: Mapping[str, str], cards: Sequence[Card]) -> list[list[Entry]]:
    """The allocation, by asking container; the whole of it must be readable."""
    known = {card.uuid: card for card in cards}
    rows = []
    for row in annotations[IDS].split(";") if IDS in annotations else ():
        found = []
        assert _ENTRY.sub("", row) == "", row
        for uuid, group, position, memory, cores in _ENTRY.findall(row):
            blocks = positions(known[uuid], group)[int(position)] // BLOCK if group else int(memory)
            found.append(Entry(uuid, int(memory), int(cores), group, int(position or 0), blocks))
        rows.append(found)
    return rows


def placed(annotations: Mapping[str, str], cards: Sequence[Card]) -> Charge:
    """What a pod costs by its allocation."""
    every = [entry for row in entries(annotations, cards) for entry in row]
    return _charge(len(every), sum(e.blocks for e in every), sum(e.cores for e in every))


@dataclass
class State:
    """A card as it stands: what is taken of it, by which PodGroups, and its instances by group."""

    slots: int = 0
    memory: int = 0
    cores: int = 0
    pod_groups: set[str] = field(default_factory=set)
    group: str = ""
    taken: set[int] = field(default_factory=set)

    def add(self, entry: Entry, pod_group: str) -> None:
        assert entry.group == self.group or not self.taken, f"{entry} is of another group than {self.group}"
        assert not entry.group or entry.position not in self.taken, f"{entry} is in use"
        self.slots, self.memory, self.cores = self.slots + 1, self.memory + entry.blocks, self.cores + entry.cores
        self.pod_groups.add(pod_group)
        if entry.group:
            self.group = entry.group
            self.taken.add(entry.position)


def pod_group(manifest: JSON) -> str:
    notes = _notes(manifest)
    name = notes.get("scheduling.k8s.io/group-name") or notes.get("scheduling.volcano.sh/group-name")
    return f"{manifest['metadata']['namespace']}/{name}" if name else ""


# where they go (7.2 to 8, for the empty policy)


def instance(card: Card, state: State, blocks: int) -> tuple[str, int] | None:
    """The instance for so many blocks: group and position."""
    for group in [state.group] if state.taken else groups_of(card):
        fitting = [
            (memory, position)
            for position, memory in enumerate(positions(card, group))
            if memory >= blocks * BLOCK and position not in state.taken
        ]
        if fitting:
            return group, min(fitting)[1]
    return None


def given(card: Card, state: State, ask: ChargeRequest, manifest: JSON) -> Entry | None:
    """What the container would get of the card; None if the card won't do."""
    blocks = ask.on(card)
    mine = pod_group(manifest)
    spreads = mine and _notes(manifest).get("volcano.sh/vgpu-podgroup-policy") == "spread"
    will_do = (
        card.healthy
        and right_uuid(card, manifest)
        and right_type(card, manifest)
        and state.slots < card.slots
        and not (spreads and mine in state.pod_groups)
        and blocks <= card.memory - state.memory
        and ask.cores <= 100 - state.cores
        and not (ask.cores == 100 and state.slots)
        and not (ask.cores == 0 and state.cores == 100)
    )
    if not will_do:
        return None
    if card.mode != "mig":
        return Entry(card.uuid, blocks, ask.cores, "", 0, blocks)
    found = instance(card, state, blocks)
    if found is None:
        return None
    group, position = found
    return Entry(card.uuid, blocks, ask.cores, group, position, positions(card, group)[position] // BLOCK)


def choice(
    manifest: JSON, wanted: Sequence[ChargeRequest], here: Sequence[Card], states: Mapping[str, State]
) -> list[list[Entry]] | None:
    """The cards of a node that the containers get, the last of those that will do; None if it can't be."""
    if not here or mode_of(manifest) not in ("", here[0].mode):
        return None
    now = {card.uuid: deepcopy(states.get(card.uuid, State())) for card in here}
    rows = []
    for ask in wanted:
        able = [e for card in here[::-1] if (e := given(card, now[card.uuid], ask, manifest))][: ask.number]
        if len(able) < ask.number:
            return None
        for entry in able:
            now[entry.uuid].add(entry, "")
        rows.append(able)
    return rows


# nodes (3)

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
