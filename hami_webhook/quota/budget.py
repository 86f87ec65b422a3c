"""What a namespace's quotas leave for one pod's placement (docs/spec/quota.md#8).

Fit asks the budget for each card, so it can reject a card that would exceed a quota, and still take the next one. The
budget reads caches only, and writes nothing. Before the Binding, the charge checks room in used again (rule b of
`PodBudget`), on the object that it writes (Q16). Only this budget ensures (rule a) that a namespace above its quota
places pods up to hard, and not beyond.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from copy import copy
from typing import NamedTuple

from msgspec import Struct

from hami_webhook.devices.debit import Debit, per_vendor
from hami_webhook.devices.model import DeviceHold, Kinds, NodeView
from hami_webhook.devices.placement_annotations import placement_counts
from hami_webhook.devices.registry import Vendors
from hami_webhook.dra.holders import BareClaim
from hami_webhook.kube.objects import RESERVATION, Node, Pod
from hami_webhook.quota.account import QuotaAccount
from hami_webhook.quota.card_selection import CardSelection
from hami_webhook.quota.floors import cost_at_admission, cost_of
from hami_webhook.quota.ledger import Entry, find_claim_entry, find_entry
from hami_webhook.quota.limits import limited_until_end
from hami_webhook.quota.pricing import ClusterCapacity, charge_of, in_bytes, in_units


class _InBytes(NamedTuple):
    """A key of quotas that count memory in bytes."""

    key: str


class _OfCards(NamedTuple):
    """A key of quotas that select cards."""

    cards: CardSelection
    key: LimitKey


LimitKey = str | _InBytes | _OfCards
"""What is limited: a managed key in its units; the same in bytes, or of some cards, are limits of their own."""


class PodBudget:
    """The most a placement of the pod may cost, by managed key; keys without a limit are absent.

    A node passes a quota if two rules hold. (a) The other placed pods with this placement are within hard. (b) Used has
    room for what the placement costs beyond the pod's charge. Both are limits on the placement's own cost, so the
    budget is one number per key: the smallest over the quotas. `limits` are of the quotas that count in the key's
    units, `byte_limits` of those that count in bytes. `selected`: budgets of quotas that select cards. `on` finds which
    of a node's cards these quotas select.
    """

    def __init__(
        self,
        limits: Mapping[str, int],
        kinds: Kinds,
        vendors: Vendors,
        byte_limits: Mapping[str, int] | None = None,
        selected: Mapping[CardSelection, PodBudget] | None = None,
    ) -> None:
        self.limits = limits
        self.byte_limits = byte_limits or {}
        self._selected = selected or {}
        self._all: dict[LimitKey, int] = {_InBytes(key): limit for key, limit in self.byte_limits.items()}
        self._all.update(limits.items())
        for cards, budget in self._selected.items():
            self._all.update((_OfCards(cards, key), limit) for key, limit in budget._all.items())
        self._cards: Mapping[CardSelection, Container[tuple[str, str]]] = {}
        self._kinds = kinds
        self._vendors = vendors

    def on(self, view: NodeView) -> PodBudget:
        """The budget for a placement on one node."""
        if not self._selected:
            return self
        budget = copy(self)
        budget._cards = {cards: cards.on(view) for cards in self._selected}
        return budget

    @property
    def selects_cards(self) -> bool:
        """Whether it differs between nodes."""
        return bool(self._selected)

    def selections_on(self, node: Node) -> tuple[bool, ...]:
        """Return, for each selecting quota, whether it may select cards of the node: besides the cards' types, the
        budget there depends only on this.
        """
        return tuple(cards.on_node(node.labels) for cards in self._selected)

    def most(self, key: str) -> int | None:
        """The least limit of a key, on whatever cards; None if there is none."""
        budgets = (self, *self._selected.values())
        return min((budget.limits[key] for budget in budgets if key in budget.limits), default=None)

    @property
    def keys(self) -> frozenset[LimitKey]:
        """What is limited."""
        return frozenset(self._all)

    def admits(self, claims: Sequence[DeviceHold]) -> bool:
        return self.within(self.counted(claims))

    def counted(self, claims: Sequence[DeviceHold]) -> dict[LimitKey, int]:
        """Return the amounts of the holds, for the limited keys.

        If even the sum over all containers is within the limits, return that sum in place of the peak.
        """
        found = self._counted(claims)
        for cards, budget in self._selected.items():
            own = [claim for claim in claims if (claim.vendor, claim.uuid) in self._cards[cards]]
            found |= {_OfCards(cards, key): amount for key, amount in budget._counted(own).items()}
        return found

    def _counted(self, claims: Sequence[DeviceHold]) -> dict[LimitKey, int]:
        # everything at once costs at least as much as the peak, and is quicker to add up
        sums: dict[str, list[int]] = {}
        for claim in claims:
            total = sums.setdefault(claim.vendor, [0, 0, 0])
            total[0] += claim.slots
            total[1] += claim.memory
            total[2] += claim.cores
        at_most = self._limited({vendor: Debit(*total) for vendor, total in sums.items()})
        return at_most if self.within(at_most) else self._limited(per_vendor(claims, self._kinds))

    def within(self, amounts: Mapping[LimitKey, int]) -> bool:
        """Whether amounts, as `counted` has them, keep the limits."""
        return all(amount <= self._all[key] for key, amount in amounts.items())

    def _limited(self, debits: Mapping[str, Debit]) -> dict[LimitKey, int]:
        found: dict[LimitKey, int] = {
            key: amount for key, amount in in_units(debits, self._vendors).items() if key in self.limits
        }
        if self.byte_limits:
            in_full = in_bytes(debits, self._vendors)
            found |= {_InBytes(key): amount for key, amount in in_full.items() if key in self.byte_limits}
        return found

    def cost(self, claims: Sequence[DeviceHold]) -> tuple[int, ...]:
        """MiB, cores and slots of the claims, over all vendors."""
        debits = per_vendor(claims, self._kinds).values()
        return (sum(d.memory for d in debits), sum(d.cores for d in debits), sum(d.slots for d in debits))


class BudgetAnswers(Struct, frozen=True):
    """The recorded answers of a budget: for each key the largest admitted amount, and all refused amounts."""

    admitted: frozenset[tuple[LimitKey, int]] = frozenset()
    refused: frozenset[frozenset[tuple[LimitKey, int]]] = frozenset()

    def stand(self, budget: PodBudget) -> bool:
        """Return whether another budget with the same keys would give the same answers."""
        return budget.within(dict(self.admitted)) and not any(budget.within(dict(each)) for each in self.refused)


class RecordingBudget:
    """A budget that notes what it answers."""

    def __init__(self, budget: PodBudget) -> None:
        self._budget = budget
        self._admitted: dict[LimitKey, int] = {}
        self._refused: set[frozenset[tuple[LimitKey, int]]] = set()

    def on(self, view: NodeView) -> RecordingBudget:
        self._budget = self._budget.on(view)
        return self

    def admits(self, claims: Sequence[DeviceHold]) -> bool:
        amounts = self._budget.counted(claims)
        if self._budget.within(amounts):
            for key, amount in amounts.items():
                if amount > self._admitted.get(key, -1):
                    self._admitted[key] = amount
            return True
        self._refused.add(frozenset(amounts.items()))
        return False

    def cost(self, claims: Sequence[DeviceHold]) -> tuple[int, ...]:
        return self._budget.cost(claims)

    @property
    def answers(self) -> BudgetAnswers:
        return BudgetAnswers(frozenset(self._admitted.items()), frozenset(self._refused))


def charged(
    account: QuotaAccount, pod: Pod, vendors: Vendors, capacity: ClusterCapacity, now: float, placement_ttl: float
) -> Mapping[str, int]:
    """Return the exact amounts that this quota's used has for the pod: those of its entry, otherwise its computed
    charge.
    """
    found = entry_of(account, pod, vendors, capacity)
    cost = found[1] if found else cost_of(account, pod, vendors, capacity, now, placement_ttl)
    return cost.only(account.hard)


def entry_of(account: QuotaAccount, pod: Pod, vendors: Vendors, capacity: ClusterCapacity) -> tuple[str, Entry] | None:
    """The pod's ledger entry with its id."""
    if isinstance(pod, BareClaim):
        found = find_claim_entry(account.ledger, pod.charge_id, pod.uid)
        if found is not None:
            return found
    return find_entry(
        account.ledger,
        pod.uid,
        pod.annotations.get(RESERVATION, ""),
        lambda: cost_at_admission(account, pod, vendors, capacity).only(account.hard),
    )


