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

LABELS = ("namespace", "vendor", "model", "state")
COLUMNS = (*LABELS, "card_hours", "gib_hours", "core_hours", "used_card_hours", "used_gib_hours")
_COUNTERS = {"card": 1.0, "memory_mib": 1024.0, "core": 1.0, "used_card": 1.0, "used_memory_mib": 1024.0}
"""Of each counter the part of its name, and what its amounts are divided by."""
_DURATION = re.compile(r"([0-9]+(ms|[smhdwy]))+", re.ASCII)


class ReportError(CommandError):
    """There is no report: why, for a person."""


class Hours(NamedTuple):
    """A row: the values of `LABELS`, the hours of cards, GiB and cores that were held, and of cards and GiB used."""

    labels: tuple[str, ...]
    amounts: tuple[float, ...]


def read_hours(prometheus: str, since: str) -> list[Hours]:
    """The hours of the time before now, such as `30d`, from a Prometheus server's URL.

    Raises `ReportError` and `PrometheusError`.
    """
    if not _DURATION.fullmatch(since):
        raise ReportError(f"--since {since!r}: must be a duration of Prometheus, such as 30d, 12h or 1h30m")
    found: dict[tuple[str, ...], list[float]] = {}
    for column, (name, divisor) in enumerate(_COUNTERS.items()):
        counter = f"hami_webhook_showback_{name}_seconds_total[{since}]"
        for labels, seconds in query(prometheus, f"sum by ({','.join(LABELS)}) (increase({counter}))"):
            row = found.setdefault(tuple(labels.get(label, "") for label in LABELS), [0.0] * len(_COUNTERS))
            row[column] = seconds / divisor / 3600
    return [Hours(labels, tuple(amounts)) for labels, amounts in sorted(found.items()) if any(amounts)]


def write_csv(rows: Sequence[Hours], to: IO[str]) -> None:
    """The rows with a heading, hours with three decimals."""
    writer = csv.writer(to, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows((*row.labels, *(f"{hours:.3f}" for hours in row.amounts)) for row in rows)


def show(rows: Sequence[Hours], console: Console) -> None:
    """The rows as a table."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(*(column.replace("_", "-").upper() for column in COLUMNS), box=None, pad_edge=False)
    for column in table.columns[len(LABELS) :]:
        column.justify = "right"
    for row in rows:
        table.add_row(*map(escape, row.labels), *(f"{hours:,.1f}" for hours in row.amounts))
    console.print(table)
