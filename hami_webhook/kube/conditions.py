"""Conditions in the status of objects as they are read and written (JSON)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

JSON = dict[str, Any]


def is_unscheduled(condition: Mapping[str, Any]) -> bool:
    """Whether it says of a pod that kube-scheduler found no node for it."""
    return condition.get("type") == "PodScheduled" and condition.get("status") == "False"


def with_condition(conditions: Iterable[JSON], condition: JSON) -> list[JSON]:
    """Return the conditions with this one last, which replaces others of its type."""
    return [*(each for each in conditions if each.get("type") != condition["type"]), condition]


def condition_patch(found: JSON, condition: JSON) -> JSON:
    """Return the patch that sets a condition on an object's status, unless the object changed since it was read."""
    conditions = (found.get("status") or {}).get("conditions") or []
    version = found["metadata"].get("resourceVersion")
    return {"metadata": {"resourceVersion": version}, "status": {"conditions": with_condition(conditions, condition)}}
