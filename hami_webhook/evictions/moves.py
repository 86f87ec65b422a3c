"""The fewest moves that free what is wanted: pods of one node whose cards others can give (docs/room.md#moves).

A move is an eviction whose pod's owner replaces it elsewhere. A plan clears part of one node: its pods go to others,
one after the other, the largest first, and none goes to a node that is cleared itself. So a chain, where a pod makes
room for a pod that makes room, is never found; all other plans are, the one with the fewest moves first, until the
search has cost what it may (`Plan.fewest`).

Fit decides on every node, as it would be without those that move; no vendor's rule is known here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from enum import Enum
from itertools import combinations
from math import inf

import msgspec
from msgspec import Struct

from hami_webhook.devices.pod_fit import NodeFit, PodRequest
from hami_webhook.devices.registry import Vendors
from hami_webhook.evictions.search import Exhausted, SearchBudget, SimulatedNode, Trials, giving_back
from hami_webhook.kube.objects import Pod
from hami_webhook.quota.pricing import placed_charge
from hami_webhook.state.node_snapshot import NodeSnapshot
from hami_webhook.state.pod_allocations import CardKey, PodAllocation
from hami_webhook.time_slices import Steps

_FITS, _SETS, _STEPS = 4_000, 100_000, 20_000_000
"""Times that Fit is tried, sets of pods and places that are compared, and steps of Fit, for each part of a search: the
nodes, a plan for each of them, and smaller plans.
"""
_PLACES = 500
"""Places that are tried for one set of pods, before it counts as one that others can't take."""
_WANTED = -1
"""The shape of what is wanted."""


class NoPlan(Enum):
    """Why there is none."""

    NO_NODE = "no node takes it even without all pods that may be moved"
    NO_PLACE = "other nodes can't take the pods that would have to move"
    TOO_LONG = "the search was given up, as it takes too long"


class Wanted(Struct, frozen=True):
    """A pod that doesn't exist, and the nodes that kube-scheduler would let it on."""

    request: PodRequest
    nodes: Set[str]


class MovablePod(Struct, frozen=True, eq=False):
    """A pod that may be moved: its node, the others that kube-scheduler would let it on, and what it requests there.

    `memory` is the MiB that it holds of cards, `charge` what its quotas count of it: no move raises that.
    """

    pod: Pod
    node: str
    nodes: Collection[str]
    request: PodRequest
    memory: int
    charge: Mapping[str, int]


class Move(Struct, frozen=True):
    """One eviction, and the node that can take what its owner makes in its place."""

    pod: MovablePod
    to: str


class Plan(Struct, frozen=True):
    """The moves in their order, after which `node` has what is wanted: `fit` says on which cards.

    `fewest`: no plan has fewer; otherwise the search ended before that was known.
    """

    node: str
    moves: Sequence[Move]
    fit: NodeFit
    fewest: bool = True


def plan_moves(
    wanted: Wanted,
    nodes: Mapping[str, NodeSnapshot],
    movable: Sequence[MovablePod],
    vendors: Vendors,
    *,
    most: int,
    effort: float = 1.0,
) -> Steps[Plan | NoPlan]:
    """The plan with the fewest moves, at most `most`; of several the one that moves the least memory.

    The same cluster gives the same plan. `effort` is the part of the usual search that this one may cost.
    """
    return _Search(wanted, nodes, movable, vendors, most, effort).best()


