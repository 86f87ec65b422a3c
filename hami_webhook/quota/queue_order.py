"""Which of the pods that wait for quota are released next: by priority, then age (docs/spec/queues.md#3).

Pure: the time and what the quotas leave come in. While a pod doesn't fit, later pods may overtake it for a time.
Then its room is reserved, so that it starts when enough pods end. Nothing is charged here, and nobody is refused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence, Set
from heapq import heapify, heappop, heapreplace
from math import inf

from msgspec import Struct

from hami_webhook.quota.windows import LimitSchedule, LimitStretch

OVERTAKING = 600.0
"""Seconds for which a pod that doesn't fit lets later ones pass, unless its quota says otherwise."""

_MOST_NAMED = 3
"""For how many pods room of one key is said to be kept: tenants may have thousands there."""

OF_SUBJECT = -1
"""In the place of a number of namespaces: of one subject, which is narrower than any quota."""

Demand = tuple[tuple[str, tuple[tuple[str, int], ...]], ...]
"""What a pod costs: by the label of each quota that covers it and counts something of it, the amounts by key."""


class QueueOrder(Struct, frozen=True):
    """How the pods of a quota pass each other: not at all where `strict`, else for `overtaking` seconds."""

    strict: bool = False
    overtaking: float = OVERTAKING


class QueueRoom(Struct, frozen=True):
    """A quota by key, in its units: the limit, and what of it is free, below 0 where used is above it.

    `order`: None for a quota that doesn't queue. Pods wait for its room as well, but it doesn't order them.
    `namespaces` is how many an AcceleratorQuota covers, 0 for a ResourceQuota. `own` is what is left of its nominal,
    None for one without. `spent` are the keys whose budget is spent, with what is said of it. `part_of`: for the limit
    of a `subject`, its quota (then `namespaces` is `OF_SUBJECT`); both are empty otherwise. A subject has several
    limits if its pods have different groups.
    """

    hard: Mapping[str, int]
    free: Mapping[str, int]
    order: QueueOrder | None = None
    namespaces: int = 0
    own: Mapping[str, int] | None = None
    spent: Mapping[str, str] = {}
    part_of: str = ""
    subject: str = ""
    held: Sequence[tuple[float, str, int]] | None = None
    """When what pods hold ends at the latest (Unix seconds), by key and amount; None where nobody looked. What isn't
    here, nor free, has no end."""
    timed: bool = False
    """Whether it limits runtimes, so that those that wait for it are given a start (docs/spec/time.md#2)."""
    endless: str = ""
    """What holds room without an end, in words."""
    schedule: LimitSchedule | None = None
    """When other limits hold; None if they never change."""
    unsure: bool = False
    """Whether something that had an end holds room beyond it, or hasn't started: promises of before don't hold."""

    def ever(self, key: str, now: float) -> float:
        """The highest limit of a key, now or later; infinite for one that it doesn't limit."""
        return self.hard.get(key, inf) if self.schedule is None else self.schedule.ever(now).get(key, inf)

    def reserved(self, key: str, now: float, end: float) -> int:
        """What of a key's limit isn't for those that hold it until `end`, as a lower limit comes before."""
        if self.schedule is None or key not in self.hard:
            return 0
        return max(0, self.hard[key] - self.schedule.lowest(now, end)[key].amount)

    @property
    def common(self) -> bool:
        """Whether it is one that teams, which have a nominal, may have in common."""
        return self.namespaces > 0 and self.own is None


class QueuedPod(Struct, frozen=True, gc=False):
    """A pod that waits for quota. `created`: Unix seconds since which only our gate holds it."""

    uid: str
    key: str
    """`namespace/name`."""
    priority: int
    created: float
    demand: Demand
    pods: int = 1
    """How many it stands for: those of a group take their turn as one."""
    beside: str = ""
    """The UID of the pod right after which its turn is."""
    runtime: float | None = None
    """For how many seconds from its release on it holds what it costs at most; None if that has no end."""

    @property
    def namespace(self) -> str:
        return self.key.partition("/")[0]

    @property
    def turn(self) -> tuple[int, float, str, str]:
        """Return the sort key of the pod: pods with smaller keys have their turn earlier."""
        return -self.priority, self.created, self.beside or self.uid, self.uid


