"""kube-scheduler's question about victims to an extender, on the wire (`kube-scheduler/extender/v1`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

JSON = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Proposal:
    """kube-scheduler's victims on one node: their UIDs, and how many of them exceed a PodDisruptionBudget."""

    victims: tuple[str, ...]
    violations: int = 0


def decode_proposals(body: Any) -> tuple[JSON, dict[str, Proposal]] | str:
    """kube-scheduler's `ExtenderPreemptionArgs`, keys in any case: the pod, victims by node; or the error to answer."""
    fields = _lower(body)
    pod = fields.get("pod")
    if not isinstance(pod, dict):
        return "extender preemption args missing pod"
    proposed: dict[str, Proposal] = {}
    by_node = _object(fields.get("nodenametometavictims")) or _object(fields.get("nodenametovictims"))
    for node, victims in by_node.items():
        found = _lower(victims)
        uids: list[str] = []
        for victim in map(_lower, found.get("pods") or ()):
            uid = victim.get("uid") or _lower(victim.get("metadata")).get("uid")
            if not isinstance(uid, str):
                return f"extender preemption args: a victim on node {node} has no UID"
            uids.append(uid)
        violations = found.get("numpdbviolations")
        proposed[node] = Proposal(tuple(uids), violations if isinstance(violations, int) else 0)
    return pod, proposed


def encode_proposals(proposed: Mapping[str, Proposal]) -> JSON:
    """kube-scheduler's `ExtenderPreemptionResult`."""
    return {
        "NodeNameToMetaVictims": {
            node: {"Pods": [{"UID": uid} for uid in each.victims], "NumPDBViolations": each.violations}
            for node, each in proposed.items()
        }
    }


def _object(value: Any) -> JSON:
    return value if isinstance(value, dict) else {}


def _lower(obj: Any) -> JSON:
    """A JSON object with its keys in lower case; empty for anything else."""
    return {str(key).lower(): value for key, value in _object(obj).items()}
