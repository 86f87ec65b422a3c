"""The metrics of the process besides the core's: listener, certificate, policy file, leadership, extender."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from hami_webhook.controller.leader import LeaderElection
from hami_webhook.controller.quotas import QuotaReconciler
from hami_webhook.controller.webhooks import WebhookReconciler
from hami_webhook.policy.file import PolicySource
from hami_webhook.scheduling.extender import ExtenderCounts
from hami_webhook.scheduling.preemption.preemption import OUTCOMES, Preemption
from hami_webhook.server.listener import Listener
from hami_webhook.server.policy_reload import PolicyReload
from hami_webhook.server.tls import ReloadingTls


@dataclass(frozen=True, eq=False)  # a registry needs its collectors hashable
class ProcessCollector(Collector):
    """What the parts of a process counted, as it is at the scrape; parts that it doesn't have are None."""

    main: Listener
    tls: ReloadingTls | None
    source: PolicySource
    reload: PolicyReload
    reconciler: QuotaReconciler | None
    webhooks: WebhookReconciler
    election: LeaderElection | None
    extender: ExtenderCounts | None

    def collect(self) -> Iterator[Metric]:
        """Every metric."""
        leading = self.reconciler is not None and (self.election is None or self.election.leading)
        if self.extender is not None:
            yield _counter("extender_filtered", "Pods that nodes were sought for.", self.extender.filtered)
            yield _counter("extender_refused", "Pods that no node took.", self.extender.refused)
            yield _counter("extender_bound", "Pods bound.", self.extender.bound)
            yield _counter("extender_bind_failures", "Binds that failed.", self.extender.bind_failures)
        yield _gauge("leader", "1 while this process reconciles quotas.", leading)
        if self.reconciler is not None:
            yield _counter("quota_expired", "Charges whose pod never came.", self.reconciler.expired)
            yield _counter("quota_drift", "Recomputes that corrected used for no event.", self.reconciler.drifted)
            yield _gauge(
                "wrong_webhook_configurations",
                "Webhook configurations whose conditions aren't known to be right and can't be put right.",
                self.webhooks.problems,
            )
        yield _counter("refused", "Requests and connections beyond the limits.", self.main.refused)
        yield _gauge("policy_rules", "Rules of the policy file in force.", len(self.source.current.rules))
        yield _counter("policy_failures", "Policy files that could not be used.", self.reload.failures)
        if self.tls is not None:
            yield _counter("tls_failed_handshakes", "TLS handshakes that failed.", self.main.failed_handshakes)
            yield _counter("tls_reloads", "Certificates taken into use since the start.", self.tls.reloads)
            yield _counter("tls_failures", "Certificates that could not be used.", self.tls.failures)
            not_after = self.tls.leaf.not_after.timestamp()
            yield _gauge("tls_not_after_seconds", "End of the certificate's life.", not_after)


@dataclass(frozen=True, eq=False)
class PreemptionCollector(Collector):
    """What was decided for pods that no node took (docs/preemption.md#metrics-and-events)."""

    preemption: Preemption

    def collect(self) -> Iterator[Metric]:
        """Decisions by outcome, and victims."""
        decisions = CounterMetricFamily(
            "hami_webhook_preemption_decisions", "Decisions on pods that no node took.", labels=("outcome",)
        )
        for outcome in OUTCOMES:
            decisions.add_metric((outcome,), self.preemption.counts[outcome])
        yield decisions
        yield _counter("preemption_victims", "Pods evicted for others.", self.preemption.victims)


def _counter(name: str, documentation: str, value: float) -> Metric:
    return CounterMetricFamily(f"hami_webhook_{name}", documentation, value=value)


def _gauge(name: str, documentation: str, value: float) -> Metric:
    return GaugeMetricFamily(f"hami_webhook_{name}", documentation, value=value)
