"""Refusals that many tests expect word for word."""

from __future__ import annotations


def is_privileged(container: str) -> str:
    return (
        f"container {container} is privileged, so it would see every card of the node; remove "
        "securityContext.privileged, or move it to a pod without cards"
    )


def has_node(node: str) -> str:
    return (
        f"pod has node assigned ({node}), so no scheduler would choose its cards; remove spec.nodeName, and name the "
        "node by spec.nodeSelector kubernetes.io/hostname"
    )
