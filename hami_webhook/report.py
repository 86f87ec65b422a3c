"""`hami-webhook report`: what namespaces held and used, in hours, from Prometheus (docs/metrics.md#showback-report)."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from typing import IO, TYPE_CHECKING, NamedTuple

from hami_webhook.command_error import CommandError
from hami_webhook.prometheus import query

if TYPE_CHECKING:
    from rich.console import Console

_LABELS, _SUBMITTER = ("namespace", "vendor", "model", "state"), "submitted_by"
_COUNTERS = {
    "card_hours": ("card", 1.0),
    "gib_hours": ("memory_mib", 1024.0),
    "core_hours": ("core", 1.0),
    "used_card_hours": ("used_card", 1.0),
    "used_gib_hours": ("used_memory_mib", 1024.0),
}
"""Of each column the part of its counter's name, and what the counter's amounts are divided by."""
_HELD = ("card_hours", "gib_hours", "core_hours")
"""What is known by user, too: a node's monitor doesn't know who submitted a pod."""
_DURATION = re.compile(r"([0-9]+(ms|[smhdwy]))+", re.ASCII)


class ReportError(CommandError):
    """There is no report: why, for a person."""


class Hours(NamedTuple):
    """A row: the values of the report's labels, and its hours."""

    labels: tuple[str, ...]
    amounts: tuple[float, ...]


class Report(NamedTuple):
    """Rows with the names of their labels and of their amounts."""

    labels: tuple[str, ...]
    amounts: tuple[str, ...]
    rows: Sequence[Hours]

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.labels, *self.amounts)


def read_hours(prometheus: str, since: str, *, by_user: bool = False) -> Report:
    """The hours of the time before now, such as `30d`, from a Prometheus server's URL; `by_user`: of each submitter.

    Raises `ReportError` and `PrometheusError`.
    """
    if not _DURATION.fullmatch(since):
        raise ReportError(f"--since {since!r}: must be a duration of Prometheus, such as 30d, 12h or 1h30m")
    labels = (*_LABELS, _SUBMITTER) if by_user else _LABELS
    columns = _HELD if by_user else tuple(_COUNTERS)
    found: dict[tuple[str, ...], list[float]] = {}
    for column, (name, divisor) in enumerate(_COUNTERS[each] for each in columns):
        counter = f"hami_webhook_showback_{name}_seconds_total[{since}]"
        for series, seconds in query(prometheus, f"sum by ({','.join(labels)}) (increase({counter}))"):
            row = found.setdefault(tuple(series.get(label, "") for label in labels), [0.0] * len(columns))
            row[column] = seconds / divisor / 3600
    rows = [Hours(values, tuple(amounts)) for values, amounts in sorted(found.items()) if any(amounts)]
    return Report(labels, columns, rows)


def write_csv(report: Report, to: IO[str]) -> None:
    """The rows with a heading, hours with three decimals."""
    writer = csv.writer(to, lineterminator="\n")
    writer.writerow(report.columns)
    writer.writerows((*row.labels, *(f"{hours:.3f}" for hours in row.amounts)) for row in report.rows)


def show(report: Report, console: Console) -> None:
    """The rows as a table."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(*(column.replace("_", "-").upper() for column in report.columns), box=None, pad_edge=False)
    for column in table.columns[len(report.labels) :]:
        column.justify = "right"
    for row in report.rows:
        table.add_row(*map(escape, row.labels), *(f"{hours:,.1f}" for hours in row.amounts))
    console.print(table)
