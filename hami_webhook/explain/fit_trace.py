"""Which container a node has no cards for, and which check each card failed: as Fit itself decided it."""

from __future__ import annotations

from hami_webhook.devices.fit_pipeline import FitTrace
from hami_webhook.devices.fit_request import NUMA_GROUP, Budget, Candidate
from hami_webhook.devices.model import NodeView
from hami_webhook.devices.pod_fit import PodRequest, fit_pod
from hami_webhook.devices.registry import Vendors
from hami_webhook.devices.vendor import Vendor


def trace_fit(view: NodeView, pod_request: PodRequest, vendors: Vendors, budget: Budget | None) -> FitTrace | None:
    """The trace of the request that a pod fails on; None if it fits on the node, or has no cards of a vendor there."""
    traces: list[FitTrace] = []
    result = fit_pod(view, pod_request, vendors, budget, traces)
    return next((trace for trace in traces if trace.outcome is result), None)


def first_failure(vendor: Vendor, card: Candidate) -> str:
    """The label of the first check the card fails by itself, "" for none."""
    for check in vendor.checks:
        if check is not NUMA_GROUP and not check.passes(card):
            return check.label
    return vendor.unresolvable if card.share is None else ""
