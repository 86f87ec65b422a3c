"""Rules of this project that no linter has: module size, reasons of ignores, no empty words in module names."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
MOST_LINES = 500
EMPTY_WORDS = {"utils", "util", "helpers", "helper", "manager", "common", "misc", "data", "info", "handle", "process"}
IGNORE = re.compile(r"#\s*type:\s*ignore(?P<code>\[[\w,\s-]+\])?(?P<reason>.*)")


def faults(path: Path) -> Iterator[str]:
    """The rules a source file breaks, as `file:line: sentence`."""
    name = path.relative_to(ROOT)
    lines = path.read_text().splitlines()
    if len(lines) > MOST_LINES:
        yield f"{name}:1: {len(lines)} lines; a module has at most {MOST_LINES}"
    if path.stem in EMPTY_WORDS:
        yield f"{name}:1: a module's name says what is in it; {path.stem} doesn't"
    for number, line in enumerate(lines, 1):
        found = IGNORE.search(line)
        if found and path != Path(__file__):
            if not found["code"]:
                yield f"{name}:{number}: type: ignore without an error code"
            elif not found["reason"].strip(" #"):
                yield f"{name}:{number}: type: ignore without a reason beside it"


def main() -> int:
    files = [path for folder in ("hami_webhook", "tests", "hack") for path in sorted((ROOT / folder).rglob("*.py"))]
    found = [fault for path in files for fault in faults(path)]
    for fault in found:
        print(fault)
    print(f"{len(files)} files, {len(found)} faults")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
