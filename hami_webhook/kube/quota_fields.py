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


class WrittenWindow(Struct, frozen=True):
    """Other limits of an AcceleratorQuota, for a time from each of a cron line on, or from one time."""

    cron: str
    at: str
    length: str
    zone: str
    hard: Mapping[str, Any]

    @property
    def name(self) -> str:
        """How it is named in sentences."""
        return self.cron or self.at


class PerSubject(Struct, frozen=True):
    """What an AcceleratorQuota gives each subject (docs/spec/who.md#3), amounts as written; `overrides` by subject,
    `groups` by group of users.

    `label` is the pods' label that names the subject; empty: the user who submitted the pod.
    """

    label: str
    hard: Mapping[str, Any]
    overrides: Mapping[str, Mapping[str, Any]] = {}
    groups: Mapping[str, Mapping[str, Any]] = {}


class Percents(Struct, frozen=True):
    """The limits of an AcceleratorQuota that are percents of the healthy cards (docs/spec/quota.md#5.3), by key.

    `written` are as in its spec, where its `hard` has what the status has of them, or 0; `shares` are as in the status.
    """

    written: Mapping[str, str] = {}
    shares: Mapping[str, Any] = {}


NO_PERCENTS = Percents()
