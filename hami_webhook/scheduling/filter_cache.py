"""Filter results, kept for the next pod of the same shape: only nodes that changed since are tested again.

An answer holds while the node's view is the same, and the quota would say what it said. The budget of a namespace moves
with every pod, but rarely past an amount that mattered: so the amounts it was tested with are kept with each answer,
and the answers are given up for which a new budget would say otherwise.

A cached answer must be what a test would answer now, so it is not kept where that depends on more than the shape, the
node and the quota: nodes whose devices are kept for nominated pods answer by the pod's priority.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hami_webhook.devices.model import NodeView
from hami_webhook.devices.reasons import NODE_UNREGISTERED, Rejection
from hami_webhook.devices.registry import Vendors
from hami_webhook.kube.objects import Pod
from hami_webhook.quota.budget import BudgetAnswers, LimitKey, PodBudget, RecordingBudget
from hami_webhook.scheduling.cluster_cache import ClusterCache
from hami_webhook.scheduling.fit import PodRequest
from hami_webhook.scheduling.preemption.nominations import Nominations
from hami_webhook.scheduling.scoring import NodeRank, ScoredNode, fit_and_score
from hami_webhook.scheduling.time_slices import Steps, run_at_once

MOST_ANSWERS = 200_000
"""As many answers are kept, over all shapes: some 200 bytes each."""

_MOST_SHAPES = 1000

_UNKNOWN = Rejection(bare=NODE_UNREGISTERED)
_Key = tuple[bytes, str, frozenset[LimitKey]]
"""A shape's digest, and, where quota limits the pod, the namespace and the keys that are limited."""


@dataclass(frozen=True, slots=True)
class FilterResult:
    """Nodes tested: those that fit, in the order of the request, and why the others don't."""

    fits: Sequence[NodeRank]
    failed: Mapping[str, Rejection]


class FittingNodes(NamedTuple):
    """The nodes that a pod was found to fit on, of so many candidates, before kube-scheduler chose one of them."""

    request: PodRequest
    fits: Sequence[NodeRank]
    candidates: int


@dataclass(slots=True)
class _CachedResults:
    """What nodes answered one shape, as of a generation of the state, and what quota said in that."""

    fits: dict[str, NodeRank] = field(default_factory=dict)
    failed: dict[str, Rejection] = field(default_factory=dict)
    budget_answers: dict[str, BudgetAnswers] = field(default_factory=dict)
    by_budget_answers: dict[BudgetAnswers, tuple[BudgetAnswers, set[str]]] = field(default_factory=dict)
    as_of: int = 0

    def __len__(self) -> int:
        return len(self.fits) + len(self.failed)

    def forget(self, names: Iterable[str]) -> None:
        for name in names:
            self.fits.pop(name, None)
            self.failed.pop(name, None)
            budget_answers = self.budget_answers.pop(name, None)
            if budget_answers is not None:
                _, having = self.by_budget_answers[budget_answers]
                having.discard(name)
                if not having:
                    del self.by_budget_answers[budget_answers]

    def keep(self, name: str, budget_answers: BudgetAnswers) -> None:
        same, having = self.by_budget_answers.setdefault(budget_answers, (budget_answers, set()))
        having.add(name)
        self.budget_answers[name] = same


