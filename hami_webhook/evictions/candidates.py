"""Who may go, by kind: no policy takes others (docs/preemption.md#victims, docs/spec/queues.md#7)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import Enum

from hami_webhook.dra.holders import BareClaim
from hami_webhook.evictions.lent import Evictable, Team
from hami_webhook.kube.disruption import PodDisruptionBudget
from hami_webhook.kube.objects import Pod
from hami_webhook.kube.pod_group import PodGroup
from hami_webhook.quota.account import QuotaAccount
from hami_webhook.quota.budget import charged
from hami_webhook.quota.ledger import State
from hami_webhook.quota.lending import min_runtime
from hami_webhook.state.cluster_view import ClusterView
from hami_webhook.time_slices import Steps


class Candidates(Enum):
    """The kinds of candidates. A pod that is already ending is no candidate."""

    OF_DEVICES = "bound to the node, of a lower priority, with cards of a vendor that is requested"
    OF_QUOTA = "bound anywhere, of a lower priority, in the namespace and in a quota that says so"
    LENT = "charged to other teams that hold more than their nominal; of a pod group all, or none"
    IDLE = "of a quota that says so, with cards on which it computed nothing for so long; of a pod group all, or none"
    MOVABLE = "on the node, of a lower priority, with cards that others can give and an owner that replaces it there"


def of_lower_priority(pods: Iterable[Pod], priority: int, ending: Collection[str]) -> dict[str, Pod]:
    """The pods of a node, or of a quota, that may go for one of this priority, by UID; `ending` are UIDs, too."""
    return {
        pod.uid: pod
        for pod in pods
        if pod.priority < priority and pod.node_name and pod.uid not in ending and pod.deletion_time is None
    }


# what is lent

_AT_ONCE = 50
"""Pods that are priced before others have their turn."""
_SEVERAL = "several"
"""In place of a budget, for pods that several cover: the eviction API refuses these."""


@dataclass(slots=True)
class Holdings:
    """The amounts that pods hold that aren't ending, by quota: of all and, with their nominal, of teams.

    `candidates` are those of teams, and `pods` these by UID.
    """

    held: Mapping[str, Counter[str]]
    teams: Mapping[str, Team]
    candidates: Sequence[Evictable]
    pods: Mapping[str, Pod]


@dataclass(slots=True)
class _Together:
    """Pods that are evicted together, with what they cost each quota."""

    pods: list[Pod] = field(default_factory=list)
    costs: dict[str, Counter[str]] = field(default_factory=dict)


def finding_lent(
    view: ClusterView,
    accounts: Mapping[str, QuotaAccount],
    budgets: Sequence[PodDisruptionBudget],
    going: Collection[str],
    spared: Set[str],
) -> Steps[Holdings]:
    """The holdings in AcceleratorQuotas, which are given by name.

    `going` are the UIDs of pods that were evicted just now, `spared` those of pods that aren't evicted for now.
    """
    covering: dict[str, list[tuple[str, QuotaAccount]]] = {}
    for name, account in accounts.items():
        for namespace in account.quota.namespaces or ():
            covering.setdefault(namespace, []).append((name, account))
    held = {name: Counter[str]() for name in accounts}
    pods: dict[str, Pod] = {}
    together: dict[object, _Together] = {}
    now = view.clock()
    for number, pod in enumerate([*view.state.pods(), *view.claims_in()]):
        if number % _AT_ONCE == _AT_ONCE - 1:
            yield
        if pod.ended(now) or pod.deletion_time is not None or pod.uid in going:
            continue
        costs = {}
        for name, account in covering.get(pod.namespace, ()):
            exact = charged(account, pod, view.vendors, view.capacity, now, view.placement_ttl)
            costs[name] = account.counted(exact)
            held[name].update(costs[name])
        if pod.queued or isinstance(pod, BareClaim) or not any(map(any, (each.values() for each in costs.values()))):
            continue
        pods[pod.uid] = pod
        group = PodGroup.of(pod)
        each = together.setdefault(pod.uid if group is None else group.key, _Together())
        each.pods.append(pod)
        for name, cost in costs.items():
            each.costs.setdefault(name, Counter()).update(cost)
    for name, account in accounts.items():
        held[name].update(_of_unseen_pods(view, account))
    teams = {name: Team(account.nominal, held[name]) for name, account in accounts.items() if account.nominal}
    runtimes = {name: min_runtime(accounts[name].quota) for name in teams}
    tried = (each for each in together.values() if spared.isdisjoint(pod.uid for pod in each.pods))
    found = [_candidate(each, runtimes, budgets, now) for each in tried]
    return Holdings(held, teams, [each for each in found if each.teams], pods)


def _of_unseen_pods(view: ClusterView, account: QuotaAccount) -> Counter[str]:
    """What is charged to pods that no watch has shown yet, and to updates."""
    found = Counter[str]()
    for identity, entry in account.ledger.items():
        unseen = entry.state is State.ADMITTED and view.state.pod(identity) is None
        if unseen or entry.state is State.UPDATING:
            found.update(account.counted(entry.amounts))
    return found


def _candidate(
    together: _Together, runtimes: Mapping[str, float], budgets: Sequence[PodDisruptionBudget], now: float
) -> Evictable:
    """A pod, or a group: of the lowest priority of its pods, running since the first of them."""
    pods, teams = together.pods, tuple(sorted(name for name in together.costs if name in runtimes))
    covered = Counter[str]()
    for pod in pods if budgets else ():
        if pod.phase == "Running":  # the eviction API asks no budget about others
            names = [f"{each.namespace}/{each.name}" for each in budgets if each.covers(pod)]
            covered.update(names if len(names) < 2 else [_SEVERAL])
    return Evictable(
        tuple(pod.uid for pod in pods),
        teams,
        min(pod.priority for pod in pods),
        min(_began(pod, now) for pod in pods),
        max((runtimes[name] for name in teams), default=0.0),
        together.costs,
        covered,
    )


def _began(pod: Pod, now: float) -> float:
    """Since when a pod runs; one that never started holds its charge since it was created."""
    return next((at for at in (pod.started, pod.created) if at is not None), now)
