"""`python -m hack.bench.compare BEFORE AFTER`: two files that `--json` wrote, by their ratios to the baselines.

The ratios are compared, not the times: the two may come from different machines, or moments.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from rich.table import Table

from hack.bench.figures import show

_SAME = 0.1
"""Ratios that differ by less than this part are called the same: so much is noise."""


def main() -> None:
    parser = argparse.ArgumentParser(
        allow_abbrev=False, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    arguments = parser.parse_args()
    before, after = (_read(path) for path in (arguments.before, arguments.after))
    table = Table("figure")
    for heading in ("before", "after", "change"):
        table.add_column(heading, justify="right")
    for key in dict.fromkeys((*before, *after)):
        old, new = (found[key]["ratio"] if key in found else None for found in (before, after))
        table.add_row(key, _shown(old), _shown(new), _change(old, new))
    show(table)


def _read(path: Path) -> dict[str, dict[str, Any]]:
    try:
        figures = json.loads(path.read_text())
        return {f"{figure['benchmark']}: {figure['name']}": figure for figure in figures}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SystemExit(f"{path}: can't be read: {error}") from None


def _shown(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.3g}"


def _change(before: float | None, after: float | None) -> str:
    if not before or not after:
        return ""
    part = after / before - 1
    return "same" if abs(part) < _SAME else f"{part:+.0%}"


if __name__ == "__main__":
    main()
