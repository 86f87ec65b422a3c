"""What the extender counts (docs/metrics.md)."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram

from hami_webhook.devices import reasons
from hami_webhook.devices.reasons import Rejection
from hami_webhook.durations import durations

_WAITS = (0.5, 1, 2, 5, 10, 30, 60, 300, 900, 3600, 4 * 3600, 24 * 3600)
"""Upper bounds in seconds for the time from a pod's creation to its binding."""


class ExtenderMetrics:
    """Counters and histograms of one extender; without a registry nobody collects them."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        def counter(name: str, documentation: str, *labels: str) -> Counter:
            return Counter(f"hami_webhook_extender_{name}", documentation, labels, registry=registry)

        self.filtered = counter("filtered", "Pods that nodes were sought for.")
        self.refused = counter("refused", "Pods that no node took.")
        self.refusals = counter("refusals", "Pods that no node took, once for each reason of a node.", "reason")
        self.bound = counter("bound", "Pods bound.")
        self.bind_failures = counter("bind_failures", "Binds that failed.")
        self.binding_seconds = Histogram(
            "hami_webhook_pod_binding_seconds",
            "Time from a pod's creation to its binding.",
            buckets=_WAITS,
            registry=registry,
        )
        self.lock_wait_seconds = durations(
            "hami_webhook_node_lock_wait_seconds", "Time until a bind has its node's locks.", registry=registry
        )

    def refuse(self, rejections: Iterable[Rejection]) -> None:
        """Count a pod that no node took; sentences, which name what a pod wrote, are counted as one reason."""
        self.refused.inc()
        distinct = {id(rejection): rejection for rejection in rejections}  # many nodes share a rejection
        labels = frozenset[str]().union(*(rejection.labels() for rejection in distinct.values()))
        for label in {label if label in reasons.LABELS else "other" for label in labels}:
            self.refusals.labels(label).inc()
