"""What quotas leave members of a pod group that are placed one after the other, before any is (docs/spec/quota.md#8).

Used has what all are charged, also such as are to be evicted: nobody is evicted for room in a quota.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hami_webhook.devices.model import NodeView
from hami_webhook.devices.registry import Vendors
from hami_webhook.kube.objects import Pod
from hami_webhook.quota.account import QuotaAccount
from hami_webhook.quota.budget import PodBudget, pod_budget
from hami_webhook.quota.pricing import CapacityLister, placed_charge
from hami_webhook.scheduling.cluster_cache import ClusterCache
from hami_webhook.scheduling.fit import NodeFit

Amounts = Mapping[str, Mapping[str, int]]
"""By quota and key."""


class GroupBudgets:
    """What the quotas leave each member, beside what the members placed before it cost, by quota."""

    def __init__(
        self,
        accounts: Iterable[QuotaAccount],
        state: ClusterCache,
        capacity: CapacityLister,
        vendors: Vendors,
        now: float,
    ) -> None:
        self._accounts = [each for each in accounts if each.hard and each.enforced]
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
            for account in self._accounts
            for key, amount in costs.get(account.label, {}).items()
        )

    def cost(self, pod: Pod, fit: NodeFit, view: NodeView) -> Amounts:
        """What a placement on the node costs."""
        found = {}
        for account in self._accounts:
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
