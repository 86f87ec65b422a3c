"""NodeUnschedulable and TaintToleration: nodes that are cordoned or tainted, unless the pod tolerates it."""

from __future__ import annotations

from hami_webhook.kube import scheduling_wire as scheduling
from hami_webhook.node_filters.framework import Filter
from hami_webhook.node_filters.node_info import NodeInfo
from hami_webhook.node_filters.pod_info import PodInfo
from hami_webhook.node_filters.result import NodeRefusal

_CORDONED = scheduling.Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")
_UNSCHEDULABLE = NodeRefusal(
    "NodeUnschedulable", ("node(s) were unschedulable",), "it is cordoned (spec.unschedulable)"
)


class Tolerations:
    """A pod's tolerations; a taint is looked up among them, however many there are."""

    def __init__(self, pod: PodInfo) -> None:
        self._of_key: set[tuple[str, str]] = set()
        self._of_value: set[tuple[str, str, str]] = set()
        for each in pod.spec.tolerations or ():
            if each.operator == "Exists":
                self._of_key.add((each.key or "", each.effect or ""))
            elif each.operator in (None, "", "Equal"):
                self._of_value.add((each.key or "", each.value or "", each.effect or ""))

    def tolerate(self, taint: scheduling.Taint) -> bool:
        value = taint.value or ""
        return any(
            (key, effect) in self._of_key or (key, value, effect) in self._of_value
            for key in (taint.key or "", "")
            for effect in (taint.effect or "", "")
        )

    def untolerated(self, node: NodeInfo) -> scheduling.Taint | None:
        """The first taint of the node that keeps the pod off it."""
        for taint in node.taints:
            if not self.tolerate(taint):
                return taint
        return None


class NodeUnschedulable(Filter):
    def __init__(self, tolerations: Tolerations) -> None:
        self._tolerated = tolerations.tolerate(_CORDONED)

    def refusal(self, node: NodeInfo) -> NodeRefusal | None:
        return _UNSCHEDULABLE if node.unschedulable and not self._tolerated else None


class TaintToleration(Filter):
    def __init__(self, tolerations: Tolerations) -> None:
        self._tolerations = tolerations

    def refusal(self, node: NodeInfo) -> NodeRefusal | None:
        taint = self._tolerations.untolerated(node) if node.taints else None
        if taint is None:
            return None
        value = f"={taint.value}" if taint.value else ""
        text = f"its taint {taint.key}{value}:{taint.effect} isn't tolerated"
        return NodeRefusal("TaintToleration", ("node(s) had untolerated taint(s)",), text)
