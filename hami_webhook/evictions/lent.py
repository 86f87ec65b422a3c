"""Who gives back what is lent, so that a pod gets what is its own team's (docs/spec/queues.md#7).

Pure: who holds what, the time, and whether the pod would fit come in. A team is a quota with a nominal. It gives of a
key only what it holds beyond its nominal of it; what it holds of other keys protects none of its pods.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import Enum
from fractions import Fraction
from itertools import groupby
from math import inf

from msgspec import Struct

from hami_webhook.evictions.search import giving_back
from hami_webhook.quota.queue_order import Demand
from hami_webhook.time_slices import Steps

Amounts = Mapping[str, int]
Fits = Callable[[frozenset[str]], Steps[bool]]
"""Whether who reclaims would have a place once the pods with these UIDs are gone."""

_MOST = 256
"""Evictions for one pod: as many as a pod group may have members."""
_AT_ONCE = 256
"""Candidates that are compared before others have their turn."""


class Team(Struct, frozen=True):
    """A quota's nominal, and the amounts of it that pods hold that aren't ending, by key, in the quota's units."""

    nominal: Amounts
    used: Amounts


class Evictable(Struct, frozen=True, eq=False):
    """Pods that are evicted together: one, or those of a pod group.

    `teams` are their quotas with a nominal. They have run `since` (Unix seconds), and may go once that is `min_runtime`
    seconds ago. `costs` are those of all by quota; `budgets` says how many of them each PodDisruptionBudget covers.
    """

    uids: tuple[str, ...]
    teams: tuple[str, ...]
    priority: int
    since: float
    min_runtime: float
    costs: Mapping[str, Amounts]
    budgets: Mapping[str, int] = {}


class Shortage(Struct, frozen=True):
    """What a pod costs, or the members of a pod group, and what of it is lacking, by quota and key.

    `teams` are its own.
    """

    teams: Collection[str]
    demand: Demand
    lacks: Mapping[tuple[str, str], int]

    @property
    def keys(self) -> set[str]:
        return {key for _, key in self.lacks}


class Blocked(Enum):
    """Why nobody is evicted."""

    NOBODY = "no team holds enough beyond its nominal"
    YOUNG = "pods of teams beyond their nominal haven't run for their quotas' reclaimMinRuntime"
    PROTECTED = "PodDisruptionBudgets protect the pods of teams beyond their nominal"
    CARDS = "no node would have the cards for it"


