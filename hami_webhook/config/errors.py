"""What is raised when a file, a flag or an environment variable can't be used."""

import json
from collections.abc import Sequence

_LONGEST_SHOWN = 60


class ConfigError(Exception):
    """Configuration that can't be used.

    `faults` holds one sentence for each fault: where it is, what was found, what would be right. `warnings` holds what
    was noticed beside them (unknown keys), because a misspelt key often explains a missing one. `str()` gives the
    faults, one a line.
    """

    def __init__(self, faults: Sequence[str], warnings: Sequence[str] = ()) -> None:
        super().__init__("\n".join(faults))
        self.faults = tuple(faults)
        self.warnings = tuple(warnings)


def found(value: object) -> str:
    """How a value that was found is named in a sentence: quoted text, a number as it is, or the kind of anything
    larger.
    """
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
