"""What quotas leave a pod once others are gone, or members of its group have come before it (docs/spec/quota.md#8).

Pods of lower priority are evicted for room only in quotas that say so (docs/preemption.md#quota), and never for a
group: used has what all are charged, also such as are to be evicted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec.structs import replace

from hami_webhook.devices.model import NodeView
from hami_webhook.devices.pod_fit import NodeFit
from hami_webhook.devices.registry import Vendors
from hami_webhook.evictions.candidates import of_lower_priority
from hami_webhook.kube.objects import Pod
from hami_webhook.quota.account import QuotaAccount, limiting
from hami_webhook.quota.budget import PodBudget, charged, pod_budget
from hami_webhook.quota.enforcement import gives_room
from hami_webhook.quota.ledger import State
from hami_webhook.quota.limits import limited_at, limited_until_end
from hami_webhook.quota.pricing import ClusterCapacity, charge_of, placed_charge
from hami_webhook.state.cluster_cache import ClusterCache
from hami_webhook.state.nominations import Nominations

Amounts = Mapping[str, Mapping[str, int]]
"""By quota and key."""


class QuotaRoom:
    """What a pod may cost without some of the other pods of its namespace.

    `accounts` are the namespace's quotas, `named` the names of those that give room.
    """

    def __init__(
        self, pod: Pod, accounts: Sequence[QuotaAccount], named: Collection[str], nominations: Nominations
    ) -> None:
        self._pod = pod
        self._named = named
        self._state = state = nominations.state
        self._vendors = nominations.vendors
        self._now = now = nominations.clock()
        self._pods = [
            each
            for each in state.pods_in(pod.namespace)
            if each.uid != pod.uid and not each.ended(now) and any(self._cost(account, each) for account in accounts)
        ]
        self.ending = nominations.going(self._pods)
        """The UIDs of pods whose room will be free."""
        self._accounts = [self._as_recomputed(account) if account.label in named else account for account in accounts]

    @property
    def candidates(self) -> dict[str, Pod]:
        """The pods that may be evicted for room, by UID."""
        return of_lower_priority(self._pods, self._pod.priority, self.ending)

    def without(self, victims: Collection[str]) -> PodBudget | None:
        """The pod's budget when the pods with these UIDs and those that are ending are gone."""
        gone = [each for each in self._pods if each.uid in victims or each.uid in self.ending]

        def placed_by_others(account: QuotaAccount) -> dict[str, int]:
            others = self._state.placed_besides(self._pod, account, self._now)
            return _less(others, [self._cost(account, each, placed=True) for each in gone])

        accounts = [
            replace(account, used=_less(account.used, [self._cost(account, each) for each in gone]))
            for account in self._accounts
        ]
        return pod_budget(
            *(self._pod, accounts, placed_by_others, self._vendors),
            *(self._state.capacity, self._now, self._state.placement_ttl),
        )

    def _as_recomputed(self, account: QuotaAccount) -> QuotaAccount:
        """The account without what pods that have ended are still charged."""
        live = Counter[str]()
        for pod in (self._pod, *self._pods):
            live.update(self._cost(account, pod))
        for identity, entry in account.ledger.items():
            if entry.state is State.UPDATING or (entry.state is State.ADMITTED and self._state.pod(identity) is None):
                live.update(account.counted(entry.amounts))
        return replace(account, used={key: min(used, live[key]) for key, used in account.used.items()})

    def _cost(self, account: QuotaAccount, pod: Pod, *, placed: bool = False) -> Mapping[str, int]:
        """What the pod costs a quota that gives room, by its placement alone or as it is charged."""
        if account.label not in self._named or not account.covers(pod):
            return {}
        more = (self._vendors, self._state.capacity, self._now, self._state.placement_ttl)
        if not placed:
            return account.counted(charged(account, pod, *more))
        charge = charge_of(pod, *more, account.cards)
        return account.counted(charge.exact) if charge.placed else {}


class GroupBudgets:
    """What the quotas leave each member after the cost of the members placed before it, by quota."""

    def __init__(
        self,
        accounts: Iterable[QuotaAccount],
        state: ClusterCache,
        capacity: ClusterCapacity,
        vendors: Vendors,
        now: float,
    ) -> None:
        self._accounts = [limited_at(each, now) for each in accounts if each.hard and each.enforced]
        self._state = state
        self._capacity = capacity
        self._vendors = vendors
        self._now = now
        self._others: dict[str, Mapping[str, int]] = {}
        self._alone: dict[str, PodBudget | None] = {}

    def of(self, pod: Pod, taken: Amounts) -> PodBudget | None:
        """A member's budget."""

        def others(account: QuotaAccount) -> Mapping[str, int]:
            more = taken.get(account.label, {})
            return {key: amount + more.get(key, 0) for key, amount in self._placed(account, pod).items()}

        more = (self._vendors, self._capacity, self._now, self._state.placement_ttl)
        return pod_budget(pod, self._accounts, others, *more) if self._accounts else None

    def admits(self, pod: Pod, fit: NodeFit, view: NodeView, taken: Amounts) -> bool:
        """Whether a placement that was found without a budget is within that of the member."""
        if not self._accounts:
            return True
        if pod.uid not in self._alone:
            self._alone[pod.uid] = self.of(pod, {})
        alone = self._alone[pod.uid]
        if alone is not None and not alone.on(view).admits(fit.claims()):
            return False
        costs = self.cost(pod, fit, view)
        return all(
            self._placed(account, pod)[key] + taken.get(account.label, {}).get(key, 0) + amount <= account.hard[key]
            for account in limiting([limited_until_end(each, pod, self._now) for each in self._accounts], pod)
            for key, amount in costs.get(account.label, {}).items()
        )

    def cost(self, pod: Pod, fit: NodeFit, view: NodeView) -> Amounts:
        """What a placement on the node costs."""
        found = {}
        for account in limiting(self._accounts, pod):
            if account.covers(pod):
                claims = fit.claims()
                if account.cards is not None:
                    selected = account.cards.on(view)
                    claims = [claim for claim in claims if (claim.vendor, claim.uuid) in selected]
                found[account.label] = account.counted(placed_charge(claims, pod.kinds, self._vendors).exact)
        return found

    def _placed(self, account: QuotaAccount, pod: Pod) -> Mapping[str, int]:
        """What all placed pods cost a quota; of the members to be placed there are none among them."""
        known = self._others.get(account.label)
        if known is None:
            known = self._others[account.label] = self._state.placed_besides(pod, account, self._now)
        return known


def quota_room(pod: Pod, accounts: Sequence[QuotaAccount], nominations: Nominations) -> QuotaRoom | None:
    """The room for a pod in those of its namespace's quotas that have the annotation; None if none has it."""
    named = {account.label for account in accounts if gives_room(account.quota) and account.covers(pod)}
    return QuotaRoom(pod, accounts, named, nominations) if named else None


def _less(amounts: Mapping[str, int], parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    left = dict(amounts)
    for part in parts:
        for key in left.keys() & part.keys():
            left[key] -= part[key]
    return left
