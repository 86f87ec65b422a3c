"""Windows of an AcceleratorQuota: other limits at times (docs/spec/time.md#6).

Pure: the time comes in. When a window begins, cronsim says. What a pod may hold is the lowest limit of the time until
its end, so that a lower limit finds its room free when it comes. A quota has at most `MOST_WINDOWS` windows, and of a
schedule no more than `_MOST_STRETCHES` are ever computed: what comes after them counts as the lowest of all.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from math import floor, inf
from threading import Lock
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from hami_webhook.kube.objects import ResourceQuota, format_time, parse_time
from hami_webhook.kube.quantity import Quantity, QuantityError, is_binary
from hami_webhook.kube.quota_fields import WrittenWindow
from hami_webhook.quota.amounts import rounded, same_unit
from hami_webhook.quota.held_time import parse_held
from hami_webhook.quota.periods import zone_named

MOST_WINDOWS = 8
_MOST_STRETCHES = 1000
"""Stretches of a schedule that are computed from now on."""
_MOST_REPEATED = 3000
"""Times that are passed over where clocks show them again: a day of minutes, and more."""
_NEAR = 64
"""Stretches that are searched for one to name in a sentence."""
_LONGEST = 8784 * 3600
FOREVER = 253402300799.0
"""The last second that a status can name."""
_TERM = r"(\*|[0-9]{1,2}(-[0-9]{1,2})?)(/[0-9]{1,2})?"
_CRON = re.compile(rf"{_TERM}(,{_TERM})*( {_TERM}(,{_TERM})*){{4}}", re.ASCII)
_AT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}(:[0-9]{2})?", re.ASCII)


class LimitWindow(Struct, frozen=True):
    """Limits, in a quota's own units, for so many seconds from each time of `cron` on, or from `at` (Unix seconds)."""

    name: str
    """`0 20 * * 1-5`, or the time that it begins at: how it is named in sentences."""
    cron: str
    at: float
    seconds: int
    zone: str
    hard: tuple[tuple[str, int], ...]

    def next(self, now: float) -> tuple[float, float] | None:
        """Return the begin and the end (Unix seconds) of its first time that ends after `now`; None if none comes."""
        if not self.cron:
            return (self.at, self.at + self.seconds) if self.at + self.seconds > now else None
        from cronsim import CronSim  # few quotas have windows

        zone = zone_named(self.zone)
        try:
            # by what clocks show: with a zone, cronsim misses times where they are set by half an hour
            times = CronSim(self.cron, datetime.fromtimestamp(int(now - self.seconds), zone).replace(tzinfo=None))
            for _ in range(_MOST_REPEATED):
                begin = _first_shown(next(times), zone)
                if begin + self.seconds > now:
                    return begin, begin + self.seconds
        except (StopIteration, OverflowError, ValueError, OSError):  # none within 50 years, or beyond the calendar
            pass
        return None


def _first_shown(local: datetime, zone: tzinfo) -> float:
    """Return when clocks first show a time (Unix seconds); where they skip it, the minute to which they are set."""
    while True:
        at = local.replace(tzinfo=zone)
        if at.astimezone(UTC).astimezone(zone).replace(tzinfo=None) == local:
            return at.timestamp()
        local = local.replace(second=0) + timedelta(minutes=1)


class LimitStretch(Struct, frozen=True):
    """The limits by key from `begin` until before `end` (Unix seconds), and the windows that hold; none is `hard`."""

    begin: float
    end: float
    hard: Mapping[str, int]
    windows: tuple[str, ...] = ()

    @property
    def until(self) -> float:
        """Return when it ends, in Unix seconds."""
        return self.end

    @property
    def source(self) -> str:
        """Return which windows set these limits, in parentheses: ` (window 0 20 * * 1-5)`; empty outside of them."""
        return _named(self.windows)


class Limit(Struct, frozen=True):
    """A limit of one key, and the stretch that has it; None where it isn't known which."""

    amount: int
    stretch: LimitStretch | None = None


