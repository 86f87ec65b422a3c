"""A pod on a node: every container's request to every vendor, with init containers and sidecars.

Source: docs/spec/core.md#6, #7.2, #7.3.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

from msgspec import Struct
from msgspec.structs import replace

from hami_webhook.devices import reasons
from hami_webhook.devices.fit_pipeline import FitTrace, fit
from hami_webhook.devices.fit_request import ONE_CARD_PER_POD, Budget, Constraints, FitRequest
from hami_webhook.devices.model import Allocation, BadRequest, DeviceHold, NodeView, Overlay, Request, Rows, claims_of
from hami_webhook.devices.reasons import Rejection
from hami_webhook.devices.registry import Vendors
from hami_webhook.devices.reserved_annotations import is_scheduler_owned
from hami_webhook.devices.step_limit import StepLimit
from hami_webhook.kube.objects import RESERVATION, ContainerKind, Pod


class PodRequest(Struct, frozen=True, dict=True):
    """A pod's requests by container (init containers first) and vendor, and its constraints for each vendor."""

    pod: Pod
    rows: Sequence[Mapping[str, Request]]
    terms: Mapping[str, Constraints]

    @property
    def vendors(self) -> tuple[str, ...]:
        """The requested backend keys, sorted."""
        return tuple(self.terms)

    @property
    def named_cards(self) -> frozenset[str]:
        """The UUIDs in the pod's lists of cards."""
        rules = [terms.uuids for terms in self.terms.values()]
        return frozenset(uuid for rule in rules for uuids in (rule.allow, rule.deny, *rule.also) for uuid in uuids)

    @cached_property
    def shape(self) -> Pod:
        """The pod as Fit and the scores see it."""
        return shape_of(self.pod)


_NONE_OF_ITS_CARDS = Rejection(bare=reasons.NODE_INSUFFICIENT_DEVICE)
_NOT_OURS = re.compile(r"(?:[^/]+\.)?(?:kubernetes|k8s)\.io/.*")


def shape_of(pod: Pod) -> Pod:
    """All that Fit and the scores may know of a pod: its containers, and the annotations that Fit reads.

    Pods of one shape get the same answer from a node. So a shape omits what differs between pods of a workload: names,
    a placement's annotations, the charge's annotation, and Kubernetes' own (an index, a checksum).
    """
    requested = {
        key: text
        for key, text in pod.annotations.items()
        if key != RESERVATION and not is_scheduler_owned(key) and not _NOT_OURS.fullmatch(key)
    }
    return Pod(namespace="", name="", uid="", labels={}, annotations=requested, containers=pod.containers)


def vendors_requested_by(pod: Pod, vendors: Vendors) -> tuple[str, ...]:
    """The backend keys of the vendors whose cards the pod requests, sorted. Raises `BadRequest`."""
    return _keys(_requests(shape_of(pod), vendors))


def may_request_cards(pod: Pod, vendors: Vendors) -> bool:
    """Whether the pod requests managed cards, or what admission would have refused: filtering it says what is wrong."""
    try:
        return bool(vendors_requested_by(pod, vendors))
    except BadRequest:
        return True


def read_pod_request(pod: Pod, vendors: Vendors, default_policy: str) -> PodRequest | None:
    """What the pod requests, None for nothing managed.

    Raises `BadRequest` for what admission would have refused, ValueError for bad scoring weights.
    """
    shape = shape_of(pod)
    rows = _requests(shape, vendors)
    requested = _keys(rows)
    if not requested:
        return None
    for key in requested:
        vendors[key].check_pod(shape)
    named = replace(shape, name=pod.name)  # for the message about bad weights
    return PodRequest(pod, rows, {key: vendors[key].terms(named, default_policy) for key in requested})


def _requests(shape: Pod, vendors: Vendors) -> list[dict[str, Request]]:
    """Per container (init first), what it requests of each vendor."""
    rows: list[dict[str, Request]] = []
    for container in shape.containers:
        row = {}
        for key in sorted(vendors.named_by(container)):
            request = vendors[key].request_in_pod(container, shape)
            if request is not None:
                row[key] = request
        rows.append(row)
    return rows


def _keys(rows: Sequence[Mapping[str, Request]]) -> tuple[str, ...]:
    return tuple(sorted({key for row in rows for key in row}))


class NodeFit(Struct, frozen=True):
    """A placement of a pod on a node: per container what it got of each vendor."""

    node: str
    rows: Rows

    def claims(self) -> list[DeviceHold]:
        return claims_of((index, allocation) for index, row in enumerate(self.rows) for allocation in row.values())


def fit_pod(
    view: NodeView,
    pod_request: PodRequest,
    vendors: Vendors,
    budget: Budget | None,
    traces: list[FitTrace] | None = None,
    limit: StepLimit | None = None,
) -> NodeFit | Rejection:
    """Return the pod's placement on the node, or the rejection.

    Append Fit's traces to `traces`, if given; count its steps against `limit`, or a new limit. Ordinary init containers
    are fitted beside the sidecars before them, and then removed; sidecars and app containers keep their shares. If a
    quota rejects this placement, a second pass fits the app containers first, so that init containers can share their
    cards. An unexpected exception becomes the node's rejection (docs/spec/core.md#7.5); the function raises none.
    """
    try:
        return _fit_pod(view, pod_request, vendors, budget, traces, limit or StepLimit())
    except Exception as error:
        return vendors.faults.record("fit", view.name, error)


