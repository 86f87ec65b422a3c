"""`python -m hack.bench.links`: pods of 1, 2, 4 and 8 GPUs come and go; baselines: HAMi's rule, and random choice.

Pods hold whole GPUs for an exponentially distributed time and come so often that they would take 90 % of them; one that
doesn't fit when it comes is lost. Shares are of all pods that came. HAMi's rule: the fullest node, chance between
equal ones, and there the best pair sum, or for one GPU the least connected one.
"""

from __future__ import annotations

import heapq
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from hack.bench.figures import Figure, Goal, run, show_progress
from hack.bench.objects import CARD_MEMORY, NAMESPACE, SCHEDULER
from hami_webhook.device_config import builtin_device_config, enabled_vendors
from hami_webhook.devices.pod_fit import read_pod_request
from hami_webhook.devices.pod_preferences import GPU_POLICY
from hami_webhook.devices.topology import Scores, best_combination
from hami_webhook.kube.objects import Node, Pod
from hami_webhook.scheduling.filter_cache import FilterCache
from hami_webhook.scheduling.scoring import ScoredNode, best_first
from hami_webhook.state.cluster_cache import ClusterCache

PODS = {"smallest": 200, "usual": 10_000, "large": 10_000}
SIZES = {1: 50, 2: 20, 4: 20, 8: 10}
"""GPUs of a pod, and of a hundred pods how many ask for so many."""
LOAD = 0.9
NOW = 1_767_225_600.0

Cards = tuple[str, Sequence[int]]
"""A node, and the GPUs chosen there by position."""


def _machine(*groups: int, nvlink: int) -> Scores:
    """Pair scores where the GPUs of each group are linked to each other; the others by PCIe."""
    of = [group for group, size in enumerate(groups) for _ in range(size)]
    return [[0 if x == y else nvlink if of[x] == of[y] else 20 for y in range(len(of))] for x in range(len(of))]


DGX = _machine(8, nvlink=1820)
TWO_QUADS = _machine(4, 4, nvlink=220)
HGX_4 = _machine(4, nvlink=420)
BRIDGED_PAIRS = _machine(2, 2, nvlink=420)
PCIE_ONLY = _machine(*[1] * 8, nvlink=0)

FLEETS: Mapping[str, Sequence[Scores]] = {
    "DGX": [DGX] * 16,
    "mixed": [*[DGX] * 4, *[TWO_QUADS] * 4, *[HGX_4] * 4, *[BRIDGED_PAIRS] * 4, *[PCIE_ONLY] * 4],
}


@dataclass
class Fleet:
    """Nodes by name as pair scores, and their GPUs that are free."""

    tables: Mapping[str, Scores]
    free: dict[str, list[int]] = field(init=False)

    def __post_init__(self) -> None:
        self.free = {name: list(range(len(table))) for name, table in self.tables.items()}

    def fitting(self, count: int) -> list[str]:
        return [name for name, free in self.free.items() if len(free) >= count]

    def linked(self, name: str, cards: Sequence[int]) -> bool:
        table = self.tables[name]
        return all(table[x][y] >= 100 for x in cards for y in cards if x != y)


class ByChance:
    """Any node with room, and any of its free GPUs."""

    def __init__(self, fleet: Fleet, chance: random.Random) -> None:
        self.fleet, self.chance = fleet, chance

    def choose(self, count: int) -> Cards | None:
        names = self.fleet.fitting(count)
        if not names:
            return None
        name = self.chance.choice(names)
        return name, self.cards(name, count)

    def cards(self, name: str, count: int) -> Sequence[int]:
        return self.chance.sample(self.fleet.free[name], count)

    def release(self, number: int) -> None:
        """A pod has ended."""

    def claim(self, number: int, cards: Cards) -> None:
        """A pod has got these GPUs."""


class AsHami(ByChance):
    """The fullest node, and there the best combination."""

    def choose(self, count: int) -> Cards | None:
        fleet = self.fleet
        names = fleet.fitting(count)
        if not names:
            return None
        share = {name: len(fleet.free[name]) / len(fleet.tables[name]) for name in names}
        name = self.chance.choice([name for name in names if share[name] == min(share.values())])
        return name, self.cards(name, count)

    def cards(self, name: str, count: int) -> Sequence[int]:
        free, table = self.fleet.free[name][::-1], self.fleet.tables[name]
        scores = [[table[x][y] for y in free] for x in free]
        if count == 1:
            return [free[min(range(len(free)), key=lambda x: sum(scores[x]))]]
        return [free[position] for position in best_combination(scores, count)]


