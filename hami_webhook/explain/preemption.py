"""Who would be evicted for a pod that fits on no node, by the search that the extender uses (docs/preemption.md)."""

from __future__ import annotations

from collections.abc import Sequence

from hami_webhook.devices.model import NodeView
from hami_webhook.devices.registry import Vendors
from hami_webhook.quota.budget import PodBudget
from hami_webhook.scheduling.cluster_cache import ClusterCache
from hami_webhook.scheduling.fit import PodRequest
from hami_webhook.scheduling.preemption.nominations import Nominations
from hami_webhook.scheduling.preemption.preemption import listed
from hami_webhook.scheduling.preemption.victims import Preemptor, choose_node


def preemption_note(
    request: PodRequest,
    budget: PodBudget | None,
    views: Sequence[NodeView],
    state: ClusterCache,
    vendors: Vendors,
    now: float,
) -> str:
    """A sentence about whom preemption would evict for the pod on one of the nodes, or why nobody.

    Empty for a pod of priority 0 that nobody is below. PodDisruptionBudgets aren't read. `now` is in Unix seconds.
    """
    pod = request.pod
    nominations = Nominations(state, vendors, clock=lambda: now)
    for each in state.pods():
        nominations.set_pod(each)
    preemptor = Preemptor(request, budget, vendors, (), now)
    nodes = [nominations.snapshot(view, pod) for view in views]
    if not any(preemptor.candidates(node) or node.ending for node in nodes):
        return "preemption evicts nobody for it: no pod of lower priority holds such devices" if pod.priority else ""
    if pod.preemption_policy == "Never":
        return "preemption evicts nobody for it: its preemptionPolicy is Never"
    victims = choose_node(preemptor, nodes)
    if victims is None:
        return "preemption evicts nobody for it: it wouldn't fit without all pods of lower priority either"
    if not victims.pods:
        return f"preemption evicts nobody for it: pods that are ending on node {victims.node} are enough"
    return f"preemption, where it is on, evicts {listed(victims)}"
