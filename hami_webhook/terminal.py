"""What the commands have in common: faults of the command line in one line, results as tables, JSON or YAML."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NoReturn

import yaml
from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.segment import Segment
from rich.table import Table

from hami_webhook.config import ConfigError


class Parser(argparse.ArgumentParser):
    """Reports a fault of the command line in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


class UsageError(Exception):
    """Unusable input: one line for stderr, exit status 2."""


def run_verb(program: str, arguments: argparse.Namespace, unusable: tuple[type[Exception], ...]) -> int:
    """Run the verb of a command line; the exit status, which is 2 for what is unusable, in a sentence a line."""
    try:
        status: int = arguments.run(arguments)
    except unusable as error:
        print_sentences(program, str(error).splitlines())
        if isinstance(error, ConfigError):  # a misspelt key often explains a missing one
            print_warnings(program, error.warnings)
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


@dataclass(frozen=True)
class ShownTable:
    """A table's cells; `sections` are the indices of the rows that end a section; `note` follows the table.

    The columns of `amounts` are numbers.
    """

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    sections: frozenset[int] = frozenset()
    note: str = ""
    amounts: frozenset[str] = frozenset()

    def printable(self) -> Table:
        """The table on a terminal."""
        table = Table(title=escape(self.title), title_justify="left")
        for heading in self.headings:
            table.add_column(heading, overflow="fold", justify="right" if heading in self.amounts else "left")
        for index, row in enumerate(self.rows):
            table.add_row(*map(escape, row), end_section=index in self.sections)
        return table


class SafeConsole(Console):
    """A console that shows control characters as U+FFFD: names and annotations are anybody's text."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(without_control_characters(segment.text), segment.style)


def shows_progress() -> bool:
    """Whether somebody watches: standard error is a terminal, and `CI` isn't set."""
    return sys.stderr.isatty() and not os.environ.get("CI")


@contextmanager
def progress(work: str, total: int) -> Iterator[Callable[[], None]]:
    """Show how many of `total` parts are done where `shows_progress`; yields what to call after each."""
    columns = TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    console = SafeConsole(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not shows_progress()) as shown:
        task = shown.add_task(work, total=total)
        yield lambda: shown.advance(task)


def without_control_characters(text: str) -> str:
    """The text as a terminal may get it; ends of lines stay."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")


class _PlainDumper(yaml.SafeDumper):
    """YAML without anchors: a value that occurs twice is written twice."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def formatted(result: object, output: str) -> str:
    """Plain values as `json` or `yaml`, without a newline at the end."""
    if output == "json":
        return json.dumps(result, indent=2, ensure_ascii=False)
    return yaml.dump(result, Dumper=_PlainDumper, sort_keys=False, allow_unicode=True).rstrip("\n")
