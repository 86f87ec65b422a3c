"""What a document tells its reader to do, done on a copy of the repository: files to write, and commands to run.

A file's block follows a line "`PATH`, WHERE:", in which WHERE is "a new file", "at the end", "after `LINE`", or "a row
in …" of a table. A block of `sh` without such a line is commands.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(
    r"(?:^`(?P<path>[\w./-]+)`, (?P<where>[^\n]+):\n\n)?^```(?P<language>\w+)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


FENCED = re.compile(r"^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^ *```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A block of a document, whatever it is for."""

    language: str
    text: str
    section: int
    """How many headings are before it."""

    @property
    def commands(self) -> list[str]:
        """The command lines of a block of `sh` as they are printed, each with the lines that it goes on in."""
        lines = self.text.replace("\\\n", "\\\0").splitlines()
        return [line.replace("\0", "\n") for line in lines if line.strip() and not line.startswith("#")]


def blocks(text: str) -> list[Block]:
    """All blocks of a document in their order, without the indentation that they have in a list."""
    found, section, end = [], 0, 0
    for each in FENCED.finditer(text):
        section += len(re.findall(r"^#+ ", text[end : each.start()], re.MULTILINE))
        found.append(Block(each["language"], dedent(each["text"]), section))
        end = each.end()
    return found


@dataclass(frozen=True)
class Step:
    """Text for a file, or commands where there is no path."""

    path: str
    where: str
    text: str

    def write(self, root: Path) -> None:
        """Write it below `root`. Fails where the file isn't as the document takes it to be."""
        path = root / self.path
        if self.where == "a new file":
            assert not path.exists(), f"{self.path} is no new file"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self.text)
        else:
            path.write_text("\n".join(self._in(path.read_text().splitlines())) + "\n")

    def _in(self, lines: list[str]) -> list[str]:
        mine = self.text.splitlines()
        if self.where == "at the end":
            return [*lines, "", *mine]
        if line := re.fullmatch(r"after `(.+)`", self.where):
            at = [text.strip() for text in lines].index(line[1]) + 1
            return [*lines[:at], *mine, *lines[at:]]
        assert self.where.startswith("a row in "), f"{self.path}: what is {self.where!r}?"
        sections = re.findall(r"\d+(?:\.\d+)?", self.where) or [""]
        for section, row in zip(sections, mine, strict=True):
            lines = with_row(lines, lines.index(f'<a id="{section}"></a>') if section else 0, row)
        return lines


def with_row(lines: list[str], start: int, row: str) -> list[str]:
    """A document with one more row in the first table after the line `start`."""
    head = next(at for at in range(start, len(lines)) if lines[at].startswith("|---"))
    end = next(at for at in range(head, len(lines)) if not lines[at].startswith("|"))
    assert row.count(" | ") == lines[head].count("|") - 2, f"not a row of {lines[head - 1]}: {row}"
    return [*lines[:end], row, *lines[end:]]


def steps(text: str) -> Iterator[Step]:
    """The steps of a document, or of a part of it, in their order; blocks in other languages show something."""
    for block in BLOCK.finditer(text):
        if block["path"] or block["language"] == "sh":
            yield Step(block["path"] or "", block["where"] or "", block["text"])


def new_files(text: str) -> set[str]:
    """The paths of the files that a document makes, and of the folders that they are in."""
    made = [Path(step.path) for step in steps(text) if step.where == "a new file"]
    return {str(path) for file in made for path in (file, *file.parents)}


def copy_of_repository(to: Path) -> Path:
    """A copy of what documents speak of."""
    for folder in ("hami_webhook", "tests", "hack", "docs", "manifests"):
        shutil.copytree(ROOT / folder, to / folder)
    for file in ("pyproject.toml", "README.md", "CHANGELOG.md"):
        shutil.copy2(ROOT / file, to / file)
    return to


def run(command: str, root: Path) -> subprocess.CompletedProcess[str]:
    """Run a command of the document in a copy; its programs are those of this environment."""
    program, *words = shlex.split(command)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPATH"] = str(root)
    program = str(Path(sys.executable).with_name(Path(program).name))
    return subprocess.run(
        [program, *words], cwd=root, env=environment, capture_output=True, text=True, check=False, timeout=300
    )
