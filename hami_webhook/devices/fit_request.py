"""One container's request on one node, card by card: the checks vendors list, and the selections.

Each check is a small named test tied to one standard reason label (docs/spec/core.md#7.5).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, Protocol

from msgspec import Struct, field

from hami_webhook.devices import reasons
from hami_webhook.devices.model import (
    Device,
    DeviceHold,
    DeviceShare,
    Inventory,
    NodeView,
    Overlay,
    Request,
    Usage,
    WholeCard,
    claim_of,
)
from hami_webhook.devices.pod_preferences import CardPolicy, ListRule, Weights
from hami_webhook.devices.reasons import Rejection
from hami_webhook.devices.step_limit import StepLimit
from hami_webhook.kube.objects import ContainerKind, Pod

_STEPS_OF_A_BUDGET = 100
_STEPS_OF_A_CLAIM = 15
"""What it takes to compare holds with a budget."""
_STEPS_OF_A_TWIN = 4


class Constraints(Struct, frozen=True):
    """A pod's constraints on one vendor's cards, read from its annotations once per pod.

    `total_cores`: the total cores of a card to assume in place of the registered number; 0 for the registered one.
    """

    policy: CardPolicy
    weights: Weights
    uuids: ListRule
    types: ListRule
    numa_bound: bool = False
    total_cores: int = 0


class Budget(Protocol):
    """The amounts that the quotas still allow a pod to hold. `admits` and `cost` get all holds of the pod so far."""

    def on(self, view: NodeView) -> Budget:
        """Return the budget for one node, because some quotas count only part of the cards."""
        ...

    def admits(self, claims: Sequence[DeviceHold]) -> bool: ...

    def cost(self, claims: Sequence[DeviceHold]) -> tuple[int, ...]:
        """What the claims cost, for putting cards in order, cheapest first."""
        ...


class FitRequest(Struct):
    """One container's request to one vendor on one node.

    `claims`: the pod's device holds so far. `row`: the container's index, init containers first. `excluded`: UUIDs of
    the vendor's cards on which the pod already failed to fit. `limit`: the steps of work left for fitting the pod on
    the node.
    """

    pod: Pod
    terms: Constraints
    request: Request
    row: int
    kind: ContainerKind
    inventory: Inventory
    overlay: Overlay
    claims: Sequence[DeviceHold] = ()
    budget: Budget | None = None
    excluded: frozenset[str] = frozenset()
    taken: list[Candidate] = []
    limit: StepLimit = field(default_factory=StepLimit)

    def take_steps_of(self, vendor: str) -> None:
        """Count a look at every card that the node has of another backend. Raises `OutOfSteps`."""
        inventory = self.overlay.view.inventories.get(vendor)
        self.limit.take(_STEPS_OF_A_TWIN * len(inventory.devices) if inventory else 0)

    def admits(self, candidates: Sequence[Candidate]) -> bool:
        """Whether the quota allows these cards on top of what the pod holds already. Raises `OutOfSteps`."""
        if self.budget is None:
            return True
        self.limit.take(_STEPS_OF_A_BUDGET + _STEPS_OF_A_CLAIM * (len(self.claims) + len(candidates)))
        return self.budget.admits([*self.claims, *(c.claim for c in candidates)])


class RequestResolver(Protocol):
    """How a vendor resolves a request on a card."""

    def needed(self, request: Request, device: Device) -> tuple[int, int]: ...

    def resolve_share(self, request: Request, device: Device, usage: Usage) -> DeviceShare | None: ...


class Candidate:
    """A card that is tested: its usage as the container would find it, and what the container would be given of it."""

    __slots__ = (
        "_resolved",
        "_resolver",
        "_share",
        "cores",
        "device",
        "fit_request",
        "memory",
        "position",
        "total_cores",
        "usage",
    )

    def __init__(
        self, resolver: RequestResolver, fit_request: FitRequest, device: Device, usage: Usage, position: int
    ) -> None:
        self.fit_request = fit_request
        self.device = device
        self.usage = usage
        self.position = position
        self.memory, self.cores = resolver.needed(fit_request.request, device)
        self.total_cores = fit_request.terms.total_cores or device.cores
        self._resolver = resolver
        self._share: DeviceShare | None = None
        self._resolved = False

    @property
    def share(self) -> DeviceShare | None:
        """What the vendor gives of the card; None if it can't give that."""
        if not self._resolved:
            self._share = self._resolver.resolve_share(self.fit_request.request, self.device, self.usage)
            self._resolved = True
        return self._share

    @property
    def expected_share(self) -> DeviceShare:
        """Return the share that the vendor would give, or the request itself if it can't give one."""
        return self.share or DeviceShare(self.memory, self.cores, slots=self.fit_request.request.slots)

    @property
    def claim(self) -> DeviceHold:
        """Return the device hold that this card would become, in the quota's units."""
        return claim_of(self.device.vendor, self.device.uuid, self.fit_request.row, self.expected_share)


