"""NodeAffinity: the nodes that a pod's nodeSelector and required node affinity choose."""

from __future__ import annotations

from collections.abc import Mapping

from hami_webhook.node_filters.result import Refusal

NAME = "NodeAffinity"
REASON = "node(s) didn't match Pod's node affinity/selector"


def node_affinity(node_selector: Mapping[str, str], labels: Mapping[str, str]) -> Refusal | None:
    """Whether a node of these labels is refused."""
    lacking = [f"{key}={text}" for key, text in node_selector.items() if labels.get(key) != text]
    if not lacking:
        return None
    return Refusal(NAME, (REASON,), f"it lacks the labels {', '.join(lacking)} of the pod's nodeSelector")
