"""The full recompute of a quota from its namespace's pods, which is always right (docs/spec/quota.md#9).

Besides undoing a failed attempt, only the recompute lowers charges (Q14). It can, because it reads the quota first,
then the pods, both live. The pods of entries removed before that read already existed, so the list has them. A
charge after the read makes the write conflict (Q2). Nothing is kept from run to run, so whatever was lost or edited
is right after the next one (Q3, Q9), in whatever order things happened (Q15). It must not read quota or pods from a
cache: no conflict would reveal that the cache was stale.

It goes in four steps, and the order matters. First, each entry is matched to at most one pod; otherwise two pods
could share one charge. Then each live pod is priced by itself, and its own entries say what to add
(`quota.entry_life`). Pods with entries are priced first, because a new floor entry must have the amounts that these
pods were charged. Then come the entries of no live pod: whether an allocation is on its way depends on what the pods
before show. Last, the floor entries that no pod needed grow old.

Amounts are exact up to the sum, and are rounded to the quota's units pod by pod, as charges are.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence, Set
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from hami_webhook.devices.placement_annotations import TIME, placement_counts
from hami_webhook.devices.registry import Vendors
from hami_webhook.dra.holders import BareClaim, controller_of
from hami_webhook.kube.objects import RESERVATION, Pod
from hami_webhook.quota.accelerator_report import NamespaceUse, with_report
from hami_webhook.quota.account import QuotaAccount
from hami_webhook.quota.entry_life import UNTIL_OLD, Event, Fate, fate_of, survives
from hami_webhook.quota.excess import Holding, above_hard
from hami_webhook.quota.floors import FloorEntries, cost_at_admission, floor_id
from hami_webhook.quota.held_time import HeldSpan
from hami_webhook.quota.ledger import Entry, State, find_claim_entry, find_entry, update_id
from hami_webhook.quota.limits import next_change, written_at
from hami_webhook.quota.pricing import NODE_LOCK_TIMEOUT, Charge, ClusterCapacity, charge_of, overrun
from hami_webhook.quota.subjects import UNKNOWN


class LedgerBounds(Struct, frozen=True):
    """Limits of a ledger: seconds for which an entry without a pod counts, and an unbound placement; the number of
    entries.

    `most` is that of the entries of pods in flight, as `is_full` takes it.
    """

    ttl: float = 45.0
    placement_ttl: float = NODE_LOCK_TIMEOUT
    most: int = 1000


class Recomputed(Struct, frozen=True):
    """The account before and after a recompute, and the events to write: pods with a message each.

    `overruns` are pods that another scheduler gave more than admission charged, with the keys that are above hard
    now. `confirmed`: entries whose pod exists. `expired`: the number of entries removed because no pod appeared.
    `wake`: Unix seconds when time alone changes the result. `took` is how many seconds its last attempt needed, from
    the list of pods to the write. `excess`: the pods without which used would be within hard.
    """

    before: QuotaAccount
    after: QuotaAccount
    problems: Sequence[tuple[Pod, tuple[str, ...]]] = ()
    confirmed: frozenset[str] = frozenset()
    expired: int = 0
    wake: float | None = None
    overruns: Sequence[tuple[Pod, tuple[str, ...]]] = ()
    took: float = 0.0
    excess: Sequence[Holding] = ()
    held: Mapping[str, HeldSpan] = {}
    """What is held of a budget, by the UID of the pod, where it is summed."""
    settled: Set[str] = frozenset()
    """The UIDs of pods that exist and whose end is in these sums."""


def recompute(
    account: QuotaAccount,
    pods: Iterable[Pod],
    vendors: Vendors,
    capacity: ClusterCapacity,
    now: float,
    bounds: LedgerBounds,
    lost: Mapping[str, Entry] | None = None,
    gone: Container[str] = (),
) -> Recomputed:
    """Return the account recomputed from the namespace's pods at `now`.

    `lost` are entries that were wiped from the annotation and count until their time is up. `gone`: ledger ids of
    deleted pods, to which no entry can belong any more.
    """
    pods, before = list(pods), account
    account = written_at(account, now)
    # the quota's own ledger wins: an entry that stands there again isn't lost
    entries = {**(lost or {}), **account.ledger}
    of_pods = {key: entry for key, entry in entries.items() if entry.state is not State.FLOOR}
    used = Counter(dict.fromkeys(account.hard, 0))
    kept = _KeptEntries(account.hard, vendors, now, bounds.ttl)
    problems: list[tuple[Pod, tuple[str, ...]]] = []
    ends: list[float] = []
    counted: list[tuple[Pod, Charge]] = []
    uses: dict[str, NamespaceUse] = {}
    held: list[Holding] = []
    ahead: list[tuple[Entry, Mapping[str, int]]] = []
    own, orphans = _match_entries(
        pods, of_pods, lambda pod: cost_at_admission(account, pod, vendors, capacity).only(account.hard)
    )
    confirmed = frozenset(of_pods.keys() - orphans.keys())
    in_flight = EntriesInFlight(orphans, gone)
    floors = FloorEntries(account, vendors, bounds.most)
    # pods with an entry first: a floor entry that is made now has what such a pod was charged, not today's floor
    for pod in sorted(pods, key=lambda pod: pod.uid not in own) if own else pods:
        entry = own.get(pod.uid)
        if pod.ended(now) or not account.covers(pod):
            in_flight.ended(pod, entry)
            continue
        charge = charge_of(pod, vendors, capacity, now, bounds.placement_ttl, account.cards)
        if charge.problems:
            problems.append((pod, charge.problems))
        counted.append((pod, charge))
        amounts: Mapping[str, int] = {}
        if not pod.queued:
            whole = partial(charge_of, pod, vendors, capacity, now, bounds.placement_ttl)
            amounts = floors.cost(pod, charge, entry, whole, int(now)).only(account.hard)
        amounts = kept.with_own(pod, charge, entry, orphans, amounts)
        in_flight.show(pod, charge, amounts)
        costs = account.counted(amounts)
        used.update(costs)
        held.append(Holding(pod, costs, allowed=entry is not None))
        if account.quota.namespaces is not None:
            uses.setdefault(pod.namespace, NamespaceUse()).add(costs, waiting=not charge.placed)
        if amounts:
            ends += _ends(pod, charge, bounds.placement_ttl, now)
    for identity, entry, event in (*in_flight.events(), *floors.events()):
        amounts = kept.charged(identity, entry, event, {})
        if amounts:
            ahead.append((entry, account.counted(in_flight.rest(identity, amounts))))
            used.update(ahead[-1][1])
    subjects = None if account.subjects is None else account.subjects.with_used(_by_subject(account, held, ahead))
    quota = with_report(account, used, uses, now, subjects, [each.pod for each in held])
    written = None if subjects is None else subjects.bounded(account.hard)
    known = {key: used[key] for key in account.hard.keys() - account.unshared} if account.unshared else used
    after = replace(account, used=dict(known), ledger=kept.ledger, quota=quota, subjects=written)
    over = {key for key, limit in account.hard.items() if used[key] > limit and key not in account.unshared}
    larger = ((pod, overrun(pod, charge, over, vendors, capacity)) for pod, charge in counted) if over else ()
    overruns = [(pod, tuple(keys)) for pod, keys in larger if keys]
    wake = min((*ends, *kept.ends), default=None)
    change = next_change(account, now)
    if change is not None:
        wake = min(change, change if wake is None else wake)
    excess = above_hard({key: used[key] - account.hard[key] for key in over}, held)
    return Recomputed(before, after, problems, confirmed, kept.expired, wake, overruns, excess=excess)


class _KeptEntries:
    """The entries that stay, by their ids, and when they will be too old, in Unix seconds."""

    def __init__(self, hard: Mapping[str, int], vendors: Vendors, now: float, ttl: float) -> None:
        self._hard = hard
        self._vendors = vendors
        self._now = now
        self._ttl = ttl
        self.ledger: dict[str, Entry] = {}
        self.ends: list[float] = []
        self.expired = 0
        """How many admitted entries went as no pod came."""

    def with_own(
        self, pod: Pod, charge: Charge, own: Entry | None, orphans: dict[str, Entry], itself: Mapping[str, int]
    ) -> Mapping[str, int]:
        """What a live pod and its entries are charged: `own`, and that of an update, which `orphans` loses.

        `charge` is what the pod holds, or would be charged today; `itself` is what it is charged by itself, exact.
        """
        update = update_id(pod.uid)
        amounts = itself
        for identity, entry in ((pod.uid, own), (update, orphans.pop(update, None))):
            if entry is not None:
                amounts = self.charged(identity, entry, self._seen(entry, pod, charge), amounts)
        return amounts

    def charged(self, identity: str, entry: Entry, event: Event, pod: Mapping[str, int]) -> Mapping[str, int]:
        """What is charged after an event beside a pod that is charged `pod` by itself; an entry that stays is kept.

        Keys that left hard leave the entry. One that joined hard since isn't in it: of that the pod's amount counts.
        """
        fate = fate_of(entry, event, self._now, self._ttl)
        if fate is Fate.DROPPED:
            self.expired += entry.state is State.ADMITTED and event is Event.UNSEEN
            return pod
        amounts, actual = entry.only(self._hard), entry.actual
        if fate is Fate.INSTEAD:
            amounts = {**pod, **amounts}
        if actual is not None:
            actual = {key: amount for key, amount in actual.items() if key in self._hard}
        self.ledger[identity] = kept = replace(entry, amounts=amounts, actual=actual)
        if event in UNTIL_OLD:
            self.ends.append(kept.time + self._ttl)
        if fate is Fate.LARGER:
            return kept.raised_to(pod)
        if fate is Fate.ADDED:
            return {key: pod.get(key, 0) + amounts.get(key, 0) for key in {*pod, *amounts}}
        return pod if fate is Fate.STAYS else amounts

    def _seen(self, entry: Entry, pod: Pod, charge: Charge) -> Event:
        """What a live pod shows of an entry of it."""
        match entry.state:
            case State.WAITING:
                return Event.SHOWN if charge.placed or charge.derivable else Event.NEEDED
            case State.UPDATING:
                # a pod that is bound can't be updated so any longer
                return Event.SHOWN if pod.node_name or entry.floor_id == floor_id(pod, self._vendors) else Event.SEEN
        if pod.queued:
            return Event.QUEUED
        if entry.state is State.PLACING and charge.placed:
            placed, actual = charge.only(self._hard), entry.actual or {}
            # a key that joined hard after the commit isn't in the entry
            keys = self._hard.keys() & {*entry.amounts, *actual}
            if all(placed.get(key, 0) == actual.get(key, 0) for key in keys):
                return Event.SHOWN
        return Event.SEEN


def _by_subject(
    account: QuotaAccount, held: Iterable[Holding], ahead: Iterable[tuple[Entry, Mapping[str, int]]]
) -> Mapping[str, Mapping[str, int]]:
    """What each subject's pods cost, and its charges of pods that aren't there yet."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for holding in held:
        found[account.subject_of(holding.pod)].update(holding.costs)
    for entry, costs in ahead:
        found[entry.subject or UNKNOWN].update(costs)
    return found


