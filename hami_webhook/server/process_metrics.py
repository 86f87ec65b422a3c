"""The metrics of the process: the core's (docs/spec/quota.md#11), listener, certificate, policy file, leadership,
preemption.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hami_webhook.assembly import Core
from hami_webhook.controller.informers import SharedInformers
from hami_webhook.controller.quotas import QuotaReconciler
from hami_webhook.controller.webhooks import WebhookReconciler
from hami_webhook.evictions.decisions import OUTCOMES, Decisions
from hami_webhook.queueing.promises import StartErrors
from hami_webhook.queueing.reclaim import Reclaimer
from hami_webhook.server.exposition import Family
from hami_webhook.server.listener import Listener
from hami_webhook.server.policy_reload import PolicySource
from hami_webhook.server.tls import ReloadingTls

_CACHE_AGE = Family(
    "hami_webhook_cache_age_seconds", "Since when the API server gave no sign of life to a cache.", ("kind",)
)
_CLOCK_SKEW = Family(
    "hami_webhook_clock_skew_seconds",
    "Seconds by which this machine's clock is ahead of the API server's, and this process' time of the leader's.",
    ("of",),
)
_RECLAIMED = Family(
    "hami_webhook_quota_reclaimed_pods",
    "Pods evicted as their quota held more than its nominal, and another's pod waited for its own.",
    ("quota",),
    is_counter=True,
)
_CACHE_OBJECTS = Family("hami_webhook_cache_objects", "Objects in a cache.", ("kind",))
_CACHE_SYNCED = Family("hami_scheduler_cache_synced", "1 once all caches are filled, HAMi's name for it.")
_IS_LEADER = Family("hami_scheduler_is_leader", "As hami_webhook_leader, HAMi's name for it.")


@dataclass(frozen=True, eq=False)  # a registry needs its collectors hashable
class ProcessCollector(Collector):
    """What the parts of a process have counted at the scrape; parts that it doesn't have are None."""

    main: Listener
    tls: ReloadingTls | None
    source: PolicySource
    informers: SharedInformers
    skews: Callable[[], Iterable[tuple[str, float]]] = tuple

    def collect(self) -> Iterator[Metric]:
        """Every metric."""
        yield _CACHE_AGE.of(((kind.value,), age) for kind, age in self.informers.ages())
        yield _CACHE_OBJECTS.of(((kind.value,), size) for kind, size in self.informers.sizes())
        yield _CACHE_SYNCED.of([((), float(self.informers.synced))])
        yield _CLOCK_SKEW.of(((of,), seconds) for of, seconds in self.skews())
        yield _counter("refused", "Requests and connections beyond the limits.", self.main.refused)
        yield _gauge("policy_rules", "Rules of the policy file in force.", len(self.source.current.rules))
        yield _counter("policy_failures", "Policy files that could not be used.", self.source.failures)
        if self.tls is not None:
            yield _counter("tls_failed_handshakes", "TLS handshakes that failed.", self.main.failed_handshakes)
            yield _counter("tls_reloads", "Certificates taken into use since the start.", self.tls.reloads)
            yield _counter("tls_failures", "Certificates that could not be used.", self.tls.failures)
            not_after = self.tls.leaf.not_after.timestamp()
            yield _gauge("tls_not_after_seconds", "End of the certificate's life.", not_after)


@dataclass(frozen=True, eq=False)
class ControllerCollector(Collector):
    """What the controller has counted, and whether this process is the leader."""

    reconcilers: Sequence[QuotaReconciler]
    webhooks: WebhookReconciler
    reclaimer: Reclaimer
    leading: Callable[[], bool]
    start_errors: StartErrors

    def collect(self) -> Iterator[Metric]:
        """Every metric."""
        starts = self.start_errors
        error = "By how many seconds the last pod that was promised a start was released later; below 0 earlier."
        yield _gauge("quota_start_error_seconds", error, starts.last)
        yield _counter("quota_late_starts", "Those that were released later than promised.", starts.late)
        yield _gauge("leader", "1 while this process leads: reconciles, and exports the cluster.", self.leading())
        yield _IS_LEADER.of([((), float(self.leading()))])
        expired = sum(each.expired for each in self.reconcilers)
        drifted = sum(each.drifted for each in self.reconcilers)
        yield _counter("quota_expired", "Charges whose pod never came.", expired)
        yield _counter("quota_drift", "Recomputes that corrected used for no event.", drifted)
        yield _RECLAIMED.of(((quota,), pods) for quota, pods in self.reclaimer.reclaimed.items())
        if self.leading():
            yield _gauge(
                "wrong_webhook_configurations",
                "Webhook configurations whose conditions are wrong or unknown, and can't be corrected.",
                self.webhooks.problems,
            )


@dataclass(frozen=True, eq=False)
class PreemptionCollector(Collector):
    """What was decided for pods that no node took (docs/preemption.md#metrics-and-events)."""

    decisions: Decisions

    def collect(self) -> Iterator[Metric]:
        """Decisions by outcome, and victims."""
        decisions = CounterMetricFamily(
            "hami_webhook_preemption_decisions", "Decisions on pods that no node took.", labels=("outcome",)
        )
        for outcome in OUTCOMES:
            decisions.add_metric((outcome,), self.decisions.counts[outcome])
        yield decisions
        yield _counter("preemption_victims", "Pods evicted for others.", self.decisions.victims)


def _counter(name: str, documentation: str, value: float) -> Metric:
    return CounterMetricFamily(f"hami_webhook_{name}", documentation, value=value)


def _gauge(name: str, documentation: str, value: float) -> Metric:
    return GaugeMetricFamily(f"hami_webhook_{name}", documentation, value=value)


_CONFLICTS = Family("hami_webhook_quota_conflicts", "Charges that met a conflicting write.", is_counter=True)
_WRITES = Family("hami_webhook_quota_writes", "Writes to quotas by charges.", is_counter=True)
_DENIED = Family("hami_webhook_quota_denied", "Charges refused.", ("reason",), is_counter=True)
_BACKEND = Family("hami_webhook_quota_backend", "1 for where quotas are kept: status or memory.", ("backend",))
_FAULTS = Family(
    "hami_webhook_vendor_faults", "Unexpected exceptions of the vendors' rules on a node.", ("step",), is_counter=True
)
_IGNORED = Family(
    "hami_webhook_policy_ignored",
    "Namespaces of pods found with annotations that mean nothing there.",
    is_counter=True,
)


class CoreCollector(Collector):
    """What this process did to quotas and objects."""

    def __init__(self, core: Core, *, quota_backend: str = "status") -> None:
        self._core = core
        self._quota_backend = quota_backend

    def collect(self) -> Iterator[Metric]:
        """Every metric."""
        core, counts = self._core, self._core.charger.counts
        yield _CONFLICTS.of([((), counts.conflicts)])
        yield _WRITES.of([((), counts.writes)])
        yield _DENIED.of(((reason,), number) for reason, number in sorted(counts.denied.items()))
        yield from counts.waiting.collect()
        yield from counts.durations.collect()
        yield from core.recomputer.durations.collect()
        yield _BACKEND.of([((self._quota_backend,), 1)])
        yield _FAULTS.of(((step,), number) for step, number in sorted(core.vendors.faults.counts.items()))
        yield _IGNORED.of([((), len(core.namespaces.ignored))])
