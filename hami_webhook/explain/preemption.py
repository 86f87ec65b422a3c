"""Who would be evicted for a pod that fits on no node, by the search that the extender uses (docs/preemption.md)."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs
from msgspec.structs import replace

from hami_webhook.devices.model import NodeView
from hami_webhook.devices.pod_fit import PodRequest
from hami_webhook.devices.registry import Vendors
from hami_webhook.evictions.decisions import listed
from hami_webhook.evictions.group_victims import (
    GroupPreemptor,
    NoVictims,
    group_effort,
    selecting_group_victims,
)
from hami_webhook.evictions.quota_room import quota_room
from hami_webhook.evictions.victims import Preemptor, choose_node
from hami_webhook.kube.disruption import PodDisruptionBudget
from hami_webhook.quota.account import QuotaAccount
from hami_webhook.quota.budget import PodBudget
from hami_webhook.quota.enforcement import QUOTA_PREEMPTION
from hami_webhook.state.cluster_cache import ClusterCache
from hami_webhook.state.nominations import Nominations
from hami_webhook.time_slices import run_at_once

_NOBODY = "preemption evicts nobody for it: "
_NOBODY_FOR_GROUP = "preemption evicts nobody for its pod group: "


def group_preemption_note(group: GroupPreemptor, views: Sequence[NodeView], state: ClusterCache, now: float) -> str:
    """The same for a pod group of which members wait; empty if all of them fit."""
    if any(member.pod.preemption_policy == "Never" for member in group.members):
        return f"{_NOBODY_FOR_GROUP}the preemptionPolicy of a member is Never"
    nominations = _nominations(state, group.vendors, now)
    first = structs.replace(group.members[0].pod, priority=group.priority)
    nodes = (nominations.snapshot(view, first) for view in views)
    found = run_at_once(selecting_group_victims(group, nodes, group_effort()))
    if isinstance(found, NoVictims):
        ordinary = found is NoVictims.NOBODY and not group.priority
        return "" if ordinary else f"{_NOBODY_FOR_GROUP}{found.value}"
    return f"preemption, where it is on, evicts {listed(found.pods)}, for its whole pod group" if found.pods else ""


def preemption_note(
    request: PodRequest,
    budget: PodBudget | None,
    accounts: Sequence[QuotaAccount],
    disruption: Sequence[PodDisruptionBudget],
    views: Sequence[NodeView],
    state: ClusterCache,
    vendors: Vendors,
    now: float,
) -> str:
    """A sentence about the pods that preemption would evict on one of the nodes, or why none.

    Empty for a pod of priority 0 that nobody is below. `accounts` are the quotas of its namespace, `now` is in Unix
    seconds.
    """
    pod = request.pod
    nobody = f"{_NOBODY}no pod of lower priority holds such devices" if pod.priority else ""
    if not any(each.priority < pod.priority or each.deletion_time is not None for each in state.pods()):
        return nobody
    nominations = _nominations(state, vendors, now)
    room = quota_room(pod, accounts, nominations)
    preemptor = Preemptor(request, budget, vendors, disruption, now, room)
    nodes = [nominations.snapshot(view, pod) for view in views]
    if all(preemptor.least(node) is None for node in nodes):
        return nobody
    if pod.preemption_policy == "Never":
        return f"{_NOBODY}its preemptionPolicy is Never"
    victims = choose_node(preemptor, nodes)
    if victims is None:
        if choose_node(replace(preemptor, budget=None, room=None), nodes) is None:
            return f"{_NOBODY}it wouldn't fit without all pods of lower priority either"
        if room is None:
            return f'{_NOBODY}a quota leaves it no room, and doesn\'t have the annotation {QUOTA_PREEMPTION}: "true"'
        return f"{_NOBODY}its quotas wouldn't have room without all pods of lower priority either"
    if not victims.pods:
        return f"{_NOBODY}pods that are ending are enough for a place on node {victims.node}"
    exceeding = f", of which {victims.violations} against a PodDisruptionBudget" if victims.violations else ""
    return f"preemption, where it is on, evicts {listed(victims.pods, victims.node)}{exceeding}"


def _nominations(state: ClusterCache, vendors: Vendors, now: float) -> Nominations:
    """Those that the pods show."""
    nominations = Nominations(state, vendors, clock=lambda: now)
    for each in state.pods():
        nominations.set_pod(each)
    return nominations
