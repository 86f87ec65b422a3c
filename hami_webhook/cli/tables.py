"""Where verbs print tables."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def table_console(output: str) -> Console | None:
    """Where a table is printed, None for other outputs. Raises `ModuleNotFoundError` without the extra `cli`."""
    if output != "table":
        return None
    from hami_webhook.console import SafeConsole

    return SafeConsole(width=None if sys.stdout.isatty() else 160)
