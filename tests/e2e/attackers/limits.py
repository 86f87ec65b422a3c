"""What pods cost and hold, priced here alone, against quotas and cards at every revision of etcd."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..revisions import CLAIMS, Change
from .queue_tenant import GATE
from .tenant import ALLOCATED

JSON = dict[str, Any]
GPU, MEM = "limits.nvidia.com/gpu", "limits.nvidia.com/gpumem"
SMALLEST = 1000
"""MiB of the smallest card that any node registers: what a percentage is counted by until the pod is placed."""
_TOLD = 150
"""Revisions of the limits' namespaces that are told of before a finding."""
Card = tuple[str, str]
"""A node's name, and a UUID there: another node may register the same."""


@dataclass(frozen=True)
class Limit:
    """A quota: the namespaces it covers, what is hard, and of which type the cards are that it counts (all, if "").

    `cards` are the honest nodes' cards of that type.
    """

    kind: str
    name: str
    namespaces: frozenset[str]
    hard: Mapping[str, int]
    device_type: str = ""
    cards: frozenset[Card] = frozenset()

    def cost(self, item: JSON, now: JSON) -> dict[str, int]:
        """What a pod holds, or will hold at least. `now` is the pod as it is, `item` as it was bound."""
        if {"name": GATE} in item["spec"].get("schedulingGates", []):
            return {}
        if (
            now["status"].get("phase") in ("Succeeded", "Failed")
            or now["metadata"].get("deletionGracePeriodSeconds") == 0
        ):
            return {}  # the last revision of a pod that is deleted by force is one in which its time is over
        placed = placement(item)
        if placed:
            counted = [(memory, card) for card, memory, _ in placed if not self.device_type or card in self.cards]
            return {GPU: len(counted), MEM: sum(memory for memory, _ in counted)}
        if self.device_type and not self._is_confined(item):
            return {}
        limits = {key.removeprefix("nvidia.com/"): int(text) for key, text in _declared(item).items()}
        slots = limits["gpu"]
        # a percentage of cards that no node has, by the pod's own lists, costs one unit
        smallest = 1 if _lists(item) else SMALLEST * limits.get("gpumem-percentage", 100) // 100
        each = limits.get("gpumem", smallest)
        return {GPU: slots, MEM: slots * each}

    def _is_confined(self, item: JSON) -> bool:
        """Whether a waiting pod says that it takes any card of the counted type, and no others."""
        lists = _lists(item)
        if lists.keys() != {"use-gputype"}:
            return False
        types = [each.strip().lower() for each in lists["use-gputype"].split(",") if each.strip()]
        return bool(types) and all(self.device_type.lower() in each for each in types)

    def used(self, item: JSON, key: str) -> int:
        text = (item.get("status", {}).get("used") or {}).get(key, "0")
        return int(text[:-1]) * 1000 if text.endswith("k") else int(text)


def claimed(item: JSON) -> dict[str, int]:
    """What a ResourceClaim of `QueueTenant` asks for."""
    (request,) = (each["exactly"] for each in item["spec"]["devices"]["requests"])
    each = int(request["capacity"]["requests"]["memory"].removesuffix("Mi"))
    return {GPU: request["count"], MEM: request["count"] * each}


def placement(item: JSON) -> list[tuple[Card, int, int]]:
    """The cards of a bound pod with memory and cores of each, as its annotation has them."""
    notes = item["metadata"].get("annotations") or {}
    node = item["spec"].get("nodeName")
    parts = notes.get(ALLOCATED, "").replace(";", "").split(":") if node else []
    fields = [part.split(",") for part in parts if part]
    return [((node, uuid), int(memory), int(cores)) for uuid, _, memory, cores in fields]


def _lists(item: JSON) -> dict[str, str]:
    """The lists of types and UUIDs that a pod carries."""
    notes = item["metadata"].get("annotations") or {}
    keys = ("use-gputype", "nouse-gputype", "use-gpuuuid", "nouse-gpuuuid")
    return {key: notes[f"nvidia.com/{key}"] for key in keys if notes.get(f"nvidia.com/{key}")}


def _declared(item: JSON) -> dict[str, str]:
    limits = item["spec"]["containers"][0]["resources"].get("limits", {})
    units = {"k": "000"}
    return {
        key: text[:-1] + units[text[-1]] if text[-1] in units else text
        for key, text in limits.items()
        if key in ("nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpumem-percentage")
    }


