"""Histograms of how long something takes."""

from __future__ import annotations

from collections.abc import Sequence

import hami_webhook.light_imports  # noqa: F401  it comes before the package

# isort: split
from prometheus_client.metrics import Gauge as Gauge
from prometheus_client.metrics import Histogram as Histogram
from prometheus_client.registry import CollectorRegistry

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds in seconds; one more bucket takes the rest."""


def durations(
    name: str, documentation: str, labels: Sequence[str] = (), registry: CollectorRegistry | None = None
) -> Histogram:
    """A histogram of seconds; without a registry its holder collects it."""
    return Histogram(name, documentation, labels, registry=registry, buckets=_BUCKETS)
