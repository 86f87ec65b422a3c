"""`python -m hack.test_layers`: how many tests and lines each layer has, as a table in Markdown.

A test is a function, however many rows it has. Lines are those of the Python files, helpers and tables included. A
property or an integration test counts by the lines of its function; all else in its file counts for the file's layer.
Nothing is imported, so another commit's tests can be counted: `--before` is a checkout of it.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
FEW_LINES = 2000
"""Rooms with fewer lines share a row."""
_LAYERS = ("property", "conformance", "integration", "explorer", "image and site", "end-to-end")
_FOLDERS = {"fuzz": "property", "e2e": "end-to-end", "image": "image and site", "website": "image and site"}
_FILES = {"contract": "conformance", "test_conformance": "conformance", "test_explore": "explorer"}


def counted(root: Path) -> tuple[Counter[str], Counter[str]]:
    """The tests and the lines of each layer of a checkout; unit tests by their folder, as `unit: quota`."""
    tests, lines = Counter[str](), Counter[str]()
    for path in sorted((root / "tests").rglob("*.py")):
        file = layer_of(path.relative_to(root / "tests"))
        text = path.read_text()
        lines[file] += len(text.splitlines())
        for function, layer in _tests(ast.parse(text), file):
            length = (function.end_lineno or function.lineno) - _first_line(function) + 1
            tests[layer] += 1
            lines[layer] += length
            lines[file] -= length
    return tests, lines


def layer_of(path: Path) -> str:
    """The layer of a file, by its path below `tests`."""
    for begin, layer in _FILES.items():
        if path.name.startswith(begin):
            return layer
    return _FOLDERS.get(path.parts[0]) or f"unit: {path.parts[0] if len(path.parts) > 1 else 'shared'}"


def table(before: Path | None, after: Path) -> list[str]:
    """The rows, with those of a checkout of before beside them."""
    columns = [column for root in (before, after) if root for column in counted(root)]
    heads = [f"{what}{when}" for when in ([" before", " now"] if before else [""]) for what in ("tests", "lines")]
    rows = [f"| layer | {' | '.join(heads)} |", f"|---|{'---:|' * len(heads)}"]
    for layer, parts in _grouped(columns[-1], {name for column in columns for name in column}):
        rows.append(f"| {layer} | {' | '.join(f'{sum(column[part] for part in parts):,}' for column in columns)} |")
    return [*rows, f"| all | {' | '.join(f'{column.total():,}' for column in columns)} |"]


def _grouped(lines: Mapping[str, int], names: set[str]) -> Iterator[tuple[str, Sequence[str]]]:
    """The rows with what each sums: rooms of unit tests, the largest first, then the other layers."""
    rooms = sorted((name for name in names if name not in _LAYERS), key=lambda name: (-lines[name], name))
    yield from ((name, [name]) for name in rooms if lines[name] >= FEW_LINES)
    yield f"unit: others, of fewer than {FEW_LINES:,} lines", [name for name in rooms if lines[name] < FEW_LINES]
    yield from ((name, [name]) for name in _LAYERS)


def _tests(module: ast.Module, file: str) -> Iterator[tuple[ast.FunctionDef | ast.AsyncFunctionDef, str]]:
    """The tests of a file, with the layer of each."""
    marks = [ast.unparse(each.value) for each in module.body if isinstance(each, ast.Assign) and _marks(each)]
    for node in ast.walk(module):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or not node.name.startswith("test_"):
            continue
        texts = [*marks, *map(ast.unparse, node.decorator_list)]
        if file.startswith("unit") and any(text.startswith("given(") for text in texts):
            yield node, "property"
        elif file.startswith("unit") and any("mark.integration" in text for text in texts):
            yield node, "integration"
        else:
            yield node, file


def _marks(assigned: ast.Assign) -> bool:
    return ast.unparse(assigned.targets[0]) == "pytestmark"


def _first_line(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return min([function.lineno, *(each.lineno for each in function.decorator_list)])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="python -m hack.test_layers", description=__doc__)
    parser.add_argument("--before", type=Path, metavar="FOLDER", help="a checkout to compare with")
    print("\n".join(table(parser.parse_args(arguments).before, ROOT)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
