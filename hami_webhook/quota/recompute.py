"""The full recompute of a quota from its namespace's pods, which is always right (docs/spec/quota.md#9).

It is the only thing that lowers a charge (Q14), and it may: it read the quota first and then the pods, both live. What
left the ledger before that read had been seen by somebody, so the list shows it; what is charged after makes the write
fail (Q2). Nothing is kept from run to run, so whatever was lost or edited is right after the next one (Q3, Q9), in
whatever order things happened (Q15). It must not take quota or pods from a cache: no conflict would show a late one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from hami_webhook.devices.placement_annotations import TIME, placement_counts
from hami_webhook.devices.registry import Vendors
from hami_webhook.dra.holders import BareClaim
from hami_webhook.kube.objects import RESERVATION, Pod
from hami_webhook.quota.accelerator_report import NamespaceUse, with_report
from hami_webhook.quota.account import QuotaAccount
from hami_webhook.quota.excess import Holding, above_hard
from hami_webhook.quota.floors import FloorEntries, cost_at_admission, floor_id
from hami_webhook.quota.in_flight import AllocationsInFlight, expected_entries
from hami_webhook.quota.ledger import Entry, State, find_claim_entry, find_entry, update_id
from hami_webhook.quota.pricing import NODE_LOCK_TIMEOUT, CapacityLister, Charge, charge_of, overrun


class LedgerBounds(Struct, frozen=True):
    """For how many seconds an entry without a pod counts, and a placement that isn't bound; how many entries there are.

    `most` is that of the entries of pods in flight, as `is_full` takes it.
    """

    ttl: float = 45.0
    placement_ttl: float = NODE_LOCK_TIMEOUT
    most: int = 1000


class Recomputed(Struct, frozen=True):
    """The account before and after, and what is worth an event: pods with sentences.

    `overruns` are pods that another scheduler gave more than admission charged, with the keys that are above hard now.
    `confirmed` are the ids of entries whose pod exists, `expired` is how many went because no pod came, and `wake` is
    when the result is next another one though nothing happens (Unix seconds). `took` is how many seconds its last
    attempt needed, from the list of pods to the write. `excess` are pods without which used were within hard.
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


def recompute(
    account: QuotaAccount,
    pods: Iterable[Pod],
    vendors: Vendors,
    capacity: CapacityLister,
    now: float,
    bounds: LedgerBounds,
    lost: Mapping[str, Entry] | None = None,
    gone: Container[str] = (),
) -> Recomputed:
    """The account as the namespace's pods make it at `now`.

    `lost` are entries that were wiped from the annotation and count until their time is up. `gone` are the ledger
    ids of pods that existed and don't any longer: nobody comes for their entries.
    """
    pods = list(pods)
    # the quota's own ledger wins: an entry that stands there again isn't lost
    entries = {**(lost or {}), **account.ledger}
    shared = {key: entry for key, entry in entries.items() if entry.state in (State.FLOOR, State.UPDATING)}
    single = {key: entry for key, entry in entries.items() if key not in shared}
    used = Counter(dict.fromkeys(account.hard, 0))
    ledger: dict[str, Entry] = {}
    problems: list[tuple[Pod, tuple[str, ...]]] = []
    wakes: list[float] = []
    counted: list[tuple[Pod, Charge]] = []
    uses: dict[str, NamespaceUse] = {}
    held: list[Holding] = []
    own, orphans = _match_entries(
        pods, single, lambda pod: cost_at_admission(account, pod, vendors, capacity).only(account.hard)
    )
    allocations = AllocationsInFlight(orphans)
    floors = FloorEntries(account, vendors, bounds.most)
    # pods with an entry first: a floor entry that is made now has what such a pod was charged, not today's floor
    for pod in sorted(pods, key=lambda pod: pod.uid not in own) if own else pods:
        if pod.ended(now) or not account.covers(pod):
            allocations.add(pod.uid, own.get(pod.uid))
            continue
        charge = charge_of(pod, vendors, capacity, now, bounds.placement_ttl, account.cards)
        if charge.problems:
            problems.append((pod, charge.problems))
        counted.append((pod, charge))
        entry = own.get(pod.uid)
        whole = partial(charge_of, pod, vendors, capacity, now, bounds.placement_ttl)
        if pod.queued:
            amounts, kept = _while_queued(account.hard, entry, now, bounds)
        else:
            cost = floors.cost(pod, charge, entry, whole, int(now))
            amounts, kept = _charge_and_entry(charge, cost, account.hard, entry, now, bounds)
        if kept is not None:
            ledger[pod.uid] = kept
            wakes += [kept.time + bounds.ttl] if kept.state is not State.WAITING else []
        change = shared.get(update_id(pod.uid))
        if change is not None and not _is_done(change, pod, vendors) and not change.expired(now, bounds.ttl):
            ledger[update_id(pod.uid)] = change = replace(change, amounts=change.only(account.hard))
            amounts = {key: amounts.get(key, 0) + change.amounts.get(key, 0) for key in {*amounts, *change.amounts}}
            wakes.append(change.time + bounds.ttl)
        allocations.show(pod, amounts)
        costs = account.counted(amounts)
        used.update(costs)
        held.append(Holding(pod, costs, allowed=entry is not None))
        if account.quota.namespaces is not None:
            uses.setdefault(pod.namespace, NamespaceUse()).add(costs, waiting=not charge.placed)
        if amounts:
            wakes += _ends(pod, charge, bounds.placement_ttl, now)
    expected, expired = expected_entries(orphans, gone, now, bounds.ttl)
    expected |= allocations.unshown(counted, now, bounds.ttl)
    for key, entry in expected.items():
        ledger[key] = replace(entry, amounts=entry.only(account.hard))
        wakes.append(entry.time + bounds.ttl)
        used.update(account.counted(allocations.rest(key, ledger[key].amounts)))
    ledger |= floors.kept(lambda entry: entry.expired(now, bounds.ttl))
    wakes += [entry.time + bounds.ttl for key, entry in ledger.items() if floors.is_unused(key)]
    after = replace(account, used=dict(used), ledger=ledger, quota=with_report(account, used, uses, now))
    confirmed = frozenset(single.keys() - orphans.keys())
    over = {key for key, limit in account.hard.items() if used[key] > limit}
    larger = ((pod, overrun(pod, charge, over, vendors, capacity)) for pod, charge in counted) if over else ()
    overruns = [(pod, tuple(keys)) for pod, keys in larger if keys]
    excess = above_hard({key: used[key] - account.hard[key] for key in over}, held)
    return Recomputed(account, after, problems, confirmed, expired, min(wakes, default=None), overruns, excess=excess)


