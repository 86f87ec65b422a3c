"""The base of errors that end a command in a sentence, not in a traceback; `terminal.run_verb` prints them."""

from __future__ import annotations

from collections.abc import Sequence


class CommandError(Exception):
    """What a command can't go on with: its text has a sentence a line. `warnings` has what else was noticed.

    `absent`: what was asked for isn't there, or may not be seen.
    """

    absent: bool = False
    warnings: Sequence[str] = ()