def placed_by_others(
    account: QuotaAccount,
    pod: Pod,
    pods: Iterable[Pod],
    vendors: Vendors,
    capacity: ClusterCapacity,
    now: float,
    placement_ttl: float,
) -> dict[str, int]:
    """The sum of the placed charges of the other live pods in the quota's scope."""
    sums = dict.fromkeys(account.hard, 0)
    for other in pods:
        if other.uid == pod.uid or not placement_counts(other, now, placement_ttl):
            continue
        if other.ended(now) or not account.covers(other):
            continue
        charge = charge_of(other, vendors, capacity, now, placement_ttl, account.cards)
        for key, amount in account.counted(charge.exact).items() if charge.placed else ():
            sums[key] += amount
    return sums


def pod_budget(
    pod: Pod,
    quotas: Iterable[QuotaAccount],
    others_of: Callable[[QuotaAccount], Mapping[str, int]],
    vendors: Vendors,
    capacity: ClusterCapacity,
    now: float,
    placement_ttl: float,
) -> PodBudget | None:
    """The pod's budget from the enforced quotas that it is in scope of; None if none limits it.

    `others_of` has what the other placed pods cost a quota.
    """
    found: dict[CardSelection | None, tuple[dict[str, int], dict[str, int]]] = {None: ({}, {})}
    for quota in quotas:
        limited = quota if quota.schedule is None else limited_until_end(quota, pod, now)
        for account in (limited,) if limited.subjects is None else limited.limiting(pod):
            if not account.hard or not account.enforced or not account.covers(pod):
                continue
            mine = account.counted(charged(account, pod, vendors, capacity, now, placement_ttl))
            others = others_of(account)
            for key, hard in account.hard.items():
                own = mine.get(key, 0)
                # while nobody has computed used there is no room that is known of beyond the pod's own charge
                room = hard - account.used[key] + own if key in account.used else own
                most = min(hard - others[key], max(own, room))
                of_unit = found.setdefault(account.cards, ({}, {}))[key in account.in_bytes]
                of_unit[key] = min(most, of_unit.get(key, most))
    if not any(any(each) for each in found.values()):
        return None
    limits, byte_limits = found.pop(None)
    selected = {cards: PodBudget(each[0], pod.kinds, vendors, each[1]) for cards, each in found.items() if cards}
    return PodBudget(limits, pod.kinds, vendors, byte_limits, selected)
