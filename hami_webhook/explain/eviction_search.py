"""What would have to be freed on a node for a pod, and what the placement would then cost, found by trial.

No vendor's rule is repeated here: Fit is run again on a copy of the node whose cards are used less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from hami_webhook.devices.fit_pipeline import FitTrace
from hami_webhook.devices.fit_request import Candidate
from hami_webhook.devices.model import IDLE, Device, NodeView, Usage
from hami_webhook.devices.pod_fit import NodeFit, PodRequest, fit_pod
from hami_webhook.devices.registry import Vendors
from hami_webhook.evictions.search import giving_back
from hami_webhook.explain.node_reports import first_failure, trace_fit
from hami_webhook.quota.budget import PodBudget
from hami_webhook.quota.pricing import placed_charge
from hami_webhook.time_slices import Steps, run_at_once

_MOST_STEPS = 64

CardKey = tuple[str, str]
Amounts = tuple[int, int, int]
"""Slots, MiB and cores."""


class Eviction(Struct, frozen=True):
    """What is freed of which cards of a node (slots, MiB, cores) for a pod, and the pod's placement there.

    `emptied` are the cards that must become idle.
    """

    fit: NodeFit
    freed: Mapping[CardKey, Amounts]
    emptied: frozenset[CardKey]
    size: float

    def renamed(self, names: Mapping[CardKey, CardKey]) -> Eviction:
        """The same on a node that is equal up to names, but for the placement; `names` are its cards by this one's."""
        freed = {names[card]: amounts for card, amounts in self.freed.items()}
        return replace(self, freed=freed, emptied=frozenset(names[card] for card in self.emptied))


def smallest_eviction(view: NodeView, pod_request: PodRequest, vendors: Vendors) -> Eviction | None:
    """The least to be freed on the node, regardless of quota; None if the pod doesn't fit even then.

    Part of one card where one card is lacking, else whole cards, as many as are needed.
    """
    kept: dict[CardKey, Usage] = {}
    for _ in range(_MOST_STEPS):
        freed_view = _with(view, kept)
        found = fit_pod(freed_view, pod_request, vendors, None)
        if isinstance(found, NodeFit):
            return _least(view, pod_request, vendors, kept)
        trace = trace_fit(freed_view, pod_request, vendors, None)
        nearest = (
            min(_openings(trace, view, freed_view), default=None, key=lambda opening: opening[0]) if trace else None
        )
        if nearest is None:
            return _least(view, pod_request, vendors, dict.fromkeys(view.usage, IDLE))
        kept[nearest[1]] = nearest[2]
    return None


def _least(view: NodeView, pod_request: PodRequest, vendors: Vendors, kept: dict[CardKey, Usage]) -> Eviction | None:
    """The eviction without cards that needn't be freed; None if the pod doesn't fit with all of them freed."""

    def fit(cards: Iterable[CardKey]) -> NodeFit | None:
        found = fit_pod(_with(view, {card: kept[card] for card in cards}), pod_request, vendors, None)
        return found if isinstance(found, NodeFit) else None

    def enough(cards: Sequence[CardKey]) -> Steps[bool]:
        yield
        return fit(cards) is not None

    cards = run_at_once(giving_back([*kept], enough, many=False))
    found = fit(cards)
    if found is None:
        return None
    totals = {(key, d.uuid): d for key, inventory in view.inventories.items() for d in inventory.devices}
    freed = {card: _difference(view.used(*card), kept[card]) for card in cards}
    size = sum(_share(amounts, totals[card]) for card, amounts in freed.items())
    kept = {card: kept[card] for card in cards}
    return Eviction(found, freed, frozenset(key for key, usage in kept.items() if usage == IDLE), size)


def _with(view: NodeView, kept: Mapping[CardKey, Usage]) -> NodeView:
    return replace(view, usage={**view.usage, **kept})


