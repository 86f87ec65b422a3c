"""The text of `/metrics`, rendered in slices: between them reviews are answered (docs/metrics.md#size)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from time import perf_counter

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

_SLICE = 0.001
"""Seconds of rendering after which others get their turn, for as long: a review takes several turns of the loop."""
_PIECE = 50
"""Samples of a family that are made and rendered at a time."""

Sample = tuple[Sequence[str], float]
"""The values of the labels, and the value."""


@dataclass(frozen=True, slots=True)
class Family:
    """A metric's name, what it says, the names of its labels, and whether it is a counter; else it is a gauge."""

    name: str
    documentation: str
    labels: Sequence[str] = ()
    is_counter: bool = False

    def of(self, samples: Iterable[Sample]) -> Metric:
        """The metric with all these samples."""
        family = (CounterMetricFamily if self.is_counter else GaugeMetricFamily)(
            self.name, self.documentation, labels=self.labels
        )
        for values, value in samples:
            family.add_metric(values, value)
        return family

    def in_pieces(self, samples: Iterable[Sample]) -> Iterator[Metric]:
        """The metric as several with some of the samples each; at least one."""
        left = iter(samples)
        piece = list(islice(left, _PIECE))
        yield self.of(piece)
        while piece := list(islice(left, _PIECE)):
            yield self.of(piece)


class _Single(Collector):
    """A collector of one metric."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterator[Metric]:
        yield self._metric


async def render(
    registry: CollectorRegistry, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> AsyncIterator[bytes]:
    """All metrics in Prometheus' text format. Metrics of the same name that follow each other become one."""
    lines: list[bytes] = []
    name = ""
    started = perf_counter()
    for metric in registry.collect():
        text = generate_latest(_Single(metric))
        if metric.name == name:
            text = text.split(b"\n", 2)[2]  # without HELP and TYPE
        name = metric.name
        lines.append(text)
        if perf_counter() - started >= _SLICE:
            yield b"".join(lines)
            lines.clear()
            await sleep(_SLICE)
            started = perf_counter()
    yield b"".join(lines)
