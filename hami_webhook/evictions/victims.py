"""The victims on one node: the pods without which a pod of higher priority fits (docs/preemption.md#victims).

Which set is best, kube-scheduler's order says: fewest violated budgets, lowest priorities, fewest pods. To try all sets
takes 2 to the number of pods on each node, and the pod that asks waits meanwhile, with all others behind it.

So the search goes in three steps. A bound says for each node what its victims cost at least, without any Fit. Nodes
are looked at in the order of that bound, until no other can be better. On each the search does what kube-scheduler
does: it goes without all candidates, and gives them back one by one, as long as the pod still fits. Of the set that is
left nobody can stay, but it isn't always the smallest one. So smaller sets are tried afterwards, on the best nodes.

Two things must hold whatever a node says. Nobody is evicted who needn't be: a search that runs out of steps finds
nobody, rather than too many. And a node whose cards make Fit slow costs its own chance only: work is counted in steps
for each node and for all, and the search pauses after each Fit, as the process answers others meanwhile.

No rule of any vendor is known here: Fit is tried on the node as it would be without some of its pods.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, combinations
from math import inf
from operator import itemgetter

from msgspec import Struct

from hami_webhook.devices.pod_fit import NodeFit, PodRequest
from hami_webhook.devices.registry import Vendors
from hami_webhook.evictions.candidates import Candidates, of_lower_priority
from hami_webhook.evictions.policies import POD, QUOTA, EvictionPolicy
from hami_webhook.evictions.quota_room import QuotaRoom
from hami_webhook.evictions.search import STEPS_OF_A_NODE, SearchBudget, giving_back, try_fit
from hami_webhook.kube.disruption import PodDisruptionBudget, violating
from hami_webhook.kube.objects import Pod
from hami_webhook.quota.budget import PodBudget
from hami_webhook.state.node_snapshot import NodeSnapshot
from hami_webhook.time_slices import Steps, run_at_once

_OFFSET = 1 << 31
"""Makes every priority positive, as kube-scheduler does: of victims with negative priorities fewer are better, too."""
_CANDIDATES = 100
"""Victims are looked for on as many nodes, but at least a tenth: kube-scheduler's `minCandidateNodesAbsolute`."""
_FITS = 512
"""Fit is tried as many times, but at least once for every two nodes, before the victims found must do; and as many
times after that in search of sets smaller than kube-scheduler's."""
_SETS = 4096
"""As many such sets are compared."""
_SETS_AT_ONCE = 64
_STEPS = 20_000_000
"""Steps of all those Fits, some 1 s: 50 nodes that mean harm, or many more than are tried of others."""

Key = tuple[int, int, int, int, float]
"""kube-scheduler's order of candidate nodes, smallest first: violated budgets, highest priority, sum of priorities,
number of victims, and the latest start."""
NOBODY: Key = (0, -_OFFSET - 1, 0, 0, 0.0)
"""The key of a node where nobody has to be evicted: smaller than any other."""


class Victims(Struct, frozen=True):
    """The pods to evict for a place on a node, most important first, and the placement that is then possible there."""

    node: str
    pods: Sequence[Pod]
    fit: NodeFit
    key: Key

    @property
    def violations(self) -> int:
        """How many of them exceed a PodDisruptionBudget."""
        return self.key[0]