class LimitSchedule:
    """What holds when: `base` outside of all windows, and the smallest of each key where windows overlap."""

    def __init__(self, base: Mapping[str, int], windows: Sequence[LimitWindow]) -> None:
        self.base = base
        hards = [base, *(dict(window.hard) for window in windows)]
        self.highest = {key: max(hard[key] for hard in hards if key in hard) for key in base}
        """The highest limit of each key at any time."""
        self._windows = windows
        self._next: list[tuple[float, float] | None] = []
        self._holds: tuple[float, LimitStretch] | None = None
        self._stretches: list[LimitStretch] = []
        self._begins: list[float] = []
        self._minima: list[Mapping[str, Limit]] = []
        """By key the lowest limit from the first stretch up to each."""
        self._coming: Mapping[str, list[int]] = {}
        self._coming_since = -inf
        self._lock = Lock()

    def at(self, now: float) -> LimitStretch:
        """Return what holds at `now` (Unix seconds)."""
        with self._lock:
            self._move_to(now)
            if self._holds is None or self._holds[0] != self._begins[0]:
                self._holds = self._begins[0], self._unchanged(0)[0]
            return self._holds[1]

    def lowest(self, now: float, end: float) -> Mapping[str, Limit]:
        """Return the lowest limit of each key from `now` until before `end`; infinite for what has no end."""
        if end < inf:
            with self._lock:
                self._move_to(now)
                while self._stretches[-1].end < end and len(self._stretches) < _MOST_STRETCHES:
                    self._extend()
                if self._stretches[-1].end >= end:
                    return self._minima[max(0, bisect_left(self._begins, end) - 1)]
        return {key: Limit(min(amounts)) for key, amounts in self._to_come(now).items()}

    def ever(self, now: float) -> Mapping[str, int]:
        """Return the highest limit of each key that holds at `now` or comes."""
        return {key: max(amounts) for key, amounts in self._to_come(now).items()}

    def first_below(self, now: float, key: str, amount: int) -> LimitStretch | None:
        """Return the first of the next stretches whose limit of a key is below an amount; None if none is near."""
        return next((each for each in self.changes(now, _NEAR) if each.hard[key] < amount), None)

    def first_from(self, now: float, key: str, amount: int) -> LimitStretch | None:
        """Return the first of the next stretches whose limit of a key is at least an amount; None if none is near."""
        return next((each for each in self.changes(now, _NEAR) if each.hard[key] >= amount), None)

    def changes(self, now: float, most: int) -> list[LimitStretch]:
        """Return the stretches from `now` on, at most so many."""
        found: list[LimitStretch] = []
        with self._lock:
            self._move_to(now)
            following = 0
            while len(found) < most and following < _MOST_STRETCHES and (not found or found[-1].end < inf):
                stretch, following = self._unchanged(following)
                found.append(stretch)
        return found

    def _unchanged(self, first: int) -> tuple[LimitStretch, int]:
        """The stretch that begins with one of those that are computed, as long as windows begin and end without other
        limits, such as a weekend after a night; and the number of the next.
        """
        for number in range(first + 1, first + _NEAR):
            while len(self._stretches) <= number and self._stretches[-1].end < inf:
                self._extend()
            if len(self._stretches) <= number or self._stretches[number].hard != self._stretches[first].hard:
                break
        else:
            number = first + _NEAR
        of = self._stretches[first:number]
        names = tuple(each.name for each in self._windows if any(each.name in stretch.windows for stretch in of))
        return replace(of[0], end=of[-1].end, windows=names), number

    def _to_come(self, now: float) -> Mapping[str, list[int]]:
        """All limits that hold or come, by key: those of `base` always do."""
        with self._lock:
            self._move_to(now)
            if self._coming_since != self._begins[0]:  # until the first stretch ends, no window comes for the last time
                coming = [dict(window.hard) for window in self._windows if window.next(now) is not None]
                self._coming = {
                    key: [amount, *(hard[key] for hard in coming if key in hard)] for key, amount in self.base.items()
                }
                self._coming_since = self._begins[0]
            return self._coming

    def _move_to(self, now: float) -> None:
        """Have the first stretch be that of `now`."""
        if not self._stretches or not self._begins[0] <= now < self._stretches[-1].end:
            self._next = [None] * len(self._windows)
            self._stretches, self._begins, self._minima = [], [], []
            self._add(now)
            return
        first = bisect_right(self._begins, now) - 1
        if first:
            kept = self._stretches[first:]
            self._stretches, self._begins, self._minima = [], [], []
            for each in kept:
                self._append(each)

    def _extend(self) -> None:
        self._add(self._stretches[-1].end)

    def _add(self, begin: float) -> None:
        """Add the stretch that begins there."""
        end, active = inf, list[LimitWindow]()
        for index, window in enumerate(self._windows):
            span = self._next[index]
            if span is None or span[1] <= begin:
                span = self._next[index] = window.next(begin) or (inf, inf)
            if span[0] <= begin:
                active.append(window)
                end = min(end, span[1])
            else:
                end = min(end, span[0])
        hard = dict(self.base)
        for key in hard:
            amounts = [amount for window in active for name, amount in window.hard if name == key]
            hard[key] = min(amounts, default=hard[key])
        self._append(LimitStretch(begin, end, hard, tuple(window.name for window in active)))

    def _append(self, stretch: LimitStretch) -> None:
        before = self._minima[-1] if self._minima else {}
        minima = {
            key: before[key] if key in before and before[key].amount <= amount else Limit(amount, stretch)
            for key, amount in stretch.hard.items()
        }
        self._stretches.append(stretch)
        self._begins.append(stretch.begin)
        self._minima.append(minima)


