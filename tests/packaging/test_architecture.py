"""docs/architecture.md and its neighbours: every link leads somewhere, the walks are short, the tables complete."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS, PACKAGE = ROOT / "docs", ROOT / "hami_webhook"
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


def test_there_are_five_walks_of_which_each_is_drawn_as_a_line_of_packages() -> None:
    titles = [title for title, _ in STEPS.findall(TEXT)]
    assert titles == ["A review", "A placement", "An eviction", "A release from the queue", "A reconcile"]
    lines = re.findall(r"^ (\w+) +((?:\w+ ──► )+\w+) ", TEXT, re.MULTILINE)
    assert [name for name, _ in lines] == [title.split()[1] for title in titles]
    packages = {name for names in first_column("| package | holds | must not know |") for name in names}
    assert [room for _, line in lines for room in line.split(" ──► ") if room not in packages] == []


def test_every_decision_is_listed() -> None:
    pages = {path.name for path in (DOCS / "decisions").glob("0*.md")}
    assert set(re.findall(r"\]\((0[^)]+)\)", (DOCS / "decisions" / "README.md").read_text())) == pages


def first_column(head: str) -> list[list[str]]:
    """What is quoted in the first column of each row of the table with this head."""
    (table,) = re.findall(rf"^{re.escape(head)}\n\|[-|]+\|\n((?:\|.*\n)+)", TEXT, re.MULTILINE)
    return [re.findall(r"`([\w.]+)`", row.split(" | ")[0]) for row in table.splitlines()]


def test_the_table_of_packages_has_each_in_the_order_of_the_contract() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contract = project["tool"]["importlinter"]["contracts"][0]
    layers = [{name.strip() for name in layer.split("|")} for layer in contract["layers"]]
    rows = [set(names) for names in first_column("| package | holds | must not know |")]
    assert rows == layers
    tree = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert set().union(*rows) == tree - {"__init__"}


def remembering(module: Path) -> Iterator[str]:
    """The functions of a module whose last answers functools remembers."""
    text = module.read_text()
    for node in ast.walk(ast.parse(text)) if "cache" in text else ():
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from [node.name for each in node.decorator_list if re.search(r"\b(lru_)?cache\b", ast.unparse(each))]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Call) and "cache" in ast.unparse(node.func.func):
            yield ast.unparse(node.args[0]).rpartition(".")[2]


def test_the_table_of_functions_that_remember_their_answers_is_complete() -> None:
    listed = {name.rpartition(".")[2] for names in first_column("| function | answers | of |") for name in names}
    assert listed - {"_shared"} == {name for path in PACKAGE.rglob("*.py") for name in remembering(path)}
