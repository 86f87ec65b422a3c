"""What a Prometheus server knows for the pages: what is really used, the last hour, and alerts that fire (docs/ui.md).

It is asked beside the readings of the cluster, so that a server that hangs makes no page stale. What it answers may be
anything: of alerts and series so many are kept, and amounts that make no sense are left out.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

from msgspec import Struct

from hami_webhook.kube.message_text import cut
from hami_webhook.prometheus import PrometheusError, query, query_range
from hami_webhook.usage.exporters import Exporter
from hami_webhook.usage.figures import NOT_ASKED, Measured
from hami_webhook.usage.from_prometheus import query_measured

Key = tuple[str, ...]
"""What a series is of."""
Points = Sequence[tuple[float, float]]
"""Times in Unix seconds with amounts, the oldest first."""

_EVERY, _HISTORY_EVERY = 8.0, 30.0
"""Seconds between two times that it is asked, and between two that it is asked for the last hour."""
_HOUR, _STEP = 3600.0, 30.0
_TIMEOUT = 5.0
_MOST_SERIES, _MOST_ALERTS, _MOST_LABELS = 500, 100, 4
_MOST_POINTS = round(_HOUR / _STEP) + 1
_LARGEST, _LONGEST = 2.0**63, 253
_ALERTS = 'ALERTS{alertstate="firing",alertname=~"Hami.*"}'
_OF_THE_RULE = {"__name__", "alertname", "alertstate", "severity"}
_QUERIES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "model": ("sum by (model) (hami_webhook_card_memory_allocated_bytes) / 2^20", ("model",)),
    "used": ("sum by (device_type) (hami_host_gpu_memory_used_bytes) / 2^20", ("device_type",)),
    "cards wait": ('sum(rate(hami_webhook_showback_card_seconds_total{state="waiting"}[5m]))', ()),
    "refusals": ("60 * sum by (reason) (rate(hami_webhook_review_refusals_total[5m]))", ("reason",)),
    "quota": ("hami_webhook_quota_used", ("namespace", "quota", "key")),
}
"""By the first word of a series' key its query, and the labels that are the other words."""


class Alert(Struct, frozen=True):
    """An alert that fires; `about` is what its labels name."""

    name: str
    severity: str
    about: str


class Metrics:
    """The answers of the server at a URL, where `exporters` are looked for too.

    `why_not` says why there are none, a sentence, empty if there are.
    """

    def __init__(
        self, prometheus: str, exporters: Sequence[Exporter] = (), clock: Callable[[], float] = time.time
    ) -> None:
        self.measured: Measured = NOT_ASKED
        self.alerts: Sequence[Alert] = ()
        self.history: Mapping[Key, Points] = {}
        self.why_not = ""
        self._prometheus = prometheus
        self._exporters = exporters
        self._clock = clock
        self._history_since = -math.inf
        # not that of the readings, which would wait; one for the loop, one for who looks at a card or a pod
        self._threads = ThreadPoolExecutor(max_workers=2)

    async def keep_asking(self, changed: Callable[[], Awaitable[None]]) -> None:
        """Ask until cancelled; `changed` is called where an answer is another."""
        while True:
            before = (self.measured, self.alerts, self.history, self.why_not)
            await asyncio.get_running_loop().run_in_executor(self._threads, self.ask)
            if (self.measured, self.alerts, self.history, self.why_not) != before:
                await changed()
            await asyncio.sleep(_EVERY)

    def ask(self) -> None:
        """Ask once for all; where that fails the last answers stay, but for what is used now."""
        now = self._clock()
        measured = query_measured(self._prometheus, now, self._exporters)
        try:
            found = query(self._prometheus, _ALERTS, _TIMEOUT)
            self.alerts = sorted(map(_alert, (labels for labels, _ in islice(found, _MOST_ALERTS))), key=_order)
            if now >= self._history_since + _HISTORY_EVERY:
                self.history = dict(islice(self._asked_history(now), _MOST_SERIES))
                self._history_since = now
            self.why_not = ""
        except PrometheusError as error:
            self.why_not = f"alerts and history aren't known: {error}"
        self.measured = measured

    async def last_hour_of_card(self, uuid: str) -> dict[str, Points]:
        """What was used of a card, by a label; nothing where that can't be had at once."""
        card = f"{{device_uuid={_quoted(uuid)}}}"
        return await self._last_hour(
            {
                "Gi used": f"sum(hami_host_gpu_memory_used_bytes{card}) / 2^30",
                "% of its time computing": f"max(hami_host_gpu_utilization_ratio{card})",
            }
        )

    async def last_hour_of_pod(self, namespace: str, name: str) -> dict[str, Points]:
        """What a pod used, by a label; nothing where that can't be had at once."""
        own = f"{{namespace={_quoted(namespace)},pod={_quoted(name)}}}"
        renamed = f"{{exported_namespace={_quoted(namespace)},exported_pod={_quoted(name)}}}"
        memory, cores = "hami_vgpu_memory_used_bytes", "hami_container_device_utilization_ratio"
        return await self._last_hour(
            {
                "Gi used": f"sum({memory}{own} or {memory}{renamed}) / 2^30",
                "% of a card computing": f"sum({cores}{own} or {cores}{renamed})",
            }
        )

    async def _last_hour(self, queries: Mapping[str, str]) -> dict[str, Points]:
        if self.why_not:
            return {}
        asked = asyncio.get_running_loop().run_in_executor(self._threads, self._asked, queries, self._clock())
        try:
            return await asyncio.wait_for(asked, _TIMEOUT)
        except (PrometheusError, TimeoutError):
            return {}

    def _asked(self, queries: Mapping[str, str], now: float) -> dict[str, Points]:
        found = {label: self._range(text, now)[:1] for label, text in queries.items()}
        return {label: _of_hour(points, now) for label, series in found.items() for _, points in series}

    def _range(self, text: str, now: float) -> Sequence[tuple[Mapping[str, str], Points]]:
        return query_range(self._prometheus, text, now - _HOUR, now, _STEP, _TIMEOUT)

    def _asked_history(self, now: float) -> Iterator[tuple[Key, Points]]:
        for kind, (text, names) in _QUERIES.items():
            series: dict[Key, dict[float, float]] = defaultdict(dict)
            for labels, points in self._range(text, now):
                key = (kind, *(labels.get(f"exported_{name}") or labels.get(name, "") for name in names))
                if all(len(word) <= _LONGEST for word in key):
                    # of two leaders, one after the other, each has a part of the hour
                    series[key] |= dict(_of_hour(points, now))
            yield from ((key, sorted(found.items())) for key, found in series.items())


def _of_hour(points: Points, now: float) -> Points:
    """The points of the last hour whose amounts are some; what isn't a number is neither."""
    hour = points[:_MOST_POINTS]
    return [(at, amount) for at, amount in hour if now - _HOUR <= at <= now and 0 <= amount <= _LARGEST]


def _quoted(name: str) -> str:
    """A name as a string of PromQL, whatever it contains."""
    return json.dumps(name, ensure_ascii=False)


def _alert(labels: Mapping[str, str]) -> Alert:
    named = (f"{name}={cut(text)}" for name, text in sorted(labels.items()) if name not in _OF_THE_RULE)
    return Alert(
        cut(labels.get("alertname", "")), cut(labels.get("severity", "")), ", ".join(islice(named, _MOST_LABELS))
    )


def _order(alert: Alert) -> tuple[str, str, str]:
    return alert.severity, alert.name, alert.about
