"""NodePorts: nodes where a host port of the pod is in use."""

from __future__ import annotations

from hami_webhook.node_filters.framework import Filter
from hami_webhook.node_filters.node_info import NodeInfo
from hami_webhook.node_filters.pod_info import ANY_ADDRESS, HostPort, PodInfo
from hami_webhook.node_filters.result import NodeRefusal

NAME = "NodePorts"
_REASONS = ("node(s) didn't have free ports for the requested pod ports",)


class NodePorts(Filter):
    def __init__(self, pod: PodInfo) -> None:
        self._wanted: dict[tuple[str, int], set[str]] = {}
        for port in pod.ports:
            self._wanted.setdefault((port.protocol, port.port), set()).add(port.address)

    def refusal(self, node: NodeInfo) -> NodeRefusal | None:
        used = next((port for port in node.ports if self._conflicts(port)), None)
        if used is None:
            return None
        holder = next((pod.key for pod in node.pods.values() if used in pod.ports), "")
        return NodeRefusal(NAME, _REASONS, f"its port {used.port}/{used.protocol} is taken by {holder}")

    def _conflicts(self, used: HostPort) -> bool:
        addresses = self._wanted.get((used.protocol, used.port))
        if addresses is None:
            return False
        return used.address == ANY_ADDRESS or ANY_ADDRESS in addresses or used.address in addresses
