"""kube-scheduler's filters in its order."""

from __future__ import annotations

from collections.abc import Iterable

from hami_webhook.kube.objects import Node, Pod
from hami_webhook.node_filters.node_affinity import node_affinity
from hami_webhook.node_filters.result import FilterResult


def filter_nodes(pod: Pod, nodes: Iterable[Node]) -> FilterResult:
    """The nodes that the filters refuse for the pod."""
    judged = {node.name: node_affinity(pod.node_selector or {}, node.labels) for node in nodes}
    return FilterResult({name: refusal for name, refusal in judged.items() if refusal is not None})
