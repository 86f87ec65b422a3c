"""Pods that another scheduler places: where they are, or where it would put them.

Source: docs/spec/volcano.md, docs/spec/koordinator.md and docs/spec/kai.md.
"""

from __future__ import annotations

from collections.abc import Sequence

from hami_webhook.devices.foreign_scheduler import ForeignScheduler, NoNode, Prediction
from hami_webhook.devices.model import BadRequest
from hami_webhook.explain.report import Explanation, NodeReport, QuotaReport, Taken
from hami_webhook.kube.human_memory import human_mebibytes
from hami_webhook.kube.objects import Node, Pod
from hami_webhook.node_filters.result import FilteredNodes
from hami_webhook.quota.pricing import Charge
from hami_webhook.simulate.placements import SelectedNodes
from hami_webhook.state.cluster_cache import ClusterCache


def of_foreign(
    scheduler: ForeignScheduler,
    pod: Pod,
    state: ClusterCache,
    now: float,
    charge: Charge,
    quotas: Sequence[QuotaReport],
    filtered: FilteredNodes,
) -> Explanation:
    """Why a pod that requests another scheduler's cards is where it is, or isn't anywhere, at `now` (Unix seconds).

    `charge` is what it costs now; `filtered` the nodes that kube-scheduler's filters refuse: other schedulers
    have them too.
    """
    name = scheduler.title
    notes = list(charge.problems)
    if charge.placed:
        where = f"is placed on {scheduler.node_of(pod)} by {name}"
        return Explanation(pod.namespace, pod.name, where, notes, quotas=quotas)
    if pod.node_name:
        if scheduler.predicts:
            notes.append(f"it costs what it asks for, as {name} wrote no cards on it")
        return Explanation(pod.namespace, pod.name, f"is bound to {pod.node_name}", notes, quotas=quotas)
    if not scheduler.predicts:
        notes.append(f"{name} places it; the pod's events say what it waits for")
        return Explanation(pod.namespace, pod.name, "isn't placed", notes, quotas=quotas)
    notes.append(f"{name} places it; this answer evaluates the nodes by its rules")
    named = scheduler.scheduler_of(pod)
    if named not in scheduler.scheduler_names:
        wanted = " or ".join(scheduler.scheduler_names)
        notes.append(f"its scheduler is {named or 'not set'}, where {wanted} would choose cards for it")
    every = list(state.nodes())
    suitable = [node.name for node in every if node.name not in filtered.refusals]
    try:
        predicted = scheduler.predict(pod, SelectedNodes(state, suitable), now)
    except BadRequest as error:
        return Explanation(pod.namespace, pod.name, f"fits nowhere: {error}", notes)
    reports = [_node_report(node, scheduler, pod, predicted, filtered) for node in every]
    verdict = fits_on_none([node.name for node in every])
    if isinstance(predicted, Prediction):
        others = sum(report.fits for report in reports) - 1
        verdict = f"isn't placed, but fits on {predicted.node}{f' (and {others} more)' if others else ''}"
    return Explanation(
        pod.namespace, pod.name, verdict, notes, nodes=reports, quotas=quotas, not_judged=filtered.not_judged
    )


def fits_on_none(nodes: Sequence[str]) -> str:
    """The verdict on a pod that none of the nodes takes."""
    if len(nodes) == 1:
        return f"doesn't fit on {nodes[0]}, the only node"
    return f"fits on none of {len(nodes)} nodes" if nodes else "fits nowhere: no node is known"


def _node_report(
    node: Node, scheduler: ForeignScheduler, pod: Pod, predicted: Prediction | NoNode, filtered: FilteredNodes
) -> NodeReport:
    if node.name in filtered.refusals:
        return NodeReport(node.name, False, refusal=filtered.refusals[node.name])
    if node.name in predicted.failed:
        return NodeReport(node.name, False, predicted.failed[node.name])
    if not isinstance(predicted, Prediction) or node.name != predicted.node:
        return NodeReport(node.name, True)
    devices = [
        Taken(pod.containers[row].name, scheduler.key, part.uuid, part.memory, part.cores)
        for row, parts in sorted(predicted.parts.items())
        for part in parts
    ]
    given = ", ".join(f"{taken.uuid} ({human_mebibytes(taken.memory)}, {taken.cores} cores)" for taken in devices)
    return NodeReport(node.name, True, why=f"would give {given}", score=predicted.score, devices=devices)
