"""The cluster as kube-scheduler's filters see it, kept from the objects of the API, and the filters in its order.

Source: kube-scheduler 1.36 with its default plugins. What it computes once for a pod is computed once here, so that the
work is linear in nodes and pods. No I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hami_webhook.kube.message_text import first_of
from hami_webhook.kube.wire import MalformedObject
from hami_webhook.node_filters.framework import Filter, PodRefused, SkippedRule
from hami_webhook.node_filters.node_affinity import NAME as NODE_AFFINITY
from hami_webhook.node_filters.node_affinity import NamedNodes, NodeAffinity, NodeName, RequiredNodeAffinity
from hami_webhook.node_filters.node_info import NodeInfo
from hami_webhook.node_filters.node_ports import NodePorts
from hami_webhook.node_filters.node_resources import NAME as NODE_RESOURCES
from hami_webhook.node_filters.node_resources import REPORTED, NodeResourcesFit
from hami_webhook.node_filters.not_judged import plugins_not_judged
from hami_webhook.node_filters.pod_affinity import NAME as POD_AFFINITY
from hami_webhook.node_filters.pod_affinity import InterPodAffinity
from hami_webhook.node_filters.pod_info import PodInfo
from hami_webhook.node_filters.result import FilteredNodes, NodeRefusal, NotJudged
from hami_webhook.node_filters.taints import NodeUnschedulable, TaintToleration, Tolerations
from hami_webhook.node_filters.topology_spread import NAME as TOPOLOGY_SPREAD
from hami_webhook.node_filters.topology_spread import PodTopologySpread

_ITS_NAME = "kubernetes.io/metadata.name"
"""The label that the API server gives every namespace."""

PodKey = tuple[str, str]
"""Namespace and name."""


class SchedulerSnapshot:
    """The nodes and what is on them. `ignored` are the resources that kube-scheduler leaves to the extender."""

    def __init__(self, ignored: frozenset[str] = frozenset()) -> None:
        self.nodes: dict[str, NodeInfo] = {}
        self._ignored = ignored
        self._by_name: dict[str, NodeInfo] = {}
        """Nodes that pods name and that aren't known, too."""
        self._node_of: dict[PodKey, str] = {}
        self._nominated: dict[str, dict[PodKey, PodInfo]] = {}
        self._namespaces: dict[str, Mapping[str, str]] = {}
        self._unreadable: dict[str, str] = {}

    def follow(self, kind: str, obj: Mapping[str, Any], *, gone: bool) -> None:
        """An object of a kind, such as `Pod`, is there, has changed, or is gone; of other kinds nothing is known."""
        meta = obj["metadata"]
        name, namespace = meta["name"], meta.get("namespace") or "default"
        if kind == "Node" and gone:
            self.nodes.pop(name, None)  # what the pods on it take is known, should it come back
            self._unreadable.pop(f"node {name}", None)
        elif kind == "Node":
            self.put_node(obj)
        elif kind == "Pod" and gone:
            self.drop_pod((namespace, name))
        elif kind == "Pod":
            self.put_pod(obj)
        elif kind == "Namespace" and gone:
            self._namespaces.pop(name, None)
        elif kind == "Namespace":
            self.put_namespace(name, meta.get("labels") or {})

    def put_node(self, obj: Mapping[str, Any]) -> None:
        """A node is there, or has changed. One that can't be read is left out, and said to be."""
        name = obj["metadata"]["name"]
        info = self._info(name)
        if self._read(f"node {name}", lambda: info.read(obj)):
            self.nodes[name] = info
        else:
            self.nodes.pop(name, None)

    def put_pod(self, obj: Mapping[str, Any]) -> None:
        """A pod is there, or has changed. One that can't be read is left out, and said to be."""
        meta = obj["metadata"]
        key = (meta.get("namespace") or "default", meta["name"])
        self.drop_pod(key)
        self._read(_pod(key), lambda: self._put(key, PodInfo.read(obj)))

    def drop_pod(self, key: PodKey) -> None:
        """A pod is gone; nothing happens if it isn't known."""
        self._unreadable.pop(_pod(key), None)
        name = self._node_of.pop(key, "")
        if name:
            self._by_name[name].remove(key)
            self._nominated.get(name, {}).pop(key, None)

    def put_namespace(self, name: str, labels: Mapping[str, str]) -> None:
        """A namespace is there, or has other labels."""
        self._namespaces[name] = {_ITS_NAME: name, **labels}

    def namespace_labels(self, name: str) -> Mapping[str, str]:
        """The labels of a namespace."""
        return self._namespaces.get(name) or {_ITS_NAME: name}

    def _put(self, key: PodKey, pod: PodInfo) -> None:
        name = pod.node or pod.nominated_node
        if pod.ended or not name:
            return
        self._node_of[key] = name
        info = self._info(name)
        if pod.node:
            info.add(pod)
        else:
            self._nominated.setdefault(name, {})[key] = pod

    def _info(self, name: str) -> NodeInfo:
        found = self._by_name.get(name)
        if found is None:
            found = self._by_name[name] = NodeInfo(name)
        return found

    def _read(self, what: str, read: Callable[[], None]) -> bool:
        try:
            read()
        except MalformedObject as error:
            self._unreadable[what] = str(error)
            return False
        self._unreadable.pop(what, None)
        return True

    def filter_nodes(self, obj: Mapping[str, Any]) -> FilteredNodes:
        """Filter all nodes for a pod that isn't on one."""
        unreadable = [NotJudged(what, why) for what, why in self._unreadable.items()]
        try:
            pod = PodInfo.read(obj)
        except MalformedObject as error:
            return FilteredNodes(not_judged=[*unreadable, NotJudged("every filter", str(error))])
        rules = _Rules(pod, self, self._ignored)
        not_judged = [*unreadable, *rules.not_judged, *plugins_not_judged(pod)]
        if rules.pod_refusal is not None:
            return FilteredNodes(dict.fromkeys(self.nodes, rules.pod_refusal), not_judged, pod_refused=True)
        refusals = {name: self._refusal(node, pod, rules) for name, node in self.nodes.items()}
        return FilteredNodes({name: refusal for name, refusal in refusals.items() if refusal is not None}, not_judged)

    def _refusal(self, node: NodeInfo, pod: PodInfo, rules: _Rules) -> NodeRefusal | None:
        """What refuses a node first, with the pods that are nominated to it and without."""
        nominated = [
            other
            for key, other in self._nominated.get(node.name, {}).items()
            if other.priority >= pod.priority
            and key != (pod.namespace, pod.name)
            and other.spec.scheduler_name == pod.spec.scheduler_name
        ]
        if nominated:
            changed = [rule.with_pods(node, nominated) for rule in rules.filters]
            refusal = _first(changed, node.with_pods(nominated))
            if refusal is not None:
                return refusal
        return _first(rules.filters, node)