def _openings(trace: FitTrace, view: NodeView, freed_view: NodeView) -> Iterator[tuple[float, CardKey, Usage]]:
    """Cards that the rejected container could have if they were used less: the size freed, and the remaining usage."""
    vendor, fit_request = trace.vendor, trace.fit_request
    if not trace.tried:
        return
    for position, device in enumerate(fit_request.inventory.devices):
        now = fit_request.overlay.used(vendor.key, device.uuid)
        base = freed_view.used(vendor.key, device.uuid)
        own = _difference(base, now)

        def passes(remaining: Usage, position: int = position, own: Amounts = own) -> bool:
            usage = _less(remaining, own)
            device = fit_request.inventory.devices[position]
            return not first_failure(vendor, Candidate(vendor, fit_request, device, usage, position))

        if base == IDLE or passes(base):
            continue
        remaining = _most_remaining(base, passes)
        if remaining is None:
            continue
        yield _share(_difference(base, remaining), device), (vendor.key, device.uuid), remaining


def _most_remaining(base: Usage, passes: Callable[[Usage], bool]) -> Usage | None:
    """The most of `base` with which the card passes, each amount by itself; None if it doesn't pass when idle."""
    if not passes(IDLE):
        return None
    nothing = replace(base, slots=0, memory=0, cores=0)
    if not passes(nothing):
        return IDLE
    slots = _largest(base.slots, lambda amount: passes(replace(nothing, slots=amount)))
    memory = _largest(base.memory, lambda amount: passes(replace(nothing, memory=amount)))
    cores = _largest(base.cores, lambda amount: passes(replace(nothing, cores=amount)))
    remaining = replace(base, slots=slots, memory=memory, cores=cores)
    if slots == 0 or not passes(remaining):
        return IDLE
    return remaining


def _largest(most: int, passes: Callable[[int], bool]) -> int:
    """The largest of 0 to `most` that passes, where 0 passes and every amount below one that passes."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if passes(middle) else (low, middle - 1)
    return low


def largest(most: int, passes: Callable[[int], bool]) -> int:
    """The largest of 1 to `most` that passes, 0 for none, where every amount below one that passes does too."""
    return _largest(most, lambda amount: amount == 0 or passes(amount))


def _difference(usage: Usage, less: Usage) -> Amounts:
    return usage.slots - less.slots, usage.memory - less.memory, usage.cores - less.cores


def _less(usage: Usage, amounts: Amounts) -> Usage:
    slots, memory, cores = amounts
    return replace(usage, slots=usage.slots - slots, memory=usage.memory - memory, cores=usage.cores - cores)


def _share(amounts: Amounts, device: Device) -> float:
    """How much of a card that is."""
    totals = device.slots, device.memory, device.cores
    return sum(amount / total for amount, total in zip(amounts, totals, strict=True) if total > 0)


def cheapest(
    view: NodeView, pod_request: PodRequest, vendors: Vendors, eviction: Eviction, limits: Mapping[str, int]
) -> Mapping[str, int]:
    """The cost by quota key of the cheapest placement that is found on the node after the eviction.

    Fit itself looks for a cheaper placement where quota forbids one, so it is run with lower and lower limits.
    """
    left = {card: _less(view.used(*card), freed) for card, freed in eviction.freed.items()}
    freed_view = _with(view, left | dict.fromkeys(eviction.emptied, IDLE))
    cost = placed_charge(eviction.fit.claims(), pod_request.pod.kinds, vendors).amounts
    for _ in range(_MOST_STEPS):
        over = {key: amount for key, amount in cost.items() if key in limits and amount > limits[key]}
        if not over:
            break
        budget = PodBudget(
            {**limits, **{key: amount - 1 for key, amount in over.items()}}, pod_request.pod.kinds, vendors
        )
        found = fit_pod(freed_view, pod_request, vendors, budget)
        if not isinstance(found, NodeFit):
            break
        cost = placed_charge(found.claims(), pod_request.pod.kinds, vendors).amounts
    return cost