class Preemptor(Struct, frozen=True):
    """A pod that no node takes: what it requests, its budget of quota, and the PodDisruptionBudgets.

    `now` (Unix seconds) is the start of pods that haven't started. `room`: pods may be evicted for room in quotas too.
    """

    request: PodRequest
    budget: PodBudget | None
    vendors: Vendors
    disruption: Sequence[PodDisruptionBudget]
    now: float
    room: QuotaRoom | None = None

    @property
    def pod(self) -> Pod:
        return self.request.pod

    @property
    def policy(self) -> EvictionPolicy:
        return POD if self.room is None else QUOTA

    def importance(self, pod: Pod) -> tuple[int, float, str]:
        """Sorts pods by kube-scheduler's order of importance: higher priority, then earlier start."""
        return -pod.priority, self._started(pod), pod.uid

    def given_back(self, pods: Iterable[Pod]) -> list[Pod]:
        """In the order in which they are given back: who exceeds a PodDisruptionBudget first, then by importance."""
        pods = sorted(pods, key=self.importance)
        exceeding = violating(pods, self.disruption)
        return sorted(pods, key=lambda pod: pod.uid not in exceeding)

    def key(self, victims: Sequence[Pod]) -> Key:
        """The place of a set of victims, most important first, in kube-scheduler's order."""
        if not victims:
            return NOBODY
        highest = victims[0].priority
        start = min(self._started(pod) for pod in victims if pod.priority == highest)
        exceeded = len(violating(victims, self.disruption)) if self.disruption else 0
        return exceeded, highest, sum(pod.priority + _OFFSET for pod in victims), len(victims), -start

    def candidates(self, node: NodeSnapshot) -> list[Pod]:
        """The pods that may be evicted for a place on the node, most important first: those of lower priority that hold
        cards of the vendors that are requested there, and those that hold room in quotas.
        """
        requested = set(self.request.vendors)
        holders = (each.pod for each in node.allocations if any(vendor in requested for vendor, _ in each.shares))
        pods = of_lower_priority(holders, self.pod.priority, node.ending)
        if self.room is not None and Candidates.OF_QUOTA in self.policy.candidates:
            pods |= self.room.candidates
        return sorted(pods.values(), key=self.importance)

    def least(self, node: NodeSnapshot) -> Key | None:
        """Return a lower bound of the keys of all victim sets on the node; None if it has no candidates."""
        pods = self.candidates(node)
        # what is ending leaves by itself: the pod may fit without any victim
        if node.ending or (self.room is not None and self.room.ending):
            return NOBODY
        if not pods:
            return None
        lowest = pods[-1].priority
        latest = max(self._started(pod) for pod in pods if pod.priority == lowest)
        return 0, lowest, lowest + _OFFSET, 1, -latest  # one victim, the least important: no set is smaller

    def _started(self, pod: Pod) -> float:
        return self.now if pod.started is None else pod.started


def selecting_victims(
    preemptor: Preemptor, node: NodeSnapshot, effort: SearchBudget | None = None
) -> Steps[Victims | None]:
    """The victims on a node, as kube-scheduler chooses them; None if evicting pods wouldn't help.

    It goes without all candidates first, and gives them back one by one. If `effort` is given, all tries are subtracted
    from it, and smaller sets are tried, too.
    """
    search = _Search(preemptor, node)
    found = yield from search.by_giving_back()
    if effort is not None:
        effort.fits -= search.fits
        effort.steps -= search.steps
    if found is None or effort is None:
        return found
    return (yield from search.smaller(found, found.key, effort))


def choose_node(preemptor: Preemptor, nodes: Iterable[NodeSnapshot]) -> Victims | None:
    """`choosing_node` without an interruption."""
    return run_at_once(choosing_node(preemptor, nodes))