class FilterCache:
    """Tests whether nodes can take a pod, and remembers the answers."""

    def __init__(
        self,
        state: ClusterCache,
        vendors: Vendors,
        default_node_policy: str,
        most: int = MOST_ANSWERS,
        nominations: Nominations | None = None,
    ) -> None:
        self._state = state
        self._vendors = vendors
        self._default_node_policy = default_node_policy
        self._most = most
        self._nominations = nominations
        self._shapes: OrderedDict[_Key, _CachedResults] = OrderedDict()
        self._refusals: dict[tuple[object, ...], Rejection] = {}
        self.tested = 0
        """How many nodes were tested since the beginning."""

    def filtered(self, request: PodRequest, budget: PodBudget | None, names: Iterable[str]) -> FilterResult:
        """How the nodes of these names answer."""
        return run_at_once(self.filtering(request, budget, names))

    def filtering(self, request: PodRequest, budget: PodBudget | None, names: Iterable[str]) -> Steps[FilterResult]:
        """As `filtered`, with an interruption after each node tested. An answer is that of the time of its test."""
        answers = self._answers(request, budget)
        names = list(dict.fromkeys(names))
        if self._nominations is not None:
            answers.forget(self._nominations.nodes_kept_from(request.pod))
        # in the interruptions others may have answers forgotten, and add those of another budget
        fits, failed = dict(answers.fits), dict(answers.failed)
        for name in names:
            if name in fits or name in failed:
                continue
            found = self._fit_node(name, answers, request, budget)
            if isinstance(found, NodeRank):
                fits[name] = found
            else:
                failed[name] = found
            yield
        self._trim()
        return FilterResult(
            [fits[name] for name in names if name in fits],
            {name: failed[name] for name in names if name in failed} if failed else {},
        )

    def fit(self, request: PodRequest, budget: PodBudget | None, name: str) -> ScoredNode | Rejection:
        """The placement on the current state of one node, with its score."""
        view = self._view(name, request.pod)
        if view is None:
            return _UNKNOWN
        result = fit_and_score(view, request, self._vendors, budget, self._default_node_policy)
        return result if isinstance(result, Rejection) else result[0]

    def _view(self, name: str, pod: Pod) -> NodeView | None:
        """The node as the pod may use it."""
        view = self._state.view(name)
        return view if view is None or self._nominations is None else self._nominations.view(view, pod)

    def _answers(self, request: PodRequest, budget: PodBudget | None) -> _CachedResults:
        """The answers to the pod's shape that still hold."""
        quota = ("", frozenset[LimitKey]()) if budget is None else (request.pod.namespace, budget.keys)
        key = (_digest(request.shape), *quota)
        answers = self._shapes.get(key)
        if answers is None:
            answers = self._shapes[key] = _CachedResults()
        else:
            self._shapes.move_to_end(key)
            changed = self._state.generations.since(answers.as_of)
            if changed is None:
                answers = self._shapes[key] = _CachedResults()
            else:
                answers.forget(changed)
        # before the nodes are tested: what changes while others have their turn is tested again by the next filter
        answers.as_of = self._state.generations.latest
        if budget is not None:
            others = [nodes for given, nodes in answers.by_budget_answers.values() if not given.stand(budget)]
            for nodes in others:
                answers.forget(list(nodes))
        return answers

    def _fit_node(
        self, name: str, answers: _CachedResults, request: PodRequest, budget: PodBudget | None
    ) -> NodeRank | Rejection:
        """Test one node."""
        view = self._view(name, request.pod)
        if view is None:
            return _UNKNOWN
        self.tested += 1
        # what is kept for nominated pods depends on this pod's priority, so it isn't cached
        cached = self._nominations is None or not self._nominations.is_kept_from(request.pod, name)
        witness = None if budget is None else RecordingBudget(budget)
        result = fit_and_score(view, request, self._vendors, witness, self._default_node_policy)
        if isinstance(result, Rejection):
            # many nodes refuse for the same reason: one object says it for all
            reason = (result.bare, result.cards, *sorted(result.counts.items()))
            answer: NodeRank | Rejection = self._refusals.setdefault(reason, result)
        else:
            _, answer = result
        if cached:
            if name in answers.fits or name in answers.failed:  # of a filter that ran meanwhile
                answers.forget([name])
            if isinstance(answer, NodeRank):
                answers.fits[name] = answer
            else:
                answers.failed[name] = answer
            if witness is not None:
                answers.keep(name, witness.answers)
        return answer

    def _trim(self) -> None:
        """Drop the least recently used shapes, until the rest is not too much; never the last one."""
        total = sum(map(len, self._shapes.values()))
        while (total > self._most or len(self._shapes) > _MOST_SHAPES) and len(self._shapes) > 1:
            total -= len(self._shapes.popitem(last=False)[1])
        if len(self._refusals) > self._most:
            self._refusals.clear()


def _digest(shape: Pod) -> bytes:
    """A digest of a shape, equal for equal ones: users' annotations may be long."""
    containers = [(c.name, c.kind.value, dict(c.limits), dict(c.requests), c.privileged) for c in shape.containers]
    return hashlib.sha256(json.dumps([containers, shape.annotations], sort_keys=True).encode()).digest()
