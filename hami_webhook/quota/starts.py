"""Compute the latest starts of pods that wait for quota, and which pods may overtake them until then
(docs/spec/time.md#2, #3).

A start follows from the queue's order, the free amounts, and the latest ends of running pods. A start is a promise.
Every quota of the pod reserves room for it against later turns, and assumes that earlier turns hold theirs from now
until their latest ends. So ends that come earlier, and later pods, can only make the start earlier. If a quota can't
reserve room in this way, the pod gets no promise. Pure: time, turns and held amounts are arguments. Each ending
amount is processed only once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from heapq import heapify, heappop, heappush
from math import inf

from msgspec import structs

from hami_webhook.kube.objects import format_time
from hami_webhook.quota.queue_order import (
    OVERTAKING,
    Demand,
    QueueDecision,
    QueuedPod,
    QueuePosition,
    QueueRoom,
    Start,
)
from hami_webhook.quota.windows import FOREVER

_Key = tuple[str, str]
"""A quota, and a key of it."""

BEFORE_IT = "turns before it have no end"
SHARES = "users take turns by what they hold"
LENDS = "teams lend each other room"
REFUSED = "charges of its namespace were refused just now"
NOT_KEPT = "{} reserves no room for it until {} has room"
PASSED = "others may pass it for a while, by the overtaking of {}"
CHANGES = "limits of {} change at {}"
NO_ORDER = "{} doesn't queue, so nothing is kept there"


def with_starts(
    decision: QueueDecision,
    rooms: Mapping[str, QueueRoom],
    now: float,
    late: Set[str] = frozenset(),
    promised: Mapping[str, float] = {},
) -> QueueDecision:
    """Return the decision with the waiting pods' starts. Also release pods that end before they could delay a
    promised start.

    `late`: UIDs of turns that are postponed for now. `promised`: earlier promises by UID; they stay valid even if
    they can't be computed any more.
    """
    if not any(room.timed for room in rooms.values()):
        return decision
    profile = _Profile(rooms, decision.released, now)
    waiting = list(decision.waiting)
    for each in waiting:
        if each.obstacle.refused or each.obstacle.waits_for_time or each.pod.uid in late:  # it comes back before others
            profile.reserve(each.pod.demand)
    standings = []
    for each in waiting:
        if not (each.obstacle.lets_all_pass or each.obstacle.refused):
            start, before = profile.start(each, late), promised.get(each.pod.uid, -inf)
            if start is not None and before >= now and (start.at is None or before < start.at):
                start = Start(before)
            standings.append(structs.replace(each, start=start))
        else:
            standings.append(each)
    passing = _passing(standings, rooms, decision.released, now)
    if not passing:
        return structs.replace(decision, waiting=standings)
    return structs.replace(
        decision,
        released=[*decision.released, *passing.values()],
        waiting=[each for each in standings if each.pod.uid not in passing],
    )


class _Profile:
    """What quotas leave from the latest start of the turns so far on, while these come in their order."""

    def __init__(self, rooms: Mapping[str, QueueRoom], released: Iterable[QueuedPod], now: float) -> None:
        self._rooms = rooms
        self._now = now
        self._shared = any(room.part_of for room in rooms.values())
        self._lends = any(room.own is not None for room in rooms.values())
        self._front: dict[str, float] = dict.fromkeys(rooms, now)
        """The latest start so far of a turn in each quota; ends up to then are in `_free`."""
        self._free: dict[_Key, float] = {}
        self._ends: dict[str, list[tuple[float, str, int]]] = {}
        """By quota when something ends, which key it holds and how much: a heap."""
        self._ever: dict[_Key, float] = {}
        """What is free once all that has an end has ended."""
        for name, room in rooms.items():
            for key, free in room.free.items():
                self._free[name, key] = self._ever[name, key] = free
            self._ends[name] = [(end, key, amount) for end, key, amount in room.held or () if end < inf]
            heapify(self._ends[name])
            for _, key, amount in self._ends[name]:
                if (name, key) in self._ever:
                    self._ever[name, key] += amount
        self._freed = dict(self._ever)
        """The same before any turn."""
        for pod in released:
            self._take(pod.demand, now + (inf if pod.runtime is None else pod.runtime))

    def reserve(self, demand: Demand) -> None:
        """Leave room for a turn that may take it at any time, and keep it."""
        self._take(demand, inf)

    def start(self, standing: QueuePosition, late: Set[str]) -> Start | None:
        """The start of the next turn; None if no quota of it limits runtimes."""
        pod = standing.pod
        names = [name for name, _ in pod.demand if name in self._rooms]
        if pod.uid in late:
            return Start(None, REFUSED)
        why = self._what_is_not_kept(standing, names)
        at = self._latest(pod.demand, names) if not why else inf
        if at < inf and (why := self._what_changes(pod, names, at)):
            for name in names:
                self._advance(name, to=at)
            at = inf
        if at == inf:
            self.reserve(pod.demand)
            for name in names:  # once its narrower quotas have room, it stops those after it in wider ones
                if (order := self._rooms[name].order) is not None and order.strict:
                    self._front[name] = inf
        else:
            for name in names:
                self._advance(name, to=at)
            self._take(pod.demand, at + (inf if pod.runtime is None else pod.runtime))
        if not any(self._rooms[name].timed for name in names):
            return None
        return Start(None, why or self._what_is_endless(pod.demand)) if at == inf else Start(at)

    def _what_is_not_kept(self, standing: QueuePosition, names: Sequence[str]) -> str:
        """Why room in a quota of a turn isn't kept from all later ones; empty if it is in all of them."""
        rooms = self._rooms
        narrowest = min(_in_the_way(standing), key=lambda name: (rooms[name].namespaces, name))
        longest = min((room.order.overtaking for name in names if (room := rooms[name]).order), default=OVERTAKING)
        if self._shared:
            return SHARES
        for name in names:
            room = rooms[name]
            if room.order is None:
                return NO_ORDER.format(name)
            if room.own is not None or (room.common and self._lends):
                return LENDS
            if room.namespaces > rooms[narrowest].namespaces:
                return NOT_KEPT.format(name, narrowest)
            if not room.order.strict and self._now - standing.pod.created < longest:
                return PASSED.format(name)
        return ""

    def _what_changes(self, pod: QueuedPod, names: Sequence[str], at: float) -> str:
        """The quota whose limits change before a pod starts then, or fall before its end; empty if there is none."""
        end = inf if pod.runtime is None else at + pod.runtime
        for name in names:
            schedule = self._rooms[name].schedule
            if schedule is None:
                continue
            change = schedule.at(self._now).until
            if at >= change:
                return CHANGES.format(name, format_time(change))
            lowest = schedule.lowest(self._now, end)
            for key, hard in self._rooms[name].hard.items():
                if key in lowest and lowest[key].amount < hard:
                    stretch = lowest[key].stretch or schedule.first_below(self._now, key, hard)
                    return CHANGES.format(name, "some time" if stretch is None else format_time(stretch.begin))
        return ""

    def _latest(self, demand: Demand, names: Sequence[str]) -> float:
        """From when on all quotas of a demand have room for it; infinite if that isn't known."""
        wanted = [(name, key, amount) for name, amounts in demand if name in self._rooms for key, amount in amounts]
        if any(amount > self._ever.get((name, key), inf) for name, key, amount in wanted):
            return inf
        at = max([self._front[name] for name in names], default=self._now)
        if at == inf:
            return inf
        for name, key, amount in wanted:
            while self._free.get((name, key), inf) < amount:  # it ends before this turn, so before all that come
                at = max(at, self._next_end(name))
        return at if at <= FOREVER else inf  # many turns of 68 years each

    def _next_end(self, name: str) -> float:
        """The next time at which something ends in a quota, which is free from then on."""
        end, key, amount = heappop(self._ends[name])
        if (name, key) in self._free:
            self._free[name, key] += amount
        return end

    def _advance(self, name: str, to: float) -> None:
        """What ends up to then in a quota is free for all turns that come."""
        self._front[name] = to
        while self._ends[name] and self._ends[name][0][0] <= to:
            self._next_end(name)

    def _take(self, demand: Demand, until: float) -> None:
        for name, amounts in demand:
            for key, amount in amounts:
                if (name, key) in self._free:
                    self._free[name, key] -= amount
                    if until < inf:
                        heappush(self._ends[name], (until, key, amount))
                    else:
                        self._ever[name, key] -= amount

    def _what_is_endless(self, demand: Demand) -> str:
        """Why quotas have no room at any known time."""
        for name, amounts in demand:
            if name in self._rooms and any(amount > self._freed.get((name, key), inf) for key, amount in amounts):
                return self._rooms[name].endless or f"what {name} counts has no end"
        return BEFORE_IT


