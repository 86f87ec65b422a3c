"""NodeResourcesFit: nodes that have less left than the pod requests, of cpu, memory, pods or any other resource."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from hami_webhook.kube.quantity import Quantity
from hami_webhook.node_filters.framework import Cluster, Filter, check_work, listed
from hami_webhook.node_filters.node_info import NodeInfo
from hami_webhook.node_filters.pod_info import PodInfo
from hami_webhook.node_filters.pod_requests import CPU, MEMORY, PODS, STORAGE
from hami_webhook.node_filters.result import Refusal

NAME = "NodeResourcesFit"
REPORTED = (CPU, MEMORY, STORAGE, PODS)
"""What every kubelet reports of its node."""


class NodeResourcesFit(Filter):
    """`ignored` are resources that kube-scheduler leaves to the extender."""

    def __init__(self, pod: PodInfo, cluster: Cluster, ignored: frozenset[str]) -> None:
        requests = {name: amount for name, amount in pod.requests.items() if amount > 0 and name not in ignored}
        order = {name: index for index, name in enumerate(REPORTED)}
        self._requests = sorted(requests.items(), key=lambda each: (order.get(each[0], len(order)), each[0]))
        check_work(NAME, len(requests) * len(cluster.nodes), f"its {len(requests)} requested resources")
        self.extended = [name for name in requests if name not in REPORTED]

    def refusal(self, node: NodeInfo) -> Refusal | None:
        reasons, texts = [], []
        for name, reason, text in self._insufficient(node):
            if node.complete or name not in REPORTED or name in node.allocatable:
                reasons.append(reason)
                texts.append(text)
        return Refusal(NAME, reasons, listed(texts)) if reasons else None

    def _insufficient(self, node: NodeInfo) -> Iterator[tuple[str, str, str]]:
        """The resources that don't suffice, with kube-scheduler's word and a sentence."""
        allocatable, requested = node.allocatable, node.requested
        most = allocatable.get(PODS, 0)
        if len(node.pods) + 1 > most:
            yield PODS, "Too many pods", f"it has {len(node.pods)} pods of at most {most}"
        for name, amount in self._requests:
            capacity = allocatable.get(name, 0)
            left = capacity - requested.get(name, 0)
            if amount > left:
                parts = [shown(name, part) for part in (max(left, 0), capacity)]
                text = f"{shown(name, amount, up=True)} {name} requested, {parts[0]} of {parts[1]} free"
                yield name, f"Insufficient {name}", text


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
