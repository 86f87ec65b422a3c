"""Writes docs/interface.txt, the interface of the program, an item a line: `python -m hack.render_interface`.

Items come from the code (`hack.interface`), their levels from `hack.interface_levels`. A test compares the file with
both, so nothing disappears or changes unnoticed. What was there before and isn't, or is different, is kept under
`[gone]`, and CHANGELOG.md must name it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from hack.changelog import section
from hack.interface import ROOT, Item, items
from hack.interface_levels import deprecation_of, level_of
from hami_webhook import __version__

INTERFACE = ROOT / "docs" / "interface.txt"
CHANGELOG = ROOT / "CHANGELOG.md"
COMMAND = "make render"
UNRELEASED = "Unreleased"
_HEADING = "# Each item with its level: docs/stability.md. Written by `make render`.\n"
_RANKS: Mapping[str, int] = {"internal": 0, "alpha": 1, "beta": 2, "stable": 3}
_APART = "  "


@dataclass(frozen=True, slots=True)
class Line:
    """An item with its level, and since when it is deprecated for what."""

    item: Item
    level: str
    deprecation: str = ""

    @classmethod
    def of(cls, item: Item) -> Line:
        """As the code and the tables have it."""
        return cls(item, level_of(item.group, item.name), deprecation_of(item.group, item.name))

    @classmethod
    def read(cls, text: str, group: str) -> Line:
        level, name, detail, deprecation = (*text.split(_APART), "", "")[:4]
        return cls(Item(group, name, detail), level, deprecation.removeprefix("deprecated in "))

    def __str__(self) -> str:
        deprecation = f"deprecated in {self.deprecation}" if self.deprecation else ""
        return _APART.join((self.level, self.item.name, self.item.detail, deprecation)).rstrip()


@dataclass(frozen=True, slots=True)
class Gone:
    """An item that a version removed, or changed: as it was."""

    version: str
    line: Line

    @classmethod
    def read(cls, text: str) -> Gone:
        version, group, line = text.split(_APART, 2)
        return cls(version, Line.read(line, group))

    def __str__(self) -> str:
        return _APART.join((self.version, self.line.item.group, str(self.line)))

    def is_noted(self, changelog: str) -> bool:
        """Whether the changelog names it, or the last word of its name, under the version's "Upgrading"."""
        notes = (section(changelog, self.version) or "").partition("\n### Upgrading\n")[2].partition("\n### ")[0]
        name = self.line.item.name
        return any(f"`{text}`" in notes for text in (name, name.rpartition(" ")[2]))


@dataclass(frozen=True, slots=True)
class Interface:
    """The file's content."""

    lines: list[Line]
    gone: list[Gone]

    @classmethod
    def read(cls, text: str) -> Interface:
        lines, gone, group = [], [], ""
        for each in text.splitlines():
            if heading := re.fullmatch(r"\[(.*)\]", each):
                group = heading[1]
            elif each and not each.startswith("#"):
                if group == "gone":
                    gone.append(Gone.read(each))
                else:
                    lines.append(Line.read(each, group))
        return cls(lines, gone)

    def __str__(self) -> str:
        groups = [(group, [*lines]) for group, lines in groupby(self.lines, lambda line: line.item.group)]
        sections: list[tuple[str, Sequence[object]]] = [*groups, *([("gone", self.gone)] if self.gone else ())]
        return _HEADING + "".join("\n".join(("", f"[{name}]", *map(str, content), "")) for name, content in sections)

    def followed_by(self, now: Iterable[Item], version: str) -> Interface:
        """The same with what there is `now`; `version` is that of what is gone, or the heading of the changelog."""
        lines = [Line.of(item) for item in sorted(now)]
        kept = {line.item for line in lines}
        gone = [Gone(version, line) for line in self.lines if line.level != "internal" and line.item not in kept]
        before = [Gone(version, each.line) if each.version == UNRELEASED else each for each in self.gone]
        return Interface(lines, sorted({*before, *gone}, key=str))

    def changes(self, now: Iterable[Item]) -> Iterator[str]:
        """What isn't there any longer, or not as it was, and what is new: a sentence each, with what to do."""
        lines = {(line.item.group, line.item.name): line for line in map(Line.of, now)}
        stored = {(line.item.group, line.item.name): line for line in self.lines}
        for key, old in stored.items():
            new, what = lines.get(key), f"{old.item.group} {old.item.name} ({old.level})"
            if new is None:
                yield f"{what} is gone. {_remedy(old)}"
            elif new.item.detail != old.item.detail:
                yield f"{what} was {old.item.detail!r} and is {new.item.detail!r}. {_remedy(old)}"
            elif _RANKS[new.level] < _RANKS[old.level]:
                yield f"{what} would be {new.level}: no level is lowered; mend the table in hack/interface_levels.py"
            elif new != old:
                yield f"{what} is now: {new}. Run {COMMAND}"
        for key, new in lines.items():
            if key not in stored:
                yield f"{new.item.group} {new.item.name} is new, and {new.level}: add it by running {COMMAND}"


def _remedy(line: Line) -> str:
    if line.level == "internal":
        return f"Run {COMMAND}"
    note = f"run {COMMAND}, and name `{line.item.name.rpartition(' ')[2]}` in CHANGELOG.md under Upgrading"
    if line.level == "alpha" or line.deprecation:
        return f"If docs/stability.md lets it go now, {note}"
    return (
        "Keep it, and list it under DEPRECATED in hack/interface_levels.py with what takes its place; "
        f"if it can't wait for its time (docs/stability.md), {note}"
    )


def lowered(changes: Iterable[str]) -> list[str]:
    return [change for change in changes if "no level is lowered" in change]


def heading_of(changelog: str) -> str:
    """The heading in the changelog of what is done now: that of the next version, or this one's if there is none."""
    return UNRELEASED if section(changelog, UNRELEASED) is not None else __version__


def render(stored: str, changelog: str) -> str:
    """The file's text as the code is now. Raises `ValueError` where a level would be lowered."""
    before, now = Interface.read(stored), items()
    if refused := lowered(before.changes(now)):
        raise ValueError("\n".join(refused))
    return str(before.followed_by(now, heading_of(changelog)))


if __name__ == "__main__":
    try:
        text = render(INTERFACE.read_text() if INTERFACE.exists() else "", CHANGELOG.read_text())
    except ValueError as refusal:
        sys.exit(f"render_interface: {refusal}")
    INTERFACE.write_text(text)
