"""Amounts, ages and names as pages write them."""

from __future__ import annotations

from datetime import UTC, datetime
from urllib.parse import quote

_UNITS = ("Mi", "Gi", "Ti")
_STEP = 1024
_AGES = ((86400, "d"), (3600, "h"), (60, "min"))


def memory_text(mebibytes: int) -> str:
    """`40Gi`, `23.4Gi`: at most one decimal, rounded down, so that what is shown is there."""
    amount, unit = mebibytes * 10, 0
    while amount >= 10 * _STEP and unit < len(_UNITS) - 1:
        amount, unit = amount // _STEP, unit + 1
    whole, tenth = divmod(amount, 10)
    return f"{whole}.{tenth}{_UNITS[unit]}" if tenth else f"{whole}{_UNITS[unit]}"


def age_text(seconds: float) -> str:
    """`3 d`, `5 h`, `12 min`, `40 s`; nothing is younger than 0 s."""
    for size, unit in _AGES:
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{max(0, int(seconds))} s"


def time_text(at: float) -> str:
    """Unix seconds as `2026-01-01 00:19:30 UTC`."""
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC"


def in_path(text: str) -> str:
    """A name as one part of an address's path, whatever it contains."""
    return quote(text, safe="")
