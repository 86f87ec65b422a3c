"""What would have to be freed on a node, and what the placement would then cost, found by trying it out.

Nothing here knows the rules: a node with less on its cards is made up, and Fit is asked again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from hami_webhook.devices.fit_request import Candidate
from hami_webhook.devices.model import IDLE, NodeView, Usage
from hami_webhook.devices.registry import Vendors
from hami_webhook.explain.fit_trace import Stuck, find_stuck, first_failure
from hami_webhook.quota.budget import PodBudget
from hami_webhook.quota.pricing import placed_charge
from hami_webhook.scheduling.fit import NodeFit, PodRequest, fit_pod

_MOST_STEPS = 64

CardKey = tuple[str, str]


@dataclass(frozen=True)
class Room:
    """A node made roomy enough: what is freed of which cards (slots, MiB, cores), and the placement there.

    `emptied` are cards of which nothing less than all will do.
    """

    fit: NodeFit
    freed: Mapping[CardKey, tuple[int, int, int]]
    emptied: frozenset[CardKey]
    size: float


def make_room(view: NodeView, ask: PodRequest, vendors: Vendors) -> Room | None:
    """The least to be freed on the node, whatever the quota says; None if the pod doesn't fit even so.

    Card by card where one card is what is lacking, else whole cards, as many as are needed of the node's.
    """
    kept: dict[CardKey, Usage] = {}
    for _ in range(_MOST_STEPS):
        roomy = _with(view, kept)
        found = fit_pod(roomy, ask, vendors, None)
        if isinstance(found, NodeFit):
            return _least(view, ask, vendors, kept)
        stuck = find_stuck(roomy, ask, vendors, None)
        nearest = min(_openings(stuck, view, roomy), default=None, key=lambda opening: opening[0]) if stuck else None
        if nearest is None:
            return _least(view, ask, vendors, dict.fromkeys(view.usage, IDLE))
        kept[nearest[1]] = nearest[2]
    return None


def _least(view: NodeView, ask: PodRequest, vendors: Vendors, kept: dict[CardKey, Usage]) -> Room | None:
    """Without those cards that needn't have been freed; None if the pod doesn't fit even with all of them freed."""
    for card in list(kept):
        without = {key: usage for key, usage in kept.items() if key != card}
        if isinstance(fit_pod(_with(view, without), ask, vendors, None), NodeFit):
            kept = without
    found = fit_pod(_with(view, kept), ask, vendors, None)
    if not isinstance(found, NodeFit):
        return None
    freed = {}
    for key, usage in kept.items():
        was = view.used(*key)
        freed[key] = (was.slots - usage.slots, was.memory - usage.memory, was.cores - usage.cores)
    totals = {(key, d.uuid): d for key, inventory in view.inventories.items() for d in inventory.devices}
    size = sum(
        _part(slots, totals[key].slots) + _part(memory, totals[key].memory) + _part(cores, totals[key].cores)
        for key, (slots, memory, cores) in freed.items()
    )
    return Room(found, freed, frozenset(key for key, usage in kept.items() if usage == IDLE), size)


def _with(view: NodeView, kept: Mapping[CardKey, Usage]) -> NodeView:
    return replace(view, usage={**view.usage, **kept})


def _openings(stuck: Stuck, view: NodeView, roomy: NodeView) -> Iterator[tuple[float, CardKey, Usage]]:
    """Cards the stuck container could have if something left them: how much that is, and what may stay."""
    vendor, trial = stuck.vendor, stuck.trial
    if not stuck.tried:
        return
    for position, device in enumerate(trial.inventory.devices):
        now = trial.overlay.used(vendor.key, device.uuid)
        base = roomy.used(vendor.key, device.uuid)
        own = (now.slots - base.slots, now.memory - base.memory, now.cores - base.cores)

        def passes(stays: Usage, position: int = position, own: tuple[int, int, int] = own) -> bool:
            usage = replace(stays, slots=stays.slots + own[0], memory=stays.memory + own[1], cores=stays.cores + own[2])
            device = trial.inventory.devices[position]
            return not first_failure(vendor, Candidate(vendor, trial, device, usage, position))

        if base == IDLE or passes(base):
            continue
        stays = _most_that_stays(base, passes)
        if stays is None:
            continue
        size = (
            _part(base.slots - stays.slots, device.slots)
            + _part(base.memory - stays.memory, device.memory)
            + _part(base.cores - stays.cores, device.cores)
        )
        yield size, (vendor.key, device.uuid), stays


def _most_that_stays(base: Usage, passes: Callable[[Usage], bool]) -> Usage | None:
    """The most of `base` with which the card passes, each amount taken by itself; None if not even idle it does."""
    if not passes(IDLE):
        return None
    nothing = replace(base, slots=0, memory=0, cores=0)
    if not passes(nothing):
        return IDLE
    slots = _largest(base.slots, lambda amount: passes(replace(nothing, slots=amount)))
    memory = _largest(base.memory, lambda amount: passes(replace(nothing, memory=amount)))
    cores = _largest(base.cores, lambda amount: passes(replace(nothing, cores=amount)))
    stays = replace(base, slots=slots, memory=memory, cores=cores)
    if slots == 0 or not passes(stays):
        return IDLE
    return stays


def _largest(most: int, holds: Callable[[int], bool]) -> int:
    """The largest of 0 to `most` that holds, where 0 does and so does all that is less than one that does."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low


def largest(most: int, holds: Callable[[int], bool]) -> int:
    """The largest of 1 to `most` that holds, 0 for none, where all that is less than one that does holds too."""
    return _largest(most, lambda amount: amount == 0 or holds(amount))


def _part(amount: int, total: int) -> float:
    return amount / total if total > 0 else 0.0


def cheapest(
    view: NodeView, ask: PodRequest, vendors: Vendors, room: Room, limits: Mapping[str, int]
) -> Mapping[str, int]:
    """What the cheapest placement costs that is found on the node once it has room: by quota key.

    Fit itself looks for a cheaper one where quota stands in the way, so it is asked with less and less.
    """
    roomy = _with(view, {key: _left(view.used(*key), freed, key in room.emptied) for key, freed in room.freed.items()})
    cost = placed_charge(room.fit.holds(), ask.pod.kinds, vendors).amounts
    for _ in range(_MOST_STEPS):
        over = {key: amount for key, amount in cost.items() if key in limits and amount > limits[key]}
        if not over:
            break
        budget = PodBudget({**limits, **{key: amount - 1 for key, amount in over.items()}}, ask.pod.kinds, vendors)
        found = fit_pod(roomy, ask, vendors, budget)
        if not isinstance(found, NodeFit):
            break
        cost = placed_charge(found.holds(), ask.pod.kinds, vendors).amounts
    return cost


def _left(was: Usage, freed: tuple[int, int, int], emptied: bool) -> Usage:
    slots, memory, cores = freed
    if emptied:
        return IDLE
    return replace(was, slots=was.slots - slots, memory=was.memory - memory, cores=was.cores - cores)
