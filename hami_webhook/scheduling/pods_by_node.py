"""Which pods of other schedulers are on which node."""

from __future__ import annotations

from hami_webhook.devices.registry import Vendors
from hami_webhook.kube.objects import Pod


class PodsByNode:
    """The live pods that concern another scheduler, by the node they are on."""

    def __init__(self, vendors: Vendors) -> None:
        self._vendors = vendors
        self._by_node: dict[str, dict[str, Pod]] = {}
        self._nodes: dict[str, str] = {}

    def keep(self, pod: Pod) -> None:
        """A pod was added or changed."""
        self.drop(pod.uid)
        node = "" if pod.terminal else self._node_of(pod)
        if node:
            self._nodes[pod.uid] = node
            self._by_node.setdefault(node, {})[pod.uid] = pod

    def drop(self, uid: str) -> None:
        """A pod is gone."""
        node = self._nodes.pop(uid, None)
        if node is None:
            return
        pods = self._by_node[node]
        del pods[uid]
        if not pods:
            del self._by_node[node]

    def on(self, node: str) -> list[Pod]:
        """The pods on a node, by UID."""
        return [pod for _, pod in sorted(self._by_node.get(node, {}).items())]

    def _node_of(self, pod: Pod) -> str:
        return next((node for each in self._vendors.foreign_to(pod, pod.named) if (node := each.node_of(pod))), "")
