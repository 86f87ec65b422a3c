"""The showback report as HTML (docs/metrics.md#showback-report)."""

from __future__ import annotations

from datetime import datetime

from hami_webhook.html_report import html_report
from hami_webhook.report import Report
from hami_webhook.terminal import ShownTable


def as_html(report: Report, since: str, now: datetime) -> str:
    """The hours of the time before now, as one file."""
    headings = [column.replace("_", " ") for column in report.columns]
    cells = [[*row.labels, *(f"{hours:,.1f}" for hours in row.amounts)] for row in report.rows]
    amounts = frozenset(headings[len(report.labels) :])
    names = ", ".join(headings[: len(report.labels) - 1])
    table = ShownTable(f"Hours by {names} and {headings[len(report.labels) - 1]}", headings, cells, amounts=amounts)
    summary = f"What pods held or waited for in the {since} before {now:%Y-%m-%d %H:%M} UTC."
    return html_report("Showback", summary if cells else f"{summary} Nothing was.", [table] if cells else [])
