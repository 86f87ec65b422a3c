"""The text of `/metrics`, rendered in slices: between them reviews are answered (docs/metrics.md#size)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from operator import itemgetter
from time import perf_counter

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.core import Sample as LibrarySample
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

ZONE = "vGPU"
"""The label `zone` of HAMi's metrics."""
_SLICE = 0.0005
"""Seconds of rendering after which others get their turn."""
_OTHERS_WORK = 0.0001
"""Seconds of a turn of the loop from which others are at work."""
_AT_WORK = 0.02
"""Seconds for which they are taken to be: a review takes several turns, some of them short."""
_PIECE = 50
"""Samples of a family that are made and rendered at a time."""
_TO_ESCAPE = re.compile(r'[\\\n"]')
_ESCAPED = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})

Sample = tuple[Sequence[str], float]
"""The values of the labels, and the value."""


@dataclass(frozen=True, slots=True)
class Family:
    """A metric's name, what it says, the names of its labels, and whether it is a counter; else it is a gauge."""

    name: str
    documentation: str
    labels: Sequence[str] = ()
    is_counter: bool = False

    @property
    def sample_name(self) -> str:
        """The name before each sample."""
        return f"{self.name}_total" if self.is_counter else self.name

    @property
    def head(self) -> str:
        """The lines before the samples."""
        kind = "counter" if self.is_counter else "gauge"
        return f"# HELP {self.sample_name} {self.documentation}\n# TYPE {self.sample_name} {kind}\n"

    def of(self, samples: Iterable[Sample]) -> Metric:
        """The metric with all these samples."""
        return _FamilyMetric(self, list(samples))

    def in_pieces(self, samples: Iterable[Sample | None]) -> Iterator[Metric]:
        """The metric as several with some of the samples each; at least one.

        None stands for an object that has no sample: a renderer may pause after so many of those, too.
        """
        left = iter(samples)
        while piece := list(islice(left, _PIECE)):
            yield self.of(sample for sample in piece if sample is not None)
        yield self.of(())


class _FamilyMetric(Metric):
    """A gauge or a counter that writes its samples itself: prometheus_client takes five times as long."""

    def __init__(self, family: Family, found: Sequence[Sample]) -> None:
        super().__init__(family.name, family.documentation, "counter" if family.is_counter else "gauge")
        self.family = family
        self._found = found
        del self.samples  # made when somebody asks for them

    @cached_property
    def samples(self) -> list[LibrarySample]:  # type: ignore[override]  # an attribute there
        return [
            LibrarySample(self.family.sample_name, dict(zip(self.family.labels, values, strict=True)), value)
            for values, value in self._found
        ]

    def lines(self) -> Iterator[str]:
        """A line for each sample, its labels sorted by their names as prometheus_client has them."""
        names = self.family.labels
        in_order = sorted(range(len(names)), key=names.__getitem__)
        sort: Callable[[Sequence[str]], tuple[str, ...]] = itemgetter(*in_order) if len(in_order) > 1 else tuple
        labels = labels_text(sort(names), ["%s"] * len(in_order)) if in_order else ""
        line = f"{self.family.sample_name}{labels} %s\n"
        for labelled, value in self._found:
            values = sort(labelled)
            if _TO_ESCAPE.search("".join(values)):
                values = tuple(each.translate(_ESCAPED) for each in values)
            yield line % (*values, floatToGoString(value))  # type: ignore[no-untyped-call]  # no types for it there


class _Single(Collector):
    """A collector of one metric."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterator[Metric]:
        yield self._metric


async def render(
    registry: CollectorRegistry, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
) -> AsyncIterator[bytes]:
    """All metrics in Prometheus' text format. Pieces of a family that follow each other become one.

    While others are at work they get as much time as the rendering.
    """
    parts: list[str] = []
    name = ""
    alternate_until = 0.0
    started = perf_counter()
    for metric in registry.collect():
        if isinstance(metric, _FamilyMetric):
            if metric.name != name:
                parts.append(metric.family.head)
            parts.extend(metric.lines())
        else:
            parts.append(generate_latest(_Single(metric)).decode())
        name = metric.name
        ended = perf_counter()
        if ended - started >= _SLICE:
            yield "".join(parts).encode()
            parts.clear()
            await sleep(0)
            started = perf_counter()
            if started - ended > _OTHERS_WORK:
                alternate_until = started + _AT_WORK
            if started < alternate_until:
                await sleep(_SLICE)
                started = perf_counter()
    yield "".join(parts).encode()


def labels_text(names: Iterable[str], values: Iterable[str]) -> str:
    """Labels as they stand behind a metric's name."""
    pairs = (f'{name}="{value.translate(_ESCAPED)}"' for name, value in zip(names, values, strict=True))
    return f"{{{','.join(pairs)}}}"
