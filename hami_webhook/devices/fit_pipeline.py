"""The one Fit pipeline that every vendor shares.

For one container on one node: order the cards by the pod's device policy, drop each that fails a check (each check is
tied to one reason label), let the vendor resolve what the card would be charged with, and let its selection pick.

All differences between vendors are in their hooks; this module must not name a vendor. The answer depends only on the
arguments, so extender, simulator and `explain` give the same answer, and answers can be cached. It must end soon on
whatever a node registers: work is counted in steps, and a search that needs more refuses the node.

Three things make it hard. The check of a card depends on the cards collected for the container so far, because of
quotas and linked groups. So the order matters; we keep HAMi's. If a pod must stay within one NUMA node, one walk tries
each NUMA node's cards as a separate group. If a quota stops a walk that took expensive cards first, a second walk takes
the cheapest cards first.

There are two kinds of selections. Some take the first cards that pass, and the walk ends there. Other selections
compare sets of cards: they get all cards of a group that passed, and then choose.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

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


class CardVerdict(Struct):
    """A checked card. `label`: the label of the failed check, empty if the card passed all checks."""

    card: Candidate
    label: str


class FitTrace(Struct):
    """What Fit did for one request of a container, for people who ask why.

    `fit_request` has the request on the node, as far as that could be resolved. `tried`: whether Fit checked any card.
    `verdicts`: one for each check of a card, of the walk whose result was used.
    """

    vendor: Vendor
    fit_request: FitRequest
    tried: bool = False
    outcome: Allocation | Rejection | None = None
    walks: list[tuple[Allocation | Rejection, list[CardVerdict]]] = []

    @property
    def container(self) -> str:
        return self.fit_request.pod.containers[self.fit_request.row].name

    @property
    def rejection(self) -> Rejection:
        """Return why the container gets no cards. Call it only for a request that failed."""
        assert isinstance(self.outcome, Rejection)
        return self.outcome

    @property
    def verdicts(self) -> Sequence[CardVerdict]:
        return next((verdicts for result, verdicts in self.walks if result is self.outcome), ())


def fit(vendor: Vendor, fit_request: FitRequest, traces: list[FitTrace] | None = None) -> Allocation | Rejection:
    """The cards the container gets of `vendor` on this node, or why it gets none; the request's overlay isn't changed.

    A trace is added to `traces`, if these are given.
    """
    trace = None
    if traces is not None:
        trace = FitTrace(vendor, fit_request)
        traces.append(trace)
    outcome: Allocation | Rejection
    try:
        outcome = _fit(vendor, fit_request, trace)
    except OutOfSteps:
        outcome = Rejection(bare=reasons.SEARCH_LIMIT_EXCEEDED)
    if trace is not None:
        trace.outcome = outcome
    return outcome


def _fit(vendor: Vendor, fit_request: FitRequest, trace: FitTrace | None) -> Allocation | Rejection:
    resolved = vendor.resolve(fit_request.request, fit_request)
    if isinstance(resolved, Rejection):
        return resolved
    if resolved is not fit_request.request:
        fit_request = replace(fit_request, request=resolved)
    refusal = vendor.refuses_node(fit_request)
    if trace is not None:
        trace.fit_request, trace.tried = fit_request, refusal is None
    if refusal is not None:
        return refusal
    # a pod that would rather have one NUMA node is tried so first; one that is bound to it has no second try
    bound = fit_request.terms.numa_bound
    if fit_request.terms.policy.numa_first and not bound:
        attempt = _attempt(vendor, fit_request, trace, numa_bound=True)
        if isinstance(attempt, Allocation):
            return attempt
    return _attempt(vendor, fit_request, trace, numa_bound=bound)


def _attempt(
    vendor: Vendor, fit_request: FitRequest, trace: FitTrace | None, *, numa_bound: bool
) -> Allocation | Rejection:
    cards = [
        Candidate(vendor, fit_request, device, fit_request.overlay.used(vendor.key, device.uuid), position)
        for position, device in enumerate(fit_request.inventory.devices)
        if device.uuid not in fit_request.excluded
    ]
    ordered = [cards[i] for i in vendor.order(cards, fit_request.terms, numa_bound=numa_bound)]
    first = _walk(vendor, fit_request, ordered, trace, numa_bound=numa_bound)
    if (
        isinstance(first, Allocation)
        or fit_request.budget is None
        or reasons.RESOURCE_QUOTA_NOT_FIT not in first.counts
    ):
        return first
    # dear cards may have used up what the quota leaves, where cheaper ones would do (docs/spec/quota.md#8)
    second = _walk(
        vendor, fit_request, _by_cost(fit_request, ordered, numa_bound=numa_bound), trace, numa_bound=numa_bound
    )
    # the reasons are those of the order that the pod asked for
    return second if isinstance(second, Allocation) else first


def _by_cost(fit_request: FitRequest, cards: Sequence[Candidate], *, numa_bound: bool) -> list[Candidate]:
    """The cards, cheapest first (ties in scan order); within NUMA groups where the pod binds to one."""
    assert fit_request.budget is not None
    groups: dict[int, int] = {}
    keys: dict[int, tuple[int, ...]] = {}
    for card in cards:
        group = groups.setdefault(card.device.numa, len(groups)) if numa_bound else 0
        keys[card.position] = (group, *fit_request.budget.cost([*fit_request.claims, card.claim]))
    return sorted(cards, key=lambda card: keys[card.position])


class _Walk:
    """The state of one walk over the cards: what was collected, group by group, and what was counted."""

    def __init__(self, vendor: Vendor, fit_request: FitRequest, *, numa_bound: bool) -> None:
        self.vendor = vendor
        self.fit_request = fit_request
        self.numa_bound = numa_bound
        self.counts: Counter[str] = Counter()
        self.groups: list[list[Candidate]] = [[]]
        self.within = fit_request.overlay.copy()
        self.numa: int | None = None
        self.verdicts: list[CardVerdict] | None = None

    def fails(self, card: Candidate) -> bool:
        """Whether the card fails a check, which is counted."""
        label = self._failed_check(card)
        if self.verdicts is not None:
            self.verdicts.append(CardVerdict(card, label or ""))
        if label is not None:
            self.counts[label] += 1
        return label is not None

    def _failed_check(self, card: Candidate) -> str | None:
        """The label of the first check the card fails; a new NUMA group starts where the checks say."""
        for check in self.vendor.checks:
            if check is NUMA_GROUP:
                if self.numa_bound and card.device.numa != self.numa:
                    if self.numa is not None:
                        self.groups.append([])
                        self.fit_request.taken = []  # cards of another NUMA node won't be the container's
                    self.numa = card.device.numa
            elif not check.passes(card):
                return check.label
        return self.vendor.unresolvable if card.share is None else None

    def collect(self, group: list[Candidate], card: Candidate) -> None:
        group.append(card)
        self.within.take(self.vendor.key, card.device.uuid, card.expected_share)

    def again(self, card: Candidate) -> Candidate | None:
        """The same card once more, with the vendor's marks of what was collected; None if one share is all it gives.

        Its slots, memory and cores are those the container found: further shares are limited by the marks alone. Raises
        `OutOfSteps`.
        """
        if not self.vendor.occupancy.multi_share(self.fit_request.request, card.device):
            return None
        self.fit_request.limit.take(_STEPS_OF_A_CARD)
        marks = self.within.used(self.vendor.key, card.device.uuid).marks
        return Candidate(self.vendor, self.fit_request, card.device, replace(card.usage, marks=marks), card.position)


def _walk(
    vendor: Vendor, fit_request: FitRequest, cards: Sequence[Candidate], trace: FitTrace | None, *, numa_bound: bool
) -> Allocation | Rejection:
    """Check the cards in order and let the selection choose. Raises `OutOfSteps`."""
    selection = vendor.selection(fit_request)
    if selection is FIRST_FIT and fit_request.terms.policy.topology_aware:
        selection = FIRST_OF_ALL  # such a pod prefers the node with the fewest cards that would do
    count = fit_request.request.count
    every = selection.looks_at_all
    # before the walk: a node with too many cards is refused at the cost of one comparison
    fit_request.limit.take((_STEPS_OF_A_CARD + len(fit_request.claims)) * len(cards))
    # one card is in one NUMA group wherever it is, so it is chosen among all
    walk = _Walk(vendor, fit_request, numa_bound=numa_bound and not (every and count == 1))
    if trace is None:
        return _result(walk, cards, selection)
    walk.verdicts = []
    result = _result(walk, cards, selection)
    trace.walks.append((result, walk.verdicts))
    return result


def _result(walk: _Walk, cards: Sequence[Candidate], selection: Selection) -> Allocation | Rejection:
    """The outcome of the walk over the cards."""
    vendor, fit_request = walk.vendor, walk.fit_request
    count, every = fit_request.request.count, selection.looks_at_all
    for first in cards:
        card: Candidate | None = first
        while card is not None:
            # what compares sets of cards holds each set against the quota, so here a card is checked by itself
            fit_request.taken = [] if every else walk.groups[-1]
            if walk.fails(card):
                break
            walk.collect(walk.groups[-1], card)
            if not every and len(walk.groups[-1]) == count:
                choice = selection.choose(fit_request, walk.groups[-1])
                assert isinstance(choice, Choice)
                return _allocation(vendor, choice)
            # further shares of this card come before the next one, or last of all (`_choose`)
            card = None if every else walk.again(card)
    if every:
        choice = _choose(walk, selection, count)
        if isinstance(choice, Choice):
            return _allocation(vendor, choice)
        if choice is not None:
            return vendor.refusal(fit_request, cards, choice)
        walk.groups.sort(key=len)  # the largest group is what was collected
    return vendor.refusal(fit_request, cards, _too_few(walk, selection))


def _too_few(walk: _Walk, selection: Selection) -> Rejection:
    """Why the cards that were collected last, and those of other NUMA groups, aren't enough."""
    *others, collected = walk.groups
    for group in filter(None, others):
        walk.counts[reasons.NUMA_NOT_FIT] += len(group)
    if collected:
        usable = selection.usable(collected, walk.fit_request.request.count)
        walk.counts[reasons.ALLOCATED_CARDS_INSUFFICIENT_REQUEST] += usable
    return reasons.counted(walk.counts, len(walk.fit_request.inventory.devices))


def _choose(walk: _Walk, selection: Selection, count: int) -> Choice | Rejection | None:
    """The best choice among the NUMA groups that hold enough cards; further shares of cards where none does.

    The selection's own reason if it gave one for a group and chose in none.
    """
    fitting = max(len(group) for group in walk.groups)
    if fitting < count:  # several shares of a card are the last resort
        for group in walk.groups:
            _fill(walk, group, count)
    roomy = [group for group in walk.groups if selection.usable(group, count) >= count]
    best: Choice | None = None
    refused: Rejection | None = None
    for group in roomy:
        choice = selection.choose(walk.fit_request, group)
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
        walk.numa = first.device.numa  # or the check would begin another group
        card = walk.again(first)
        while card is not None and len(group) < count:
            walk.fit_request.taken = group
            if walk.fails(card):
                break
            walk.collect(group, card)
            card = walk.again(card)


def _allocation(vendor: Vendor, choice: Choice) -> Allocation:
    devices = tuple(AllocatedDevice(card.device.uuid, card.expected_share, card.device.type) for card in choice.chosen)
    return Allocation(
        vendor.key, devices, choice.candidates, choice.link_quality, choice.fully_linked, choice.left_in_groups
    )
