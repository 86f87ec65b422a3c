"""Amounts, times and names as pages write them."""

from __future__ import annotations

from datetime import UTC, datetime
from urllib.parse import quote

from hami_webhook.devices.keys import MEBIBYTE
from hami_webhook.kube.human_memory import human_memory


def memory_text(mebibytes: int) -> str:
    """`40Gi`, `23.4Gi`: rounded down, so that what is shown is there."""
    return human_memory(mebibytes * MEBIBYTE, at_least=True)


def time_text(at: float) -> str:
    """Unix seconds as `2026-01-01 00:19:30 UTC`."""
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC"


def in_path(text: str) -> str:
    """A name as one part of an address's path, whatever it contains."""
    return quote(text, safe="")