class Shortfall(Struct, frozen=True, gc=False):
    """A key of which a quota has less than the pod costs; `free` may be below 0."""

    quota: str
    key: str
    requested: int
    free: int
    hard: int


class OtherLimit(Struct, frozen=True, gc=False):
    """A limit of a quota that a pod doesn't fit, as another one holds later, or holds now.

    `comes`: it is a lower one that comes before the pod's end. `stretch` is when it holds; None where that isn't near.
    """

    quota: str
    key: str
    requested: int
    hard: int
    comes: bool
    stretch: LimitStretch | None


class PendingReason(Struct, frozen=True, gc=False):
    """Why a pod isn't released: what it lacks, and for which pods before it room is kept (their UIDs).

    `closed`: the strict quota in which an earlier pod waits. `never`: the cost exceeds a limit. `incomplete`: what
    its pod group lacks to take a turn. `refused`: why its charge was refused, though there was room. `spent`: the
    sentence that a quota's budget is spent until its next period. `window`: the limit of another time that it exceeds.
    """

    lacks: tuple[Shortfall, ...] = ()
    kept_for: tuple[str, ...] = ()
    closed: str = ""
    never: bool = False
    incomplete: str = ""
    refused: str = ""
    spent: str = ""
    window: OtherLimit | None = None

    @property
    def lets_all_pass(self) -> bool:
        """Return whether the pod can't start even if all running pods end; then all other pods may overtake it."""
        return self.never or bool(self.spent) or self.window is not None

    @property
    def waits_for_time(self) -> bool:
        """Return whether a period or a window has to pass first, so that it helps nobody to evict others."""
        return bool(self.spent) or self.window is not None


class Start(Struct, frozen=True, gc=False):
    """When a pod that waits starts at the latest, in Unix seconds; None where that isn't known, and why."""

    at: float | None
    why: str = ""


class QueuePosition(Struct, frozen=True, gc=False):
    """The position of a waiting pod: how many pods wait before it in one of its quotas, and why it waits.

    `own`: its cost fits into the free part of its quotas' nominal.
    """

    pod: QueuedPod
    ahead: int
    obstacle: PendingReason
    own: bool = False
    start: Start | None = None
    """None where its quotas limit no runtime."""


class QueueDecision(Struct, frozen=True):
    """The pods to release, in order, and the positions of all other pods, in order.

    `left` is what they leave of each quota's free amounts, `closed` are the strict quotas in which one of them waits.
    """

    released: Sequence[QueuedPod]
    waiting: Sequence[QueuePosition]
    left: Mapping[str, dict[str, int]] = {}
    closed: Set[str] = frozenset()