class Reclaiming:
    """Who may be evicted in one round, at `now` (Unix seconds). `allowed` is how many pods of each budget may go."""

    def __init__(
        self, teams: Mapping[str, Team], candidates: Iterable[Evictable], allowed: Amounts, now: float
    ) -> None:
        self._nominal = {name: team.nominal for name, team in teams.items()}
        self._used = {name: dict(team.used) for name, team in teams.items()}
        self._allowed = dict(allowed)
        self._now = now
        self._by_teams: dict[tuple[str, ...], list[Evictable]] = {}
        for each in sorted(candidates, key=lambda each: (each.priority, -each.since, each.uids)):
            self._by_teams.setdefault(each.teams, []).append(each)

    def selecting(self, shortage: Shortage, fits: Fits) -> Steps[Sequence[Evictable] | Blocked]:
        """The victims, without any that could be left out; or why there are none.

        The team that exceeds its nominal by the largest ratio gives first. Of its pods, those of the lowest priority go
        first, then those that need the fewest further evictions, then the youngest. If what they free isn't on the
        right nodes, others go in the same order.
        """
        chosen = yield from self._freeing(shortage)
        if chosen is None:
            return (yield from self._what_blocks(shortage))

        def enough(some: Sequence[Evictable]) -> Steps[bool]:
            yield
            return _is_enough(some, shortage) and (yield from fits(_uids(some)))

        if not (yield from enough(chosen)):
            chosen = self._all(shortage)
            if not (yield from enough(chosen)):
                return Blocked.CARDS
        # who is most important stays first
        chosen = sorted(chosen, key=lambda each: (-each.priority, each.since, each.uids))
        kept = yield from giving_back(chosen, enough)
        return kept if len(kept) <= _MOST else Blocked.NOBODY

    def ripe_at(self, shortage: Shortage) -> Steps[float]:
        """The first time (Unix seconds) at which enough pods have run for long enough, where these are too young now.

        PodDisruptionBudgets and what teams hold are taken to stay as they are.
        """
        candidates = (each for group in self._by_teams.values() for each in group)
        times = sorted({each.since + each.min_runtime for each in candidates})
        first, last = 0, len(times) - 1
        while first < last:
            middle = (first + last) // 2
            if (yield from self._freeing(shortage, at=times[middle])) is not None:
                last = middle
            else:
                first = middle + 1
        return times[first] if times else self._now

    def take(self, shortage: Shortage, victims: Iterable[Evictable]) -> None:
        """These are evicted for a pod: who selects next finds the rest."""
        for each in victims:
            self._by_teams[each.teams].remove(each)
            _take(self._used, self._allowed, each)
        for name, costs in shortage.demand:
            for key, amount in costs if name in self._used else ():
                self._used[name][key] = self._used[name].get(key, 0) + amount

    def _freeing(
        self, shortage: Shortage, *, budgets: bool = True, at: float | None = None
    ) -> Steps[list[Evictable] | None]:
        """Enough for what is lacking; None if there isn't as much. `at` is the time, now if it is None; `budgets`
        whether these protect.
        """
        left = _Left(self, shortage, budgets, self._now if at is None else at)
        chosen = yield from self._choosing(left)
        return None if left.lacks else chosen

    def as_many_as_may(self, shortage: Shortage) -> Steps[list[Evictable]]:
        """Return who may go for what is lacking, though that is less than is lacking."""
        return (yield from self._choosing(_Left(self, shortage, True, self._now)))

    def _choosing(self, left: _Left) -> Steps[list[Evictable]]:
        """Take candidates until nothing is lacking, nobody else may go, or they are too many."""
        chosen: list[Evictable] = []
        gone: set[int] = set()
        while left.lacks:
            found = None
            for group in left.furthest_first(self._by_teams):
                found = yield from left.best(each for each in self._by_teams[group] if id(each) not in gone)
                if found is not None:
                    break
            if found is None or len(chosen) == _MOST:
                break
            left.take(found)
            gone.add(id(found))
            chosen.append(found)
        return chosen

    def _what_blocks(self, shortage: Shortage) -> Steps[Blocked]:
        if (yield from self._freeing(shortage, budgets=False)) is not None:
            return Blocked.PROTECTED
        if (yield from self._freeing(shortage, budgets=False, at=inf)) is not None:
            return Blocked.YOUNG
        return Blocked.NOBODY

    def _all(self, shortage: Shortage) -> list[Evictable]:
        """All that may go at once."""
        left = _Left(self, shortage, True, self._now)
        found = []
        for group in left.furthest_first(self._by_teams):
            for each in self._by_teams[group]:
                if left.may_go(each) and left.gives(each):
                    left.take(each)
                    found.append(each)
        return found


