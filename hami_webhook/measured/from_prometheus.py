"""What is used, from the last samples that a Prometheus server has of the nodes' monitors."""

from __future__ import annotations

from hami_webhook.measured.figures import Measured
from hami_webhook.measured.samples import NAMES, Sample, measured
from hami_webhook.prometheus import PrometheusError, query

_TIMEOUT = 10.0
"""Seconds: somebody waits at a terminal."""


def query_measured(prometheus: str, now: float) -> Measured:
    """What the server at a URL says of all nodes and pods; where it can't be asked, `why` is a sentence."""
    text = f'{{__name__=~"{"|".join(NAMES)}"}}'
    try:
        found = query(prometheus, text, _TIMEOUT)
    except PrometheusError as error:
        return Measured(why=f"what pods really use isn't known: {error}")
    samples = [Sample(labels.get("__name__", ""), labels, value) for labels, value in found]
    if not samples:
        why = "it has no metrics of a node's monitor: see docs/monitor.md"
        return Measured(why=f"what pods really use isn't known: {prometheus}: {why}")
    return measured((sample for sample in samples if sample.name in NAMES), now)
