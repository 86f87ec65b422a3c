"""The periods of budgets: months, weeks from Monday on, or a fixed duration (docs/spec/time.md#4.1).

Pure: the time comes in. Periods follow each other without a gap, whatever the clocks of a time zone do: a period begins
at the first instant of its first day there.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, tzinfo

from msgspec import Struct

MONTH, WEEK = "Month", "Week"
_HOUR = 3600


class Period(Struct, frozen=True):
    """From `begin` until before `end` (Unix seconds), and its name in a sentence: `in November`."""

    begin: float
    end: float
    name: str
    end_text: str
    """The date of its end, with the time for a period that doesn't end at midnight."""


def zone_named(name: str) -> tzinfo:
    """The time zone; UTC for no name. Raises ValueError for one that isn't known."""
    if name in ("", "UTC"):
        return UTC
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError  # few quotas name a zone

    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ValueError("must be the name of a time zone, such as Europe/Berlin") from error


def month_at(now: float, zone: tzinfo) -> Period:
    """The calendar month."""
    begin, end = _days_around(
        now, zone, lambda day: day.replace(day=1), lambda day: (day.replace(day=1) + timedelta(32)).replace(day=1)
    )
    return Period(_midnight(begin, zone), _midnight(end, zone), f"in {begin:%B}", end.isoformat())


def week_at(now: float, zone: tzinfo) -> Period:
    """The week from Monday on."""
    begin, end = _days_around(now, zone, lambda day: day - timedelta(day.weekday()), lambda day: day + timedelta(7))
    return Period(_midnight(begin, zone), _midnight(end, zone), f"in the week of {begin}", end.isoformat())


def stretch_at(now: float, seconds: float, anchor: float, zone: tzinfo) -> Period:
    """The period of so many seconds, of those that follow each other since `anchor`."""
    begin = anchor + (now - anchor) // seconds * seconds
    text = "%Y-%m-%d %H:%M" if seconds >= _HOUR else "%Y-%m-%d %H:%M:%S"
    first, last = (datetime.fromtimestamp(at, zone).strftime(text) for at in (begin, begin + seconds))
    return Period(begin, begin + seconds, f"since {first}", last)


def _days_around(
    now: float, zone: tzinfo, first: Callable[[date], date], following: Callable[[date], date]
) -> tuple[date, date]:
    """The first day of the period that `now` is in, and that of the next one.

    Where clocks are set back over midnight, an instant may have a date before one whose day has begun.
    """
    begin = first(datetime.fromtimestamp(now, zone).date())
    end = following(begin)
    while _midnight(end, zone) <= now:
        begin, end = end, following(end)
    return begin, end


def _midnight(day: date, zone: tzinfo) -> float:
    """The first instant of a day; where its midnight is skipped, when the clocks are set."""
    return datetime(day.year, day.month, day.day, tzinfo=zone).timestamp()