def choosing_node(preemptor: Preemptor, nodes: Iterable[NodeSnapshot]) -> Steps[Victims | None]:
    """The node with the smallest set of victims, by kube-scheduler's order; None if evicting pods would help on none.

    Nodes are looked at in the order of the least that they could cost, until no other can cost less, or enough was
    found and tried (`_CANDIDATES`, `_FITS`, `_STEPS`). Then smaller sets are tried, on the best nodes first.
    """
    bounds = []
    for node in nodes:
        least = preemptor.least(node)
        if least is not None:
            bounds.append((least, node.name, node))
        yield
    bounds.sort(key=lambda each: each[:2])
    tried = steps = 0
    found: list[tuple[Victims, _Search]] = []
    best: Key | None = None
    for least, _, node in bounds:
        enough = len(found) >= max(_CANDIDATES, len(bounds) // 10) or tried >= max(_FITS, len(bounds) // 2)
        # no node from here on can be better; or as many were tried as kube-scheduler tries; or it took too long
        if (best is not None and (best <= least or enough)) or steps >= _STEPS:
            break
        search = _Search(preemptor, node)
        victims = yield from search.by_giving_back()
        tried += search.fits
        steps += search.steps
        if victims is not None:
            found.append((victims, search))
            best = min(best or victims.key, victims.key)
    if not found:
        return None
    found.sort(key=lambda each: (each[0].key, each[0].node))
    effort = SearchBudget(_FITS, _SETS, _STEPS - steps)
    chosen = found[0][0]
    for victims, search in found:
        smaller = yield from search.smaller(victims, chosen.key, effort)
        if smaller.key < chosen.key:
            chosen = smaller
    return chosen


def _least_of_size(candidates: Sequence[Pod], size: int) -> Key:
    """A key that no set of so many candidates is smaller than."""
    lowest = candidates[-size:]
    return 0, lowest[0].priority, sum(pod.priority + _OFFSET for pod in lowest), size, -inf


class _Search:
    """The search for victims on one node, interrupted after each Fit; `fits` counts these, `steps` what they took."""

    def __init__(self, preemptor: Preemptor, node: NodeSnapshot) -> None:
        self._preemptor = preemptor
        self._node = node
        self._candidates = preemptor.candidates(node)
        self._tried: dict[frozenset[str], NodeFit | None] = {}
        self.steps = 0

    @property
    def fits(self) -> int:
        return len(self._tried)

    def by_giving_back(self) -> Steps[Victims | None]:
        """kube-scheduler's choice. None, too, if finding them takes more than `STEPS_OF_A_NODE`: nobody is evicted who
        needn't be.
        """

        def enough(some: Sequence[Pod]) -> Steps[bool]:
            yield
            return self.steps <= STEPS_OF_A_NODE and self._fit(some) is not None

        gone: Sequence[Pod] = self._preemptor.given_back(self._candidates)
        if self._fit(gone) is None:  # with one Fit most nodes are out
            return None
        if gone:
            gone = yield from giving_back(gone, enough)
        return self._victims(gone) if self.steps <= STEPS_OF_A_NODE else None

    def smaller(self, found: Victims, below: Key, effort: SearchBudget) -> Steps[Victims]:
        """The smallest set whose key is smaller than `below`, while the effort lasts; else what was found."""
        keyed: list[tuple[Key, Sequence[Pod]]] = []
        # of some sizes not even the least important pods would be better: their sets, which may be many, aren't made
        sizes = [size for size in range(1, len(self._candidates)) if _least_of_size(self._candidates, size) < below]
        for pods in chain.from_iterable(combinations(self._candidates, size) for size in sizes):
            if effort.sets <= 0:
                break
            effort.sets -= 1
            if effort.sets % _SETS_AT_ONCE == 0:
                yield
            key = self._preemptor.key(pods)
            if key < below:
                keyed.append((key, pods))
        keyed.sort(key=itemgetter(0))
        for _, victims in keyed:
            if effort.fits <= 0 or effort.steps <= 0:
                break
            yield
            effort.fits -= 1
            effort.steps += self.steps  # what this Fit takes is the difference
            fits = self._fit(victims) is not None
            effort.steps -= self.steps
            if fits:
                return self._victims(victims)
        return found

    def _fit(self, victims: Sequence[Pod]) -> NodeFit | None:
        gone = frozenset(pod.uid for pod in victims)
        if gone not in self._tried:  # a smaller set may have been met while pods were given back
            preemptor = self._preemptor
            view = self._node.without(gone, preemptor.vendors)
            budget = preemptor.budget if preemptor.room is None else preemptor.room.without(gone)
            self._tried[gone], steps = try_fit(view, preemptor.request, preemptor.vendors, budget)
            self.steps += steps
        return self._tried[gone]

    def _victims(self, pods: Sequence[Pod]) -> Victims:
        fit = self._fit(pods)
        assert fit is not None
        ordered = sorted(pods, key=self._preemptor.importance)
        return Victims(self._node.name, ordered, fit, self._preemptor.key(ordered))