def _ends(pod: Pod, charge: Charge, placement_ttl: float, now: float) -> list[float]:
    """When a pod stops costing what it does, though nothing happens."""
    ends = (pod.deletion_deadline, assumption_expires_at(pod, placement_ttl), charge.until)
    return [at for at in ends if at is not None and at >= now]


def _is_done(change: Entry, pod: Pod, vendors: Vendors) -> bool:
    """Whether the pod shows the update that an entry is of, or can't be updated so any longer."""
    return bool(pod.node_name) or change.floor == floor_id(pod, vendors)


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

    That is what replacing the object does. An undo, and a recompute that drops an entry, lower used in the same write;
    an entry that got another id is there under that.
    """
    fell = {key for key, amount in before.used.items() if after.used.get(key, amount) < amount}
    new = [entry.amounts for key, entry in after.ledger.items() if key not in before.ledger]
    return {
        key: entry
        for key, entry in before.ledger.items()
        if entry.state is State.ADMITTED
        and key not in after.ledger
        and fell.isdisjoint(entry.amounts)
        and entry.amounts not in new
    }


def _charge_and_entry(
    charge: Charge, cost: Charge, hard: Mapping[str, int], entry: Entry | None, now: float, bounds: LedgerBounds
) -> tuple[Mapping[str, int], Entry | None]:
    """What a live pod is charged, exact, and the entry that stays for it (the table of docs/spec/quota.md#6).

    `charge` is what it holds, or would be charged today; `cost` is what it costs as floor entries have it.
    """
    amounts = cost.only(hard)
    kept = entry.only(hard) if entry is not None else {}
    if entry is not None and entry.state is State.PLACING:
        actual = {key: amount for key, amount in (entry.actual or {}).items() if key in hard}
        # a key that joined hard after the commit isn't in the entry
        placed = charge.only(hard)
        shown = charge.placed and all(placed.get(key, 0) == actual.get(key, 0) for key in {*kept, *actual})
        if not shown and not entry.expired(now, bounds.ttl):
            larger = {key: max(kept.get(key, 0), amounts.get(key, 0)) for key in {*kept, *amounts}}
            return larger, replace(entry, amounts=kept, actual=actual)
    elif entry is not None and entry.state is State.WAITING and not charge.placed and not charge.derivable:
        kept = {**amounts, **kept}
        return kept, Entry(State.WAITING, entry.time, kept)
    return amounts, None


def _while_queued(
    hard: Mapping[str, int], entry: Entry | None, now: float, bounds: LedgerBounds
) -> tuple[Mapping[str, int], Entry | None]:
    """The same of a pod that waits for quota: nothing, unless it is charged and its gate is about to go."""
    if entry is None or entry.expired(now, bounds.ttl):
        return {}, None
    amounts = entry.only(hard)
    return amounts, replace(entry, amounts=amounts)


def assumption_expires_at(pod: Pod, placement_ttl: float) -> float | None:
    """When the pod's placement stops counting unless it is bound; None if it has none, or is bound."""
    if pod.node_name or not placement_counts(pod, 0, placement_ttl):
        return None
    return int(pod.annotations[TIME][:18]) + placement_ttl
