"""The showback report as HTML (docs/metrics.md#showback-report)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from hami_webhook.html_report import html_report
from hami_webhook.report import COLUMNS, LABELS, Hours
from hami_webhook.terminal import ShownTable


def as_html(rows: Sequence[Hours], since: str, now: datetime) -> str:
    """The hours of the time before now, as one file."""
    headings = [column.replace("_", " ") for column in COLUMNS]
    cells = [[*row.labels, *(f"{hours:,.1f}" for hours in row.amounts)] for row in rows]
    amounts = frozenset(headings[len(LABELS) :])
    table = ShownTable("Hours by namespace, vendor, model and state", headings, cells, amounts=amounts)
    summary = f"What pods held or waited for in the {since} before {now:%Y-%m-%d %H:%M} UTC."
    return html_report("Showback", summary if rows else f"{summary} Nothing was.", [table] if rows else [])
