"""Faults in configuration as sentences: where something is, what was found, what would be right."""

import difflib
import json
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from pydantic_core import ErrorDetails

_LONGEST_SHOWN = 60
_LONGEST_KEY = 40


class ConfigError(Exception):
    """Configuration that can't be used: a file, flags, or environment variables.

    `faults` has one sentence for each fault: where it is, what was found, what would be right. `warnings` has what
    else was noticed (unknown keys), because a misspelt key often explains a missing one. `str()` gives the
    faults, one a line.
    """

    def __init__(self, faults: Sequence[str], warnings: Sequence[str] = ()) -> None:
        super().__init__("\n".join(faults))
        self.faults = tuple(faults)
        self.warnings = tuple(warnings)


class Remark(NamedTuple):
    """A sentence about a value of a file: its line and its path as text. Remarks sort by line."""

    line: int
    path: str
    sentence: str

    def located(self, source: str) -> str:
        """The remark with where it belongs; `source` is what messages call the file."""
        path = f"{self.path}: " if self.path else ""
        return f"{source}:{self.line}: {path}{self.sentence}"


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


def sentence_of(
    error: ErrorDetails, *, missing: str = "is required", describe: Callable[[object], str] | None = None
) -> str:
    """The sentence for an error that pydantic found; `describe` names the value, `found` unless given."""
    match error["type"]:
        case "missing":
            return missing
        case "model_type" | "dict_type":
            return f"must be a mapping, found {(describe or found)(error['input'])}"
        case "tuple_type":
            return f"must be a list, found {found(error['input'])}"
        case _:
            return error["msg"]


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
    """`text` in double quotes on one line, shortened when long."""
    return json.dumps(cut(text), ensure_ascii=False)


def cut(text: str) -> str:
    """`text`, or its beginning and an ellipsis when it is long."""
    return text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + "…"
