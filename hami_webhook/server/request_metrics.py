"""What a server answered, and how long it took (docs/metrics.md)."""

from __future__ import annotations

from functools import cache

from prometheus_client import (
    CollectorRegistry,
    Counter,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
)

from hami_webhook.durations import durations


def new_registry() -> CollectorRegistry:
    """A registry with the metrics of the process; no counter or histogram has a `_created` series."""
    disable_created_metrics()  # type: ignore[no-untyped-call]  # prometheus_client gives no types for it
    registry = CollectorRegistry(auto_describe=False)
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=registry)
    return registry


class RequestMetrics:
    """A counter of answers by path and code, `<name>s_total`, and a histogram by path, `<name>_seconds`."""

    def __init__(self, registry: CollectorRegistry, name: str, request: str) -> None:
        answers = Counter(f"{name}s", f"Answers to an {request}.", ("path", "code"), registry=registry)
        seconds = durations(f"{name}_seconds", f"Time to answer an {request}.", ("path",), registry)

        @cache  # looking up both by their labels takes a tenth of a short review
        def labelled(path: str, code: int) -> tuple[Counter, Histogram]:
            return answers.labels(path, code), seconds.labels(path)

        self._labelled = labelled

    def answered(self, path: str, code: int, seconds: float) -> None:
        """Count an answer with this status code, after so many seconds."""
        counter, histogram = self._labelled(path, code)
        counter.inc()
        histogram.observe(seconds)
