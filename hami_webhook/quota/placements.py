"""What a pod's placement, and a claim's allocation, mean for one quota: a `Placing` of plain amounts.

Source: docs/spec/quota.md#8 and docs/spec/dra.md#7. Both are priced once before they are queued, and only what depends
on a quota's version, its ledger, is looked up on the object that is written.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from hami_webhook.devices.registry import Vendors
from hami_webhook.dra.holders import BareClaim
from hami_webhook.kube.objects import Pod
from hami_webhook.quota.account import QuotaAccount
from hami_webhook.quota.budget import charged, entry_of
from hami_webhook.quota.floors import cost_as_priced
from hami_webhook.quota.ledger import Entry
from hami_webhook.quota.placing import Placing, raised
from hami_webhook.quota.pricing import Charge, ChargeOn, ClusterCapacity, PriceOn, charge_of


class PodPlacement(Struct, frozen=True):
    """A pod that is about to cost `actual`, of which `on_cards` gives the part of quotas that select cards."""

    pod: Pod
    actual: Charge
    on_cards: ChargeOn | None
    vendors: Vendors
    capacity: ClusterCapacity
    now: float
    placement_ttl: float

    def placing(self, account: QuotaAccount) -> Placing | None:
        """What it means for a quota; None if it concerns none of its keys."""
        amounts = account.part(self.actual, self.on_cards).only(account.hard)
        if not amounts or not account.covers(self.pod):
            return None
        found = entry_of(account, self.pod, self.vendors, self.capacity)
        before = charged(account, self.pod, self.vendors, self.capacity, self.now, self.placement_ttl)
        return Placing(found, before, amounts, amounts)

    def is_covered(self, account: QuotaAccount, placing: Placing) -> bool:
        """Whether what the pod costs by itself covers the placement."""
        itself = charge_of(self.pod, self.vendors, self.capacity, self.now, self.placement_ttl, account.cards)
        return not raised(account, itself.only(account.hard), placing.cost)


class ClaimAllocation(Struct, frozen=True):
    """A claim that is about to be allocated; `claim` is its UID, and `pod` its holder: a pod, or the claim itself.

    `before` and `after` are the holder's prices, and `capacity` has its claims as they were before.
    """

    pod: Pod
    claim: str
    before: PriceOn
    after: PriceOn
    vendors: Vendors
    capacity: ClusterCapacity

    def placing(self, account: QuotaAccount) -> Placing | None:
        """What it means for a quota; None if it concerns none of its keys."""
        pod, hard = self.pod, account.hard
        if not account.covers(pod):
            return None
        shown = self.after(account.cards).only(hard)
        held = {key for key, amount in shown.items() if amount}
        if not held:
            return None
        found = entry_of(account, pod, self.vendors, self.capacity)
        own = found[1] if found else cost_as_priced(account, pod, self.vendors, self.before)
        cost: Mapping[str, int] = cost_as_priced(account, pod, self.vendors, self.after).only(hard)
        shown_before = self.before(account.cards)
        known = shown_before.only(hard) if shown_before.placed else {}
        if found is not None and self._is_beside(found[1], known):
            # the entry of another allocation gives way to this one's, which has to say what both come to
            beside = found[1].actual or {}
            shown = {key: beside.get(key, 0) + shown.get(key, 0) - known.get(key, 0) for key in {*beside, *shown}}
            cost = shown
        # the ledger says so even where it costs no more: a pod may go while the allocation is stored, and others of its
        # claims may be allocated meanwhile
        recorded = not isinstance(pod, BareClaim)
        # room is looked for also where it adds nothing: used above hard is of pods that were let in without a charge
        return Placing(found, own.only(hard), shown, cost, held, self.claim, recorded)

    def _is_beside(self, entry: Entry, known: Mapping[str, int]) -> bool:
        """Whether an entry is of the allocation of another of its claims, which isn't in what is `known` to be held."""
        return (
            entry.is_allocation
            and entry.claim != self.claim
            and any(amount > known.get(key, 0) for key, amount in (entry.actual or {}).items())
        )