def _pod(key: PodKey) -> str:
    return f"pod {'/'.join(key)}"


def _first(filters: list[Filter], node: NodeInfo) -> NodeRefusal | None:
    for rule in filters:
        refusal = rule.refusal(node)
        if refusal is not None:
            return refusal
    return None


class _Rules:
    """The filters that concern a pod, in kube-scheduler's order."""

    def __init__(self, pod: PodInfo, cluster: SchedulerSnapshot, ignored: frozenset[str]) -> None:
        self.filters: list[Filter] = []
        self.not_judged: list[NotJudged] = []
        self.pod_refusal: NodeRefusal | None = None
        tolerations = Tolerations(pod)
        required = RequiredNodeAffinity(pod)
        names = required.names()
        if names:
            self._add(NODE_AFFINITY, lambda: NamedNodes(names))
        self._add("NodeUnschedulable", lambda: NodeUnschedulable(tolerations))
        if pod.node:
            self._add("NodeName", lambda: NodeName(pod.node))
        self._add("TaintToleration", lambda: TaintToleration(tolerations))
        self._add(NODE_AFFINITY, lambda: NodeAffinity.of(required, cluster))
        if pod.ports:
            self._add("NodePorts", lambda: NodePorts(pod))
        self._add(NODE_RESOURCES, lambda: NodeResourcesFit(pod, cluster, ignored))
        self._add(TOPOLOGY_SPREAD, lambda: PodTopologySpread.of(pod, cluster, required, tolerations))
        self._add(POD_AFFINITY, lambda: InterPodAffinity.of(pod, cluster))
        self.not_judged += _unsaid(pod, cluster, ignored)

    def _add(self, name: str, make: Callable[[], Filter | None]) -> None:
        try:
            rule = make()
        except (SkippedRule, MalformedObject) as error:
            self.not_judged.append(NotJudged(name, str(error)))
        except PodRefused as refused:
            self.pod_refusal = self.pod_refusal or refused.refusal
        else:
            if rule is not None:
                self.filters.append(rule)


def _unsaid(pod: PodInfo, cluster: SchedulerSnapshot, ignored: frozenset[str]) -> Iterator[NotJudged]:
    """What nodes don't say about resources that the pod requests."""
    requested = [name for name, amount in pod.requests.items() if amount and name not in ignored]
    of_kubelet = [name for name in requested if name in REPORTED]
    silent = [
        node.name
        for node in cluster.nodes.values()
        if not node.complete and any(name not in node.allocatable for name in of_kubelet)
    ]
    if silent:
        what = f"{', '.join(of_kubelet)} of {first_of(silent)}"
        yield NotJudged(NODE_RESOURCES, f"{what}: status.allocatable names neither cpu nor memory")
    offered = set().union(*(node.allocatable for node in cluster.nodes.values()))
    missing = [name for name in requested if name not in REPORTED and name not in offered]
    if missing and cluster.nodes:
        yield NotJudged(
            "DynamicResources", f"no node offers {first_of(missing)}; whether a DeviceClass does isn't known"
        )