def decide(
    pods: Iterable[QueuedPod],
    rooms: Mapping[str, QueueRoom],
    now: float,
    reclaimed_for: Set[str] = frozenset(),
    last: Set[str] = frozenset(),
    promised: Mapping[str, float] = {},
) -> QueueDecision:
    """Decide which pods to release at `now`. Quotas that `rooms` lacks limit nothing.

    Turns go first to pods in `reclaimed_for`, then to pods within their nominal, then to others, and last to pods in
    `last`. Of pods that have waited since the same second, those come first whose start (Unix seconds, by UID) is
    `promised` for earlier: creationTimestamps don't say which came later. In their turns pods take what is free. A
    pod that doesn't fit closes its strict quotas to later pods. After the overtaking time of its quotas, its cost is
    reserved: in the narrowest full quota, and in those that cover no more namespaces. In wider quotas, room is
    reserved only once the narrower ones have room. Otherwise a team with a full quota would keep shared cards idle.
    For a pod within its nominal, the cost is reserved at once against pods beyond theirs. A pod that costs more than
    a limit closes no quota, and no room is reserved for it, because it can never start.
    """
    deciding = _Deciding(rooms, now)
    released: list[QueuedPod] = []
    waiting: list[QueuePosition] = []

    def take_turns(turns: Iterable[QueuedPod], *, own: bool) -> None:
        for pod in turns:
            request = deciding.request(pod)
            obstacle = request.obstacle or deciding.obstacle(request)
            if obstacle is None:
                deciding.take(request)
                released.append(pod)
            else:
                waiting.append(deciding.wait(pod, request, obstacle, own=own))

    def turn(pod: QueuedPod) -> tuple[object, ...]:
        priority, created, first, uid = pod.turn
        return pod.uid not in reclaimed_for, priority, created, promised.get(first, inf), first, uid

    in_turn = sorted(pods, key=turn)
    if any(room.part_of for room in rooms.values()):
        in_turn = _by_subject(in_turn, rooms, reclaimed_for)
    within, beyond = _by_nominal([pod for pod in in_turn if pod.uid not in last], rooms)
    take_turns(within, own=True)
    deciding.keep_in_common([standing.pod for standing in waiting])
    take_turns(beyond, own=False)
    take_turns([pod for pod in in_turn if pod.uid in last], own=False)
    return QueueDecision(released, waiting, deciding.free, deciding.closed)


def _by_nominal(
    pods: Iterable[QueuedPod], rooms: Mapping[str, QueueRoom]
) -> tuple[Sequence[QueuedPod], Sequence[QueuedPod]]:
    """The pods that are within the nominal of all their quotas that have one, in turn, and all others."""
    left = {name: dict(room.own) for name, room in rooms.items() if room.own is not None}
    if not left:
        return (), [*pods]
    within, beyond = [], []
    for pod in pods:
        amounts = [
            (left[name], key, amount)
            for name, costs in pod.demand
            if name in left
            for key, amount in costs
            if key in left[name]
        ]
        if amounts and all(amount <= own[key] for own, key, amount in amounts):
            for own, key, amount in amounts:
                own[key] -= amount
            within.append(pod)
        else:
            beyond.append(pod)
    return within, beyond


def _by_subject(pods: Sequence[QueuedPod], rooms: Mapping[str, QueueRoom], reclaimed_for: Set[str]) -> list[QueuedPod]:
    """The pods in turn, where subjects of a quota share it: of one priority, the subject that uses least is next.

    What a subject uses is the largest part of a limit, with what its pods before this one cost. Pods of no subject keep
    their places. A turn goes to a subject's own first pod.
    """
    places: dict[tuple[str, int, bool], list[int]] = {}
    limited_by: list[str] = []
    for index, pod in enumerate(pods):
        name = next((name for name, _ in pod.demand if name in rooms and rooms[name].part_of), "")
        limited_by.append(name)
        if name:
            place = rooms[name].part_of, pod.priority, pod.uid in reclaimed_for
            places.setdefault(place, []).append(index)
    ordered = list(pods)
    used: dict[tuple[str, str], float] = {}
    for room in rooms.values():
        if room.part_of:
            subject = room.part_of, room.subject
            used[subject] = max(used.get(subject, 0.0), _share(room))
    for (part_of, _, _), indices in places.items():
        waiting: dict[str, deque[tuple[QueuedPod, str]]] = {}
        for index in indices:
            name = limited_by[index]
            waiting.setdefault(rooms[name].subject, deque()).append((pods[index], name))
        turns = [(used[part_of, subject], each[0][0].turn, subject) for subject, each in waiting.items()]
        heapify(turns)
        for index in indices:
            _, _, name = turns[0]
            ordered[index], limit = waiting[name].popleft()
            costs, hard = dict(dict(ordered[index].demand)[limit]), rooms[limit].hard
            used[part_of, name] += max((cost / (hard.get(key) or 1) for key, cost in costs.items()), default=0.0)
            if waiting[name]:
                heapreplace(turns, (used[part_of, name], waiting[name][0][0].turn, name))
            else:
                heappop(turns)
    return ordered


