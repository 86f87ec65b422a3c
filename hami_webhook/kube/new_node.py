"""A node like another one, as it comes: open, healthy, locked by nobody, and with no pods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hami_webhook.kube.names import HOSTNAME, NODE_STATE

_OF_ONE_NODE = ("hami.io/mutex.lock", "hami.io/unhealthy-cards")
"""Annotations that a new node doesn't have."""


def new_node(model: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The JSON of a node like the model."""
    meta, spec = model["metadata"], model.get("spec") or {}
    annotations = {key: text for key, text in (meta.get("annotations") or {}).items() if key not in _OF_ONE_NODE}
    labels = {**(meta.get("labels") or {})}
    if HOSTNAME in labels:
        labels[HOSTNAME] = name
    taints = [each for each in spec.get("taints") or () if not str(each.get("key")).startswith(NODE_STATE)]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels, "annotations": annotations},
        "spec": {"taints": taints} if taints else {},
        "status": model.get("status") or {},
    }