class Check(Struct, frozen=True):
    """A test a card must pass, and the label it counts under where it doesn't."""

    label: str
    passes: Callable[[Candidate], bool]


NUMA_GROUP = Check(reasons.NUMA_NOT_FIT, lambda candidate: True)
"""Where in a vendor's checks a card starts a new NUMA group, if the pod binds to one."""


def _healthy(candidate: Candidate) -> bool:
    return candidate.fit_request.overlay.view.is_open(candidate.device)


def _free_memory(candidate: Candidate) -> bool:
    return candidate.device.memory - candidate.usage.memory >= candidate.memory


def _free_cores(candidate: Candidate) -> bool:
    return candidate.total_cores - candidate.usage.cores >= candidate.cores


def _not_shared_whole(candidate: Candidate) -> bool:
    return not (candidate.total_cores == 100 == candidate.cores and candidate.usage.slots > 0)


def _units_left(candidate: Candidate) -> bool:
    total = candidate.total_cores
    return not (total != 0 and candidate.usage.cores >= total and candidate.cores == 0)


def _every_container_has_it(candidate: Candidate) -> bool:
    device = candidate.device
    mine = [claim for claim in candidate.fit_request.claims if claim.vendor == device.vendor]
    return {claim.row for claim in mine} == {claim.row for claim in mine if claim.uuid == device.uuid}


def _whole_card_unshared(candidate: Candidate) -> bool:
    return not (isinstance(candidate.fit_request.request.memory, WholeCard) and candidate.usage.slots > 0)


def _nobody_beside_has_another(candidate: Candidate) -> bool:
    fit_request, device = candidate.fit_request, candidate.device
    return not any(
        claim.vendor == device.vendor
        and claim.uuid != device.uuid
        and _beside(fit_request.pod.kinds[claim.row], fit_request.kind)
        for claim in fit_request.claims
    )


def _beside(one: ContainerKind, other: ContainerKind) -> bool:
    """Whether containers of these kinds are compared: ordinary init containers are over before app containers run."""
    return one is other or ContainerKind.SIDECAR in (one, other)


HEALTHY = Check(reasons.CARD_NOT_HEALTH, _healthy)
TYPE_LISTS = Check(reasons.CARD_TYPE_MISMATCH, lambda c: c.fit_request.terms.types.admits_type(c.device.type))
UUID_LISTS = Check(reasons.CARD_UUID_MISMATCH, lambda c: c.fit_request.terms.uuids.admits(c.device.uuid))
FREE_SLOT = Check(reasons.CARD_TIME_SLICING_EXHAUSTED, lambda c: c.usage.slots < c.device.slots)
MUTEX = Check(
    reasons.EXCLUSIVE_DEVICE_ALLOCATE_CONFLICT, lambda c: not (c.fit_request.terms.policy.mutex and c.usage.slots > 0)
)
WITHIN_QUOTA = Check(reasons.RESOURCE_QUOTA_NOT_FIT, lambda c: c.fit_request.admits([*c.fit_request.taken, c]))
FREE_MEMORY = Check(reasons.CARD_INSUFFICIENT_MEMORY, _free_memory)
FREE_CORES = Check(reasons.CARD_INSUFFICIENT_CORE, _free_cores)
NOT_SHARED_WHOLE = Check(reasons.EXCLUSIVE_DEVICE_ALLOCATE_CONFLICT, _not_shared_whole)
WHOLE_CARD_UNSHARED = Check(reasons.EXCLUSIVE_DEVICE_ALLOCATE_CONFLICT, _whole_card_unshared)
UNITS_LEFT = Check(reasons.CARD_COMPUTE_UNITS_EXHAUSTED, _units_left)

