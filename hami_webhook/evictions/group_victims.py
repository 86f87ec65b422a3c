"""The victims for a pod group: the pods without which all of its members fit (docs/spec/queues.md#5.5).

The members come one after the other: to a node where one fits, else to that where those who have to go are the least
important. Then all are given back that needn't go for the group to fit. What a node answers depends on who is gone
there and which members came before, and is remembered, so each trial tests only the nodes where these differ.

Nobody is evicted for room in a quota. A group that doesn't fit as a whole, or takes too long to look at, has no
victims.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum
from heapq import merge

from msgspec import Struct
from msgspec.structs import replace

from hami_webhook.devices.pod_fit import NodeFit, PodRequest
from hami_webhook.devices.registry import Vendors
from hami_webhook.evictions.quota_room import Amounts, GroupBudgets
from hami_webhook.evictions.search import STEPS_OF_A_NODE, Exhausted, SearchBudget, SimulatedNode, Trials, giving_back
from hami_webhook.evictions.victims import (
    Key,
    Preemptor,
    Victims,
    selecting_victims,
)
from hami_webhook.kube.disruption import PodDisruptionBudget
from hami_webhook.kube.objects import Pod
from hami_webhook.state.node_snapshot import NodeSnapshot, joined
from hami_webhook.time_slices import Steps

_FITS = 10_000
"""Fit is tried as many times for one group, some 4 s with all else."""
_STEPS = 40_000_000
"""Steps of all those Fits, some 2 s."""
_FITS_OF_A_NODE, _SETS_OF_A_NODE = 32, 512
"""Of these, those in search of smaller sets of victims on one node; and the sets compared."""
_CANDIDATES = 32
"""Nodes with victims for one member, of which the best is taken."""
_MOST = 1024
"""Victims for one group."""


class NoVictims(Enum):
    """Why nobody is evicted for a group."""

    NOBODY = "no pod of lower priority holds such devices"
    NO_ROOM = "it wouldn't fit without all pods of lower priority either"
    TOO_MANY = f"more than {_MOST} pods of lower priority would have to go"
    TOO_LONG = "the search for pods of lower priority was given up, as it takes too long"


class Member(Struct, frozen=True):
    """A member to be placed, and what it requests as policy has it: one object for members that request the same."""

    pod: Pod
    request: PodRequest


class GroupPreemptor(Struct, frozen=True):
    """A group that doesn't fit: its unplaced members in order, nodes `near` those that are placed, its lowest priority.

    `now` is in Unix seconds.
    """

    members: Sequence[Member]
    near: Sequence[str]
    priority: int
    budgets: GroupBudgets
    vendors: Vendors
    disruption: Sequence[PodDisruptionBudget]
    now: float


class GroupVictims(Struct, frozen=True):
    """The pods to evict, the most important first, and the members' nodes then, by UID.

    `looked_at` are these nodes, as they were.
    """

    pods: Sequence[Pod]
    nodes: Mapping[str, str]
    looked_at: Sequence[NodeSnapshot]

    @property
    def ending(self) -> set[str]:
        """The UIDs of pods that are ending there."""
        return {uid for node in self.looked_at for uid in node.ending}


def group_effort() -> SearchBudget:
    """What the search for one group may cost."""
    return SearchBudget(_FITS, 0, _STEPS)


def selecting_group_victims(
    group: GroupPreemptor, nodes: Iterable[NodeSnapshot], effort: SearchBudget
) -> Steps[GroupVictims | NoVictims]:
    """Return the victims on these nodes, each of them necessary; none if what is free or ending is enough."""
    try:
        return (yield from _Search(group, effort).among(nodes))
    except Exhausted:
        return NoVictims.TOO_LONG


class _PlacementAttempt(Struct, eq=False):
    """Members placed, while some pods are `gone`, by node: the members' nodes, in their order, and what they cost.

    `left` are by shape the nodes that may take it, the last one first, without those that turned out to be full.
    """

    gone: Mapping[str, frozenset[str]]
    near: dict[str, None]
    rooms: dict[str, SimulatedNode] = {}
    nodes: list[str] = []
    costs: list[Amounts] = []
    taken: dict[str, Counter[str]] = {}
    left: dict[int, list[str]] = {}

    def put(self, index: int, node: str, costs: Amounts) -> None:
        """A member has its place."""
        self.nodes[index : index + 1] = [node]
        self.costs[index : index + 1] = [costs]
        self.near[node] = None
        for label, amounts in costs.items():
            self.taken.setdefault(label, Counter()).update(amounts)

    def without(self, pods: Iterable[Pod], node: str) -> tuple[_PlacementAttempt, list[int]]:
        """The same where these are gone from a node, too, without its members; and which these are."""
        gone = self.gone.get(node, frozenset()) | {pod.uid for pod in pods}
        rooms = {name: room for name, room in self.rooms.items() if name != node}
        left = {shape: [*names] for shape, names in self.left.items()}
        other = _PlacementAttempt({**self.gone, node: gone}, {**self.near}, rooms, left=left)
        for index, (name, costs) in enumerate(zip(self.nodes, self.costs, strict=True)):
            other.put(index, name, {} if name == node else costs)
        return other, [index for index, name in enumerate(self.nodes) if name == node]


class _Looked(Struct):
    """A node as one shape found it: the least that victims there cost, and who they are, once they were looked for."""

    room: SimulatedNode
    least: Key | None
    victims: Victims | None = None
    known: bool = False


class _Search:
    """The search for the victims of one group, interrupted after each Fit."""

    def __init__(self, group: GroupPreemptor, effort: SearchBudget) -> None:
        self._group = group
        self._nodes: dict[str, NodeSnapshot] = {}
        self._trials = Trials(self._nodes, group.vendors, effort)
        self._node_of: dict[str, str] = {}
        """The nodes of pods that hold cards, by UID."""
        self._open: dict[int, list[str]] = {}
        """By shape, the nodes that take it with nobody gone."""
        self._bounds: dict[int, list[tuple[Key, str]]] = {}
        """By shape, the least that victims cost on nodes, while nobody is gone there and no member there."""
        self._preemptors: list[Preemptor] = []
        """Of each shape: members that request the same of the same nodes."""
        self._shapes: list[int] = []
        self._looked: list[dict[str, _Looked]] = []
        shapes: dict[tuple[int, frozenset[tuple[str, str]]], int] = {}
        for member in group.members:
            selector = member.pod.node_selector or {}
            shape = shapes.setdefault((id(member.request), frozenset(selector.items())), len(shapes))
            if shape == len(self._preemptors):
                pod = replace(member.request.pod, priority=group.priority, node_selector=selector)
                request = replace(member.request, pod=pod)
                self._preemptors.append(Preemptor(request, None, group.vendors, group.disruption, group.now))
                self._looked.append({})
            self._shapes.append(shape)

    def among(self, nodes: Iterable[NodeSnapshot]) -> Steps[GroupVictims | NoVictims]:
        candidates: dict[str, Pod] = {}
        terms = {vendor: terms for each in self._preemptors for vendor, terms in each.request.terms.items()}
        first = self._preemptors[0]
        of_all_vendors = replace(first, request=replace(first.request, terms=terms))
        for node in nodes:
            self._nodes[node.name] = node
            self._node_of |= {each.pod.uid: node.name for each in node.allocations}
            candidates |= {pod.uid: pod for pod in of_all_vendors.candidates(node)}
            yield
        found = yield from self._placing((), ())
        if found is not None:
            return self._victims((), found)
        if not candidates:
            return NoVictims.NOBODY
        found = yield from self._placing(candidates, ())
        if found is None:
            return NoVictims.NO_ROOM
        chosen = yield from self._choosing()
        kept, found = yield from self._needed(*(chosen or ([*candidates.values()], found)), many=chosen is None)
        return self._victims(kept, found) if len(kept) <= _MOST else NoVictims.TOO_MANY

    def _victims(self, pods: Iterable[Pod], found: _PlacementAttempt) -> GroupVictims:
        nodes = {member.pod.uid: node for member, node in zip(self._group.members, found.nodes, strict=True)}
        looked_at = [self._nodes[name] for name in dict.fromkeys(found.nodes)]
        return GroupVictims(sorted(pods, key=self._preemptors[0].importance), nodes, looked_at)

    # trials

    def _placing(self, gone: Iterable[str], first: Sequence[str]) -> Steps[_PlacementAttempt | None]:
        """All members placed while these are gone, on their nodes of `first` where they fit; None if not all do."""
        by_node: dict[str, set[str]] = {}
        for uid in gone:
            by_node.setdefault(self._node_of[uid], set()).add(uid)
        trial = _PlacementAttempt(
            {name: frozenset(uids) for name, uids in by_node.items()}, dict.fromkeys(self._group.near)
        )
        for index in range(len(self._shapes)):
            if not (yield from self._place(trial, index, first[index : index + 1])):
                return None
        return trial

    def _place(self, trial: _PlacementAttempt, index: int, first: Sequence[str] = ()) -> Steps[bool]:
        """Place the next member: on this node, on one of others of the group, or on the first that takes it."""
        yield
        for name in (*first, *trial.near):
            if self._take(trial, index, name):
                return True
        shape = self._shapes[index]
        if shape not in trial.left:
            free = yield from self._taking(shape)
            trial.left[shape] = [*dict.fromkeys((*trial.gone, *free))][::-1]
        left, refused = trial.left[shape], []
        while left:
            fits, name = self._trials.effort.fits, left[-1]
            if self._take(trial, index, name):
                break
            left.pop()
            if trial.rooms[name].answers.get(shape):  # by a quota: the next one may be within its own
                refused.append(name)
            if self._trials.effort.fits < fits:
                yield
        placed = bool(left)
        left += reversed(refused)
        return placed

    def _taking(self, shape: int) -> Steps[list[str]]:
        """The nodes that take a shape with nobody gone."""
        if shape not in self._open:
            found = []
            for name in self._nodes:
                if self._answer(self._trials.node(name, frozenset()), name, shape) is not None:
                    found.append(name)
                yield
            self._open[shape] = found
        return self._open[shape]

    def _take(self, trial: _PlacementAttempt, index: int, name: str) -> bool:
        """Place a member on a node, if it fits there and within its quotas; one that has a place gets another."""
        shape = self._shapes[index]
        if name not in self._nodes:
            return False
        room = trial.rooms.get(name)
        if room is None:
            room = trial.rooms[name] = self._trials.node(name, trial.gone.get(name, frozenset()))
        answer = self._answer(room, name, shape)
        if answer is None:
            return False
        fit, after = answer
        budgets, pod = self._group.budgets, self._group.members[index].pod
        if not budgets.admits(pod, fit, room.view, trial.taken):
            # what is remembered knows no quotas: other cards of the node may cost this member less
            other = self._trials.fit(room.view, self._preemptors[shape].request, budgets.of(pod, trial.taken))
            if other is None:
                return False
            fit, after = other, room.with_fit(other)
        trial.rooms[name] = after
        trial.put(index, name, budgets.cost(pod, fit, room.view))
        return True

    def _answer(self, room: SimulatedNode, name: str, shape: int) -> tuple[NodeFit, SimulatedNode] | None:
        """What one more of a shape gets on a node, but for quotas, and the node with it."""
        selected = self._is_selected(name, shape)
        return self._trials.answer(room, shape, self._preemptors[shape].request) if selected else None

    def _is_selected(self, name: str, shape: int) -> bool:
        selector = self._preemptors[shape].pod.node_selector or {}
        return selector.items() <= self._nodes[name].view.node.labels.items()

    # who goes

    def _choosing(self) -> Steps[tuple[list[Pod], _PlacementAttempt] | None]:
        """Victims for one member after the other; None if that leaves one without a place."""
        trial = _PlacementAttempt({}, dict.fromkeys(self._group.near))
        chosen: list[Pod] = []
        for index in range(len(self._shapes)):
            refused: set[str] = set()
            placed = yield from self._place(trial, index)
            while not placed:
                victims = yield from self._cheapest(trial, index, chosen, refused)
                if victims is None:
                    return None
                # members that this node has are placed there once more: their cards may be other ones now
                other, there = trial.without(victims.pods, victims.node)
                placed = all(self._take(other, each, victims.node) for each in (*there, index))
                if placed:
                    trial = other
                    chosen += victims.pods
                refused.add(victims.node)
        return chosen, trial

    def _cheapest(
        self, trial: _PlacementAttempt, index: int, chosen: Sequence[Pod], refused: Collection[str]
    ) -> Steps[Victims | None]:
        """The least important victims on one node for a member, besides those who are chosen already."""
        shape = self._shapes[index]
        budget = self._group.budgets.of(self._group.members[index].pod, trial.taken)
        disruption = [each.without(chosen) for each in self._group.disruption]
        preemptor = replace(self._preemptors[shape], budget=budget, disruption=disruption)
        untouched = yield from self._untouched(shape)
        touched = {name: self._look(trial, shape, name) for name in trial.near if name in self._nodes}
        bounds = sorted((each.least, name) for name, each in touched.items() if each.least is not None)
        best: tuple[Key, bool, str] | None = None
        found = 0
        for least, name in merge(bounds, untouched):
            if best is not None and (best[0] <= least or found >= _CANDIDATES):
                break
            # a node that was touched stands in both lists, and only what it costs now counts
            if name in refused or (name in touched and touched[name].least != least):
                continue
            each = touched.get(name) or self._look(trial, shape, name)
            if not each.known:
                effort = SearchBudget(_FITS_OF_A_NODE, _SETS_OF_A_NODE, STEPS_OF_A_NODE)
                each.victims = yield from selecting_victims(preemptor, self._snapshot(trial, name), effort)
                each.known = True
                self._trials.spend(_FITS_OF_A_NODE - effort.fits, STEPS_OF_A_NODE - effort.steps)
            if each.victims is not None:
                found += 1
                ranked = preemptor.key(each.victims.pods), name not in trial.near, name
                best = ranked if best is None else min(best, ranked)
        return None if best is None else self._look(trial, shape, best[2]).victims

    def _untouched(self, shape: int) -> Steps[list[tuple[Key, str]]]:
        """The least that victims cost on each node as it is, in order."""
        if shape not in self._bounds:
            bounds = []
            for name, node in self._nodes.items():
                least = self._preemptors[shape].least(node) if self._is_selected(name, shape) else None
                if least is not None:
                    bounds.append((least, name))
                yield
            self._bounds[shape] = sorted(bounds)
        return self._bounds[shape]

    def _look(self, trial: _PlacementAttempt, shape: int, name: str) -> _Looked:
        """The node in this trial, as it is known where nothing there has changed."""
        room = trial.rooms.get(name) or self._trials.node(name, trial.gone.get(name, frozenset()))
        known = self._looked[shape].get(name)
        if known is None or known.room is not room:
            least = None
            if self._is_selected(name, shape):
                least = self._preemptors[shape].least(self._snapshot(trial, name))
            known = self._looked[shape][name] = _Looked(room, least)
        return known

    def _snapshot(self, trial: _PlacementAttempt, name: str) -> NodeSnapshot:
        """The node with the members that are on it, where those who are gone are as good as ended."""
        node, room = self._nodes[name], trial.rooms.get(name)
        reserved = node.reserved if room is None else joined(node.reserved, room.shares)
        return replace(node, reserved=reserved, ending={*node.ending, *trial.gone.get(name, ())})

    def _needed(
        self, gone: Sequence[Pod], found: _PlacementAttempt, *, many: bool
    ) -> Steps[tuple[Sequence[Pod], _PlacementAttempt]]:
        """Those of them that have to go, and the members then; `many` at once where most of them may stay."""

        def enough(some: Sequence[Pod]) -> Steps[bool]:
            nonlocal found
            trial = yield from self._placing((pod.uid for pod in some), found.nodes)
            found = trial or found
            return trial is not None

        gone, before = self._preemptors[0].given_back(gone), -1
        while len(gone) != before:  # who is given back may let another one stay, who was needed before
            before = len(gone)
            gone = yield from giving_back(gone, enough, many=many)
            many = False
        return gone, found