def _share(room: QueueRoom) -> float:
    """The largest part of a limit that is used."""
    hard = room.hard
    return max(((hard[key] - left) / hard[key] for key, left in room.free.items() if hard.get(key)), default=0.0)


class _Quotas:
    """What pods that the same quotas cover have in common while their turns come."""

    __slots__ = ("longest", "names", "strict")

    def __init__(self, names: Iterable[str], rooms: Mapping[str, QueueRoom]) -> None:
        self.names = [name for name in names if name in rooms]
        orders = [(name, order) for name in self.names if (order := rooms[name].order) is not None]
        self.strict = [name for name, order in orders if order.strict]
        self.longest = min((order.overtaking for _, order in orders), default=OVERTAKING)


class _Request:
    """What pods with one demand have in common.

    `obstacle`: what stands in the way; room only shrinks, so it does for all that come after. `keeps`: there is room to
    be kept for one more of them.
    """

    __slots__ = ("demand", "end", "keeps", "obstacle", "quotas")

    def __init__(self, demand: Demand, quotas: _Quotas, end: float) -> None:
        self.demand = demand
        self.end = end
        self.quotas = quotas
        self.obstacle: PendingReason | None = None
        self.keeps = True


class _Deciding:
    """What is left of the rooms while pods have their turns."""

    def __init__(self, rooms: Mapping[str, QueueRoom], now: float) -> None:
        self._rooms = rooms
        self._now = now
        self.free = {name: dict(room.free) for name, room in rooms.items()}
        self.closed: set[str] = set()
        self._kept_for: dict[tuple[str, str], list[str]] = {}
        """For which pods room of a key is kept, by quota and key: the first of them."""
        self._ahead = dict.fromkeys(rooms, 0)
        self._common = {name for name, room in rooms.items() if room.common}
        self._requests: dict[tuple[int, float], _Request] = {}
        self._scheduled = {name for name, room in rooms.items() if room.schedule is not None}
        self._quotas: dict[tuple[str, ...], _Quotas] = {}

    def request(self, pod: QueuedPod) -> _Request:
        """What is known of pods with this very demand: to compare amounts for each of them would take longer.

        Where limits change, those that end at the same time have it in common.
        """
        demand, end = pod.demand, inf
        if self._scheduled and pod.runtime is not None and any(name in self._scheduled for name, _ in demand):
            end = self._now + pod.runtime
        found = self._requests.get((id(demand), end))
        if found is None:
            names = tuple([name for name, _ in demand])
            quotas = self._quotas.get(names)
            if quotas is None:
                quotas = self._quotas[names] = _Quotas(names, self._rooms)
            found = self._requests[id(demand), end] = _Request(demand, quotas, end)
        return found

    def obstacle(self, request: _Request) -> PendingReason | None:
        """Why pods with this request can't be released; None if the next one can."""
        spent = self._spent(request)
        if spent:
            request.obstacle = PendingReason(spent=spent)
            return request.obstacle
        other = self._other_limit(request) if self._scheduled else None
        if other is not None:
            request.obstacle = PendingReason(window=other)
            return request.obstacle
        lacks: list[Shortfall] = []
        never = False
        for name, key, amount in self._amounts(request):
            free, room = self.free[name].get(key, inf), self._rooms[name]
            most = room.hard.get(key, inf) if room.schedule is None else room.ever(key, self._now)
            if amount > most and not never:
                lacks, never = [], True
            if amount > most if never else amount > free:
                hard = most if never else room.hard.get(key, inf)
                shown = (0 if each == inf else int(each) for each in (free, hard))
                lacks.append(Shortfall(name, key, amount, *shown))
        closed = "" if never else next((name for name in request.quotas.names if name in self.closed), "")
        if lacks or closed:
            kept = () if never else [uid for each in lacks for uid in self._kept_for.get((each.quota, each.key), ())]
            request.obstacle = PendingReason(tuple(lacks), tuple(dict.fromkeys(kept)), closed, never)
        return request.obstacle

    def _spent(self, request: _Request) -> str:
        """That the budget of one of its quotas is spent; empty if none is."""
        for name in request.quotas.names:
            if self._rooms[name].spent:
                for quota, key, _ in self._amounts(request):
                    if quota == name and key in self._rooms[name].spent:
                        return self._rooms[name].spent[key]
        return ""

    def _other_limit(self, request: _Request) -> OtherLimit | None:
        """The limit of a window that stands in the way: one that comes before the end, or that a later one exceeds."""
        for name, key, amount in self._amounts(request):
            room = self._rooms[name]
            if room.schedule is None or key not in room.hard or amount > room.ever(key, self._now):
                continue
            hard = room.hard[key]
            lowest = room.schedule.lowest(self._now, request.end)[key]
            if lowest.amount < hard and amount > self.free[name].get(key, inf) - (hard - lowest.amount):
                stretch = lowest.stretch or room.schedule.first_below(self._now, key, hard)
                return OtherLimit(name, key, amount, lowest.amount, True, stretch)
            if amount > hard:
                stretch = room.schedule.first_from(self._now, key, amount)
                return OtherLimit(name, key, amount, hard, False, stretch)
        return None

    def _amounts(self, request: _Request) -> Iterator[tuple[str, str, int]]:
        for name, amounts in request.demand:
            if name in self._rooms:
                for key, amount in amounts:
                    yield name, key, amount

    def take(self, request: _Request) -> None:
        """Take what a request costs out of what is free."""
        for name, key, amount in self._amounts(request):
            if key in self.free[name]:
                self.free[name][key] -= amount

    def wait(self, pod: QueuedPod, request: _Request, obstacle: PendingReason, *, own: bool) -> QueuePosition:
        """Let a pod wait, and keep from those after it what its quotas say.

        In common quotas nothing is kept from pods within the nominal of other teams: what is theirs is enough for all.
        """
        before, quotas = 0, request.quotas
        for name in quotas.names:
            here = self._ahead[name]
            if here > before:
                before = here
            if not obstacle.lets_all_pass:
                self._ahead[name] = here + pod.pods
        if not obstacle.lets_all_pass:
            if quotas.strict:
                self._close(request, obstacle)
            if request.keeps and self._now - pod.created >= quotas.longest:
                request.keeps = self._keep(pod, request, but=self._common if own else ())
        return QueuePosition(pod, before, obstacle, own)

    def keep_in_common(self, pods: Iterable[QueuedPod]) -> None:
        """Keep what these pods, which wait, cost their common quotas, from all that come after."""
        for pod in pods:
            request = self.request(pod)
            if request.obstacle is None or not request.obstacle.lets_all_pass:
                self._keep(pod, request, but=self._rooms.keys() - self._common)
        self._requests.clear()  # room in common quotas is less by now

    def _close(self, request: _Request, obstacle: PendingReason) -> None:
        """Close the strict quotas that cover no more namespaces than the narrowest one that stands in the way."""
        rooms = self._rooms
        in_the_way = {each.quota for each in obstacle.lacks} | ({obstacle.closed} if obstacle.closed else set())
        narrowest = min(rooms[name].namespaces for name in in_the_way)
        self.closed.update(name for name in request.quotas.strict if rooms[name].namespaces <= narrowest)

    def _keep(self, pod: QueuedPod, request: _Request, *, but: Container[str]) -> bool:
        """Keep what a pod costs, in wider quotas only once narrower ones have room for it; in none of `but`.

        Whether there is room to be kept for one more of them.
        """
        rooms, narrowest, keeps = self._rooms, inf, False
        for name, key, amount in self._amounts(request):
            if amount > self.free[name].get(key, inf) and rooms[name].namespaces < narrowest:
                narrowest = rooms[name].namespaces
        for name, key, amount in self._amounts(request):
            free = self.free[name]
            if rooms[name].namespaces > narrowest or key not in free or name in but:
                continue
            named = self._kept_for.setdefault((name, key), [])
            if len(named) < _MOST_NAMED:
                named.append(pod.uid)
                keeps = True
            if free[key] > 0:  # of what has no room at all, more need not be kept
                free[key] -= amount
                keeps = True
        return keeps
