"""Reconciling AcceleratorQuotas: each is a scope of its own, and a pod may be covered by several. What pods held in
time (docs/spec/time.md#4.3), and percents of cards (docs/spec/quota.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence, Set
from functools import partial
from math import inf
from random import random

from msgspec.structs import replace

from hami_webhook.charging.recomputer import Recomputer
from hami_webhook.charging.sources import ALL_NAMESPACES
from hami_webhook.cluster.api import EventNote, Kind
from hami_webhook.cluster.object_events import ObjectEvents
from hami_webhook.controller.quotas import QuotaReconciler, ReconcileIntervals
from hami_webhook.devices.model import NodeView
from hami_webhook.kube.objects import Pod, ResourceQuota
from hami_webhook.kube.quota_fields import NO_PERCENTS, WrittenBudget
from hami_webhook.quota.account import QuotaAccount
from hami_webhook.quota.card_selection import CardSelection
from hami_webhook.quota.cluster_shares import CardSums, amounts_now, healthy_sums, with_shares
from hami_webhook.quota.held_time import HeldSpan, millis
from hami_webhook.quota.holdings import PastHoldings, ended_at, span_of
from hami_webhook.quota.limits import written_at
from hami_webhook.quota.percents import Seen, damped, known_amounts, next_fall
from hami_webhook.quota.recompute import Recomputed
from hami_webhook.state.caches import Change
from hami_webhook.state.cluster_view import ClusterView

LONGEST_DELAY = 10.0
"""Seconds after the first change by which a quota is recomputed, whatever that costs: charges of pods that are gone
keep the pods of other namespaces out until then.
"""

_PAUSE_PER_SECOND = 20
"""Seconds between recomputes in a burst for each second that one takes: pods of all namespaces are listed for it."""


class AcceleratorQuotaReconciler(QuotaReconciler):
    """Keeps AcceleratorQuotas true."""

    kind = Kind.ACCELERATOR_QUOTAS

    def __init__(
        self,
        recomputer: Recomputer,
        view: ClusterView,
        object_events: ObjectEvents,
        failures: Counter[str],
        pace: ReconcileIntervals,
        *,
        jitter: Callable[[], float] = random,
    ) -> None:
        super().__init__(recomputer, view, object_events, failures, pace, jitter=jitter)
        self._selected: dict[str, frozenset[str]] = {}
        self._took: dict[str, float] = {}
        """Seconds that the last recompute of each quota took."""
        self._holdings = HoldingHistory(view)
        self._shares = ShareHistory(view)

    def pod_changed(self, before: Pod | None, after: Pod | None) -> None:
        if before is not None and not before.terminal and (after is None or after.terminal):
            for scope in self._scopes(before.namespace):
                for account in self._accounts.get(scope, {}).values():
                    if account.time_budget is not None and self._matters(before):
                        self._holdings.pod_ended(account, before, after)
        super().pod_changed(before, after)

    def quota_changed(self, before: ResourceQuota | None, after: ResourceQuota | None) -> None:
        super().quota_changed(before, after)
        account = None if after is None else self._accounts.get(after.name, {}).get(after.name)
        if account is None:
            return
        quota = account.quota
        if account.time_budget is not None:
            self._holdings.summed(account)
        if _as_written(quota.budget) != (None if before is None else _as_written(before.budget)):
            self._touch(account.name)
        if account.held is not written_at(account, self._view.clock()).held or (
            quota.window_status and not quota.windows
        ):
            self._touch(account.name)

    def resync(self) -> None:
        self._holdings.synced()
        super().resync()

    def _node_changed(self, change: Change[NodeView]) -> None:
        super()._node_changed(change)
        if self._shares.node_changed(change.before, change.after):
            for scope, accounts in self._accounts.items():
                if any(account.quota.percents.written for account in accounts.values()):
                    self._touch(scope)

    def namespaces_changed(self) -> None:
        for name in self._accounts:
            now = self._view.caches.accelerator_quotas.selected(name)
            if now != self._selected.get(name, frozenset()):
                self._selected[name] = now
                self._touch(name)

    def _scopes(self, namespace: str) -> Sequence[str]:
        return [quota.name for quota in self._view.caches.accelerator_quotas.covering(namespace)]

    def _scope(self, quota: ResourceQuota) -> str:
        return quota.name

    def _longest(self, scope: str) -> float:
        return min(LONGEST_DELAY, max(self._pace.longest, _PAUSE_PER_SECOND * self._took.get(scope, 0.0)))

    async def _recompute(self, scope: str, name: str) -> Recomputed:
        past = partial(self._holdings.past, name)
        shares = self._shares.with_shares
        done = await self._recomputer.run(ALL_NAMESPACES, name, self._lost, self._history.gone, past, shares=shares)
        due = self._shares.due(name)
        if due is not None:
            self._at(name, due)
        for text in changed_shares(done):
            await self._tell(done.after.quota, text)
        self._took[name] = done.took
        if done.after.time_budget is not None:
            self._holdings.recomputed(name, done)
        return done

    async def _tell(self, quota: ResourceQuota, text: str) -> None:
        note = EventNote(quota.kind, quota.namespace, quota.name, quota.uid, "Normal", "QuotaLimitChanged", text)
        await self._object_events.record(note)

    def _forget(self, quota: ResourceQuota) -> None:
        super()._forget(quota)
        self._took.pop(quota.name, None)
        self._holdings.forget(quota.name)
        self._shares.forget(quota.name)


def _as_written(budget: WrittenBudget | None) -> WrittenBudget | None:
    """The budget without its sums."""
    return None if budget is None else replace(budget, status={})


_LONGEST = 3600.0
"""Seconds for which it is kept while nobody sums."""


class HoldingHistory:
    """What a watch saw of pods that held a budget's keys and are over, until that is summed (docs/spec/time.md#4.3).

    Every process that may lead keeps it, so that the next leader lacks nothing. It is no copy, and small: what ended
    since the last sum, which is a minute ago at most while somebody leads.

    Spans by the name of the quota and the UID of the pod. `watched_since` is set once the caches are filled.
    """

    def __init__(self, view: ClusterView) -> None:
        self._view = view
        self._ended: dict[str, dict[str, HeldSpan]] = {}
        self._last: dict[str, dict[str, HeldSpan]] = {}
        self._settled: dict[str, Set[str]] = {}
        """The UIDs of pods whose end was summed and that exist still, by quota."""
        self._watched_since = inf

    def synced(self) -> None:
        """Everything that exists was seen by now."""
        self._watched_since = min(self._watched_since, self._view.clock())

    def pod_ended(self, account: QuotaAccount, before: Pod, after: Pod | None) -> None:
        """A pod that the quota covers is terminal, or gone, and wasn't before."""
        view = self._view
        now = view.clock()
        span = self._last.get(account.name, {}).pop(before.uid, None)
        span = span or span_of(account, before, view.vendors, view.capacity, now, view.placement_ttl)
        if span is not None:
            end = ended_at(after or before, now)
            self._ended.setdefault(account.name, {})[before.uid] = HeldSpan(span.start, end, span.amounts)

    def past(self, name: str) -> PastHoldings:
        """What is to be summed of pods that may not be listed any longer."""
        watched = min(self._watched_since, self._view.clock())
        settled = self._settled.get(name, frozenset())
        return PastHoldings({**self._ended.get(name, {})}, {**self._last.get(name, {})}, settled, watched)

    def recomputed(self, name: str, result: Recomputed) -> None:
        """A recompute listed the pods: of those that it found before and not now, the time is known."""
        now, ended = self._view.clock(), self._ended.setdefault(name, {})
        for uid, span in self._last.get(name, {}).items():
            if uid not in result.held:
                ended.setdefault(uid, HeldSpan(span.start, now, span.amounts))
        self._last[name] = {**result.held}
        self._settled[name] = result.settled
        self.summed(result.after)

    def summed(self, account: QuotaAccount) -> None:
        """A version of the quota: what it has summed is dropped."""
        budget, ended = account.time_budget, self._ended.get(account.name)
        if not ended:
            return
        state = budget.state if budget is not None else None
        summed_to = state.summed_to if state is not None else 0
        summed_to = max(summed_to, millis(self._view.clock() - _LONGEST))
        left = {uid: span for uid, span in ended.items() if span.end is not None and millis(span.end) > summed_to}
        self._ended[account.name] = left

    def forget(self, name: str) -> None:
        """A quota is gone."""
        self._ended.pop(name, None)
        self._last.pop(name, None)
        self._settled.pop(name, None)


