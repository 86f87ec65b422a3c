"""What was held over time, summed so that each instant counts once (docs/spec/time.md#4.2).

Pure. One compare-and-swap writes the sums, their end time and the amounts then held. The next process continues from
these values. Amounts of time are whole milliseconds, so that any way to split an interval gives the same sum. If a
clock is set back, nothing is added until it reaches the time of the last sum again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fractions import Fraction

from msgspec import Struct
from msgspec.structs import replace

from hami_webhook.quota.periods import Period

Millis = int
"""Milliseconds; of a point in time since 1970."""
HeldAmounts = Mapping[str, int]
"""Amounts times milliseconds, by key."""

MILLIS_PER_HOUR = 3_600_000
_UNITS = {"h": MILLIS_PER_HOUR, "m": 60_000, "s": 1000}
_TERM = re.compile(r"([0-9]+(?:\.[0-9]+)?)([hms])")
_TERMS = re.compile(r"(?:[0-9]{1,15}(?:\.[0-9]{1,9})?[hms]){1,3}")


class HeldSpan(Struct, frozen=True):
    """Amounts by key that somebody held from `start` until `end` (Unix seconds; None: holds still)."""

    start: float
    end: float | None
    amounts: Mapping[str, int]


class PastPeriod(Struct, frozen=True):
    """The sums of the period before."""

    since: Millis
    until: Millis
    spent: HeldAmounts


class HeldTime(Struct, frozen=True):
    """What was held since `since` in the period that ends at `until`, summed up to `summed_to`.

    `rate` is what was held then. `unseen`: an upper bound of the amounts missing in the sums, held while no process
    watched.
    """

    since: Millis
    until: Millis
    summed_to: Millis
    spent: HeldAmounts
    rate: Mapping[str, int]
    unseen: HeldAmounts = {}
    exhausted_at: Millis | None = None
    last: PastPeriod | None = None


def advance(
    before: HeldTime | None,
    spans: Iterable[HeldSpan],
    keys: Iterable[str],
    period: Period,
    now: float,
    watched_since: float = 0.0,
) -> HeldTime:
    """The sums of `keys` up to `now`, which is in `period`. The first ones begin there.

    `spans` are all that were held in the interval, as far as that is known. A process watches since `watched_since`.
    Amounts that were held at the last sum, and that no span has, ended before that, at an unknown time.
    """
    spans, keys, to = [*spans], [*keys], millis(now)
    begin, until = millis(period.begin), millis(period.end)
    if before is not None and to <= before.summed_to:
        return before
    rate = {key: sum(each.amounts.get(key, 0) for each in spans if each.end is None) for key in keys}
    if before is None:
        return HeldTime(to, until, to, dict.fromkeys(keys, 0), rate, dict.fromkeys(keys, 0))
    since, last, former = before.since, before.last, before
    if since < begin:  # another period, or the quota has periods of another kind now
        ended = min(before.until, to) if before.until <= begin else max(begin, before.summed_to)
        spent = _plus(before.spent, held_between(spans, before.spent, before.summed_to, ended))
        since, last = max(begin, before.summed_to), PastPeriod(before.since, ended, spent)
        former = replace(before, spent={}, unseen={}, exhausted_at=None)
    start = max(before.summed_to, since)
    spent = _plus(former.spent, held_between(spans, keys, start, to))
    blind = max(0, min(to, millis(watched_since)) - start)
    missing = _missing(before, spans) if blind else {}
    unseen = {key: former.unseen.get(key, 0) + blind * missing.get(key, 0) for key in keys}
    spent = {key: spent.get(key, 0) for key in keys}
    return HeldTime(since, until, to, spent, rate, unseen, former.exhausted_at, last)


def held_between(spans: Iterable[HeldSpan], keys: Iterable[str], begin: Millis, end: Millis) -> dict[str, int]:
    """What was held from `begin` to `end`."""
    sums = dict.fromkeys(keys, 0)
    for each in spans:
        overlap = min(end, end if each.end is None else millis(each.end)) - max(begin, millis(each.start))
        if overlap > 0:
            for key in sums.keys() & each.amounts.keys():
                sums[key] += overlap * each.amounts[key]
    return sums


def _missing(before: HeldTime, spans: Iterable[HeldSpan]) -> dict[str, int]:
    """What was held at the last sum, and by none of the spans."""
    at = before.summed_to
    there = [each for each in spans if millis(each.start) <= at and (each.end is None or millis(each.end) > at)]
    return {
        key: max(0, amount - sum(each.amounts.get(key, 0) for each in there)) for key, amount in before.rate.items()
    }


def _plus(first: HeldAmounts, second: HeldAmounts) -> dict[str, int]:
    return {key: first.get(key, 0) + second.get(key, 0) for key in {**first, **second}}


def millis(seconds: float) -> Millis:
    """Seconds in milliseconds."""
    return round(seconds * 1000)


def parse_held(text: str) -> int:
    """An amount of time, as milliseconds: `500h`, `1h30m`, `0.5s`. Raises ValueError with what would be right."""
    if not _TERMS.fullmatch(text):
        raise ValueError("must be an amount times hours, such as 500h or 90m")
    return int(sum(Fraction(number) * _UNITS[unit] for number, unit in _TERM.findall(text)))


def format_held(held: int) -> str:
    """The amount, exactly: `412h30m15.25s`, `500h`, `0s`."""
    hours, rest = divmod(held, _UNITS["h"])
    minutes, rest = divmod(rest, _UNITS["m"])
    seconds = f"{rest // 1000}.{rest % 1000:03d}".rstrip("0").rstrip(".")
    parts = (f"{hours}h" if hours else "", f"{minutes}m" if minutes else "", f"{seconds}s" if rest else "")
    return "".join(parts) or "0s"


def in_hours(held: int) -> str:
    """The amount for people, in hours: `412.5h`; with two digits below ten hours, and exactly if that were nothing."""
    if 0 < held < MILLIS_PER_HOUR // 100:
        return format_held(held)
    hours = held / MILLIS_PER_HOUR
    return f"{hours:.{2 if hours < 10 else 1}f}".rstrip("0").rstrip(".") + "h"
