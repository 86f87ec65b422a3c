"""What only an AcceleratorQuota says, as it is written there; `quota/` gives it its meaning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct


class Lending(Struct, frozen=True):
    """What of an AcceleratorQuota is its own, and how others' pods go for it, as written; empty where nothing is."""

    nominal: Mapping[str, Any]
    reclaim: str = ""
    min_runtime: str = ""


class WrittenBudget(Struct, frozen=True):
    """The budget of an AcceleratorQuota that was `created` then (Unix seconds), and the sums in its status."""

    amounts: Mapping[str, Any]
    period: str = "Month"
    then: str = "Refuse"
    time_zone: str = ""
    created: float = 0.0
    status: Mapping[str, Any] = {}
