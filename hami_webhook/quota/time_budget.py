"""The budget of an AcceleratorQuota: how much may be held for how long in a period (docs/spec/time.md#4).

Pure. A budget never stops running pods: once it is spent, no further pod is charged until the next period.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from hami_webhook.kube.objects import ResourceQuota, format_time, parse_time
from hami_webhook.kube.quota_fields import WrittenBudget
from hami_webhook.quota.enforcement import ENFORCEMENT, Enforcement
from hami_webhook.quota.held_time import (
    HeldSpan,
    HeldTime,
    Millis,
    PastPeriod,
    advance,
    format_held,
    in_hours,
    millis,
    parse_held,
)
from hami_webhook.quota.periods import MONTH, WEEK, Period, month_at, stretch_at, week_at, zone_named

REFUSE, QUEUE = "Refuse", "Queue"
WRITE_SECONDS = 60.0
"""Seconds between two writes of a status for nothing but sums."""
IDLE_SECONDS = 600.0
"""The same while nothing is held."""
_SHORTEST = 1000
_LONGEST_DEADLINE = 2**31


class TimeBudget(Struct, frozen=True):
    """`amounts`: the amounts times milliseconds allowed in a period, by key. `state`: the sums so far, None before
    the first.

    `seconds`: the length of a fixed period (not a month or week). The first fixed period begins at `anchor`.
    """

    quota: str
    amounts: Mapping[str, int]
    period: str
    seconds: float
    anchor: float
    zone: str
    queues: bool
    state: HeldTime | None = None

    @classmethod
    def of(cls, quota: ResourceQuota, keys: Iterable[str]) -> TimeBudget | None:
        """The budget of these keys, as far as it can be read; None without one."""
        written = quota.budget
        if written is None:
            return None
        amounts: dict[str, int] = {}
        for key in keys:
            held = _read(written.amounts.get(key))
            if held is not None:
                amounts[key] = held
        if not amounts:
            return None
        seconds = (_read(written.period) or 0) / 1000
        month = seconds < _SHORTEST / 1000 and written.period != WEEK
        try:
            zone_named(zone := written.time_zone)
        except ValueError:
            zone = ""
        return cls(
            quota.name,
            amounts,
            MONTH if month else written.period,
            seconds,
            written.created,
            zone,
            written.then == QUEUE,
            _read_state(written.status),
        )

    def period_at(self, now: float) -> Period:
        """The period that `now` (Unix seconds) is in."""
        zone = zone_named(self.zone)
        if self.period == MONTH:
            return month_at(now, zone)
        if self.period == WEEK:
            return week_at(now, zone)
        return stretch_at(now, self.seconds, self.anchor, zone)

    def summed(self, spans: Sequence[HeldSpan], now: float, watched_since: float) -> TimeBudget:
        """The budget with what was held up to `now`."""
        state = advance(self.state, spans, self.amounts, self.period_at(now), now, watched_since)
        exhausted = any(state.spent.get(key, 0) >= amount for key, amount in self.amounts.items())
        at = (state.exhausted_at or state.summed_to) if exhausted else None
        return replace(self, state=replace(state, exhausted_at=at))

    def next_write(self, *, held: bool = False) -> float:
        """Return when to write the sums if no other write is due (Unix seconds). `held`: pods hold amounts now."""
        if self.state is None:
            return 0.0
        pause = WRITE_SECONDS if held or any(self.state.rate.values()) else IDLE_SECONDS
        return min(self.state.summed_to / 1000 + pause, max(self.state.until, self.state.summed_to + 1000) / 1000)

    def is_news_to(self, before: TimeBudget) -> bool:
        """Return whether, compared with `before`, the budget became spent or is no longer spent, or its period ends
        at another time.
        """
        new, old = self.state, before.state
        if new is None or old is None:
            return new is not old
        return (new.exhausted_at is None) != (old.exhausted_at is None) or new.until != old.until

    def spent(self, key: str, now: float) -> int:
        """What was held of a key in the present period, by the last sum and what was held then."""
        state = self.state
        if state is None:
            return 0
        begin = max(state.summed_to, millis(self.period_at(now).begin))
        before = state.spent.get(key, 0) if begin < state.until else 0
        return before + max(0, millis(now) - begin) * state.rate.get(key, 0)

    def left(self, key: str, now: float) -> int:
        """What may still be held of a key in the present period; below 0 where more was."""
        return self.amounts[key] - self.spent(key, now)

    def obstacle(self, costs: Mapping[str, int], deadline: int | None, now: float) -> str:
        """Return a sentence that says why the budget doesn't admit a pod with these costs now; empty if it does.

        `deadline`: the pod's `activeDeadlineSeconds`; its amounts until then must fit into the budget, too.
        """
        seconds = min(deadline or 0, _LONGEST_DEADLINE)
        for key in sorted(self.amounts.keys() & costs.keys()):
            left, needed = self.left(key, now), costs[key] * seconds * 1000
            may_hold = (
                f"{self._whose} the pod may hold {in_hours(needed)} of {key} until its activeDeadlineSeconds, and"
            )
            if needed > self.amounts[key]:
                return f"{may_hold} a whole period has {in_hours(self.amounts[key])}; lower activeDeadlineSeconds"
            if left <= 0:
                return self._spent_sentence(key, now)
            if needed > left:
                rest = f"{in_hours(left)} of {self._limit(key, now)} are left"
                return f"{may_hold} {rest}; lower activeDeadlineSeconds, or wait: {self._next(now)}"
        return ""

    def spent_keys(self, now: float) -> dict[str, str]:
        """The keys of which nothing is left in the present period, with a sentence for each."""
        return {key: self._spent_sentence(key, now) for key in self.amounts if self.left(key, now) <= 0}

    def never(self, costs: Mapping[str, int], deadline: int | None) -> bool:
        """Whether the pod's own hours fit no period."""
        return any(
            costs[key] * min(deadline or 0, _LONGEST_DEADLINE) * 1000 > self.amounts[key]
            for key in self.amounts.keys() & costs.keys()
        )

    def _spent_sentence(self, key: str, now: float) -> str:
        return f"{self._whose} {self._limit(key, now)} are spent; {self._next(now)}"

    @property
    def _whose(self) -> str:
        return f"budget of quota {self.quota}:"

    def _limit(self, key: str, now: float) -> str:
        return f"{in_hours(self.amounts[key])} of {key} {self.period_at(now).name}"

    def _next(self, now: float) -> str:
        return f"next period begins {self.period_at(now).end_text}"


