"""Faults in configuration as sentences: where something is, what was found, what would be right."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from pydantic_core import ErrorDetails

from hami_webhook.command_error import CommandError
from hami_webhook.kube.message_text import found


class ConfigError(CommandError):
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
