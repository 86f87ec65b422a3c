"""Values from outside in sentences: of bounded size, however long or deeply nested they are."""

from __future__ import annotations

import difflib
import json
import reprlib
from collections.abc import Iterable, Sequence

_LONGEST_SHOWN = 60
_LONGEST_KEY = 40


class _Short(reprlib.Repr):
    """Python's notation, cut: `repr` of a list that is nested a thousand deep raises `RecursionError`."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = self.maxlong = 100


shown = _Short().repr
"""A value as sentences quote it, in at most some hundred characters."""


def counted(number: int, noun: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def path_text(path: Iterable[str | int], *, quote_keys: bool = False) -> str:
    """A path as people write it: `vnpus.configs[0].memoryFactor`, shortened when long.

    With `quote_keys` keys that aren't plain words stay apart: `policies[0].default["nvidia.com/vgpu-mode"]`.
    """
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif quote_keys and not (step.isidentifier() and len(step) <= _LONGEST_KEY):
            text += f"[{quoted(step)}]"
        else:
            text += f".{step}"
    text = text.removeprefix(".")
    if quote_keys:
        return text
    return cut("".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text))


def did_you_mean(key: str, known: Iterable[str]) -> str:
    """The known key that is close to an unknown one, in brackets after a space; empty if none is."""
    by_lower = {one.lower(): one for one in known}
    close = difflib.get_close_matches(key.lower()[:253], by_lower, n=1)
    return f" (did you mean {by_lower[close[0]]}?)" if close else ""


def found(value: object) -> str:
    """A value as sentences name it: text in quotes, a number unquoted, anything larger by its kind."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "true" if value else "false"
        case str():
            return f"the text {quoted(value)}"
        case dict():
            return "a mapping"
        case list() | tuple():
            return "a list"
        case _:
            return cut(str(value))


def quoted(text: str) -> str:
    """`text` in double quotes on one line, shortened when long.

    Letters that a terminal doesn't show are escaped: some reverse the order in which it shows others.
    """
    written = json.dumps(cut(text), ensure_ascii=False)
    return "".join(letter if letter.isprintable() else json.dumps(letter)[1:-1] for letter in written)


def first_of(items: Sequence[str], most: int = 3) -> str:
    """The first of them with commas between, and how many more there are."""
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(items[:most]) + more


def cut(text: str) -> str:
    """`text`, or its beginning and an ellipsis when it is long."""
    return text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + "…"
