"""docs/architecture.md and its neighbours: every link leads somewhere, and the walks are short."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "architecture.md").read_text()
CODE_LINK = re.compile(r"\[`([\w.]+)`\]\(([^)]+\.py)\)")
STEPS = re.compile(r"^## ([^\n]+), step by step\n(.*?)(?=^## )", re.MULTILINE | re.DOTALL)


@cache
def definitions(path: Path) -> frozenset[str]:
    """The qualified names of the classes and functions that a module defines."""
    found = set()

    def collect(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                found.add(prefix + child.name)
                collect(child, f"{prefix}{child.name}.")

    collect(ast.parse(path.read_text()), "")
    return frozenset(found)


@pytest.mark.parametrize(("name", "path"), sorted(set(CODE_LINK.findall(TEXT))))
def test_what_is_linked_is_defined_there(name: str, path: str) -> None:
    assert name in definitions((DOCS / path).resolve())


@pytest.mark.parametrize(("title", "steps"), STEPS.findall(TEXT), ids=lambda text: text.split("\n")[0])
def test_each_walk_has_at_most_a_dozen_steps_and_each_names_its_function(title: str, steps: str) -> None:
    numbered = re.findall(r"^\d+\. (.+)$", steps, re.MULTILINE)
    assert 1 < len(numbered) <= 12
    assert [step for step in numbered if not CODE_LINK.search(step)] == []


def test_there_are_three_walks() -> None:
    assert [title for title, _ in STEPS.findall(TEXT)] == ["A review", "A placement", "A reconcile"]


def test_every_decision_is_listed() -> None:
    pages = {path.name for path in (DOCS / "decisions").glob("0*.md")}
    assert set(re.findall(r"\]\((0[^)]+)\)", (DOCS / "decisions" / "README.md").read_text())) == pages
