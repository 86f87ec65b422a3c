"""The amounts of a budget's keys that pods held, with start and end times, from pods and watch events
(docs/spec/time.md#4.3).

Past sums never change: a pod counts from the last sum at the earliest, so a node or tenant can falsify only the time
since.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set

from msgspec import Struct
from msgspec.structs import replace

from hami_webhook.devices.placement_annotations import TIME
from hami_webhook.devices.registry import Vendors
from hami_webhook.kube.objects import Pod
from hami_webhook.quota.account import QuotaAccount
from hami_webhook.quota.held_time import HeldSpan, millis
from hami_webhook.quota.pricing import NODE_LOCK_TIMEOUT, ClusterCapacity, charge_of
from hami_webhook.quota.recompute import LedgerBounds, Recomputed


class PastHoldings(Struct, frozen=True):
    """What pods held of a quota that ended, by UID, since somebody watched (Unix seconds).

    `last`: the holdings that the last recompute found; a watch may not have shown their ends yet. `settled` are the
    UIDs of those whose end was summed: whatever their nodes say later, they hold nothing more. `listed_at`: the time of
    the pod list. Listed pods held their cards until then; unlisted ones began later, or ended.
    """

    ended: Mapping[str, HeldSpan] = {}
    last: Mapping[str, HeldSpan] = {}
    settled: Set[str] = frozenset()
    watched_since: float = 0.0
    listed_at: float = 0.0


def span_of(
    account: QuotaAccount,
    pod: Pod,
    vendors: Vendors,
    capacity: ClusterCapacity,
    now: float,
    placement_ttl: float = NODE_LOCK_TIMEOUT,
) -> HeldSpan | None:
    """What a pod that is placed holds of the budget's keys; None for any other."""
    charge = charge_of(pod, vendors, capacity, now, placement_ttl, account.cards)
    keys = account.time_budget.amounts if account.time_budget is not None else ()
    amounts = account.in_units({key: amount for key, amount in charge.exact.items() if key in keys and amount})
    return HeldSpan(placed_at(pod, now), None, amounts) if charge.placed and amounts else None


def ended_at(pod: Pod, seen: float) -> float:
    """When a pod that was seen to be over at `seen` stopped holding cards: earlier, where its status says so."""
    times = (seen, pod.deletion_deadline, pod.finished)
    return min(time for time in times if time is not None)


def held_spans(
    account: QuotaAccount,
    pods: Iterable[Pod],
    past: PastHoldings,
    vendors: Vendors,
    capacity: ClusterCapacity,
    placement_ttl: float,
) -> dict[str, HeldSpan]:
    """All that was held since the last sum, by UID; of the pods that are listed, and of those that are gone."""
    budget, now = account.time_budget, past.listed_at
    summed_to = budget.state.summed_to if budget is not None and budget.state is not None else millis(now)
    spans: dict[str, HeldSpan] = {}
    for pod in pods:
        if pod.uid in past.settled or not account.covers(pod):
            continue
        known = past.ended.get(pod.uid) or past.last.get(pod.uid)
        end = None
        if pod.ended(now):
            if known is None and pod.terminal and pod.finished is None:
                continue  # nobody knows when
            end = ended_at(pod, now if known is None or known.end is None else known.end)
            if millis(end) <= summed_to:
                continue
        span = known if known is not None and end is not None else None
        span = span or span_of(account, pod, vendors, capacity, now, placement_ttl)
        if span is not None:
            spans[pod.uid] = replace(span, end=end)
    for uid, span in past.ended.items():
        spans.setdefault(uid, span)
    for uid, span in past.last.items():
        spans.setdefault(uid, replace(span, end=now))
    return spans


def placed_at(pod: Pod, now: float) -> float:
    """Since when it has had its cards, by the scheduler's annotation, at the earliest since its creation."""
    written, created = pod.annotations.get(TIME, ""), pod.created or 0.0
    placed = float(int(written[:18])) if written.isdecimal() and written.isascii() else created
    return max(created, placed if placed <= now else created)


def with_sums(
    done: Recomputed,
    pods: Sequence[Pod],
    vendors: Vendors,
    capacity: ClusterCapacity,
    bounds: LedgerBounds,
    past: PastHoldings | None,
) -> Recomputed:
    """The recompute with the sums of the quota's budget, unless nothing else is written and the last ones are young.

    Other writes carry the sums. Only once in a while, the sums need a write of their own. Without `past`, which only
    the leader has, the sums stay.
    """
    before = done.before.time_budget
    if before is None or past is None:
        return done
    spans = held_spans(done.before, pods, past, vendors, capacity, bounds.placement_ttl)
    held = {uid: span for uid, span in spans.items() if span.end is None}
    due = before.next_write(held=bool(held))
    budget = before.summed([*spans.values()], past.listed_at, past.watched_since)
    if due <= past.listed_at or budget.is_news_to(before) or done.before.patch(done.after) is not None:
        done, due = replace(done, after=replace(done.after, time_budget=budget)), budget.next_write()
        settled: Set[str] = past.settled | (spans.keys() - held.keys())
    else:
        settled = past.settled
    there = frozenset(pod.uid for pod in pods if pod.uid in settled)
    return replace(done, held=held, settled=there, wake=due if done.wake is None else min(due, done.wake))
