"""Fit on every node by itself: what answers of classes of equal nodes are compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hami_webhook.devices.model import NodeView
from hami_webhook.devices.pod_fit import PodRequest
from hami_webhook.devices.reasons import Rejection
from hami_webhook.devices.registry import Vendors
from hami_webhook.quota.budget import PodBudget
from hami_webhook.scheduling.scoring import ScoredNode, fit_and_score, ranked


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Nodes that fit, best first, and why the others don't."""

    fits: Sequence[ScoredNode]
    failed: Mapping[str, Rejection]


def evaluate(
    views: Sequence[NodeView],
    request: PodRequest,
    vendors: Vendors,
    budget: PodBudget | None,
    default_node_policy: str,
) -> Evaluation:
    """Fit the pod on every node."""
    fits: list[ScoredNode] = []
    failed: dict[str, Rejection] = {}
    for view in views:
        result = fit_and_score(view, request, vendors, budget, default_node_policy)
        if isinstance(result, Rejection):
            failed[view.name] = result
        else:
            fits.append(result[0])
    return Evaluation(ranked(fits, request, vendors, default_node_policy), failed)
