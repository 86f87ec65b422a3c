"""Rules of this project that no linter has.

Modules: their size, reasons of ignores, no empty words in names. Pages for users: at most 25 words a sentence, and no
word that readers had to read twice.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
MOST_LINES = 500
EMPTY_WORDS = {"utils", "util", "helpers", "helper", "manager", "common", "misc", "data", "info", "handle", "process"}
MOST_WORDS = 25
TERSE = {"spec", "decisions"}
"""Folders of `docs` whose pages may have long sentences."""
OBSCURE = re.compile(
    r"\b(anew|census|bookkeepers?|guests?|wish|wishes|residents?|lapses?|lapsed|whoever|whom|barred|doubts?|sightings?|"
    r"waker|told|telling|judge[ds]?|judging|alike|overheard|tally|tallies|books)\b|\belse(?=[.;:]|$)",
    re.IGNORECASE,
)
CLAUSE = re.compile(r"(?:Who|Whoever|What|Whatever)\b[^?]*[.;]$")
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


def texts(page: str) -> Iterator[tuple[int, str]]:
    """The headings, cells, items and paragraphs of a page in Markdown, each with its first line; no blocks of code."""
    page = re.sub(
        r"^ *(```|~~~).*?^ *\1", lambda block: "\n" * block[0].count("\n"), page, flags=re.DOTALL | re.MULTILINE
    )
    first, lines = 0, list[str]()
    for number, line in enumerate([*page.splitlines(), ""], 1):
        text = line.strip()
        begins = not text or text[0] in "#|" or re.match(r"[-*] |\d+\. ", text)
        if begins and lines:
            yield first, " ".join(lines)
            lines = []
        if text.startswith("|"):
            yield from ((number, cell.strip()) for cell in text.strip("|").split("|"))
        elif text:
            first, lines = (first, lines) if lines else (number, [])
            lines.append(text)


def sentences(text: str) -> list[str]:
    """The sentences of a text, split at semicolons and colons too; an image has none, a link its words, code one."""
    for pattern, plain in (
        (r"!\[[^\]]*\]\([^)]*\)", ""),
        (r"\[([^\]]*)\]\([^)]*\)", r"\1"),
        (r"`[^`]*`", "code"),
        (r"\*", ""),
    ):
        text = re.sub(pattern, plain, text)
    return re.split(r"(?<=[.!?;:])\s+", text)


def page_faults(name: str, page: str) -> Iterator[str]:
    """The sentences of a page that are hard to read, as `file:line: sentence`."""
    for number, text in texts(page):
        for sentence in sentences(text):
            if (words := len(re.findall(r"[A-Za-z][\w'’-]*", sentence))) > MOST_WORDS:
                yield f"{name}:{number}: {words} words; a sentence has at most {MOST_WORDS}: {sentence}"
            if found := OBSCURE.search(sentence):
                yield f"{name}:{number}: say it without '{found[0]}': {sentence}"
            if CLAUSE.match(sentence) and not text.startswith("#"):
                yield f"{name}:{number}: begin with the actor, not with a clause: {sentence}"


def pages() -> list[Path]:
    """The pages that users read, in English."""
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [path for path in found if path.parent.name not in TERSE and ".zh" not in path.suffixes]


def main() -> int:
    files = [path for folder in ("hami_webhook", "tests", "hack") for path in sorted((ROOT / folder).rglob("*.py"))]
    found = [fault for path in files for fault in faults(path)]
    found += [fault for path in pages() for fault in page_faults(str(path.relative_to(ROOT)), path.read_text())]
    for fault in found:
        print(fault)
    print(f"{len(files)} modules, {len(pages())} pages, {len(found)} faults")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
