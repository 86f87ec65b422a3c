"""Reconciling AcceleratorQuotas: each is a scope of its own, and a pod may be covered by several."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from random import random

from hami_webhook.charging.recomputer import Recomputer
from hami_webhook.charging.sources import ALL_NAMESPACES
from hami_webhook.cluster.api import Kind
from hami_webhook.cluster.object_events import ObjectEvents
from hami_webhook.controller.quotas import QuotaReconciler, ReconcileIntervals
from hami_webhook.kube.objects import ResourceQuota
from hami_webhook.quota.recompute import Recomputed
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
        done = await self._recomputer.run(ALL_NAMESPACES, name, self._lost, self._history.gone)
        self._took[name] = done.took
        return done

    def _forget(self, quota: ResourceQuota) -> None:
        super()._forget(quota)
        self._took.pop(quota.name, None)
