"""What a filter is: made once for a pod, asked for each node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from hami_webhook.node_filters.node_info import NodeInfo
from hami_webhook.node_filters.pod_info import PodInfo
from hami_webhook.node_filters.result import NodeRefusal, NotJudged

MOST_WORK = 2_000_000
"""Comparisons that one filter may need for a pod, about a second; kube-scheduler itself has no bound."""


class Filter(Protocol):
    """A plugin's rule for one pod."""

    def refusal(self, node: NodeInfo) -> NodeRefusal | None:
        """Why the node is refused; None if it passes."""
        ...

    def with_pods(self, node: NodeInfo, pods: Iterable[PodInfo]) -> Filter:
        """The same rule with more pods on a node, where it depends on the pods of other nodes."""
        return self


class NodeInfoLister(Protocol):
    """The nodes with their pods, and the labels of namespaces."""

    @property
    def nodes(self) -> Mapping[str, NodeInfo]: ...

    def namespace_labels(self, name: str) -> Mapping[str, str]: ...


class SkippedRule(Exception):
    """A rule that isn't evaluated for a pod."""

    def __init__(self, filter_name: str, why: str) -> None:
        super().__init__(why)
        self.rule = NotJudged(filter_name, why)


class PodRefused(Exception):
    """The pod is refused before any node is looked at."""

    def __init__(self, refusal: NodeRefusal) -> None:
        super().__init__(refusal.reasons[0])
        self.refusal = refusal


def check_work(filter_name: str, work: int, what: str) -> None:
    """Raise `SkippedRule` where a rule would take too long; `what` is what there is too much of."""
    if work > MOST_WORK:
        raise SkippedRule(filter_name, f"{what} would take {work:,} comparisons, more than {MOST_WORK:,}")
