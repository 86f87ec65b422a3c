"""A node as the filters see it, with the pods that are on it and what they take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from hami_webhook.kube import scheduling_wire as scheduling
from hami_webhook.kube import wire
from hami_webhook.node_filters.pod_info import HostPort, PodInfo
from hami_webhook.node_filters.pod_requests import CPU, MEMORY, amounts

_META, _SPEC, _STATUS = wire.ObjectMeta(), scheduling.NodeSpec(), wire.NodeStatus()
_REFUSING = ("NoSchedule", "NoExecute")


class NodeInfo:
    """`taints` are those that keep pods off; `allocatable` and `requested` are whole amounts (cpu in thousandths).

    `complete`: it says how much cpu or memory it can give, as every kubelet does; nodes in hand-made files may not.
    """

    __slots__ = (
        *("allocatable", "anti_affine", "complete", "labels", "name", "pods", "ports", "requested", "taints"),
        "unschedulable",
    )

    def __init__(self, name: str, pods: Iterable[PodInfo] = ()) -> None:
        self.name = name
        self.labels: dict[str, str] = {}
        self.unschedulable = False
        self.taints: tuple[scheduling.Taint, ...] = ()
        self.allocatable: dict[str, int] = {}
        self.complete = False
        self.pods: dict[tuple[str, str], PodInfo] = {}
        self.anti_affine: dict[tuple[str, str], PodInfo] = {}
        """Those of its pods that have a required anti-affinity to pods."""
        self.requested: dict[str, int] = {}
        self.ports: Counter[HostPort] = Counter()
        for pod in pods:
            self.add(pod)

    def read(self, obj: Any) -> None:
        """Take over what the node's JSON says. Raises `MalformedObject`, and then nothing has changed."""
        node = wire.convert(obj, scheduling.Node, "node")
        meta, spec, status = node.metadata or _META, node.spec or _SPEC, node.status or _STATUS
        # the API server sets what isn't there to the capacity
        self.allocatable = amounts(status.capacity if status.allocatable is None else status.allocatable)
        self.complete = CPU in self.allocatable or MEMORY in self.allocatable
        self.labels = meta.labels or {}
        self.unschedulable = spec.unschedulable is True
        self.taints = tuple([taint for taint in spec.taints or () if taint.effect in _REFUSING])

    def add(self, pod: PodInfo) -> None:
        """A pod is on the node."""
        key = (pod.namespace, pod.name)
        self.remove(key)
        self.pods[key] = pod
        if pod.anti_affinity:
            self.anti_affine[key] = pod
        if pod.ports:
            self.ports.update(pod.ports)
        for name, amount in pod.requests.items():
            self.requested[name] = self.requested.get(name, 0) + amount

    def remove(self, key: tuple[str, str]) -> None:
        """A pod is gone; nothing happens if it isn't there."""
        pod = self.pods.pop(key, None)
        if pod is None:
            return
        self.anti_affine.pop(key, None)
        self.ports -= Counter(pod.ports)
        for name, amount in pod.requests.items():
            self.requested[name] -= amount

    def with_pods(self, pods: Iterable[PodInfo]) -> NodeInfo:
        """The same node with more pods on it."""
        other = NodeInfo(self.name, (*self.pods.values(), *pods))
        for field in ("labels", "unschedulable", "taints", "allocatable", "complete"):
            setattr(other, field, getattr(self, field))
        return other
