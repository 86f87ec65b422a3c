"""Amounts, times and names as pages write them."""

from __future__ import annotations

from datetime import UTC, datetime
from urllib.parse import quote

_UNITS = ("Mi", "Gi", "Ti")
_STEP = 1024


def memory_text(mebibytes: int) -> str:
    """`40Gi`, `23.4Gi`: at most one decimal, rounded down, so that what is shown is there."""
    amount, unit = mebibytes * 10, 0
    while amount >= 10 * _STEP and unit < len(_UNITS) - 1:
        amount, unit = amount // _STEP, unit + 1
    whole, tenth = divmod(amount, 10)
    return f"{whole}.{tenth}{_UNITS[unit]}" if tenth else f"{whole}{_UNITS[unit]}"


def time_text(at: float) -> str:
    """Unix seconds as `2026-01-01 00:19:30 UTC`."""
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC"


def in_path(text: str) -> str:
    """A name as one part of an address's path, whatever it contains."""
    return quote(text, safe="")