def _named(windows: Sequence[str]) -> str:
    return f" (window {', '.join(windows)})" if windows else ""


class HeldLimits(Struct, frozen=True):
    """The limits that the leader wrote into a status at `since`, until when they hold (Unix seconds), and whose."""

    hard: Mapping[str, int]
    since: float
    until: float
    windows: tuple[str, ...] = ()

    @classmethod
    def of(cls, stretch: LimitStretch, now: float) -> HeldLimits:
        """Return the limits of a stretch, as written at `now`."""
        return cls(stretch.hard, float(int(now)), stretch.end, stretch.windows)

    @property
    def source(self) -> str:
        """Return which windows set these limits, as `LimitStretch` has it."""
        return _named(self.windows)

    def equals(self, other: HeldLimits | None) -> bool:
        """Return whether two say the same, whenever they were written."""
        return (
            other is not None
            and self.hard == other.hard
            and self.windows == other.windows
            and int(min(self.until, FOREVER)) == int(min(other.until, FOREVER))
        )


def schedule_of(
    quota: ResourceQuota, base: Mapping[str, int], bytes_per_unit: Mapping[str, int]
) -> LimitSchedule | None:
    """Return the schedule of a quota's windows, as far as they can be read; None without any.

    `base` are its limits outside of them, as it counts them: in bytes where its hard has a binary suffix.
    """
    found = []
    for written in quota.windows[:MOST_WINDOWS]:
        hard = {
            key: _counted(text, quota.hard[key], bytes_per_unit.get(key, 1))
            for key, text in written.hard.items()
            if key in base and not _amount_fault(text)
        }
        if hard and not fault_of(written):
            found.append(_read(written, tuple(sorted(hard.items()))))
    return _schedule(tuple(sorted(base.items())), tuple(found)) if found else None


@lru_cache(maxsize=64)
def _schedule(base: tuple[tuple[str, int], ...], windows: tuple[LimitWindow, ...]) -> LimitSchedule:
    """One schedule for all versions of a quota: its stretches take longer than to read it."""
    return LimitSchedule(dict(base), windows)


