"""The one Fit pipeline that every vendor shares.

For one container on one node: order the cards by the pod's device policy, drop each that fails a check (each check is
tied to one reason label), let the vendor resolve what the card would be booked with, and let its selection pick.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from hami_webhook.devices import reasons
from hami_webhook.devices.fit_request import (
    FIRST_FIT,
    FIRST_OF_ALL,
    NUMA_GROUP,
    Candidate,
    Choice,
    FitRequest,
    Selection,
)
from hami_webhook.devices.model import AllocatedDevice, Allocation
from hami_webhook.devices.reasons import Rejection
from hami_webhook.devices.step_limit import OutOfSteps
from hami_webhook.devices.vendor import Vendor

_STEPS_OF_A_CARD = 120
"""What it takes to put a card in order and check it."""


@dataclass(slots=True)
class CardVerdict:
    """A card that was checked: `label` is that of the check it failed, "" if it passed them all."""

    card: Candidate
    label: str


@dataclass(slots=True)
class FitTrace:
    """What Fit did for one request of a container, for people who ask why.

    `trial` has the request on the node, as far as that could be resolved. `tried`: Fit got as far as the
    cards. `verdicts` are those of the walk over the cards that decided, one for each time a card was checked.
    """

    vendor: Vendor
    trial: FitRequest
    tried: bool = False
    outcome: Allocation | Rejection | None = None
    walks: list[tuple[Allocation | Rejection, list[CardVerdict]]] = field(default_factory=list)

    @property
    def container(self) -> str:
        return self.trial.pod.containers[self.trial.row].name

    @property
    def rejection(self) -> Rejection:
        """Why the container gets none; for a request that fails."""
        assert isinstance(self.outcome, Rejection)
        return self.outcome

    @property
    def verdicts(self) -> Sequence[CardVerdict]:
        return next((verdicts for result, verdicts in self.walks if result is self.outcome), ())


def fit(vendor: Vendor, trial: FitRequest, traces: list[FitTrace] | None = None) -> Allocation | Rejection:
    """The cards the container gets of `vendor` on this node, or why it gets none; the trial's overlay isn't changed.

    A trace is added to `traces`, if these are given.
    """
    trace = None
    if traces is not None:
        trace = FitTrace(vendor, trial)
        traces.append(trace)
    outcome: Allocation | Rejection
    try:
        outcome = _fit(vendor, trial, trace)
    except OutOfSteps:
        outcome = Rejection(bare=reasons.SEARCH_LIMIT_EXCEEDED)
    if trace is not None:
        trace.outcome = outcome
    return outcome


def _fit(vendor: Vendor, trial: FitRequest, trace: FitTrace | None) -> Allocation | Rejection:
    resolved = vendor.resolve(trial.request, trial)
    if isinstance(resolved, Rejection):
        return resolved
    if resolved is not trial.request:
        trial = replace(trial, request=resolved)
    refusal = vendor.refuses_node(trial)
    if trace is not None:
        trace.trial, trace.tried = trial, refusal is None
    if refusal is not None:
        return refusal
    bound = trial.terms.numa_bound
    if trial.terms.policy.numa_first and not bound:
        attempt = _attempt(vendor, trial, trace, numa_bound=True)
        if isinstance(attempt, Allocation):
            return attempt
    return _attempt(vendor, trial, trace, numa_bound=bound)


def _attempt(vendor: Vendor, trial: FitRequest, trace: FitTrace | None, *, numa_bound: bool) -> Allocation | Rejection:
    cards = [
        Candidate(vendor, trial, device, trial.overlay.used(vendor.key, device.uuid), position)
        for position, device in enumerate(trial.inventory.devices)
        if device.uuid not in trial.excluded
    ]
    ordered = [cards[i] for i in vendor.order(cards, trial.terms, numa_bound=numa_bound)]
    first = _walk(vendor, trial, ordered, trace, numa_bound=numa_bound)
    if isinstance(first, Allocation) or trial.budget is None or reasons.RESOURCE_QUOTA_NOT_FIT not in first.counts:
        return first
    second = _walk(vendor, trial, _by_cost(trial, ordered, numa_bound=numa_bound), trace, numa_bound=numa_bound)
    return second if isinstance(second, Allocation) else first


def _by_cost(trial: FitRequest, cards: Sequence[Candidate], *, numa_bound: bool) -> list[Candidate]:
    """The cards, cheapest first (ties in scan order); within NUMA groups where the pod binds to one."""
    assert trial.budget is not None
    groups: dict[int, int] = {}
    keys: dict[int, tuple[int, ...]] = {}
    for card in cards:
        group = groups.setdefault(card.device.numa, len(groups)) if numa_bound else 0
        keys[card.position] = (group, *trial.budget.cost([*trial.holds, card.hold]))
    return sorted(cards, key=lambda card: keys[card.position])


class _Walk:
    """The state of one walk over the cards: what was collected, group by group, and what was counted."""

    def __init__(self, vendor: Vendor, trial: FitRequest, *, numa_bound: bool) -> None:
        self.vendor = vendor
        self.trial = trial
        self.numa_bound = numa_bound
        self.counts: Counter[str] = Counter()
        self.groups: list[list[Candidate]] = [[]]
        self.within = trial.overlay.copy()
        self.numa: int | None = None
        self.verdicts: list[CardVerdict] | None = None

    def failed_check(self, card: Candidate) -> str | None:
        """The label of the first check the card fails; a new NUMA group starts where the checks say."""
        for check in self.vendor.checks:
            if check is NUMA_GROUP:
                if self.numa_bound and card.device.numa != self.numa:
                    if self.numa is not None:
                        self.groups.append([])
                        self.trial.taken = []
                    self.numa = card.device.numa
            elif not check.passes(card):
                return check.label
        return self.vendor.unbookable if card.booking is None else None

    def collect(self, group: list[Candidate], card: Candidate) -> None:
        group.append(card)
        self.within.take(self.vendor.key, card.device.uuid, card.booked)

    def again(self, card: Candidate) -> Candidate | None:
        """The same card once more, with the vendor's marks of what was collected; None if one share is all it gives.

        Its slots, memory and cores are those the container found: further shares are limited by the marks alone. Raises
        `OutOfSteps`.
        """
        if not self.vendor.multi_share(self.trial.request, card.device):
            return None
        self.trial.limit.take(_STEPS_OF_A_CARD)
        marks = self.within.used(self.vendor.key, card.device.uuid).marks
        return Candidate(self.vendor, self.trial, card.device, replace(card.usage, marks=marks), card.position)


def _walk(
    vendor: Vendor, trial: FitRequest, cards: Sequence[Candidate], trace: FitTrace | None, *, numa_bound: bool
) -> Allocation | Rejection:
    """Check the cards in order and let the selection choose. Raises `OutOfSteps`."""
    selection = vendor.selection(trial)
    if selection is FIRST_FIT and trial.terms.policy.topology_aware:
        selection = FIRST_OF_ALL  # such a pod prefers the node with the fewest cards that would do
    count = trial.request.count
    every = selection.looks_at_all
    trial.limit.take((_STEPS_OF_A_CARD + len(trial.holds)) * len(cards))
    walk = _Walk(vendor, trial, numa_bound=numa_bound and not (every and count == 1))
    if trace is None:
        return _result(walk, cards, selection)
    walk.verdicts = []
    result = _result(walk, cards, selection)
    trace.walks.append((result, walk.verdicts))
    return result


def _result(walk: _Walk, cards: Sequence[Candidate], selection: Selection) -> Allocation | Rejection:
    """The outcome of the walk over the cards."""
    vendor, trial = walk.vendor, walk.trial
    count, every = trial.request.count, selection.looks_at_all
    for first in cards:
        card: Candidate | None = first
        while card is not None:
            trial.taken = [] if every else walk.groups[-1]
            label = walk.failed_check(card)
            if walk.verdicts is not None:
                walk.verdicts.append(CardVerdict(card, label or ""))
            if label is not None:
                walk.counts[label] += 1
                break
            walk.collect(walk.groups[-1], card)
            if not every and len(walk.groups[-1]) == count:
                choice = selection.choose(trial, walk.groups[-1])
                assert isinstance(choice, Choice)
                return _allocation(vendor, choice)
            card = None if every else walk.again(card)
    if every:
        choice = _choose(walk, selection, count)
        if isinstance(choice, Choice):
            return _allocation(vendor, choice)
        if choice is not None:
            return vendor.refusal(trial, cards, choice)
        walk.groups.sort(key=len)  # the largest group is what was collected
    *others, collected = walk.groups
    for group in filter(None, others):
        walk.counts[reasons.NUMA_NOT_FIT] += len(group)
    if collected:
        walk.counts[reasons.ALLOCATED_CARDS_INSUFFICIENT_REQUEST] += vendor.usable(trial, collected)
    return vendor.refusal(trial, cards, reasons.counted(walk.counts, len(trial.inventory.devices)))


def _choose(walk: _Walk, selection: Selection, count: int) -> Choice | Rejection | None:
    """The best choice among the NUMA groups that hold enough cards; further shares of cards where none does.

    The selection's own reason if it gave one for a group and chose in none.
    """
    fitting = max(len(group) for group in walk.groups)
    if fitting < count:
        for group in walk.groups:
            _fill(walk, group, count)
    roomy = [group for group in walk.groups if walk.vendor.usable(walk.trial, group) >= count]
    best: Choice | None = None
    refused: Rejection | None = None
    for group in roomy:
        choice = selection.choose(walk.trial, group)
        if isinstance(choice, Rejection):
            refused = refused or choice
        elif choice is not None and (best is None or _link_rank(choice) > _link_rank(best)):
            best = choice
    if best is not None:
        return replace(best, candidates=fitting)
    if refused is not None:
        return refused
    if roomy:
        # every card passed by itself, but no set of them passes the quota
        walk.counts[reasons.RESOURCE_QUOTA_NOT_FIT] += sum(len(group) for group in roomy)
        walk.groups = [[] if group in roomy else group for group in walk.groups]
    return None


def _link_rank(choice: Choice) -> tuple[int, int]:
    return choice.link_quality, -choice.left_in_groups


def _fill(walk: _Walk, group: list[Candidate], count: int) -> None:
    """Take further shares of the group's cards, in order, until there are `count`."""
    for first in list(group):
        walk.numa = first.device.numa
        card = walk.again(first)
        while card is not None and len(group) < count:
            walk.trial.taken = group
            label = walk.failed_check(card)
            if walk.verdicts is not None:
                walk.verdicts.append(CardVerdict(card, label or ""))
            if label is not None:
                walk.counts[label] += 1
                break
            walk.collect(group, card)
            card = walk.again(card)


def _allocation(vendor: Vendor, choice: Choice) -> Allocation:
    devices = tuple(AllocatedDevice(card.device.uuid, card.booked, card.device.type) for card in choice.chosen)
    return Allocation(
        vendor.key, devices, choice.candidates, choice.link_quality, choice.fully_linked, choice.left_in_groups
    )