class ShareHistory:
    """Which limits are about to fall, by the name of their quota. A leader that begins knows of none. Limits rise at
    once and fall slowly.
    """

    def __init__(self, view: ClusterView) -> None:
        self._view = view
        self._sums: dict[CardSelection | None, CardSums] = {}
        """The healthy cards as they were since the last change of a node."""
        self._seen: dict[str, dict[str, Seen]] = {}

    def node_changed(self, before: NodeView | None, after: NodeView | None) -> bool:
        """A node was added, changed or is gone; whether there may be other healthy cards."""
        if _cards_of(before) == _cards_of(after):
            return False
        self._sums.clear()
        return True

    def with_shares(self, account: QuotaAccount) -> QuotaAccount:
        """The account with what its percents amount to now; as it is without percents, now and before."""
        quota = account.quota
        if quota.percents is NO_PERCENTS:
            return account
        vendors, now = self._view.vendors, self._view.clock()
        sums = self._sums.get(account.cards) if quota.percents.written else {}
        if sums is None:
            sums = self._sums[account.cards] = healthy_sums(account.cards, vendors, self._view.state.views())
        shown, seen = known_amounts(quota.percents), self._seen.get(quota.name, {})
        amounts, kept = {}, {}
        for key, amount in amounts_now(quota, vendors, sums).items():
            before = int(shown[key]) if key in shown else None
            amounts[key], kept[key] = damped(before, amount, seen.get(key, ()), now)
        self._seen[quota.name] = kept
        return with_shares(account, amounts, vendors)

    def due(self, name: str) -> float | None:
        """When a limit of the quota falls, in Unix seconds; None if none is about to."""
        now = self._view.clock()
        falls = (next_fall(each, now) for each in self._seen.get(name, {}).values())
        return min((at for at in falls if at is not None), default=None)

    def forget(self, name: str) -> None:
        """The quota is gone."""
        self._seen.pop(name, None)


def changed_shares(done: Recomputed) -> Iterator[str]:
    """A sentence for each limit that a recompute raised or lowered with the cards."""
    before, after = done.before.quota, done.after.quota
    if before.percents.shares == after.percents.shares:
        return
    known = known_amounts(before.percents)
    for key, amount in known_amounts(after.percents).items():
        if known.get(key) != amount:
            was = f", {known[key]} before" if key in known else ""
            yield f"{key}: {after.percents.written[key]} of the healthy cards are {amount} now{was}"


def _cards_of(view: NodeView | None) -> object:
    """What of a node decides how many healthy cards a quota counts there."""
    return None if view is None else (view.node.labels, view.inventories, view.unhealthy)
