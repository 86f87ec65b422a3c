"""What a terminal gets of texts that anybody may have written."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console
from rich.table import Table
from rich.text import Text
from simulate.files import Simulate

from hami_webhook.console import SafeConsole


def printed(console: type[Console], text: str) -> str:
    out = StringIO()
    found = console(file=out, width=80, force_terminal=True)
    table = Table("heading")
    table.add_row(Text(text))
    found.print(text, table, Text(text, style="red"), markup=False, highlight=False)
    return out.getvalue()


@pytest.mark.parametrize("sequence", ["\x1b[2J", "\x1b]0;title\a", "\x9b31m", "\x7f", "\x00", "\r"])
def test_no_text_controls_the_terminal(sequence: str) -> None:
    assert printed(SafeConsole, f"a{sequence}b").count("\x1b") == printed(Console, "ab").count("\x1b")
    assert not {"\x9b", "\x7f", "\x00", "\a"} & set(printed(SafeConsole, f"a{sequence}b"))


@pytest.mark.parametrize("mark", ["\u061c", "\u200b", "\u200f", "\u202e", "\u2028", "\u2066", "\ufeff", "\U000e0041"])
def test_no_text_turns_direction_or_is_invisible(mark: str) -> None:
    assert "a\N{REPLACEMENT CHARACTER}b" in printed(SafeConsole, f"a{mark}b")
    assert mark not in printed(SafeConsole, f"a{mark}b")


def test_lines_and_letters_stay() -> None:
    text = "Überlast 加速器\u3000卡\nsecond"
    assert printed(SafeConsole, text) == printed(Console, text)


def test_warnings_and_errors_control_no_terminal(command: Simulate) -> None:
    kind = "Odd\x1b[2J"
    odd = {"apiVersion": "v1", "kind": kind, "metadata": {"name": "x"}}
    assert command([odd]).err == "hami-webhook: warning: skipped 1 of kind Odd\N{REPLACEMENT CHARACTER}[2J\n"
    run = command([{**odd, "metadata": 1}])
    assert run.status == 2
    assert "Odd\N{REPLACEMENT CHARACTER}[2J: metadata must be an object" in run.err
