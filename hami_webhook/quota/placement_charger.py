"""Charging a placement that costs more than the pod's charge so far, before its annotations are written.

Source: docs/spec/quota.md#8.

Charge before acting, release after seeing: at no moment a pod holds more than used has (Q2), and what doesn't fit any
longer is no placement (Q1, Q16). A placement that costs less changes nothing here: only the recompute lowers (Q14). It
chooses no node and writes no pod.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from hami_webhook.cluster.api import ClusterError, Conflict
from hami_webhook.devices.registry import Vendors
from hami_webhook.kube.objects import Pod
from hami_webhook.quota.account import QuotaAccount, Rejected
from hami_webhook.quota.budget import charged, entry_of
from hami_webhook.quota.joined_charges import ChargedAccount, JoinedCharges
from hami_webhook.quota.ledger import Entry, State
from hami_webhook.quota.pricing import CapacityLister, Charge, ChargeOn, charge_of
from hami_webhook.quota.store import QuotaStore, Retries, Snapshot, Swap, Writes
from hami_webhook.quota.stores import QuotaStores

_RETRIES = Retries(attempts=6, first=0.002, longest=0.2)


class QuotaChanged(Rejected):
    """The quota no longer has room for this placement: take the next best node."""


class PlacementCharge(Struct, frozen=True):
    """What was charged for one placement, to be undone if its annotations can't be written.

    `writes` are those to the quotas of each store and scope.
    """

    pod: Pod
    writes: list[tuple[QuotaStore, str, Writes]] = []

    async def charge(self, stores: QuotaStores, actual: Charge, charged: ChargedAccount, joined: JoinedCharges) -> None:
        """Charge the quotas that may limit what a pod costs, one store after the other.

        `charged` may raise `Rejected`; `undo` takes back what was written until then.
        """
        for store, scope in stores.limiting(self.pod, actual):
            writes = Writes(attempt=store.new_attempt())
            self.writes.append((store, scope, writes))
            await joined.charge(store, scope, partial(self._marked, charged, writes.attempt), self._reverted, writes)

    async def undo(self) -> None:
        """Take the increase back where our entry still stands; best effort, the recompute settles the rest.

        Not for where the annotations may have been written all the same.
        """
        for store, scope, writes in reversed(self.writes):
            await store.undo(scope, writes, self._reverted, _RETRIES)

    def _marked(self, charged: ChargedAccount, attempt: str, account: QuotaAccount, snapshot: Snapshot) -> QuotaAccount:
        """The account once it is charged, where the pod's entry is of this attempt: others leave it there."""
        after = charged(account, snapshot)
        if after is account:
            return after
        entry = replace(after.ledger[self.pod.uid], attempt=attempt)
        return replace(after, ledger={**after.ledger, self.pod.uid: entry})

    def _reverted(self, account: QuotaAccount, swap: Swap) -> QuotaAccount:
        uid, before, after = self.pod.uid, swap.before, swap.after
        if account.ledger.get(uid) != after.ledger[uid]:
            return account
        increase = {key: before.used[key] - amount for key, amount in after.used.items()}
        account = account.with_increase(uid, None, increase, -after.ledger[uid].observed)
        for identity in before.ledger.keys() - (after.ledger.keys() - {uid}):
            account = account.with_increase(identity, before.ledger[identity], {})
        return account


class PlacementCharger:
    """Commits placements: `placing` entries in the quotas that cover a pod.

    The quotas are those that the cache shows, without a list; in a namespace without quotas nothing is read at all.
    """

    def __init__(
        self,
        stores: QuotaStores,
        vendors: Vendors,
        capacity: CapacityLister,
        *,
        clock: Callable[[], float],
        placement_ttl: float,
    ) -> None:
        self._stores = stores
        self._vendors = vendors
        self._capacity = capacity
        self._clock = clock
        self._placement_ttl = placement_ttl
        self._joined = JoinedCharges(_RETRIES)

    async def commit(self, pod: Pod, actual: Charge, on_cards: ChargeOn | None = None) -> PlacementCharge:
        """Charge what `actual` costs beyond the pod's present charge. Raises `QuotaChanged` or `ClusterError`."""
        commitment = PlacementCharge(pod)
        now = self._clock()

        def after(account: QuotaAccount, snapshot: Snapshot) -> QuotaAccount:
            return self._charged(account, pod, account.part(actual, on_cards), now, snapshot)

        try:
            await commitment.charge(self._stores, actual, after, self._joined)
        except Conflict as error:
            await commitment.undo()
            raise QuotaChanged(str(error)) from error
        except (QuotaChanged, ClusterError):
            await commitment.undo()
            raise
        return commitment

    def _charged(self, account: QuotaAccount, pod: Pod, actual: Charge, now: float, snapshot: Snapshot) -> QuotaAccount:
        """The account with the placement charged. Raises `QuotaChanged` if there is no room."""
        amounts = actual.only(account.hard)
        if not amounts or not account.covers(pod):
            return account
        found = entry_of(account, pod, self._vendors, self._capacity)
        before = charged(account, pod, self._vendors, self._capacity, now, self._placement_ttl)
        increase = _increase(account, amounts, before)
        # a former placement's entry may expire before this placement is seen, so it is renewed in any case
        if not increase and not (found and found[1].state is State.PLACING):
            if not (snapshot.live or snapshot.current):
                itself = charge_of(pod, self._vendors, self._capacity, now, self._placement_ttl, account.cards)
                if _increase(account, amounts, itself.only(account.hard)):
                    raise QuotaChanged(account.name)  # no write will show whether the ledger still says so
            return account
        over = any(
            key not in account.used or account.used[key] + more > account.hard[key] for key, more in increase.items()
        )
        if over and account.enforced:
            raise QuotaChanged(account.name)
        larger = {key: max(before.get(key, 0), amounts.get(key, 0)) for key in {*before, *amounts}}
        namespace = "" if account.quota.namespaces is None else pod.namespace
        entry = Entry(State.PLACING, int(now), larger, amounts, observed=over, namespace=namespace)
        if found:
            account = account.without(found[0])
        return account.with_increase(pod.uid, entry, increase, over)


def _increase(account: QuotaAccount, amounts: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int]:
    """What amounts cost the quota beyond those before, as it counts them."""
    present = account.counted(before)
    costs = account.counted(amounts)
    return {key: cost - present.get(key, 0) for key, cost in costs.items() if cost > present.get(key, 0)}