def _read(written: WrittenWindow, hard: tuple[tuple[str, int], ...]) -> LimitWindow:
    at = 0.0
    if not written.cron:
        at = _first_shown(datetime.fromisoformat(written.at), zone_named(written.zone))
    return LimitWindow(written.name, written.cron, at, parse_held(written.length) // 1000, written.zone, hard)


def fault_of(written: WrittenWindow) -> str:
    """Return why a window can't be read, with what would be right; empty if it can."""
    return _fault(written.cron, written.at, written.length, written.zone)


@lru_cache(maxsize=512)
def _fault(cron: str, starts: str, length: str, zone_name: str) -> str:
    """The same: a quota is read with each of its versions."""
    if bool(cron) == bool(starts):
        return "has either from, a cron line such as 0 20 * * 1-5, or at, a time such as 2026-12-24T18:00"
    try:
        zone = zone_named(zone_name)
    except ValueError as error:
        return f"timeZone {zone_name} isn't known here; it {error}"
    try:
        seconds = parse_held(length) // 1000
    except ValueError:
        seconds = 0
    if not 1 <= seconds <= _LONGEST:
        return "for must be a duration of 1s to 8784h, such as 10h"
    if starts:
        try:
            if _AT.fullmatch(starts) and _first_shown(datetime.fromisoformat(starts), zone) + seconds <= FOREVER:
                return ""
        except (ValueError, OverflowError):
            pass
        return "at must be a time without a zone, such as 2026-12-24T18:00"
    return _cron_fault(cron)


def _cron_fault(cron: str) -> str:
    from cronsim import CronSim, CronSimError  # few quotas have windows

    try:
        if len(cron) <= 32 and _CRON.fullmatch(cron):
            next(CronSim(cron, datetime(2024, 1, 1, tzinfo=UTC)))
            return ""
    except (CronSimError, ValueError):
        pass
    except StopIteration:
        return "from names no day that ever comes"
    return (
        "from must be a cron line of five fields, numbers only: minute, hour, day, month, weekday; such as 0 20 * * 1-5"
    )


def _counted(written: Any, hard: Any, unit: int) -> int:
    """An amount in the unit of the limit outside of windows, whatever unit it is written in."""
    amount, in_bytes = Quantity.parse(written).value, is_binary(str(written))
    if in_bytes == is_binary(str(hard)):
        return floor(amount)
    return floor(amount / unit if in_bytes else amount * unit)


def _amount_fault(written: Any) -> str:
    """Why an amount of a window can't be read."""
    try:
        if Quantity.parse(written).value < 0:
            return "must be at least 0"
    except QuantityError:
        return "is no amount"
    return ""


def window_faults(quota: ResourceQuota) -> Iterator[tuple[str, str]]:
    """Yield what of windows isn't right, with what would be.

    The API server refuses most of it by the definition of the kind; this is for objects from files, too.
    """
    if len(quota.windows) > MOST_WINDOWS:
        yield "windows", f"windows: the first {MOST_WINDOWS} of {len(quota.windows)} have an effect; remove others"
    for written in quota.windows[:MOST_WINDOWS]:
        fault = fault_of(written)
        if fault:
            yield "windows", f"window {written.name}: it has no effect, as it can't be read: {fault}"
            continue
        for key, amount in written.hard.items():
            if key not in quota.hard:
                yield key, f"window {written.name}: {key} has no effect, as hard doesn't limit it; limit it there, too"
            elif fault := _amount_fault(amount):
                yield key, f"window {written.name}: {key} {amount} has no effect: it {fault}"


def limits_of(
    quota: ResourceQuota, base: dict[str, int], bytes_per_unit: Mapping[str, int]
) -> tuple[LimitSchedule | None, HeldLimits | None, dict[str, int]]:
    """Return a quota's schedule, what its status has of it, and the limits that hold by that; without any `base`.

    Without what the leader wrote, the time decides alone.
    """
    schedule = schedule_of(quota, base, bytes_per_unit)
    if schedule is None:
        return None, None, base
    keys = same_unit(quota.status_hard, {key: quota.hard[key] for key in base})
    held = read_held(quota.window_status, rounded(quota.status_hard, keys, up=False))
    return schedule, held, {**base, **(schedule.highest if held is None else held.hard)}


def read_held(status: Mapping[str, Any], hard: Mapping[str, int]) -> HeldLimits | None:
    """Return the limits of a status; None for what can't be read, as only administrators may write there by hand."""
    try:
        until = status.get("until")
        names = status.get("names") or ()
        return HeldLimits(
            hard, parse_time(status["since"]), inf if until is None else parse_time(until), tuple(map(str, names))
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def written_held(held: HeldLimits) -> dict[str, Any]:
    """Return the limits as `status.window` has them; the amounts themselves are in `status.hard`."""
    until = None if held.until >= FOREVER else format_time(held.until)
    return {"since": format_time(held.since), "until": until, "names": [*held.windows]}


def window_patch(
    status: Mapping[str, Any], schedule: LimitSchedule | None, before: HeldLimits | None, after: HeldLimits | None
) -> dict[str, Any]:
    """Return the part of a status' merge patch that says which window holds; without windows, that none does."""
    if schedule is None:
        return {"window": None} if status else {}
    return {} if after is None or after is before else {"window": written_held(after)}