def _ends(pod: Pod, charge: Charge, placement_ttl: float, now: float) -> list[float]:
    """When a pod stops costing what it does, though nothing happens."""
    ends = (pod.deletion_deadline, assumption_expires_at(pod, placement_ttl), charge.until)
    return [at for at in ends if at is not None and at >= now]


def _match_entries(
    pods: Sequence[Pod], entries: Mapping[str, Entry], admission: Callable[[Pod], Mapping[str, int]]
) -> tuple[dict[str, Entry], dict[str, Entry]]:
    """The entries of pods, by UID, and those of no pod, by id. Each is one pod's at most."""
    orphans = dict(entries)
    own: dict[str, Entry] = {}
    for pod in sorted(pods, key=lambda pod: pod.uid not in entries):
        found = find_entry(orphans, pod.uid, pod.annotations.get(RESERVATION, ""), partial(admission, pod))
        if found is None and isinstance(pod, BareClaim):
            found = find_claim_entry(orphans, pod.charge_id, pod.uid)
        if found:
            identity, entry = found
            del orphans[identity]
            # a reservation of less than the pod costs doesn't lower its charge
            own[pod.uid] = (
                entry
                if identity == pod.uid or isinstance(pod, BareClaim)
                else replace(entry, amounts=entry.raised_to(admission(pod)))
            )
    return own, orphans


