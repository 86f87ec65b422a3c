"""The documents name tests, files and headings that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@cache
def functions(path: Path) -> frozenset[str]:
    """The functions and methods that a module defines."""
    tree = ast.parse(path.read_text())
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, kinds))


@cache
def anchors(path: Path) -> frozenset[str]:
    """The anchors of a document: of its headings, as GitHub makes them, and those that it sets itself."""
    text = path.read_text()
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    set_here = re.findall(r'^<a id="([^"]+)"></a>$', text, re.MULTILINE)
    return frozenset((*(re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles), *set_here))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_test_that_a_document_names_exists(document: Path) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?", document.read_text())
    missing = [
        f"{path}::{name}"
        for path, name in named
        if not (ROOT / path).is_file() or (name and name not in functions(ROOT / path))
    ]
    assert missing == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_inside_the_project_leads_somewhere(document: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]+))?\)", document.read_text())
    for file, anchor in links:
        target = (document.parent / file).resolve() if file else document
        assert target.exists(), file
        assert not anchor or anchor in anchors(target), (file, anchor)


def test_every_promise_of_the_security_page_names_a_test() -> None:
    text = (ROOT / "docs" / "security.md").read_text()
    tables = re.findall(r"^\|[^\n]*\| test \|\n\|[-|]+\|\n((?:\|.*\n)+)", text, re.MULTILINE)
    assert len(tables) == 4
    rows = [row for table in tables for row in table.splitlines()]
    assert len(rows) > 30
    assert [row for row in rows if "`tests/" not in row.rpartition(" | ")[2]] == []
