"""Taking in the cluster costs the same for each object, however many there are."""

from __future__ import annotations

import pytest
from builders import bound_pod, card, node
from scheduling.placer_env import NOW, VENDORS

from hack.bench.counting import counted_calls
from hami_webhook.cluster.api import Kind
from hami_webhook.state.caches import Caches
from hami_webhook.state.cluster_cache import ClusterCache

NODE_CALLS, POD_CALLS = 150, 80


def taken_in(nodes: int, pods_each: int) -> tuple[int, int]:
    """The calls to take in nodes of two cards, and then pods."""
    caches = Caches(ClusterCache(VENDORS), lambda: NOW)
    with counted_calls() as for_nodes:
        for number in range(nodes):
            caches.put(Kind.NODES, node(f"n{number}", card(f"G{number}", 8000), card(f"H{number}", 8000)))
    with counted_calls() as for_pods:
        for number in range(nodes * pods_each):
            on = number % nodes
            raw = bound_pod(f"p{number}", f"n{on}", f"G{on},NVIDIA,10,1:;")
            raw["metadata"]["uid"] = str(number)
            caches.put(Kind.PODS, raw)
    return sum(for_nodes.values()), sum(for_pods.values())


@pytest.mark.parametrize("nodes", [10, 100])
def test_each_node_and_pod_takes_so_many_calls(nodes: int) -> None:
    for_nodes, for_pods = taken_in(nodes, 3)
    assert for_nodes <= nodes * NODE_CALLS
    assert for_pods <= nodes * 3 * POD_CALLS
