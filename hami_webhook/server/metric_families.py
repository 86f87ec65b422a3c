"""Families of metrics, short to make."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily

from hami_webhook.quota.durations import BOUNDS, Durations


def gauge(name: str, text: str, labels: tuple[str, ...]) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, labels=labels)


def histogram(
    name: str, text: str, found: Mapping[tuple[str, ...], Durations], labels: tuple[str, ...] = ()
) -> HistogramMetricFamily:
    """How long something took, by the values of the labels."""
    family = HistogramMetricFamily(name, text, labels=labels)
    for values, durations in sorted(found.items()):
        total, buckets = 0, []
        for bound, number in zip([*map(str, BOUNDS), "+Inf"], durations.buckets, strict=True):
            total += number
            buckets.append((bound, total))
        family.add_metric(values, buckets, durations.total)
    return family
