"""Which of the pods that wait for quota are released next: by priority, then age (docs/spec/queues.md#3).

Pure: the time and what the quotas leave come in. A pod that doesn't fit lets others pass for a while, and then its room
is kept, so that it is released for certain once enough of what is used ends. Nothing is charged here, and nobody is
refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from math import inf

from msgspec import Struct

OVERTAKING = 600.0
"""Seconds for which a pod that doesn't fit lets later ones pass, unless its quota says otherwise."""

_MOST_NAMED = 3
"""For how many pods room of one key is said to be kept: tenants may have thousands there."""

Demand = tuple[tuple[str, tuple[tuple[str, int], ...]], ...]
"""What a pod costs: by the label of each quota that covers it and counts something of it, the amounts by key."""


class QueueOrder(Struct, frozen=True):
    """How the pods of a quota pass each other: not at all where `strict`, else for `overtaking` seconds."""

    strict: bool = False
    overtaking: float = OVERTAKING


class QueueRoom(Struct, frozen=True):
    """A quota by key, in its units: the limit, and what of it is free, below 0 where used is above it.

    `order` is None for a quota that doesn't queue: it is waited for too, but it sets no order.
    """

    hard: Mapping[str, int]
    free: Mapping[str, int]
    order: QueueOrder | None = None


class QueuedPod(Struct, frozen=True):
    """A pod that waits for quota; `created` is Unix seconds."""

    uid: str
    key: str
    """`namespace/name`."""
    priority: int
    created: float
    demand: Demand

    @property
    def turn(self) -> tuple[int, float, str]:
        """By which pods are sorted: who is first has its turn first."""
        return -self.priority, self.created, self.uid


class Lack(Struct, frozen=True):
    """A key of which a quota has less than the pod costs; `free` may be below 0."""

    quota: str
    key: str
    requested: int
    free: int
    hard: int


class Obstacle(Struct, frozen=True):
    """Why a pod isn't released: what it lacks, and for which pods before it room is kept (their UIDs).

    `closed`: the strict quota in which one before it waits. `never`: it costs more than a quota's limit.
    """

    lacks: tuple[Lack, ...] = ()
    kept_for: tuple[str, ...] = ()
    closed: str = ""
    never: bool = False


class Standing(Struct, frozen=True):
    """Where a pod that isn't released stands: how many wait before it for one of its quotas, and why."""

    pod: QueuedPod
    ahead: int
    obstacle: Obstacle


@dataclass(frozen=True, slots=True)
class QueueDecision:
    """The pods to be released, in their order, and where all others stand, in theirs.

    `left` is what they leave of each quota's free amounts, `closed` are the strict quotas in which one of them waits.
    """

    released: Sequence[QueuedPod]
    waiting: Sequence[Standing]
    left: Mapping[str, dict[str, int]] = field(default_factory=dict)
    closed: Set[str] = frozenset()


def decide(pods: Iterable[QueuedPod], rooms: Mapping[str, QueueRoom], now: float) -> QueueDecision:
    """Which pods are released at `now`. A quota of a demand that isn't in `rooms` limits nothing.

    In their turns pods take what is free. One that doesn't fit closes its strict quotas to all that come after, and
    once it has waited for as long as one of its quotas says, what it costs is kept for it in all of them. A pod that
    costs more than a limit closes and keeps nothing: others would wait for what can't happen.
    """
    deciding = _Deciding(rooms, now)
    released: list[QueuedPod] = []
    waiting: list[Standing] = []
    for pod in sorted(pods, key=lambda pod: pod.turn):
        obstacle = deciding.obstacle(pod)
        if obstacle is None:
            deciding.take(pod.demand)
            released.append(pod)
        else:
            waiting.append(deciding.wait(pod, obstacle))
    return QueueDecision(released, waiting, deciding.free, deciding.closed)


class _Deciding:
    """What is left of the rooms while pods have their turns."""

    def __init__(self, rooms: Mapping[str, QueueRoom], now: float) -> None:
        self._rooms = rooms
        self._now = now
        self.free = {name: dict(room.free) for name, room in rooms.items()}
        self.closed: set[str] = set()
        self._kept: dict[tuple[str, str], list[str]] = {}
        """For which pods room of a key is kept, by quota and key: the first of them."""
        self._ahead: Counter[str] = Counter()
        self._known: dict[Demand, Obstacle] = {}
        """What stands in the way of pods with a demand: room only shrinks, so it does for all that come after."""

    def obstacle(self, pod: QueuedPod) -> Obstacle | None:
        """Why the pod can't be released; None if it can."""
        known = self._known.get(pod.demand)
        if known is None:
            known = self._find(pod.demand)
            if known is not None:
                self._known[pod.demand] = known
        return known

    def _find(self, demand: Demand) -> Obstacle | None:
        if any(amount > self._rooms[name].hard.get(key, inf) for name, key, amount in self._amounts(demand)):
            lacks = [each for each in self._lacks(demand, limits=True) if each.requested > each.hard]
            return Obstacle(tuple(lacks), never=True)
        lacks = self._lacks(demand)
        closed = next((name for name, _ in demand if name in self.closed), "")
        if not (lacks or closed):
            return None
        kept = [uid for each in lacks for uid in self._kept.get((each.quota, each.key), ())]
        return Obstacle(tuple(lacks), tuple(dict.fromkeys(kept)), closed)

    def _lacks(self, demand: Demand, *, limits: bool = False) -> list[Lack]:
        """The keys that are short, or with `limits` all of them."""
        return [
            Lack(name, key, amount, self.free[name].get(key, 0), self._rooms[name].hard.get(key, 0))
            for name, key, amount in self._amounts(demand)
            if limits or amount > self.free[name].get(key, inf)
        ]

    def _amounts(self, demand: Demand) -> Iterable[tuple[str, str, int]]:
        for name, amounts in demand:
            if name in self._rooms:
                for key, amount in amounts:
                    yield name, key, amount

    def take(self, demand: Demand) -> None:
        """Take a demand out of what is free."""
        for name, key, amount in self._amounts(demand):
            if key in self.free[name]:
                self.free[name][key] -= amount

    def wait(self, pod: QueuedPod, obstacle: Obstacle) -> Standing:
        """Let a pod wait, and keep from those after it what its quotas say."""
        quotas = [name for name, _ in pod.demand if name in self._rooms]
        ahead = max((self._ahead[name] for name in quotas), default=0)
        if not obstacle.never:
            self._ahead.update(quotas)
            orders = [order for name in quotas if (order := self._rooms[name].order) is not None]
            self.closed.update(name for name in quotas if (order := self._rooms[name].order) and order.strict)
            longest = min((order.overtaking for order in orders), default=OVERTAKING)
            if self._now - pod.created >= longest:
                self.take(pod.demand)
                for name, key, _ in self._amounts(pod.demand):
                    named = self._kept.setdefault((name, key), [])
                    if len(named) < _MOST_NAMED:
                        named.append(pod.uid)
        return Standing(pod, ahead, obstacle)