class _Left:
    """What teams hold, what budgets allow and what is lacking, while candidates are taken for it."""

    def __init__(self, of: Reclaiming, shortage: Shortage, budgets: bool, now: float) -> None:
        self._nominal = of._nominal
        self._used = {name: dict(used) for name, used in of._used.items()}
        self._allowed = dict(of._allowed)
        self._now = now
        self._own = shortage.teams
        self._keys = shortage.keys
        self._budgets = budgets
        self.lacks = {place: amount for place, amount in shortage.lacks.items() if amount > 0}

    def furthest_first(self, groups: Iterable[tuple[str, ...]]) -> list[tuple[str, ...]]:
        """The sets of teams that are all beyond their nominal of what is lacking, who is furthest beyond first."""
        ranked = [(min(map(self._beyond, self._giving(group)), default=Fraction(0)), group) for group in groups]
        return [group for beyond, group in sorted(ranked, key=lambda each: (-each[0], each[1])) if beyond > 0]

    def _giving(self, teams: Iterable[str]) -> list[str]:
        return [team for team in teams if team not in self._own]

    def _beyond(self, team: str) -> Fraction | float:
        nominal, used = self._nominal[team], self._used[team]
        more = [(used.get(key, 0) - nominal[key], nominal[key]) for key in self._keys if key in nominal]
        return max((Fraction(over, own) if own else inf for over, own in more if over > 0), default=Fraction(0))

    def best(self, candidates: Iterable[Evictable]) -> Steps[Evictable | None]:
        """Of the lowest priority who frees most of what is lacking, and least besides; of equals the first."""
        for _, level in groupby(candidates, key=lambda each: each.priority):
            best, most = None, (0.0, 0)
            for number, each in enumerate(level):
                if number % _AT_ONCE == _AT_ONCE - 1:
                    yield
                freed = self._frees(each)
                if freed > most and self.may_go(each):
                    best, most = each, freed
            if best is not None:
                return best
        return None

    def _frees(self, candidate: Evictable) -> tuple[float, int]:
        """How much of what is lacking, as shares of it, and what is more than that, as a negative amount."""
        share, besides = 0.0, 0
        for (quota, key), lack in self.lacks.items():
            amount = candidate.costs.get(quota, {}).get(key, 0)
            if amount and self._gives(candidate, key):
                share += min(amount, lack) / lack
                besides += max(0, amount - lack)
        return (share, -besides) if share else (0.0, 0)

    def gives(self, candidate: Evictable) -> bool:
        """Whether it holds anything of what its teams have beyond their nominal."""
        return any(
            self._gives(candidate, key) and any(costs.get(key) for costs in candidate.costs.values())
            for key in self._keys
        )

    def _gives(self, candidate: Evictable, key: str) -> bool:
        return all(
            key in self._nominal[team] and self._used[team].get(key, 0) > self._nominal[team][key]
            for team in self._giving(candidate.teams)
        )

    def may_go(self, candidate: Evictable) -> bool:
        """Whether no team is below its nominal then, and the rules allow it."""
        if self._now - candidate.since < candidate.min_runtime:
            return False
        if self._budgets and any(self._allowed.get(name, 0) < pods for name, pods in candidate.budgets.items()):
            return False
        for team in self._giving(candidate.teams):
            used, costs = self._used[team], candidate.costs.get(team, {})
            for key, own in self._nominal[team].items():
                if key in self._keys and used.get(key, 0) > own > used.get(key, 0) - costs.get(key, 0):
                    return False
        return True

    def take(self, candidate: Evictable) -> None:
        _take(self._used, self._allowed, candidate)
        self.lacks = {
            (quota, key): left
            for (quota, key), lack in self.lacks.items()
            if (left := lack - candidate.costs.get(quota, {}).get(key, 0)) > 0
        }


def _take(used: Mapping[str, dict[str, int]], allowed: dict[str, int], candidate: Evictable) -> None:
    for team in candidate.teams:
        for key, amount in candidate.costs.get(team, {}).items():
            used[team][key] = used[team].get(key, 0) - amount
    for budget, pods in candidate.budgets.items():
        allowed[budget] = allowed.get(budget, 0) - pods


def _is_enough(chosen: Iterable[Evictable], shortage: Shortage) -> bool:
    left = dict(shortage.lacks)
    for each in chosen:
        for quota, key in left:
            left[quota, key] -= each.costs.get(quota, {}).get(key, 0)
    return all(amount <= 0 for amount in left.values())


def _uids(chosen: Iterable[Evictable]) -> frozenset[str]:
    return frozenset(uid for each in chosen for uid in each.uids)
