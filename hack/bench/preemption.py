"""`python -m hack.bench.preemption`: one decision on victims, nodes with 8 cards half full; baseline: a cold filter.

`count` cards are asked for, each with more memory than is free on it; the cards hold one pod each, or four.
"""

from __future__ import annotations

from collections.abc import Sequence

from hack.bench.figures import Figure, Goal, least_seconds, run, show_progress
from hack.bench.objects import CARD_MEMORY, CARDS, gpu, node, pod_with, running
from hami_webhook.device_config import builtin_device_config, enabled_vendors
from hami_webhook.devices.pod_fit import read_pod_request
from hami_webhook.evictions.victims import Preemptor, choose_node
from hami_webhook.kube.objects import Node, Pod
from hami_webhook.scheduling.filter_cache import FilterCache
from hami_webhook.state.cluster_cache import ClusterCache
from hami_webhook.state.nominations import Nominations

NODES = {"smallest": 20, "usual": 1000, "large": 1000}
ROUNDS = {"smallest": 1, "usual": 3, "large": 10}
NOW = 1_767_225_600.0


def measure(size: str) -> Sequence[Figure]:
    return [
        _decision(NODES[size], pods, count, ROUNDS[size]) for pods, count in ((1, 1), (1, 4), (1, 8), (4, 1), (4, 8))
    ]


def _decision(nodes: int, pods: int, count: int, rounds: int) -> Figure:
    show_progress(f"preemption: {nodes} nodes, {pods} pods a card, {count} cards")
    vendors = enabled_vendors(builtin_device_config().config)
    state = ClusterCache(vendors)
    for number in range(nodes):
        state.set_node(Node.from_object(node(number)), NOW)
    for number in range(nodes * CARDS * pods):
        on, card = divmod(number // pods, CARDS)
        raw = running(number, on, card, CARD_MEMORY // 2 // pods, 50 // pods)
        raw["metadata"]["uid"] = f"running-{number}"
        state.set_pod(Pod.from_object(raw), NOW)
    pod = pod_with("high", {**gpu(CARD_MEMORY * 3 // 4), "nvidia.com/gpu": str(count)})
    pod["spec"]["priority"] = 1000
    request = read_pod_request(Pod.from_object(pod), vendors, "spread")
    assert request is not None
    views = list(state.views())
    nominations = Nominations(state, vendors, clock=lambda: NOW)

    def filtered() -> None:
        result = FilterCache(state, vendors, "binpack").filtered(request, None, [view.name for view in views])
        assert not result.fits

    def decided() -> None:
        snapshots = [nominations.snapshot(view, request.pod) for view in views]
        victims = choose_node(Preemptor(request, None, vendors, (), NOW), snapshots)
        assert victims is not None
        assert victims.pods

    decision, cold = least_seconds([decided, filtered], rounds)
    goal = Goal(at_most=3) if pods == 1 and nodes >= 1000 else None
    name = f"{nodes} nodes, {pods} pods a card, {count} cards"
    return Figure("preemption", name, 1000 * decision, "ms", "cold filter", 1000 * cold, goal)


if __name__ == "__main__":
    run({"preemption": measure}, __doc__)
