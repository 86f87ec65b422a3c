"""What is used, from the last samples that a Prometheus server has of the nodes' monitors and of vendors' exporters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from hami_webhook.kube.message_text import cut
from hami_webhook.prometheus import PrometheusError, query
from hami_webhook.usage.figures import Measured, MeasuredCard
from hami_webhook.usage.samples import NAMES, Sample, makes_sense, measured

if TYPE_CHECKING:
    from hami_webhook.usage.exporters import Exporter

_TIMEOUT = 10.0
"""Seconds: somebody waits at a terminal."""
_MILLIWATTS = 1000.0


def query_measured(prometheus: str, now: float, exporters: Sequence[Exporter]) -> Measured:
    """What the server at a URL says of all nodes and pods; where it can't be asked, `why` is a sentence."""
    names = [*NAMES, *(name for row in exporters for name in (row.temperature, row.power) if name)]
    try:
        found = query(prometheus, f'{{__name__=~"{"|".join(names)}"}}', _TIMEOUT)
    except PrometheusError as error:
        return Measured(why=f"the measured use of pods isn't known: {error}")
    samples = [Sample(labels.get("__name__", ""), labels, value) for labels, value in found]
    exported = _exported(samples, exporters)
    own = [sample for sample in samples if sample.name in NAMES]
    if not own:
        why = "it has no metrics of a node's monitor: see docs/monitor.md"
        return Measured(exported=exported, why=f"the measured use of pods isn't known: {prometheus}: {why}")
    return replace(measured(own, now), exported=exported)


def _exported(samples: Iterable[Sample], exporters: Sequence[Exporter]) -> Mapping[str, MeasuredCard]:
    """What exporters say, by the card's UUID; of several samples of a card the largest."""
    rows = {name: row for row in exporters for name in (row.temperature, row.power) if name}
    cards: dict[str, MeasuredCard] = {}
    for sample in samples:
        row = rows.get(sample.name)
        uuid = sample.labels.get(row.uuid, "") if row is not None else ""
        if row is None or not uuid or not makes_sense(sample.value):
            continue
        card = cards.get(uuid) or MeasuredCard(uuid, cut(sample.labels.get(row.model, "")) if row.model else "")
        if sample.name == row.temperature:
            cards[uuid] = replace(card, temperature=max(sample.value, card.temperature or 0.0))
        else:
            watts = sample.value / (_MILLIWATTS if row.power_unit == "mW" else 1.0)
            cards[uuid] = replace(card, power=max(watts, card.power or 0.0))
    return cards
