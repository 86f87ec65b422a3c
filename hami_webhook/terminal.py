"""What the commands have in common: faults of the command line in one line, results as tables, JSON or YAML, verbs that
are imported when they run.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NoReturn

import yaml
from msgspec import Struct

from hami_webhook.command_error import CommandError

if TYPE_CHECKING:
    from rich.table import Table

EXTRAS = {"rich": "cli", "jinja2": "ui", "pynvml": "node"}
"""Modules that the package runs without, and the extra in pyproject.toml that installs each."""


class Parser(argparse.ArgumentParser):
    """Takes no abbreviated flag, which another version may read as another one; reports a fault in one line."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **{"allow_abbrev": False} | named)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


class UsageError(CommandError):
    """Unusable input: one line for stderr, exit status 2."""


class AbsentError(CommandError):
    """What is asked for isn't there: one line for stderr."""

    absent = True


def number_in(text: str, least: int, most: int) -> int | None:
    """The number that digits of ASCII make; None for other text, and beyond the bounds, however long it is."""
    known = text.isascii() and text.isdecimal() and len(text) <= len(str(most))
    return int(text) if known and least <= int(text) <= most else None


def lazily(module: str, function: str) -> Callable[[argparse.Namespace], int]:
    """A verb's function in a module of the package, which is imported when the verb runs."""

    def run(arguments: argparse.Namespace) -> int:
        status: int = getattr(import_module(f"hami_webhook.{module}"), function)(arguments)
        return status

    return run


def run_verb(program: str, arguments: argparse.Namespace, *, absent_status: int = 2) -> int:
    """Run the verb of a command line; the exit status.

    It is `absent_status` where what is asked for isn't there or is forbidden, which kubectl answers with 1, and 2 for
    what is unusable otherwise, in a sentence a line.
    """
    try:
        status: int = arguments.run(arguments)
    except CommandError as error:
        print_sentences(program, str(error).splitlines())
        print_warnings(program, error.warnings)
        return absent_status if error.absent else 2
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module not in EXTRAS:
            raise
        extra = EXTRAS[module]
        print_sentences(
            program, [f"{module} is missing; the extra {extra} has it: pip install 'hami-webhook[{extra}]'"]
        )
        return 2
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        return 130
    return status


def print_warnings(program: str, warnings: Iterable[str]) -> None:
    """Print warnings on standard error, each on a line after the program's name."""
    print_sentences(program, (f"warning: {warning}" for warning in warnings))


def print_sentences(program: str, sentences: Iterable[str]) -> None:
    """Print sentences on standard error, each on a line after the program's name."""
    for sentence in sentences:
        print(f"{program}: {without_control_characters(sentence)}", file=sys.stderr)


class ShownTable(Struct, frozen=True):
    """A table's cells; `sections` are the indices of the rows that end a section; `note` follows the table.

    The columns of `amounts` are numbers.
    """

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    sections: frozenset[int] = frozenset()
    note: str = ""
    amounts: frozenset[str] = frozenset()

    def printable(self, *, boxed: bool = True) -> Table:
        """The table on a terminal, in a box, or in columns only, as kubectl has them."""
        from rich.markup import escape
        from rich.table import Table

        if boxed:
            table = Table(title=escape(self.title), title_justify="left")
        else:
            title = escape(f"\n{self.title}")
            table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for heading in self.headings if boxed else map(str.upper, self.headings):
            table.add_column(heading, overflow="fold", justify="right" if heading.lower() in self.amounts else "left")
        for index, row in enumerate(self.rows):
            table.add_row(*map(escape, row), end_section=index in self.sections)
        return table


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Each row as a line, its cells below those of the row before."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return [line.rstrip() for line in lines]


def natural(name: str) -> list[tuple[str, int]]:
    """By which names are sorted as people count: `a100-2` before `a100-10`."""
    return [(text, int(number or -1)) for text, number in _NUMBERED.findall(name)]


_NUMBERED = re.compile(r"([^0-9]*)([0-9]{0,18})", re.ASCII)


def shows_progress() -> bool:
    """Whether somebody watches: standard error is a terminal, and `CI` isn't set."""
    return sys.stderr.isatty() and not os.environ.get("CI")


@contextmanager
def progress(work: str, total: int) -> Iterator[Callable[[], None]]:
    """Show how many of `total` parts are done where `shows_progress`, with rich; yields what to call after each."""
    if not shows_progress() or find_spec("rich") is None:
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(work, total=total)
        yield lambda: shown.advance(task)


def without_control_characters(text: str) -> str:
    """The text as a terminal or a page may get it; ends of lines stay.

    No letter in it moves another part of a line, turns its direction, or is invisible.
    """
    if text.replace("\n", "").isprintable():
        return text
    return "".join(each if each == "\n" or _is_shown(each) else "\N{REPLACEMENT CHARACTER}" for each in text)


def _is_shown(letter: str) -> bool:
    return letter.isprintable() or unicodedata.category(letter) == "Zs"  # such as the space of Chinese texts


class _PlainDumper(yaml.SafeDumper):
    """YAML without anchors: a value that occurs twice is written twice."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def formatted(result: object, output: str) -> str:
    """Plain values as `json` or `yaml`, without a newline at the end."""
    if output == "json":
        return json.dumps(result, indent=2, ensure_ascii=False)
    return yaml.dump(result, Dumper=_PlainDumper, sort_keys=False, allow_unicode=True).rstrip("\n")
