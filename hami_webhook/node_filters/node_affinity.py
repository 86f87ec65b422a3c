"""NodeName and NodeAffinity: the nodes that a pod's nodeName, nodeSelector and required node affinity choose."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hami_webhook.kube import scheduling_wire as scheduling
from hami_webhook.kube import wire
from hami_webhook.kube.message_text import first_of
from hami_webhook.node_filters.framework import Filter, NodeInfoLister, PodRefused, check_work
from hami_webhook.node_filters.node_info import NodeInfo
from hami_webhook.node_filters.pod_info import PodInfo
from hami_webhook.node_filters.result import NodeRefusal
from hami_webhook.node_filters.selectors import Matches, Unmatchable, all_of, expression

NAME = "NodeAffinity"
_REASONS = ("node(s) didn't match Pod's node affinity/selector",)
_OTHER_NAME = NodeRefusal(
    NAME, (f"node(s) didn't satisfy plugin(s) [{NAME}]",), "the pod's node affinity names other nodes"
)
_CONFLICT = NodeRefusal(NAME, ("pod affinity terms conflict",), "no term of its node affinity names a node that can be")
_FIELD = "metadata.name"
_NONE = scheduling.NodeAffinity()


class NodeName(Filter):
    def __init__(self, name: str) -> None:
        self._name = name

    def refusal(self, node: NodeInfo) -> NodeRefusal | None:
        if node.name == self._name:
            return None
        return NodeRefusal("NodeName", ("node(s) didn't match the requested node name",), f"the pod names {self._name}")


class _Term(NamedTuple):
    """A term of node affinity: what its labels must match, and the names that it allows and excludes."""

    labels: Matches
    only: frozenset[str] | None
    never: frozenset[str]

    def matches(self, node: NodeInfo) -> bool:
        allowed = self.only is None or node.name in self.only
        return allowed and node.name not in self.never and self.labels(node.labels)


class RequiredNodeAffinity:
    """A pod's nodeSelector and required node affinity."""

    def __init__(self, pod: PodInfo) -> None:
        self.selector = pod.spec.node_selector or {}
        affinity = pod.spec.affinity or scheduling.Affinity()
        required = (affinity.node_affinity or _NONE).required_during_scheduling_ignored_during_execution
        self.written = None if required is None else required.node_selector_terms or ()
        self._terms = [*_terms(self.written or ())]

    def check_work(self, cluster: NodeInfoLister) -> None:
        """Raise `SkippedRule` where it would take too long on so many nodes."""
        each = len(self.selector) + sum(len(term.match_expressions or ()) + 1 for term in self.written or ())
        check_work(NAME, each * len(cluster.nodes), "its node affinity")

    def matches(self, node: NodeInfo) -> bool:
        labels = node.labels
        if any(labels.get(key) != text for key, text in self.selector.items()):
            return False
        return self.written is None or any(term.matches(node) for term in self._terms)

    def names(self) -> frozenset[str] | None:
        """The only nodes that can match, where every term names some; as kube-scheduler reads them, before all else."""
        if not self.written:
            return None
        found: set[str] = set()
        for term in self.written:
            chosen = [
                frozenset(each.values or ())
                for each in term.match_fields or ()
                if each.key == _FIELD and each.operator == "In"
            ]
            if not chosen:
                return None
            found |= frozenset.intersection(*chosen)
        return frozenset(found)


def _terms(written: Sequence[scheduling.NodeSelectorTerm]) -> Iterator[_Term]:
    """The terms that some node can match: one that is empty, or that can't be parsed, matches none."""
    for each in written:
        if not each.match_expressions and not each.match_fields:
            continue
        try:
            labels = [
                expression(part.key or "", part.operator or "", part.values or ())
                for part in each.match_expressions or ()
            ]
            yield _Term(all_of(labels), *_names(each.match_fields or ()))
        except Unmatchable:
            continue


def _names(fields: Sequence[wire.NodeSelectorRequirement]) -> tuple[frozenset[str] | None, frozenset[str]]:
    """The names that match, None if all may, and those that don't. Raises `Unmatchable`."""
    only: frozenset[str] | None = None
    never: set[str] = set()
    for each in fields:
        if each.key != _FIELD or each.operator not in ("In", "NotIn") or len(each.values or ()) != 1:
            raise Unmatchable(f"fields can be compared with one {_FIELD} only")
        names = frozenset(each.values or ())
        if each.operator == "In":
            only = names if only is None else only & names
        else:
            never |= names
    return only, frozenset(never)


class NamedNodes(Filter):
    """NodeAffinity's first part: nodes that aren't looked at, as the pod's node affinity names others."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names

    def refusal(self, node: NodeInfo) -> NodeRefusal | None:
        return None if node.name in self._names else _OTHER_NAME


class NodeAffinity(Filter):
    def __init__(self, required: RequiredNodeAffinity) -> None:
        self._required = required

    @classmethod
    def of(cls, required: RequiredNodeAffinity, cluster: NodeInfoLister) -> NodeAffinity | None:
        """The rule for a pod, None if it chooses no nodes. Raises `PodRefused` where it names none that could match."""
        required.check_work(cluster)
        if required.names() == frozenset():
            raise PodRefused(_CONFLICT)
        return cls(required) if required.selector or required.written is not None else None

    def refusal(self, node: NodeInfo) -> NodeRefusal | None:
        if self._required.matches(node):
            return None
        return NodeRefusal(NAME, _REASONS, self._why(node))

    def _why(self, node: NodeInfo) -> str:
        lacking = [f"{key}={text}" for key, text in self._required.selector.items() if node.labels.get(key) != text]
        if lacking:
            return f"it lacks the labels {first_of(lacking)} of the pod's nodeSelector"
        written = self._required.written or ()
        if len(written) != 1:
            return f"it matches none of the {len(written)} terms of the pod's required node affinity"
        return f"it doesn't match the pod's required node affinity: {first_of([*_shown(written[0])])}"


def _shown(term: scheduling.NodeSelectorTerm) -> Iterator[str]:
    for each in (*(term.match_expressions or ()), *(term.match_fields or ())):
        values = f" ({first_of(each.values)})" if each.values else ""
        yield f"{each.key} {each.operator}{values}"
