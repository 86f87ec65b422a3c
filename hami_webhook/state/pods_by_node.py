"""Which pods of some kind are on which node."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from hami_webhook.kube.objects import Pod


class PodsByNode:
    """An index of live pods by node. `node_of` returns a pod's node, or an empty text for pods that aren't indexed."""

    def __init__(self, node_of: Callable[[Pod], str]) -> None:
        self._node_of = node_of
        self._by_node: dict[str, dict[str, Pod]] = {}
        self._nodes: dict[str, str] = {}

    def keep(self, pod: Pod) -> set[str]:
        """Store an added or changed pod. Return the nodes whose pods now differ in something that is read."""
        node = "" if pod.terminal else self._node_of(pod)
        before = self._nodes.get(pod.uid, "")
        if not node and not before:
            return set()
        known = self._by_node[before][pod.uid] if before else None
        changed = self.drop(pod.uid)
        if node:
            self._nodes[pod.uid] = node
            self._by_node.setdefault(node, {})[pod.uid] = pod
            changed.add(node)
            if known is not None and replace(known, resource_version=pod.resource_version) == pod:
                return set()
        return changed

    def drop(self, uid: str) -> set[str]:
        """A pod is gone; the node that it was on, if it was of the kind."""
        node = self._nodes.pop(uid, None)
        if node is None:
            return set()
        pods = self._by_node[node]
        del pods[uid]
        if not pods:
            del self._by_node[node]
        return {node}

    def on(self, node: str) -> list[Pod]:
        """The pods on a node, by UID."""
        return [pod for _, pod in sorted(self._by_node.get(node, {}).items())]