def _read(text: Any) -> int | None:
    try:
        return parse_held(text) if isinstance(text, str) else None
    except ValueError:
        return None


def _read_state(status: Mapping[str, Any]) -> HeldTime | None:
    """The sums in a status; None for what can't be read, as only administrators may write there by hand."""
    try:
        last = status.get("last")
        return HeldTime(
            _time(status["since"]),
            _time(status["until"]),
            _time(status["summedTo"]),
            _held(status["spent"]),
            {key: int(amount) for key, amount in status["rate"].items()},
            _held(status.get("unseen") or {}),
            _time(status["exhaustedAt"]) if status.get("exhaustedAt") else None,
            PastPeriod(_time(last["since"]), _time(last["until"]), _held(last["spent"])) if last else None,
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def written_state(state: HeldTime) -> dict[str, Any]:
    """The sums as a status has them."""
    last = state.last
    return {
        "since": _text(state.since),
        "until": _text(state.until),
        "summedTo": _text(state.summed_to),
        "spent": _texts(state.spent),
        "rate": dict(state.rate),
        "unseen": _texts({key: held for key, held in state.unseen.items() if held}),
        "exhaustedAt": None if state.exhausted_at is None else _text(state.exhausted_at),
        "last": None
        if last is None
        else {"since": _text(last.since), "until": _text(last.until), "spent": _texts(last.spent)},
    }


def budget_patch(written: WrittenBudget | None, before: TimeBudget | None, after: TimeBudget | None) -> dict[str, Any]:
    """The part of a status' merge patch by which it has other sums; without a budget it has none."""
    status = {} if written is None else written.status
    if after is None:
        return {"budget": None} if status else {}
    return {} if after.state is None or after == before else {"budget": state_patch(status, written_state(after.state))}


def state_patch(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """The merge patch from one status of sums to another: null takes away what the other has no more."""
    patch: dict[str, Any] = {}
    for key in {**before, **after}:
        old, new = before.get(key), after.get(key)
        if isinstance(new, Mapping):
            patch[key] = state_patch(old if isinstance(old, Mapping) else {}, new)
        elif new != old:
            patch[key] = new
    return patch


def _time(text: str) -> Millis:
    return millis(parse_time(text))


def _text(at: Millis) -> str:
    return f"{format_time(at // 1000)[:-1]}.{at % 1000:03d}Z"


def _held(written: Mapping[str, str]) -> dict[str, int]:
    return {key: parse_held(text) for key, text in written.items()}


def _texts(held: Mapping[str, int]) -> dict[str, str]:
    return {key: format_held(each) for key, each in held.items()}


def budget_faults(quota: ResourceQuota) -> Iterator[tuple[str, str]]:
    """Yield the invalid fields of a budget, each with valid values.

    The API server refuses most of it by the definition of the kind; this is for objects from files, too.
    """
    written = quota.budget
    if written is None:
        return
    for key, amount in written.amounts.items():
        if key not in quota.hard:
            yield key, f"budget {key}: it has no effect, as hard doesn't limit it; limit it there, or leave it out"
        elif _read(amount) is None:
            yield key, f"budget {key}: {amount} can't be read, so it has no effect; write hours, such as 500h"
    if written.period not in (MONTH, WEEK) and (_read(written.period) or 0) < _SHORTEST:
        yield "budget", f"budget period: {written.period} isn't known, so it is Month; write Month, Week, or 720h"
    try:
        zone_named(written.time_zone)
    except ValueError as error:
        yield "budget", f"budget timeZone: {written.time_zone} isn't known here, so it is UTC; it {error}"
    if written.then == QUEUE and Enforcement.of(quota) is not Enforcement.QUEUE:
        yield "budget", f"budget then: Queue has no effect, as the quota doesn't queue; write {ENFORCEMENT}: queue"
