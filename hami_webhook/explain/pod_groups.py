"""What a pod that starts together with others waits for (docs/spec/queues.md#5)."""

from __future__ import annotations

from hami_webhook.kube.objects import Pod
from hami_webhook.kube.pod_group import PodGroup, pod_group_fault
from hami_webhook.state.cluster_cache import ClusterCache


def group_notes(pod: Pod, state: ClusterCache) -> list[str]:
    """Which group the pod is of, and how many of its pods are there; or why it is of none."""
    group = PodGroup.of(pod)
    if group is None:
        fault = pod_group_fault(pod)
        return [f"it is of no pod group: {fault}"] if fault else []
    there, placed = _count(group, state)
    return [
        f"it is of pod group {group.name}, whose {group.size} pods are placed all or none: "
        f"{there} are there, {placed} on nodes"
    ]


def gate_step(pod: Pod, state: ClusterCache) -> str:
    """What has to happen until the scheduling gate of quota is removed."""
    group = PodGroup.of(pod)
    if group is None:
        return "its quotas must have room for it, in its turn"
    there, _ = _count(group, state)
    if there < group.size:
        return f"all {group.size} pods of pod group {group.name} must be there; {there} are"
    return f"its quotas must have room for pod group {group.name}, in its turn"


def _count(group: PodGroup, state: ClusterCache) -> tuple[int, int]:
    members = state.by_namespace.there(group.key)
    return len(members), sum(bool(pod.node_name) for pod in members)
