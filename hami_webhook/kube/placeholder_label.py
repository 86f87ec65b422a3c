"""The label of a group of nodes that may grow, and of our pods that make it grow (docs/spec/placeholders.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PLACEHOLDERS = "hami.io/placeholders"
"""The label; its value is the name of the group."""


def is_placeholder(obj: Any, namespace: str) -> bool:
    """Whether a pod's JSON is a placeholder of ours: in our own `namespace`, where only administrators create pods.

    The label means nothing elsewhere, and without a namespace there are none.
    """
    meta = obj.get("metadata") if isinstance(obj, Mapping) else None
    if not namespace or not isinstance(meta, Mapping) or meta.get("namespace") != namespace:
        return False
    labels = meta.get("labels")
    return isinstance(labels, Mapping) and PLACEHOLDERS in labels
