"""What a watch saw of the pods that held a budget's keys and are over, until that is summed (docs/spec/time.md#4.3).

Every process that may lead keeps it, so that the next leader lacks nothing. It is no copy, and small: what ended since
the last sum, which is a minute ago at most while somebody leads.
"""

from __future__ import annotations

from collections.abc import Set
from math import inf

from hami_webhook.kube.objects import Pod
from hami_webhook.quota.account import QuotaAccount
from hami_webhook.quota.held_time import HeldSpan, millis
from hami_webhook.quota.holdings import PastHoldings, ended_at, span_of
from hami_webhook.quota.recompute import Recomputed
from hami_webhook.state.cluster_view import ClusterView

_LONGEST = 3600.0
"""Seconds for which it is kept while nobody sums."""


class HoldingHistory:
    """Spans by the name of the quota and the UID of the pod. `watched_since` is set once the caches are filled."""

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
