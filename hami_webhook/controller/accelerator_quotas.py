"""Reconciling AcceleratorQuotas: each is a scope of its own, and a pod may be covered by several."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from random import random

from msgspec.structs import replace

from hami_webhook.charging.recomputer import Recomputer
from hami_webhook.charging.sources import ALL_NAMESPACES
from hami_webhook.cluster.api import EventNote, Kind
from hami_webhook.cluster.object_events import ObjectEvents
from hami_webhook.controller.holding_history import HoldingHistory
from hami_webhook.controller.quotas import QuotaReconciler, ReconcileIntervals
from hami_webhook.controller.share_history import ShareHistory, changed_shares
from hami_webhook.devices.model import NodeView
from hami_webhook.kube.objects import Pod, ResourceQuota
from hami_webhook.kube.quota_fields import WrittenBudget
from hami_webhook.quota.limits import written_at
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
