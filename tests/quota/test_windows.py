"""When windows of a quota hold, and which limit is the lowest until an end (docs/spec/time.md#6)."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from math import inf
from zoneinfo import ZoneInfo

import pytest
from builders import accelerator_quota
from hypothesis import given, settings
from hypothesis import strategies as st

from hami_webhook.cluster.api import JSON
from hami_webhook.kube.objects import format_time, parse_time
from hami_webhook.kube.quota_fields import WrittenWindow
from hami_webhook.quota.accelerator_quota import read_accelerator_quota
from hami_webhook.quota.windows import LimitSchedule, fault_of, schedule_of, window_faults

from .objects import GPU, MEM

NIGHTS: JSON = {"from": "0 20 * * 1-5", "for": "10h", "hard": {GPU: 20}}


def window(**spec: object) -> JSON:
    return {"for": "1h", "hard": {GPU: 1}, **spec}


def schedule(*windows: JSON, hard: int = 8) -> LimitSchedule:
    quota = read_accelerator_quota(accelerator_quota("q", spec={"windows": [*windows]}, gpu=hard), {})
    found = schedule_of(quota, {GPU: hard}, {})
    assert found is not None
    return found


def stretches(of: LimitSchedule, since: str, most: int, zone: str = "UTC") -> list[tuple[str, int]]:
    """From when on, in local time, which limit holds."""
    return [
        (
            datetime.fromtimestamp(max(each.begin, parse_time(since)), ZoneInfo(zone)).strftime("%m-%dT%H:%M"),
            each.hard[GPU],
        )
        for each in of.changes(parse_time(since), most)
    ]


@pytest.mark.parametrize(
    ("windows", "since", "expected"),
    [
        pytest.param(
            [NIGHTS],
            "2026-01-02T12:00:00Z",  # a Friday
            [("01-02T12:00", 8), ("01-02T20:00", 20), ("01-03T06:00", 8), ("01-05T20:00", 20)],
            id="nights of working days",
        ),
        pytest.param(
            [window(**{"from": "30 9 31 * *"})],
            "2026-01-30T00:00:00Z",
            [("01-30T00:00", 8), ("01-31T09:30", 1), ("01-31T10:30", 8), ("03-31T09:30", 1)],
            id="the 31st, which February lacks",
        ),
        pytest.param(
            [window(**{"from": "0 0 29 2 *", "for": "24h"})],
            "2026-01-01T00:00:00Z",
            [("01-01T00:00", 8), ("02-29T00:00", 1), ("03-01T00:00", 8)],
            id="leap days",
        ),
        pytest.param(
            [window(at="2026-12-24T18:00", hard={GPU: 0}, **{"for": "12h"})],
            "2026-12-24T00:00:00Z",
            [("12-24T00:00", 8), ("12-24T18:00", 0), ("12-25T06:00", 8)],
            id="once",
        ),
        pytest.param(
            [NIGHTS, window(at="2026-01-02T22:00", hard={GPU: 0})],
            "2026-01-02T21:00:00Z",
            [("01-02T21:00", 20), ("01-02T22:00", 0), ("01-02T23:00", 20), ("01-03T06:00", 8)],
            id="of windows that overlap the smallest",
        ),
        pytest.param(
            [window(**{"from": "0 0 * * *", "for": "12h"}), window(**{"from": "0 12 * * *", "for": "12h"})],
            "2026-01-02T11:00:00Z",
            [("01-02T11:00", 1)],
            id="without a gap",
        ),
    ],
)
def test_which_limit_holds(windows: list[JSON], since: str, expected: list[tuple[str, int]]) -> None:
    assert stretches(schedule(*windows), since, len(expected)) == expected


@pytest.mark.parametrize(
    ("cron", "length", "since", "expected"),
    [
        # clocks go forward from 02:00 to 03:00 on 2026-03-29, and back from 03:00 to 02:00 on 2026-10-25
        ("0 20 * * *", "10h", "2026-03-28T12:00:00Z", [("03-28T13:00", 8), ("03-28T20:00", 1), ("03-29T07:00", 8)]),
        ("30 2 * * *", "1h", "2026-03-28T12:00:00Z", [("03-28T13:00", 8), ("03-29T03:00", 1), ("03-29T04:00", 8)]),
        ("0 20 * * *", "10h", "2026-10-24T12:00:00Z", [("10-24T14:00", 8), ("10-24T20:00", 1), ("10-25T05:00", 8)]),
        ("30 2 * * *", "1h", "2026-10-24T12:00:00Z", [("10-24T14:00", 8), ("10-25T02:30", 1), ("10-25T02:30", 8)]),
        ("30 2 * * *", "1h", "2026-10-25T00:00:00Z", [("10-25T02:00", 8), ("10-25T02:30", 1), ("10-25T02:30", 8)]),
    ],
)
def test_hours_of_a_window_are_real_ones_where_clocks_are_set(
    cron: str, length: str, since: str, expected: list[tuple[str, int]]
) -> None:
    found = schedule(window(timeZone="Europe/Berlin", **{"from": cron, "for": length}))
    assert stretches(found, since, 3, "Europe/Berlin") == expected


def test_a_zone_that_skips_a_day_skips_no_limit() -> None:
    """Samoa had no 2011-12-30: its window begins where the day would have, and lasts as long as it says."""
    found = schedule(window(timeZone="Pacific/Apia", **{"from": "0 12 30 12 *", "for": "24h"}))
    begins = [each for each in found.changes(parse_time("2011-12-29T00:00:00Z"), 4) if each.windows]
    assert all(each.end - each.begin == 86400 for each in begins)
    assert found.at(begins[0].begin).hard == {GPU: 1}


ZONES = ("UTC", "Europe/Berlin", "America/St_Johns", "Australia/Lord_Howe", "Asia/Kolkata", "America/Santiago")
FIELDS = st.tuples(
    st.sampled_from(("0", "30", "15,45")),
    st.sampled_from(("0", "1", "2", "20", "*/6")),
    st.sampled_from(("*", "1", "29-31")),
    st.just("*"),
    st.sampled_from(("*", "1-5", "0")),
)


def begins_by_hand(cron: str, zone: str, first: datetime, days: int) -> set[float]:
    """Every local minute that the line names: where clocks skip it, the first that they show; the first of two."""
    minute, hour, day, _, weekday = cron.split()
    hours = range(0, 24, 6) if hour == "*/6" else [int(hour)]
    found = set()
    for offset in range(days):
        date = first + timedelta(days=offset)
        by_day = day == "*" or (date.day in (29, 30, 31) if "-" in day else date.day == 1)
        by_week = weekday == "*" or ((date.weekday() == 6) if weekday == "0" else date.weekday() < 5)
        if not (by_day and by_week if "*" in (day, weekday) else by_day or by_week):
            continue
        for named in hours:
            for each in minute.split(","):
                local = date.replace(hour=named, minute=int(each), tzinfo=ZoneInfo(zone))
                while local != local.astimezone(UTC).astimezone(local.tzinfo):
                    local += timedelta(minutes=1)
                found.add(local.timestamp())
    return found


@given(FIELDS, st.sampled_from(ZONES), st.integers(0, 364), st.sampled_from((60, 3600, 10 * 3600)))
@settings(max_examples=60, deadline=None)
def test_windows_hold_from_each_minute_that_they_name(
    fields: tuple[str, ...], zone: str, offset: int, length: int
) -> None:
    cron, first = " ".join(fields), datetime.fromisoformat("2026-01-01") + timedelta(days=offset)
    begins = begins_by_hand(cron, zone, first - timedelta(days=3), 43)
    found = schedule(window(timeZone=zone, **{"from": cron, "for": f"{length}s"}))
    begin = first.replace(tzinfo=ZoneInfo(zone)).timestamp()
    for quarter in range(0, 37 * 96, 17):
        at = begin + quarter * 900 + 1
        expected = any(each <= at < each + length for each in begins)
        assert (found.at(at).hard == {GPU: 1}) == expected, (cron, zone, at)


@given(
    st.lists(st.tuples(st.integers(0, 200), st.integers(1, 50), st.integers(0, 20)), min_size=1, max_size=6),
    st.integers(0, 200),
    st.integers(1, 300),
)
@settings(deadline=None)
def test_the_lowest_limit_until_an_end_is_that_of_all_its_seconds(
    spans: list[tuple[int, int, int]], now: int, runtime: int
) -> None:
    origin = parse_time("2026-01-01T00:00:00Z")

    def text(at: int) -> str:
        return datetime.fromtimestamp(origin + at, UTC).strftime("%Y-%m-%dT%H:%M:%S")

    found = schedule(*(window(at=text(at), hard={GPU: hard}, **{"for": f"{long}s"}) for at, long, hard in spans))

    def limit(second: int) -> int:
        return min((hard for at, long, hard in spans if at <= second < at + long), default=8)

    end = now + runtime
    assert found.at(origin + now).hard[GPU] == limit(now)
    lowest = found.lowest(origin + now, origin + end)[GPU]
    assert lowest.amount == min(map(limit, range(now, end)))
    assert lowest.stretch is not None
    assert lowest.stretch.hard[GPU] == lowest.amount
    to_come = [hard for at, long, hard in spans if at + long > now]
    assert found.lowest(origin + now, inf)[GPU].amount == min(8, *to_come, 8)
    assert found.ever(origin + now)[GPU] == max(8, *to_come, 8)


def test_limits_hold_until_other_limits_do_whatever_windows_begin_and_end() -> None:
    """Somebody who is refused would try again at the end of a night that a weekend follows."""
    nights = window(**{"from": "0 20 * * *", "for": "12h", "hard": {GPU: 20}})
    weekends = window(**{"from": "0 0 * * 6", "for": "48h", "hard": {GPU: 20}})
    made, friday = schedule(nights, weekends), parse_time("2026-01-02T21:00:00Z")
    held = made.at(friday)
    assert (format_time(held.until), held.source) == ("2026-01-05T08:00:00Z", " (window 0 20 * * *, 0 0 * * 6)")
    then = made.changes(friday, 2)[1]
    assert (then.hard[GPU], format_time(then.until)) == (8, "2026-01-05T20:00:00Z")


@pytest.mark.parametrize(
    ("spec", "fault"),
    [
        ({"from": "0 20 * * 1-5"}, ""),
        ({"from": "*/15 0-6,22 1 1,7 7"}, ""),
        ({"at": "2026-12-24T18:00"}, ""),
        ({"at": "2026-12-24T18:00:30", "timeZone": "Asia/Tokyo"}, ""),
        ({}, "has either from"),
        ({"from": "0 20 * * *", "at": "2026-12-24T18:00"}, "has either from"),
        ({"from": "0 20 * *"}, "must be a cron line of five fields"),
        ({"from": "60 20 * * *"}, "must be a cron line of five fields"),
        ({"from": "0 20 * * 5-1"}, "must be a cron line of five fields"),
        ({"from": "0 20 * * MON"}, "must be a cron line of five fields"),
        ({"from": "0 20 L * *"}, "must be a cron line of five fields"),
        ({"from": "0 20 * * */0"}, "must be a cron line of five fields"),
        ({"from": "0 0 30 2 *"}, "must be a cron line of five fields"),
        ({"from": "0 0 * * *" + ",1" * 999}, "must be a cron line of five fields"),
        ({"at": "2026-02-30T18:00"}, "must be a time without a zone"),
        ({"at": "2026-12-24T18:00Z"}, "must be a time without a zone"),
        ({"at": "0001-01-01T00:00", "timeZone": "Asia/Tokyo"}, "must be a time without a zone"),
        ({"at": "9999-12-31T23:59"}, "must be a time without a zone"),
        ({"at": "9999-12-31T22:30", "timeZone": "America/New_York"}, "must be a time without a zone"),
        ({"at": "tomorrow"}, "must be a time without a zone"),
        ({"at": "2026-12-24T18:00", "timeZone": "Mars/Olympus"}, "must be the name of a time zone"),
        ({"at": "2026-12-24T18:00", "timeZone": "../../etc/passwd"}, "must be the name of a time zone"),
        ({"at": "2026-12-24T18:00", "for": "0s"}, "must be a duration of 1s to 8784h"),
        ({"at": "2026-12-24T18:00", "for": "-1h"}, "must be a duration of 1s to 8784h"),
        ({"at": "2026-12-24T18:00", "for": "9999h"}, "must be a duration of 1s to 8784h"),
    ],
)
def test_what_cannot_be_read_is_said(spec: JSON, fault: str) -> None:
    spec = window(**spec)
    written = WrittenWindow(
        spec.get("from", ""), spec.get("at", ""), spec["for"], spec.get("timeZone", ""), spec["hard"]
    )
    assert fault in fault_of(written)
    assert bool(fault) == bool(fault_of(written))


def test_of_a_file_only_what_can_be_read_has_an_effect() -> None:
    broken = [window(at="never"), window(at="2026-12-24T18:00", hard={GPU: "-1", "limits.other/card": 3})]
    quota = read_accelerator_quota(accelerator_quota("q", spec={"windows": broken}, gpu=8), {})
    assert schedule_of(quota, {GPU: 8}, {}) is None
    texts = [text for _, text in window_faults(quota)]
    assert len(texts) == 3
    assert texts[0].startswith("window never: it has no effect, as it can't be read: at must be a time without a zone")
    assert texts[1:] == [
        f"window 2026-12-24T18:00: {GPU} -1 has no effect: it must be at least 0",
        "window 2026-12-24T18:00: limits.other/card has no effect, as hard doesn't limit it; limit it there, too",
    ]


def test_memory_of_a_window_may_be_in_another_unit_than_that_of_hard() -> None:
    for hard, written, expected in ((20480, "10Gi", 10240), ("20Gi", 10240, 10 * 2**30), ("20Gi", "10Gi", 10 * 2**30)):
        spec = {"windows": [window(at="2026-01-01T00:00", hard={MEM: written})]}
        quota = read_accelerator_quota(accelerator_quota("q", spec=spec, mem=hard), {})
        found = schedule_of(quota, {MEM: 1}, {MEM: 2**20})
        assert found is not None
        assert found.at(parse_time("2026-01-01T00:00:00Z")).hard == {MEM: expected}


def test_ten_thousand_windows_and_such_as_overlap_themselves_cost_no_more_than_a_few() -> None:
    """Files aren't bounded by the definition: the first 8 count, and a schedule is never computed to its end."""
    many = [window(**{"from": f"{number % 60} * * * *", "for": "8784h"}) for number in range(10_000)]
    quota = read_accelerator_quota(accelerator_quota("q", spec={"windows": many}, gpu=8), {})
    found = schedule_of(quota, {GPU: 8}, {})
    assert found is not None
    now, began = parse_time("2026-01-01T00:00:00Z"), time.process_time()
    assert found.lowest(now, now + 50 * 366 * 86400)[GPU].amount == 1
    assert found.lowest(now, inf)[GPU].amount == 1
    assert len(found.changes(now, 5000)) <= 5000
    assert next(window_faults(quota)) == ("windows", "windows: the first 8 of 10000 have an effect; remove others")
    print(f"{time.process_time() - began:.2f} s")


def test_a_clock_that_goes_back_finds_what_held_then() -> None:
    found = schedule(NIGHTS)
    assert found.at(parse_time("2026-01-05T21:00:00Z")).hard == {GPU: 20}
    assert found.at(parse_time("2026-01-02T12:00:00Z")).hard == {GPU: 8}
    assert found.at(parse_time("2036-01-01T21:00:00Z")).hard == {GPU: 20}