class _Search:
    """The search for one plan, interrupted after each node and each set of pods."""

    def __init__(
        self,
        wanted: Wanted,
        nodes: Mapping[str, NodeSnapshot],
        movable: Sequence[MovablePod],
        vendors: Vendors,
        most: int,
        effort: float,
    ) -> None:
        self._wanted = wanted
        self._nodes = nodes
        self._vendors = vendors
        self._most = most
        self._effort = effort
        self._trials = Trials(nodes, vendors, self._part())
        self._on: dict[str, list[MovablePod]] = {name: [] for name in nodes}
        self._held = {each.pod.uid: _held(each) for node in nodes.values() for each in node.allocations}
        self._shapes: dict[str, int] = {}
        self._kinds: dict[str, tuple[object, ...]] = {}
        """What pods of a node must have in common so that one may stand for the other, by UID."""
        known: dict[bytes, int] = {}
        vendors_wanted = set(wanted.request.vendors)
        for each in sorted(movable, key=lambda each: (-each.memory, each.pod.uid)):
            held = self._held.get(each.pod.uid, {})
            if not vendors_wanted.isdisjoint(vendor for vendor, _ in held):
                shape = known.setdefault(msgspec.json.encode(each.request.shape), len(known))
                self._shapes[each.pod.uid] = shape
                amounts = tuple(sorted((card, holder) for card, holder in held.items()))
                self._kinds[each.pod.uid] = shape, amounts, tuple(sorted(each.nodes))
                self._on[each.node].append(each)
        self._cut = False
        """Whether a set of pods was given up."""

    def best(self) -> Steps[Plan | NoPlan]:
        candidates: list[str] = []
        try:
            free = yield from self._free(candidates)
        except Exhausted:
            free, self._cut = None, True
        if free is not None:
            return free
        if not candidates:
            return NoPlan.TOO_LONG if self._cut else NoPlan.NO_NODE
        self._trials.effort = self._part()
        found: Plan | None = None
        try:
            for name in candidates:
                found = _better(found, (yield from self._by_giving_back(name)))
        except Exhausted:
            self._cut = True
        self._trials.effort = self._part()
        below = self._most if found is None else len(found.moves) - 1
        try:
            for size in range(1, below + 1):
                smaller = yield from self._of_size(size, candidates)
                if smaller is not None:
                    return msgspec.structs.replace(smaller, fewest=not self._cut)
        except Exhausted:
            self._cut = True
        if found is None:
            return NoPlan.TOO_LONG if self._cut else NoPlan.NO_PLACE
        return msgspec.structs.replace(found, fewest=not self._cut)

    def _part(self) -> SearchBudget:
        return SearchBudget(*(int(amount * self._effort) for amount in (_FITS, _SETS, _STEPS)))

    def _free(self, candidates: list[str]) -> Steps[Plan | None]:
        """A plan where a node has what is wanted as it is; otherwise `candidates` get those that have it once all go
        that may, the one with the least to be moved first.
        """
        for name in sorted(self._wanted.nodes & self._nodes.keys(), key=lambda name: (_memory(self._on[name]), name)):
            now = self._fitted(name, ())
            if now is not None:
                return Plan(name, (), now)
            if self._on[name] and self._fitted(name, self._on[name]) is not None:
                candidates.append(name)
            yield
        return None

    def _by_giving_back(self, name: str) -> Steps[Plan | None]:
        """A plan for a node: pods stay in their turn, first those that nobody can take, then the least of a card."""

        def enough(some: Sequence[MovablePod]) -> Steps[bool]:
            yield
            return self._fitted(name, some) is not None

        pods = self._on[name]
        crowd = Counter(card for each in pods for card in self._held[each.pod.uid])
        movable = {each.pod.uid: self._placing([each], name) is not None for each in pods}

        def last(each: MovablePod) -> tuple[object, ...]:
            crowded = max(crowd[card] for card in self._held[each.pod.uid])
            return movable[each.pod.uid], -crowded, each.memory, each.pod.uid

        order = sorted(pods, key=last)
        gone = yield from giving_back(order, enough)
        return self._plan(name, gone) if len(gone) <= self._most else None

    def _of_size(self, size: int, names: Sequence[str]) -> Steps[Plan | None]:
        """The plan of so many moves that moves the least memory."""
        found: Plan | None = None
        for name in names:
            seen: set[tuple[object, ...]] = set()
            for pods in combinations(self._on[name], size):
                self._count_one()
                kinds = tuple(self._kinds[each.pod.uid] for each in pods)
                if kinds in seen:
                    continue
                seen.add(kinds)
                yield
                if (found is None or _memory(pods) < _moved(found)) and self._fitted(name, pods) is not None:
                    found = _better(found, self._plan(name, pods))
        return found

    def _plan(self, name: str, pods: Sequence[MovablePod]) -> Plan | None:
        places = self._placing(sorted(pods, key=lambda each: (-each.memory, each.pod.uid)), name)
        fit = self._fitted(name, pods)
        return None if places is None or fit is None else Plan(name, places, fit)

    def _fitted(self, name: str, gone: Sequence[MovablePod]) -> NodeFit | None:
        """What is wanted on a node without these. Raises `Exhausted`."""
        room = self._trials.node(name, frozenset(each.pod.uid for each in gone))
        found = self._trials.answer(room, _WANTED, self._wanted.request)
        return None if found is None else found[0]

    def _placing(self, pods: Sequence[MovablePod], cleared: str) -> Sequence[Move] | None:
        """A place for each on other nodes, in this order; None if there is none. Raises `Exhausted`."""
        tries = 0

        def put(index: int, rooms: Mapping[str, SimulatedNode]) -> Sequence[Move] | None:
            nonlocal tries
            if index == len(pods):
                return ()
            each = pods[index]
            for name, room in self._rooms(each, cleared, rooms):
                tries += 1
                self._count_one()
                if tries > _PLACES:
                    self._cut = True
                    return None
                answer = self._trials.answer(room, self._shapes[each.pod.uid], each.request)
                if answer is None or not self._costs_no_more(each, answer[0]):
                    continue
                rest = put(index + 1, {**rooms, name: answer[1]})
                if rest is not None:
                    return (Move(each, name), *rest)
            return None

        return put(0, {})

    def _rooms(
        self, each: MovablePod, cleared: str, rooms: Mapping[str, SimulatedNode]
    ) -> Iterator[tuple[str, SimulatedNode]]:
        for name in sorted(each.nodes):
            if name != cleared and name in self._nodes:
                yield name, rooms.get(name) or self._trials.node(name, frozenset())

    def _costs_no_more(self, each: MovablePod, fit: NodeFit) -> bool:
        cost = placed_charge(fit.claims(), each.pod.kinds, self._vendors).amounts
        return all(amount <= each.charge.get(key, 0) for key, amount in cost.items())

    def _count_one(self) -> None:
        """Count a set, or a place. Raises `Exhausted`."""
        self._trials.effort.sets -= 1
        if self._trials.effort.sets < 0:
            raise Exhausted


def _held(allocation: PodAllocation) -> Mapping[CardKey, tuple[int, int, int]]:
    """What a pod holds of each card: slots, MiB, cores."""
    holders = {card: share.holder for card, share in allocation.shares.items()}
    return {card: (held.slots, held.memory, held.cores) for card, held in holders.items() if held is not None}


def _memory(pods: Sequence[MovablePod]) -> int:
    return sum(each.memory for each in pods)


def _moved(plan: Plan) -> int:
    return _memory([move.pod for move in plan.moves])


def _better(one: Plan | None, other: Plan | None) -> Plan | None:
    """The one with fewer moves, then with less memory; the first of equals."""
    ranks = [(inf, inf) if each is None else (len(each.moves), _moved(each)) for each in (one, other)]
    return other if ranks[1] < ranks[0] else one
