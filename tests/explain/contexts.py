"""Clusters whose pods are explained, made of nodes, pods and quotas as `scheduling.placer_env` has them."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace
from scheduling.placer_env import NOW, VENDORS

from hami_webhook.cluster.api import JSON
from hami_webhook.explain.explain import ExplainContext, explain
from hami_webhook.explain.report import Explanation, NodeReport
from hami_webhook.kube.disruption import PodDisruptionBudget
from hami_webhook.kube.objects import Node, Pod, ResourceQuota
from hami_webhook.node_filters.snapshot import SchedulerSnapshot
from hami_webhook.scheduling.placer import SchedulingPolicies
from hami_webhook.state.cluster_cache import ClusterCache


def context(*objects: JSON, gates: tuple[str, ...] = ()) -> ExplainContext:
    """A context of nodes (no spec), quotas (`hard`), budgets (`selector`) and pods; pods get a UID of their own."""
    state = ClusterCache(VENDORS)
    quotas = []
    disruption = []
    for index, obj in enumerate(objects):
        if "spec" not in obj:
            state.set_node(Node.from_object(obj), NOW)
        elif "hard" in obj["spec"]:
            quotas.append(ResourceQuota.from_object(obj))
        elif "selector" in obj["spec"]:
            disruption.append(PodDisruptionBudget.from_object(obj))
        else:
            state.set_pod(Pod.from_object({**obj, "metadata": {"uid": f"u{index}", **obj["metadata"]}}), NOW)
    return ExplainContext(
        state, state.capacity, VENDORS, quotas, NOW, SchedulingPolicies(), "hami-scheduler", 300.0, gates, disruption
    )


def explained(
    raw: JSON, *objects: JSON, gates: tuple[str, ...] = (), nearest: int | None = None, **more: Any
) -> Explanation:
    """The explanation of a pod that waits for our scheduler; `more` is of its context."""
    spec = {"schedulerName": "hami-scheduler", **raw["spec"]}
    waiting = {**raw, "metadata": {"uid": "it", **raw["metadata"]}, "spec": spec}
    found = context(*objects, waiting, gates=gates)
    snapshot = SchedulerSnapshot(VENDORS.uncounted_names)
    for obj in objects:
        if "spec" not in obj:
            snapshot.put_node(obj)
        elif "containers" in obj["spec"]:
            snapshot.put_pod(obj)
    return explain(
        Pod.from_object(waiting),
        replace(found, filter_nodes=lambda: snapshot.filter_nodes(waiting), nearest=nearest, **more),
    )


def on(explanation: Explanation, name: str) -> NodeReport:
    """The verdict on a node."""
    return next(node for node in explanation.nodes if node.name == name)


def steps(explanation: Explanation) -> list[list[str]]:
    """The sentences of each change."""
    return [[step.text for step in change.steps] for change in explanation.changes]