class Ours(ByChance):
    """The program's own filter, with `topology-aware`."""

    def __init__(self, fleet: Fleet, chance: random.Random) -> None:
        super().__init__(fleet, chance)
        vendors = enabled_vendors(builtin_device_config().config)
        self.state = ClusterCache(vendors)
        for name, table in fleet.tables.items():
            self.state.set_node(_node(name, table), NOW)
        self.cache = FilterCache(self.state, vendors, "binpack")
        asked = {count: read_pod_request(_pod(0, count), vendors, "spread") for count in SIZES}
        self.requests = {count: request for count, request in asked.items() if request is not None}

    def choose(self, count: int) -> Cards | None:
        request = self.requests[count]
        fits = self.cache.filtered(request, None, self.fleet.tables).fits
        if not fits:
            return None
        name = best_first(fits, request, "binpack")[0].node
        scored = self.cache.fit(request, None, name)
        assert isinstance(scored, ScoredNode)
        return name, [int(card.uuid.rpartition("-")[2]) for card in scored.fit.rows[0]["NVIDIA"].devices]

    def claim(self, number: int, cards: Cards) -> None:
        self.state.set_pod(_pod(number, len(cards[1]), cards), NOW)

    def release(self, number: int) -> None:
        self.state.remove_pod(f"pod-{number}")


def _node(name: str, table: Scores) -> Node:
    uuids = [f"{name}-{position}" for position in range(len(table))]
    card = {"count": 1, "devmem": CARD_MEMORY, "devcore": 100, "type": "NVIDIA A100", "mode": "hami-core"}
    cards = [{"id": uuid, "index": index, "health": True, **card} for index, uuid in enumerate(uuids)]
    scores = [
        {"uuid": uuid, "score": dict(zip(uuids, row, strict=True))} for uuid, row in zip(uuids, table, strict=True)
    ]
    notes = {"hami.io/node-nvidia-register": json.dumps(cards), "hami.io/node-nvidia-score": json.dumps(scores)}
    status = {"allocatable": {"nvidia.com/gpu": str(len(uuids))}}
    return Node.from_object({"metadata": {"name": name, "annotations": notes}, "status": status})


def _pod(number: int, count: int, cards: Cards | None = None) -> Pod:
    """A pod that asks for whole GPUs, or holds these."""
    notes = {GPU_POLICY: "topology-aware"}
    if cards is not None:
        name, positions = cards
        held = "".join(f"{name}-{position},NVIDIA,{CARD_MEMORY},100:" for position in positions)
        notes |= {"hami.io/vgpu-node": name, "hami.io/vgpu-devices-allocated": f"{held};"}
    limits = {"nvidia.com/gpu": str(count), "nvidia.com/gpucores": "100"}
    spec = {"containers": [{"name": "main", "resources": {"limits": limits}}], "schedulerName": SCHEDULER}
    meta = {"name": f"pod-{number}", "namespace": NAMESPACE, "uid": f"pod-{number}", "annotations": notes}
    return Pod.from_object({"metadata": meta, "spec": spec | ({"nodeName": cards[0]} if cards else {})})


def simulated(
    tables: Sequence[Scores], rule: Callable[[Fleet, random.Random], ByChance], pods: int
) -> tuple[float, float]:
    """The share of multi-GPU pods that got a fully linked set, and of 8-GPU pods that got a place."""
    fleet = Fleet({f"node-{number}": table for number, table in enumerate(tables)})
    arrivals, chooser = random.Random(1), rule(fleet, random.Random(2))
    gpus = sum(map(len, tables))
    often = LOAD * gpus * sum(SIZES.values()) / sum(size * weight for size, weight in SIZES.items())
    now, ending = 0.0, list[tuple[float, int, Cards]]()
    multi = linked = eight = placed = 0
    for number in range(pods):
        now += arrivals.expovariate(often)
        count = arrivals.choices(list(SIZES), list(SIZES.values()))[0]
        until = now + arrivals.expovariate(1)
        while ending and ending[0][0] <= now:
            _, ended, (name, cards) = heapq.heappop(ending)
            fleet.free[name] = sorted((*fleet.free[name], *cards))
            chooser.release(ended)
        chosen = chooser.choose(count)
        multi += count > 1
        eight += count == 8
        if chosen is None:
            continue
        name, cards = chosen
        linked += count > 1 and fleet.linked(name, cards)
        placed += count == 8
        fleet.free[name] = [card for card in fleet.free[name] if card not in cards]
        chooser.claim(number, chosen)
        heapq.heappush(ending, (until, number, chosen))
    return linked / multi, placed / eight


def measure(size: str) -> Sequence[Figure]:
    figures = []
    for fleet, tables in FLEETS.items():
        show_progress(f"links: {PODS[size]} pods on {fleet} nodes")
        ours, hami, chance = (simulated(tables, rule, PODS[size]) for rule in (Ours, AsHami, ByChance))
        for place, name in enumerate(("multi-GPU pods fully linked", "8-GPU pods placed")):
            for baseline, value in (("HAMi's rule", hami[place]), ("random choice", chance[place])):
                # on nodes that are all alike every set is linked: only room can be won there
                goal = Goal(at_least=1) if size != "smallest" and fleet == "mixed" else None
                figures.append(Figure("links", f"{fleet}, {name}", 100 * ours[place], "%", baseline, 100 * value, goal))
    return figures


if __name__ == "__main__":
    run({"links": measure}, __doc__)
