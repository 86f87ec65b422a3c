"""SchedulingGates: a pod with a gate isn't scheduled at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def gate_names(pod: Mapping[str, Any]) -> list[str]:
    """The scheduling gates of a pod, by its JSON."""
    spec = pod.get("spec")
    gates = spec.get("schedulingGates") if isinstance(spec, Mapping) else None
    return [str(gate.get("name")) for gate in gates if isinstance(gate, Mapping)] if isinstance(gates, list) else []


def waiting_for(gates: Sequence[str]) -> str:
    """What kube-scheduler says of a pod with gates."""
    return f"waiting for scheduling gates: [{' '.join(gates)}]"
