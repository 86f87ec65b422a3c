"""The annotations that say who submitted a pod (docs/spec/who.md#1)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson

SUBMITTED_BY = "hami.io/submitted-by"
"""Of a pod, and of a template of pods: the user, or all service accounts of a namespace."""
SUBMITTED_BY_GROUPS = "hami.io/submitted-by-groups"
"""Beside it: those of the user's groups that a quota names, a JSON list. Without the first it means nothing."""
MOST_GROUPS = 100
"""Of one user, in a stamp."""
STAMPS = (SUBMITTED_BY, SUBMITTED_BY_GROUPS)


def groups_text(groups: Iterable[str]) -> str | None:
    """The value of `SUBMITTED_BY_GROUPS`, the first groups by name; None for none."""
    named = sorted(set(groups))[:MOST_GROUPS]
    return orjson.dumps(named).decode() if named else None


def groups_in(text: str | None) -> list[str]:
    """The groups in it, as many as it may have; of a text that `groups_text` can't have written, none."""
    try:
        found: Any = orjson.loads(text or "[]")
    except orjson.JSONDecodeError:
        return []
    if not isinstance(found, list) or not all(isinstance(each, str) and each for each in found):
        return []
    return sorted(set(found))[:MOST_GROUPS]
