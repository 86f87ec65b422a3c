"""Reports and pages as HTML: a report is one file, with the look of the pages of `kubectl hami ui`
(docs/ui.md#reports).

It needs the extra `ui`, so it is imported where a page is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from hami_webhook.terminal import ShownTable, without_control_characters

_STATIC = files("hami_webhook") / "kubectl" / "ui" / "static"
_STYLES = "vendor/oat.css", "pages.css"


def page_templates() -> Environment:
    """The templates of the pages and of reports."""
    loader = PackageLoader("hami_webhook", "kubectl/ui/templates")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)


def rendered(templates: Environment, name: str, values: Mapping[str, Any]) -> str:
    """A template as a document, in which no text from outside turns the direction of others, or is invisible."""
    page = templates.get_template(name).render(values).replace("\r\n", "\n")  # as a browser reads and sends forms
    return "\t".join(map(without_control_characters, page.split("\t")))  # a manifest may have tabs


def html_report(title: str, summary: str, tables: Sequence[ShownTable], texts: Sequence[tuple[str, str]] = ()) -> str:
    """The whole document, which needs no other file; `texts` are headings with lines."""
    styles = [(_STATIC / name).read_text() for name in _STYLES]
    values = {"title": title, "summary": summary, "tables": tables, "texts": texts, "styles": styles}
    return rendered(page_templates(), "report.html", values)
