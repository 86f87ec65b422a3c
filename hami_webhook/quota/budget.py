"""What a namespace's quotas leave for one pod's placement (quota chapter 8)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from hami_webhook.devices.debit import Debit, per_vendor
from hami_webhook.devices.model import Hold, Kinds
from hami_webhook.devices.placed import placement_counts
from hami_webhook.devices.registry import Vendors
from hami_webhook.kube import scopes
from hami_webhook.kube.objects import Pod
from hami_webhook.quota.books import Books
from hami_webhook.quota.charge import Catalog, charge_of, in_bytes, in_units
from hami_webhook.quota.ledger import RESERVATION, Entry, State


class PodBudget:
    """The most a placement of the pod may cost, by managed key; keys without a limit are absent.

    A node passes a quota iff (a) what the other placed pods hold plus this placement is within hard, and (b) the
    placement costs no more than the pod is charged already, or used has room for the difference. Both are limits on the
    placement's own cost, so the budget is one number per key: the smallest over the quotas. `limits` are of the quotas
    that count in the key's units, `byte_limits` of those that count in bytes.
    """

    def __init__(
        self, limits: Mapping[str, int], kinds: Kinds, vendors: Vendors, byte_limits: Mapping[str, int] | None = None
    ) -> None:
        self.limits = limits
        self.byte_limits = byte_limits or {}
        self._kinds = kinds
        self._vendors = vendors

    def admits(self, holds: Sequence[Hold]) -> bool:
        # everything at once costs at least as much as the peak, and is quicker to add up
        sums: dict[str, list[int]] = {}
        for hold in holds:
            total = sums.setdefault(hold.vendor, [0, 0, 0])
            total[0] += hold.slots
            total[1] += hold.memory
            total[2] += hold.cores
        if self._within({vendor: Debit(*total) for vendor, total in sums.items()}):
            return True
        return self._within(per_vendor(holds, self._kinds))

    def _within(self, debits: Mapping[str, Debit]) -> bool:
        amounts = in_units(debits, self._vendors)
        if not all(amount <= self.limits[key] for key, amount in amounts.items() if key in self.limits):
            return False
        in_full = in_bytes(debits, self._vendors) if self.byte_limits else {}
        return all(amount <= self.byte_limits[key] for key, amount in in_full.items() if key in self.byte_limits)

    def cost(self, holds: Sequence[Hold]) -> tuple[int, ...]:
        """MiB, cores and slots of the holds, over all vendors."""
        debits = per_vendor(holds, self._kinds).values()
        return (sum(d.memory for d in debits), sum(d.cores for d in debits), sum(d.slots for d in debits))


def charged(books: Books, pod: Pod, vendors: Vendors, catalog: Catalog, now: float, lapse: float) -> Mapping[str, int]:
    """The pod's charge inside this quota's used, exact: its entry's, else what the pod itself says."""
    found = entry_of(books, pod)
    return found[1].only(books.hard) if found else charge_of(pod, vendors, catalog, now, lapse).only(books.hard)


def entry_of(books: Books, pod: Pod) -> tuple[str, Entry] | None:
    """The pod's ledger entry with its id: the UID, or the stamp while no recompute has seen the pod."""
    stamp = pod.annotations.get(RESERVATION, "")
    for identity in (pod.uid, stamp):
        entry = books.ledger.get(identity)
        if entry is not None and (identity == pod.uid or entry.state is State.ADMITTED):
            return identity, entry
    return None


def placed_by_others(
    books: Books, pod: Pod, pods: Iterable[Pod], vendors: Vendors, catalog: Catalog, now: float, lapse: float
) -> dict[str, int]:
    """The sum of the placed charges of the other live pods in the quota's scope."""
    sums = dict.fromkeys(books.hard, 0)
    for other in pods:
        if other.uid == pod.uid or not placement_counts(other, now, lapse):
            continue
        if other.ended(now) or not scopes.matches(books.quota, other):
            continue
        charge = charge_of(other, vendors, catalog, now, lapse)
        for key, amount in books.counted(charge.exact).items() if charge.placed else ():
            sums[key] += amount
    return sums


def pod_budget(
    pod: Pod,
    quotas: Iterable[Books],
    pods: Sequence[Pod],
    vendors: Vendors,
    catalog: Catalog,
    now: float,
    lapse: float,
) -> PodBudget | None:
    """The pod's budget from the quotas it is in scope of; None if none limits it."""
    limits: dict[str, int] = {}
    byte_limits: dict[str, int] = {}
    for books in quotas:
        if not books.hard or not scopes.matches(books.quota, pod):
            continue
        mine = books.counted(charged(books, pod, vendors, catalog, now, lapse))
        others = placed_by_others(books, pod, pods, vendors, catalog, now, lapse)
        for key, hard in books.hard.items():
            own = mine.get(key, 0)
            # while nobody has computed used there is no room that is known of beyond the pod's own charge
            room = hard - books.used[key] + own if key in books.used else own
            most = min(hard - others[key], max(own, room))
            of_unit = byte_limits if key in books.in_bytes else limits
            of_unit[key] = min(most, of_unit.get(key, most))
    return PodBudget(limits, pod.kinds, vendors, byte_limits) if limits or byte_limits else None