def _fit_pod(
    view: NodeView,
    pod_request: PodRequest,
    vendors: Vendors,
    budget: Budget | None,
    traces: list[FitTrace] | None,
    limit: StepLimit,
) -> NodeFit | Rejection:
    if not view.inventories:
        return Rejection(bare=reasons.NODE_UNREGISTERED)
    if view.inventories.keys().isdisjoint(pod_request.vendors):
        return _NONE_OF_ITS_CARDS
    budget = None if budget is None else budget.on(view)
    first = _fit(view, pod_request, vendors, budget, traces, limit, _FitPass.in_order)
    if isinstance(first, NodeFit) or budget is None or reasons.RESOURCE_QUOTA_NOT_FIT not in first.labels():
        return first
    if ContainerKind.INIT not in pod_request.pod.kinds:
        return first
    second = _fit(view, pod_request, vendors, budget, traces, limit, _FitPass.apps_first)
    return second if isinstance(second, NodeFit) else first


def _fit(
    view: NodeView,
    pod_request: PodRequest,
    vendors: Vendors,
    budget: Budget | None,
    traces: list[FitTrace] | None,
    limit: StepLimit,
    passing: Callable[[_FitPass], NodeFit | Rejection],
) -> NodeFit | Rejection:
    """Pass over the pod's containers, again with another card where one card must take them all and couldn't."""
    excluded: dict[str, frozenset[str]] = {}
    first: Rejection | None = None
    while True:
        attempt = _FitPass(view, pod_request, vendors, budget, traces, excluded, limit)
        result = passing(attempt)
        if isinstance(result, NodeFit):
            return result
        first = first or result
        vendor, card = attempt.too_small()
        if not card:
            return first
        excluded[vendor] = excluded.get(vendor, frozenset()) | {card}


class _FitPass:
    """One pass over a pod's containers."""

    def __init__(
        self,
        view: NodeView,
        pod_request: PodRequest,
        vendors: Vendors,
        budget: Budget | None,
        traces: list[FitTrace] | None,
        excluded: Mapping[str, frozenset[str]],
        limit: StepLimit,
    ) -> None:
        self._traces = traces
        self._view = view
        self._excluded = excluded
        self._refused_by = ""
        self._pod_request = pod_request
        self._vendors = vendors
        self._budget = budget
        self._running = Overlay(view)
        self._limit = limit
        self._rows: list[dict[str, Allocation]] = [{} for _ in pod_request.rows]
        self._claims: list[DeviceHold] = []

    def in_order(self) -> NodeFit | Rejection:
        for row, kind in enumerate(self._pod_request.pod.kinds):
            on = self._running.copy() if kind is ContainerKind.INIT else self._running
            refused = self._fit_row(row, kind, on)
            if refused is not None:
                return refused
        return NodeFit(self._view.name, self._rows)

    def apps_first(self) -> NodeFit | Rejection:
        before: dict[int, Overlay] = {}
        kinds = self._pod_request.pod.kinds
        for row, kind in enumerate(kinds):
            if kind is ContainerKind.INIT:
                before[row] = self._running.copy()
                continue
            refused = self._fit_row(row, kind, self._running)
            if refused is not None:
                return refused
        for row, overlay in before.items():
            refused = self._fit_row(row, kinds[row], overlay)
            if refused is not None:
                return refused
        return NodeFit(self._view.name, self._rows)

    def too_small(self) -> tuple[str, str]:
        """Of the refused pass, the backend key, and the one card that some of the pod's containers got; or empty."""
        key = self._refused_by
        held = {claim.uuid for claim in self._claims if claim.vendor == key}
        alone = len(held) == 1 and ONE_CARD_PER_POD in self._vendors[key].checks
        return key, held.pop() if alone else ""

    def _fit_row(self, row: int, kind: ContainerKind, overlay: Overlay) -> Rejection | None:
        """Fit one container's requests, vendor by vendor, on the overlay, which keeps what they take."""
        for key, request in self._pod_request.rows[row].items():
            if key not in self._view.inventories:
                self._refused_by = key
                return _NONE_OF_ITS_CARDS
            fit_request = FitRequest(
                pod=self._pod_request.shape,
                terms=self._pod_request.terms[key],
                request=request,
                row=row,
                kind=kind,
                inventory=self._view.inventories[key],
                overlay=overlay,
                claims=self._claims,
                budget=self._budget,
                excluded=self._excluded.get(key, frozenset()),
                limit=self._limit,
            )
            result = fit(self._vendors[key], fit_request, self._traces)
            if isinstance(result, Rejection):
                self._refused_by = key
                return result
            self._rows[row][key] = result
            self._claims += claims_of([(row, result)])
            for device in result.devices:
                overlay.take(key, device.uuid, device.share)
        return None


__all__ = ["BadRequest", "NodeFit", "PodRequest", "fit_pod", "read_pod_request", "vendors_requested_by"]
