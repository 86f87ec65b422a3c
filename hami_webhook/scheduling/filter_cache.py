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
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from hami_webhook.devices.model import NodeView
from hami_webhook.devices.pod_fit import PodRequest
from hami_webhook.devices.reasons import NODE_INTERNAL_ERROR, NODE_UNREGISTERED, Rejection
from hami_webhook.devices.registry import Vendors
from hami_webhook.kube.objects import Pod
from hami_webhook.quota.budget import BudgetAnswers, LimitKey, PodBudget, RecordingBudget
from hami_webhook.scheduling.node_classes import NodeClass, NodeClasses
from hami_webhook.scheduling.scoring import NodeRank, ScoredNode, fit_and_score
from hami_webhook.state.cluster_cache import ClusterCache
from hami_webhook.state.nominations import Nominations
from hami_webhook.time_slices import Steps, run_at_once

MOST_ANSWERS = 200_000
"""As many answers are kept, over all shapes: some 200 bytes each."""

_MOST_SHAPES = 1000

_NODES_AT_ONCE = 256
"""As many nodes get the answer of another without an interruption: some 0.5 ms."""

_UNKNOWN = Rejection(bare=NODE_UNREGISTERED)
_FAULT = Rejection(bare=NODE_INTERNAL_ERROR)
_Key = tuple[bytes, str, frozenset[LimitKey]]
"""A shape's digest, and, where quota limits the pod, the namespace and the keys that are limited."""


class FilterResult(Struct, frozen=True):
    """Nodes tested: those that fit, in the order of the request, and why the others don't."""

    fits: Sequence[NodeRank]
    failed: Mapping[str, Rejection]


class FittingNodes(NamedTuple):
    """The nodes that a pod was found to fit on, of so many candidates, before kube-scheduler chose one of them."""

    request: PodRequest
    fits: Sequence[NodeRank]
    candidates: int


class _CachedResults(Struct):
    """What nodes answered one shape, as of a generation of the state, and what quota said in that."""

    fits: dict[str, NodeRank] = {}
    failed: dict[str, Rejection] = {}
    budget_answers: dict[str, BudgetAnswers] = {}
    by_budget_answers: dict[BudgetAnswers, tuple[BudgetAnswers, set[str]]] = {}
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


class _Tests(Struct, frozen=True):
    """The tests of one filter: by what nodes of one class differ for the pod, and what one of each kind answered."""

    request: PodRequest
    budget: PodBudget | None
    distinction: Callable[[NodeView], Hashable] | None
    found: dict[Hashable, tuple[NodeRank | Rejection, BudgetAnswers | None]] = {}


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
        self._classes = NodeClasses(vendors)
        self._class_of: dict[str, NodeClass] = {}
        state.watch_nodes(self._forget_class)
        self._shapes: OrderedDict[_Key, _CachedResults] = OrderedDict()
        self._refusals: dict[tuple[object, ...], Rejection] = {}
        self.tested = 0
        """How many nodes were tested since the beginning, one for all that are equal."""

    def filtered(self, request: PodRequest, budget: PodBudget | None, names: Iterable[str]) -> FilterResult:
        """How the nodes of these names answer."""
        return run_at_once(self.filtering(request, budget, names))

    def filtering(self, request: PodRequest, budget: PodBudget | None, names: Iterable[str]) -> Steps[FilterResult]:
        """As `filtered`, with an interruption after each node that is tested or whose class is found, and now and then.

        An answer is that of the time of its test.
        """
        answers = self._answers(request, budget)
        names = list(dict.fromkeys(names))
        if self._nominations is not None:
            answers.forget(self._nominations.nodes_kept_from(request.pod))
        # in the interruptions others may have answers forgotten, and add those of another budget
        fits, failed = dict(answers.fits), dict(answers.failed)
        tests = _Tests(request, budget, self._classes.distinction(request, budget))
        for number, name in enumerate(names):
            if name in fits or name in failed:
                continue
            before = self.tested + len(self._class_of)
            found = self._fit_node(name, answers, tests)
            if isinstance(found, NodeRank):
                fits[name] = found
            else:
                failed[name] = found
            if self.tested + len(self._class_of) > before or number % _NODES_AT_ONCE == 0:
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

    def _fit_node(self, name: str, answers: _CachedResults, tests: _Tests) -> NodeRank | Rejection:
        """Test one node, or one that is equal to it."""
        pod = tests.request.pod
        if self._nominations is not None and self._nominations.is_kept_from(pod, name):
            # what is kept for nominated pods depends on this pod's priority, so it isn't cached
            view = self._view(name, pod)
            return _UNKNOWN if view is None else self._test(view, tests)[0]
        node_class = self._class_of.get(name) or self._find_class(name)
        if node_class is None:
            return _UNKNOWN
        key: Hashable = node_class
        if tests.distinction is not None:
            view = self._state.view(name)
            assert view is not None
            key = node_class, tests.distinction(view)
        found = tests.found.get(key)
        if found is None:
            view = self._state.view(name)
            assert view is not None
            found = self._test(view, tests)
            if found[0] != _FAULT:  # which is logged of each node
                tests.found[key] = found
        answer, budget_answers = found
        if name in answers.fits or name in answers.failed:  # of a filter that ran meanwhile
            answers.forget([name])
        if isinstance(answer, NodeRank):
            answer = answers.fits[name] = NodeRank(name, answer.score, answer.links)
        else:
            answers.failed[name] = answer
        if budget_answers is not None:
            answers.keep(name, budget_answers)
        return answer

    def _forget_class(self, name: str) -> None:
        self._class_of.pop(name, None)

    def _find_class(self, name: str) -> NodeClass | None:
        """The class of a node that changed since it was asked for last; None if it isn't known."""
        view = self._state.view(name)
        if view is None:
            return None
        found = self._class_of[name] = self._classes.of(view)
        return found

    def _test(self, view: NodeView, tests: _Tests) -> tuple[NodeRank | Rejection, BudgetAnswers | None]:
        """What a node answers, and what the budget did."""
        self.tested += 1
        witness = None if tests.budget is None else RecordingBudget(tests.budget)
        result = fit_and_score(view, tests.request, self._vendors, witness, self._default_node_policy)
        answer: NodeRank | Rejection
        if isinstance(result, Rejection):
            # many nodes refuse for the same reason: one object says it for all
            reason = (result.bare, result.cards, *sorted(result.counts.items()))
            answer = self._refusals.setdefault(reason, result)
        else:
            _, answer = result
        return answer, None if witness is None else witness.answers

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
