"""NodeResourcesFit: nodes that have less left than the pod requests, of cpu, memory, pods or any other resource."""

from __future__ import annotations

from fractions import Fraction

from hami_webhook.kube.quantity import Quantity
from hami_webhook.node_filters.framework import Filter, NodeInfoLister, check_work
from hami_webhook.node_filters.node_info import NodeInfo
from hami_webhook.node_filters.pod_info import PodInfo
from hami_webhook.node_filters.pod_requests import CPU, MEMORY, PODS, STORAGE
from hami_webhook.node_filters.result import NodeRefusal

NAME = "NodeResourcesFit"
_SHOWN = 3
"""How many resources are described that a node has too little of."""
REPORTED = (CPU, MEMORY, STORAGE, PODS)
"""What every kubelet reports of its node."""


class NodeResourcesFit(Filter):
    """`ignored` are resources that kube-scheduler leaves to the extender."""

    def __init__(self, pod: PodInfo, cluster: NodeInfoLister, ignored: frozenset[str]) -> None:
        self._amounts = requests = {
            name: amount for name, amount in pod.requests.items() if amount > 0 and name not in ignored
        }
        order = {name: index for index, name in enumerate(REPORTED)}
        self._requests = sorted(requests.items(), key=lambda each: (order.get(each[0], len(order)), each[0]))
        check_work(NAME, len(requests) * len(cluster.nodes), f"its {len(requests)} requested resources")

    def refusal(self, node: NodeInfo) -> NodeRefusal | None:
        allocatable = node.allocatable
        lacking = []
        if len(node.pods) + 1 > allocatable.get(PODS, 0) and _is_said(node, PODS):
            lacking.append(PODS)
        for name, amount in self._requests:
            if amount > allocatable.get(name, 0) - node.requested.get(name, 0) and _is_said(node, name):
                lacking.append(name)
        if not lacking:
            return None
        reasons = ["Too many pods" if name == PODS else f"Insufficient {name}" for name in lacking]
        why = ", ".join(self._why(node, name) for name in lacking[:_SHOWN])
        more = f" and {len(lacking) - _SHOWN} more" if len(lacking) > _SHOWN else ""
        return NodeRefusal(NAME, reasons, why + more)

    def _why(self, node: NodeInfo, name: str) -> str:
        capacity = node.allocatable.get(name, 0)
        if name == PODS:
            return f"it has {len(node.pods)} of at most {capacity} {'pod' if capacity == 1 else 'pods'}"
        left = max(capacity - node.requested.get(name, 0), 0)
        requested = shown(name, self._amounts[name], up=True)
        return f"{requested} {name} requested, {shown(name, left)} of {shown(name, capacity)} free"


def _is_said(node: NodeInfo, name: str) -> bool:
    """Whether the node says how much of a resource it can give; none is said by leaving it out."""
    return node.complete or name not in REPORTED or name in node.allocatable


def shown(name: str, amount: int, *, up: bool = False) -> str:
    """An amount as people write it; bytes that are no round number are rounded down, or `up`, to mebibytes."""
    if name == CPU:
        return str(Quantity(Fraction(amount, 1000)))
    if name not in (MEMORY, STORAGE) and not name.startswith("hugepages-"):
        return str(amount)
    for unit, size in (("Gi", 2**30), ("Mi", 2**20)):
        if amount and amount % size == 0:
            return f"{amount // size}{unit}"
    return f"{-(-amount // 2**20) if up else amount // 2**20}Mi" if amount >= 2**20 else str(amount)
