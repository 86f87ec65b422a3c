"""Reports as one file of HTML, with the look of the pages of `kubectl hami ui` (docs/ui.md#reports)."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files

from hami_webhook.terminal import ShownTable, without_control_characters

_UI = files("hami_webhook") / "kubectl" / "ui"
_STYLES = "vendor/oat.css", "pages.css"


def html_report(title: str, summary: str, tables: Sequence[ShownTable], texts: Sequence[tuple[str, str]] = ()) -> str:
    """The whole document, which needs no other file; `texts` are headings with lines. Needs the extra `ui`."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("hami_webhook", "kubectl/ui/templates")
    templates = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    text = templates.get_template("report.html").render(
        title=title,
        summary=summary,
        tables=tables,
        texts=texts,
        styles=[(_UI / "static" / name).read_text() for name in _STYLES],
    )
    return without_control_characters(text)
