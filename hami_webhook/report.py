"""`hami-webhook report`: what namespaces held, in hours, from Prometheus (docs/metrics.md#showback-report)."""

from __future__ import annotations

import csv
import json
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from hami_webhook.command_error import CommandError

if TYPE_CHECKING:
    from rich.console import Console

LABELS = ("namespace", "vendor", "model", "state")
COLUMNS = (*LABELS, "card_hours", "gib_hours", "core_hours")
_COUNTERS = {"card": 1.0, "memory_mib": 1024.0, "core": 1.0}
"""Of each counter the part of its name, and what its amounts are divided by."""
_DURATION = re.compile(r"([0-9]+(ms|[smhdwy]))+", re.ASCII)
_TIMEOUT = 60.0
"""Seconds in which an answer has to begin, and each further part of it to come."""
_LARGEST_ANSWER = 64 << 20
"""Bytes: a row takes 200, and there are as many as namespaces times models of cards."""


class ReportError(CommandError):
    """There is no report: why, for a person."""


class Hours(NamedTuple):
    """A row of the report: the values of `LABELS`, and the hours of cards, GiB and cores."""

    labels: tuple[str, ...]
    amounts: tuple[float, ...]


def read_hours(prometheus: str, since: str) -> list[Hours]:
    """The hours of the time before now, such as `30d`, from a Prometheus server's URL. Raises `ReportError`."""
    if not _DURATION.fullmatch(since):
        raise ReportError(f"--since {since!r}: must be a duration of Prometheus, such as 30d, 12h or 1h30m")
    if urllib.parse.urlsplit(prometheus).scheme not in ("http", "https"):
        raise ReportError(f"--prometheus {prometheus!r}: must be a URL, such as http://prometheus.monitoring:9090")
    found: dict[tuple[str, ...], list[float]] = {}
    for column, (name, divisor) in enumerate(_COUNTERS.items()):
        counter = f"hami_webhook_showback_{name}_seconds_total[{since}]"
        for labels, seconds in _query(prometheus, f"sum by ({','.join(LABELS)}) (increase({counter}))"):
            row = found.setdefault(tuple(labels.get(label, "") for label in LABELS), [0.0, 0.0, 0.0])
            row[column] = seconds / divisor / 3600
    return [Hours(labels, tuple(amounts)) for labels, amounts in sorted(found.items()) if any(amounts)]


def _query(prometheus: str, query: str) -> list[tuple[Mapping[str, str], float]]:
    """An instant query's vector: labels and values."""
    url = f"{prometheus.rstrip('/')}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT) as answer:  # noqa: S310 - http and https only, see above
            body = answer.read(_LARGEST_ANSWER + 1)
    except urllib.error.HTTPError as error:
        raise ReportError(f"{prometheus}: {_reason(error.read(1 << 16)) or error}") from error
    except (OSError, ValueError) as error:
        raise ReportError(f"{prometheus}: can't be reached: {getattr(error, 'reason', error)}") from error
    if len(body) > _LARGEST_ANSWER:
        raise ReportError(f"{prometheus}: the answer has more than {_LARGEST_ANSWER >> 20} MiB, and isn't read")
    try:
        result = json.loads(body)["data"]["result"]
        return [(each["metric"], float(each["value"][1])) for each in result]
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise ReportError(f"{prometheus}: the answer isn't that of Prometheus' HTTP API (/api/v1/query)") from error


def _reason(body: bytes) -> str:
    """What Prometheus says is wrong, empty if it doesn't."""
    try:
        answer: Any = json.loads(body)
    except ValueError:
        return ""
    return str(answer.get("error", "")) if isinstance(answer, dict) else ""


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
