"""InterPodAffinity: required affinity and anti-affinity of the pod to pods that are there, and of those to the pod."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hami_webhook.node_filters.framework import Filter, NodeInfoLister, check_work
from hami_webhook.node_filters.node_info import NodeInfo
from hami_webhook.node_filters.pod_info import PodInfo
from hami_webhook.node_filters.result import NodeRefusal
from hami_webhook.node_filters.selectors import size

NAME = "InterPodAffinity"
_AFFINITY = ("node(s) didn't match pod affinity rules",)
_ANTI_AFFINITY = ("node(s) didn't match pod anti-affinity rules",)
_EXISTING = ("node(s) didn't satisfy existing pods anti-affinity rules",)

_Domains = dict[tuple[str, str], str]
"""The domains, by topology key and value, in which pods match, with one of them."""


class InterPodAffinity(Filter):
    """Where pods are that the pod must be near to or not near to, or that must not be near to it."""

    def __init__(self, pod: PodInfo, cluster: NodeInfoLister) -> None:
        """Raises `MalformedObject`."""
        self._pod = pod
        self._cluster = cluster
        self._terms = pod.affinity_terms
        self._anti_terms = pod.anti_affinity_terms
        self._keys = dict.fromkeys(term.key for term in self._terms)
        self._near_itself = self._is_near(pod)
        self._near: _Domains = {}
        self._away: _Domains = {}
        self._kept_off: _Domains = {}

    @classmethod
    def of(cls, pod: PodInfo, cluster: NodeInfoLister) -> InterPodAffinity | None:
        """The rule for a pod; None if neither it nor a pod that is there has a term about the other."""
        written = sum(size(each.label_selector) for each in (*pod.affinity, *pod.anti_affinity))
        nodes = cluster.nodes.values()
        work = written * sum(len(node.pods) for node in nodes) if written else 0
        work += sum(
            size(each.label_selector)
            for node in nodes
            for other in node.anti_affine.values()
            for each in other.anti_affinity
        )
        check_work(NAME, work, "the affinity of pods to each other")
        rule = cls(pod, cluster)
        for node in nodes:
            rule._count(node, node.pods.values() if written else node.anti_affine.values())
        return rule if written or rule._kept_off else None

    def with_pods(self, node: NodeInfo, pods: Iterable[PodInfo]) -> InterPodAffinity:
        other = InterPodAffinity(self._pod, self._cluster)
        for name in ("_near", "_away", "_kept_off"):
            setattr(other, name, dict(getattr(self, name)))
        other._count(node, pods)
        return other

    def _count(self, node: NodeInfo, pods: Iterable[PodInfo]) -> None:
        """Take the pods of a node into account."""
        pod, labels_of = self._pod, self._cluster.namespace_labels
        for other in pods:
            if self._terms and self._is_near(other):
                for term in self._terms:
                    _note(self._near, node, term.key, other)
            for term in self._anti_terms:
                if term.matches(other.namespace, other.labels, labels_of):
                    _note(self._away, node, term.key, other)
            for term in other.anti_affinity_terms:
                if term.matches(pod.namespace, pod.labels, labels_of):
                    _note(self._kept_off, node, term.key, other)

    def _is_near(self, other: PodInfo) -> bool:
        """Whether all terms of the pod's affinity are about another pod, or itself."""
        labels_of = self._cluster.namespace_labels
        return all(term.matches(other.namespace, other.labels, labels_of) for term in self._terms)

    def refusal(self, node: NodeInfo) -> NodeRefusal | None:
        lacking = self._lacking(node)
        if lacking:
            return NodeRefusal(NAME, _AFFINITY, lacking)
        for domain in _shared(node, self._away):
            text = f"{self._away[domain]}, which it must not be near to, is {_at(node, domain[0])}"
            return NodeRefusal(NAME, _ANTI_AFFINITY, text)
        for domain in _shared(node, self._kept_off):
            text = f"{self._kept_off[domain]} is {_at(node, domain[0])} and has an anti-affinity to the pod"
            return NodeRefusal(NAME, _EXISTING, text)
        return None

    def _lacking(self, node: NodeInfo) -> str:
        """What the pod's affinity lacks on a node; empty if nothing."""
        for key in self._keys:
            if key not in node.labels:
                return f"it has no label {key}, by which the pod's affinity goes"
        far = [key for key in self._keys if (key, node.labels[key]) not in self._near]
        # the first of pods that are to be near each other may go anywhere
        if not far or (not self._near and self._near_itself):
            return ""
        return f"no pod that it must be near to is {_at(node, far[0])}"


def _shared(node: NodeInfo, domains: _Domains) -> Iterator[tuple[str, str]]:
    """Those of the domains that the node is in."""
    return (domain for domain in node.labels.items() if domain in domains) if domains else iter(())


def _note(domains: _Domains, node: NodeInfo, key: str, pod: PodInfo) -> None:
    if key in node.labels:
        domains.setdefault((key, node.labels[key]), pod.key)


def _at(node: NodeInfo, key: str) -> str:
    return f"in {key}={node.labels[key]}"