ACCESS_CHECKS = (HEALTHY, UUID_LISTS, FREE_SLOT, MUTEX)
"""The usual checks of whether a card may be used at all, in the usual order, where models don't matter."""

ONE_CARD_PER_POD = Check(reasons.CARD_NOT_FOUND_CUSTOM_FILTER_RULE, _every_container_has_it)
"""No container fitted earlier got other cards. The first card is then chosen among those that can take them all."""

ONE_CARD_AT_A_TIME = Check(reasons.CARD_NOT_FOUND_CUSTOM_FILTER_RULE, _nobody_beside_has_another)
"""No container that may run at the same time got another card. The first one's card is theirs, or the node won't do."""

AMOUNT_CHECKS = (FREE_MEMORY, FREE_CORES, NOT_SHARED_WHOLE, UNITS_LEFT)
"""The usual checks of what is left on a card, in the usual order."""

USUAL_CHECKS = (HEALTHY, TYPE_LISTS, UUID_LISTS, FREE_SLOT, MUTEX, WITHIN_QUOTA, *AMOUNT_CHECKS)
"""All of a vendor whose cards are shared by memory and compute and that has no rule of its own."""


class Choice(Struct, frozen=True):
    """What a selection chose; all but `chosen` as in `Allocation`."""

    chosen: Sequence[Candidate]
    candidates: int = 0
    link_quality: int = 0
    fully_linked: bool = False
    left_in_groups: int = 0


class Selection:
    """How a vendor picks among the cards that passed.

    If `looks_at_all` is False, the walk takes cards as they pass, and stops when it has enough. If True, the walk
    checks every card alone, then calls `choose` if enough passed. `choose` returns None if the quota allows no choice,
    or a rejection.
    """

    __slots__ = ()
    looks_at_all: ClassVar[bool] = True

    def choose(self, fit_request: FitRequest, passed: Sequence[Candidate]) -> Choice | Rejection | None:
        raise NotImplementedError

    def usable(self, passed: Sequence[Candidate], count: int) -> int:
        """Return the number of passed cards that one container could get at most, if it wants `count` and no quota
        applies.
        """
        return len(passed)


class FirstFit(Selection):
    """The first cards that pass, in the order tried."""

    looks_at_all = False

    def choose(self, fit_request: FitRequest, passed: Sequence[Candidate]) -> Choice | None:
        return Choice(passed, len(passed))


class TakeInOrder(Selection):
    """The first cards of an order of preference; those the quota doesn't allow besides the ones taken are skipped."""

    def preferred(self, passed: Sequence[Candidate], count: int) -> Sequence[Candidate]:
        """The cards that passed, the one to be taken first in front; here as they were tried."""
        return passed

    def choose(self, fit_request: FitRequest, passed: Sequence[Candidate]) -> Choice | None:
        chosen: list[Candidate] = []
        for card in self.preferred(passed, fit_request.request.count):
            if len(chosen) < fit_request.request.count and fit_request.admits([*chosen, card]):
                chosen.append(card)
        return Choice(chosen, len(passed)) if len(chosen) == fit_request.request.count else None


FIRST_FIT = FirstFit()
FIRST_OF_ALL = TakeInOrder()
"""As `FIRST_FIT`, but every card is looked at, so that it is known how many would do."""