@dataclass
class Audit:
    """Goes through all changes. `capacities` are slots, MiB and cores of each card of the honest nodes."""

    limits: list[Limit]
    capacities: Mapping[Card, tuple[int, int, int]]
    findings: dict[str, str] = field(default_factory=dict)
    """The first of each kind: which limit was passed, with the revision and the amounts."""
    repeated: Counter[str] = field(default_factory=Counter)
    """How many revisions had each finding."""
    most: Counter[tuple[str, str]] = field(default_factory=Counter)
    """The most that pods held of each limit's keys."""
    seen: int = 0
    before: dict[str, list[str]] = field(default_factory=dict)
    """What happened before each finding, a line for each revision."""

    def run(self, changes: Iterable[Change]) -> None:
        self._bound: dict[str, JSON] = {}
        self._costs: dict[tuple[str, str], Mapping[str, int]] = {}
        self._held: dict[str, Counter[str]] = defaultdict(Counter)
        self._cards: dict[str, list[tuple[Card, int, int]]] = {}
        self._taken: dict[Card, Counter[int]] = defaultdict(Counter)
        self._used: dict[str, JSON] = {}
        self._last: deque[str] = deque(maxlen=_TOLD)
        for change in changes:
            self.seen += 1
            if any(change.object["metadata"].get("namespace") in (*limit.namespaces, None) for limit in self.limits):
                self._last.append(_told(change))
            if change.kind == "pods":
                self._pod(change)
            if change.kind == CLAIMS:
                self._claim(change)
            limits = self.limits
            for limit in limits:
                if change.kind == limit.kind and change.object["metadata"]["name"] == limit.name:
                    self._used[limit.name] = change.object
            for limit in limits:
                self._check(limit, change.revision)

    def _pod(self, change: Change) -> None:
        item, uid = change.object, change.object["metadata"]["uid"]
        if "nodeName" in item["spec"]:
            # an allocation is what it was when the pod was bound, whatever is written on the pod later
            self._bound.setdefault(uid, item)
        priced = self._bound.get(uid, item)
        gone = change.type == "DELETED"
        for limit in self.limits:
            if item["metadata"]["namespace"] in limit.namespaces:
                self._held[limit.name].subtract(self._costs.pop((limit.name, uid), {}))
                if not gone:
                    cost = self._costs[limit.name, uid] = limit.cost(priced, item)
                    self._held[limit.name].update(cost)
        for card, memory, cores in self._cards.pop(uid, []):
            self._taken[card].subtract({0: 1, 1: memory, 2: cores})
        if not gone and item["status"].get("phase") not in ("Succeeded", "Failed"):
            self._cards[uid] = placement(priced)
            for card, memory, cores in self._cards[uid]:
                self._taken[card].update({0: 1, 1: memory, 2: cores})
                self._check_card(card, change.revision)

    def _claim(self, change: Change) -> None:
        meta = change.object["metadata"]
        for limit in self.limits:
            if meta["namespace"] in limit.namespaces and not limit.device_type:
                self._held[limit.name].subtract(self._costs.pop((limit.name, meta["uid"]), {}))
                if change.type != "DELETED":
                    cost = self._costs[limit.name, meta["uid"]] = claimed(change.object)
                    self._held[limit.name].update(cost)

    def _check(self, limit: Limit, revision: int) -> None:
        for key, hard in limit.hard.items():
            held = self._held[limit.name][key]
            self.most[limit.name, key] = max(self.most[limit.name, key], held)
            shown = limit.used(self._used[limit.name], key) if limit.name in self._used else held
            if held > hard:
                self._find(f"{limit.name}: pods hold more of {key} than hard", f"{held} of {hard}", revision)
            if held > shown:
                self._find(f"{limit.name}: pods hold more of {key} than used shows", f"{held} of {shown}", revision)

    def _check_card(self, card: Card, revision: int) -> None:
        most = self.capacities.get(card)
        taken = tuple(self._taken[card][index] for index in range(3))
        if most is not None and any(used > limit for used, limit in zip(taken, most, strict=True)):
            self._find(f"card {card[1]} holds more than it has", f"{taken} of {most}", revision)

    def _find(self, what: str, amounts: str, revision: int) -> None:
        if what not in self.findings:
            self.findings[what] = f"revision {revision}: {what}: {amounts}"
            self.before[what] = list(self._last)
        self.repeated[what] += 1


def _told(change: Change) -> str:
    """What a revision changed that charges depend on."""
    meta, spec, status = (change.object.get(part) or {} for part in ("metadata", "spec", "status"))
    facts: JSON = {
        **{key: text for key, text in (meta.get("annotations") or {}).items() if "hami" in key or "nvidia" in key},
        **{key: spec[key] for key in ("nodeName", "schedulingGates", "schedulerName") if key in spec},
        **{key: status[key] for key in ("used", "phase") if key in status},
    }
    if change.kind == "pods":
        facts |= spec["containers"][0]["resources"].get("limits", {})
    return f"{change.revision} {change.type} {change.kind} {meta['name']} {meta['uid']} {facts}"
