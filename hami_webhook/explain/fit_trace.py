"""Watching Fit at work: which container is stuck on a node, and how each card fared, in the driver's own walk.

Vendors are watched by wrapping their checks, so that what is told is what was decided, whatever the vendor does.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from hami_webhook.devices.fit_pipeline import fit
from hami_webhook.devices.fit_request import NUMA_GROUP, Budget, Candidate, Check, FitRequest
from hami_webhook.devices.model import NodeView, Request
from hami_webhook.devices.reasons import Rejection
from hami_webhook.devices.registry import Vendors
from hami_webhook.devices.vendor import Vendor
from hami_webhook.scheduling.fit import PodRequest, fit_pod


@dataclass(slots=True)
class Visit:
    """A card looked at: `label` is that of the check it failed, "" if it passed them all."""

    card: Candidate
    label: str = ""


@dataclass(frozen=True)
class Stuck:
    """The first container that gets nothing on a node: of which vendor, its trial, why, and the visits that say so.

    `tried`: Fit got as far as the cards, so the trial's request is what it comes to on this node.
    """

    vendor: Vendor
    trial: FitRequest
    rejection: Rejection
    visits: Sequence[Visit]
    tried: bool

    @property
    def container(self) -> str:
        return self.trial.pod.containers[self.trial.row].name


@dataclass(slots=True)
class _Notes:
    trials: list[tuple[str, FitRequest]] = field(default_factory=list)
    visits: list[Visit] = field(default_factory=list)


def _watched(vendor: Vendor, notes: _Notes) -> Vendor:
    """The vendor, telling `notes` of every trial and of every card it checks."""

    def watch(check: Check) -> Check:
        def passes(card: Candidate) -> bool:
            if not notes.visits or notes.visits[-1].card is not card or notes.visits[-1].label:
                notes.visits.append(Visit(card))
            passed = check.passes(card)
            if not passed:
                notes.visits[-1].label = check.label
            return passed

        return check if check is NUMA_GROUP else Check(check.label, passes)

    def resolve(request: Request, trial: FitRequest) -> Request | Rejection:
        notes.trials.append((vendor.key, trial))
        return vendor.resolve(request, trial)

    watched = copy.copy(vendor)
    vars(watched).update(checks=tuple(watch(check) for check in vendor.checks), resolve=resolve)
    return watched


def find_stuck(view: NodeView, ask: PodRequest, vendors: Vendors, budget: Budget | None) -> Stuck | None:
    """Which container is stuck on the node and how its cards fared; None if it fits or has no cards of a vendor."""
    if any(key not in view.inventories for key in ask.vendors):
        return None
    for row, requests in enumerate(ask.rows):
        for count, key in enumerate(requests, start=1):
            prefix = _prefix(ask, row, dict(list(requests.items())[:count]))
            if isinstance(fit_pod(view, prefix, vendors, budget), Rejection):
                return _examine(view, prefix, vendors, budget, row, key)
    return None


def _prefix(ask: PodRequest, row: int, requests: Mapping[str, Request]) -> PodRequest:
    """What the pod asks up to these requests of one container."""
    nothing: Mapping[str, Request] = {}
    rows = [*ask.rows[:row], requests, *(nothing for _ in ask.rows[row + 1 :])]
    asked = {key for asked_row in rows for key in asked_row}
    return replace(ask, rows=rows, terms={key: terms for key, terms in ask.terms.items() if key in asked})


def _examine(
    view: NodeView, ask: PodRequest, vendors: Vendors, budget: Budget | None, row: int, key: str
) -> Stuck | None:
    notes = _Notes()
    watched = {name: _watched(vendor, notes) for name, vendor in vendors.items()}
    fit_pod(view, ask, Vendors(list(watched.values())), budget)
    trial = next((found for name, found in notes.trials if name == key and found.row == row), None)
    if trial is None:
        return None
    notes.visits.clear()
    rejection = fit(watched[key], trial)
    if not isinstance(rejection, Rejection):
        return None
    vendor = vendors[key]
    for visit in notes.visits:
        if not visit.label and visit.card.booking is None:
            visit.label = vendor.unbookable
    resolved = vendor.resolve(trial.request, trial)
    visits = _told_walk(notes.visits, trial, rejection, key)
    if isinstance(resolved, Request):
        trial = replace(trial, request=resolved)
    tried = isinstance(resolved, Request) and vendor.refuses_node(trial) is None
    return Stuck(vendor, trial, rejection, visits, tried)


def _told_walk(visits: Sequence[Visit], trial: FitRequest, rejection: Rejection, key: str) -> Sequence[Visit]:
    """Of several walks over the cards (NUMA first, then without; as ordered, then by cost) the one that was told."""
    walks: list[list[Visit]] = [[]]
    fresh: set[str] = set()
    for visit in visits:
        uuid = visit.card.device.uuid
        if visit.card.usage == trial.overlay.used(key, uuid):
            if uuid in fresh:
                walks.append([])
                fresh = set()
            fresh.add(uuid)
        walks[-1].append(visit)
    for walk in reversed(walks):
        counts = Counter(visit.label for visit in walk if visit.label)
        if all(rejection.counts.get(label) == number for label, number in counts.items()):
            return walk
    return walks[-1]


def first_failure(vendor: Vendor, card: Candidate) -> str:
    """The label of the first check the card fails by itself, "" for none."""
    for check in vendor.checks:
        if check is not NUMA_GROUP and not check.passes(card):
            return check.label
    return vendor.unbookable if card.booking is None else ""