def vanished(before: QuotaAccount, after: QuotaAccount) -> dict[str, Entry]:
    """The admitted entries of `before` that `after` lacks though nothing took their amounts out of used.

    That is what replacing the object does. An undo or a recompute that removes an entry lowers used in the same
    write; a renamed entry exists under its new id.
    """
    fell = {key for key, amount in before.used.items() if after.used.get(key, amount) < amount}
    new = [entry.amounts for key, entry in after.ledger.items() if key not in before.ledger]
    return {
        key: entry
        for key, entry in before.ledger.items()
        if survives(entry, Event.REPLACED)
        and key not in after.ledger
        and fell.isdisjoint(entry.amounts)
        and entry.amounts not in new
    }


def assumption_expires_at(pod: Pod, placement_ttl: float) -> float | None:
    """When the pod's placement stops counting unless it is bound; None if it has none, or is bound."""
    if pod.node_name or not placement_counts(pod, 0, placement_ttl):
        return None
    return int(pod.annotations[TIME][:18]) + placement_ttl


class EntriesInFlight:
    """Ledger entries that count although no pod shows them (docs/spec/quota.md#9): charges of pods that aren't stored
    yet, and allocations being stored. `orphans`: entries whose pod doesn't exist, by ledger id.

    The entry of an allocation counts until the claim's status has the allocation; from then on, the claim counts
    (docs/spec/dra.md#7). `gone` are the ledger ids of pods, and the UIDs of claims, that were there and aren't any
    longer.
    """

    def __init__(self, orphans: Mapping[str, Entry], gone: Container[str]) -> None:
        self._orphans = orphans
        self._gone = gone
        self._ended: dict[str, Entry] = {}
        self._claims: set[str] = set()
        """The UIDs of claims that show an allocation."""
        self._shown: dict[str, Counter[str]] = {}
        """What other claims of the holders show, by the holders' UIDs, and claims of the names by the ids of these."""

    def ended(self, pod: Pod, entry: Entry | None) -> None:
        """A pod doesn't count any longer, or not in this quota."""
        if entry is not None:
            self._ended[pod.uid] = entry

    def show(self, pod: Pod, charge: Charge, amounts: Mapping[str, int]) -> None:
        """Note that a pod or claim is counted.

        Another claim of the same name can exist only after this one is deleted.
        """
        if not isinstance(pod, BareClaim):
            return
        self._shown[pod.charge_id] = Counter(amounts)
        if charge.placed:
            self._claims.add(pod.uid)
            self._shown.setdefault(controller_of(pod.claim), Counter()).update(charge.amounts)

    def events(self) -> Iterator[tuple[str, Entry, Event]]:
        """After `show` was called for all counted pods and claims, yield each remaining entry with its event."""
        for identity, entry in self._orphans.items():
            if entry.is_allocation:
                yield identity, entry, self._of_allocation(entry)
            # the others' pods were there before their entries
            elif entry.state is not State.ADMITTED or identity in self._gone or entry.claim in self._gone:
                yield identity, entry, Event.GONE
            else:
                yield identity, entry, Event.UNSEEN
        for identity, entry in self._ended.items():
            yield identity, entry, self._of_allocation(entry) if entry.is_allocation else Event.GONE

    def _of_allocation(self, entry: Entry) -> Event:
        return Event.SHOWN if entry.claim in self._claims else Event.UNSEEN

    def rest(self, identity: str, amounts: Mapping[str, int]) -> Mapping[str, int]:
        """Return the entry's amounts minus those that other claims of its holder or name already show."""
        shown = self._shown.get(identity)
        return amounts if shown is None else {key: max(0, amount - shown[key]) for key, amount in amounts.items()}