def _passing(
    standings: Sequence[QueuePosition], rooms: Mapping[str, QueueRoom], released: Iterable[QueuedPod], now: float
) -> dict[str, QueuedPod]:
    """Those that have room now and end before the first start that was promised to anybody before them, by UID.

    In quotas narrower than those in which one before them is stopped, what that costs stays free for it.
    None pass in quotas that keep room for a pod before them whose start isn't known.
    """
    free = {(name, key): amount for name, room in rooms.items() for key, amount in room.free.items()}
    for pod in released:
        _subtract(free, pod.demand)
    needed_at = dict.fromkeys(rooms, inf)
    """By quota when what is kept in it is needed first; minus infinity where that isn't known."""
    passing: dict[str, QueuedPod] = {}

    def fits(demand: Demand, end: float) -> bool:
        return all(
            free.get((name, key), inf) - (rooms[name].reserved(key, now, end) if name in rooms else 0) >= amount
            for name, amounts in demand
            for key, amount in amounts
        )

    for each in standings:
        pod, names = each.pod, [name for name, _ in each.pod.demand if name in rooms]
        if each.obstacle.lets_all_pass or each.obstacle.refused:
            continue
        end = inf if pod.runtime is None else now + pod.runtime
        if each.start is not None and end <= min(needed_at[name] for name in names) and fits(pod.demand, end):
            passing[pod.uid] = pod
            _subtract(free, pod.demand)
            continue
        narrowest = min(rooms[name].namespaces for name in _in_the_way(each))
        at = -inf if each.start is None or each.start.at is None else each.start.at
        for name, amounts in pod.demand:
            width = rooms[name].namespaces if name in rooms else inf
            if width < narrowest:  # what it lacks there later would be kept for it in no wider quota
                _subtract(free, ((name, amounts),))
            elif width == narrowest:
                needed_at[name] = min(needed_at[name], at)
    return passing


def _in_the_way(standing: QueuePosition) -> set[str]:
    """The quotas in which a turn is stopped."""
    found = {lack.quota for lack in standing.obstacle.lacks}
    return found | {standing.obstacle.closed} if standing.obstacle.closed else found


def _subtract(free: dict[_Key, int], demand: Demand) -> None:
    for name, amounts in demand:
        for key, amount in amounts:
            if (name, key) in free:
                free[name, key] -= amount
