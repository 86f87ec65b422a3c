"""What was held over time is summed once, however the time is split, and whoever goes on (docs/spec/time.md#4)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_webhook.quota.held_time import HeldSpan, HeldTime, advance, format_held, in_hours, millis, parse_held
from hami_webhook.quota.periods import Period, month_at, stretch_at, week_at, zone_named
from hami_webhook.quota.time_budget import _read_state, written_state

GPU, MEM = "limits.nvidia.com/gpu", "limits.nvidia.com/gpumem"
ALWAYS = Period(0.0, 10_000.0, "", "")
SECONDS = st.integers(0, 5_000_000).map(lambda each: each / 1000)
ZONES = ("UTC", "Europe/Berlin", "America/Sao_Paulo", "America/St_Johns", "Pacific/Apia", "Africa/Cairo", "Asia/Beirut")


@st.composite
def _spans(draw: st.DrawFn) -> HeldSpan:
    start, length = draw(SECONDS), draw(SECONDS)
    end = None if draw(st.booleans()) else start + length
    return HeldSpan(start, end, {GPU: draw(st.integers(1, 8)), MEM: draw(st.integers(0, 80000))})


def independent(spans: Sequence[HeldSpan], key: str, begin: float, end: float) -> int:
    """The sum over events in the order of their times, of what is held between one and the next."""
    events = [(millis(begin), 0), (millis(end), 0)]
    for each in spans:
        last = end if each.end is None else min(each.end, end)
        if last > each.start:
            events += [(millis(each.start), each.amounts[key]), (millis(last), -each.amounts[key])]
    held = total = 0
    at = 0
    for time, change in sorted(events):
        if millis(begin) <= time <= millis(end):
            total += held * (time - max(at, millis(begin)))
        held += change
        at = time
    return total


def known_at(spans: Sequence[HeldSpan], now: float) -> list[HeldSpan]:
    """The spans as somebody sees them then."""
    begun = (each for each in spans if each.start <= now)
    return [each if each.end is None or each.end <= now else HeldSpan(each.start, None, each.amounts) for each in begun]


@given(st.lists(_spans(), max_size=8), st.lists(SECONDS, min_size=2, max_size=12), st.sets(st.integers(1, 11)))
def test_any_checkpoints_and_restarts_give_the_sum_over_events(
    spans: list[HeldSpan], times: list[float], restarts: set[int]
) -> None:
    """The times are those of the sums in the order in which they come: clocks are set back, too."""
    state: HeldTime | None = None
    for number, now in enumerate(times):
        before = state
        state = advance(state, known_at(spans, now), (GPU, MEM), ALWAYS, now)
        if number in restarts:  # nothing but what is written is left
            state = _read_state(written_state(state))
            assert state is not None
        if before is not None:
            assert all(state.spent[key] >= before.spent[key] for key in (GPU, MEM))
    assert state is not None
    for key in (GPU, MEM):
        assert state.spent[key] == independent(spans, key, times[0], max(times))


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (3599, ("since 1970-01-01 00:59:59", "1970-01-01 01:59:58")),
        (3600, ("since 1970-01-01 01:00", "1970-01-01 02:00")),
    ],
)
def test_a_period_of_less_than_an_hour_is_named_with_its_seconds(seconds: int, said: tuple[str, str]) -> None:
    found = stretch_at(3600.0, seconds, 0.0, UTC)
    assert (found.name, found.end_text) == said


@given(st.lists(_spans(), max_size=6), st.lists(SECONDS, min_size=2, max_size=12).map(sorted), st.integers(100, 2000))
def test_each_period_has_its_own_part(spans: list[HeldSpan], times: list[float], length: int) -> None:
    state: HeldTime | None = None
    for now in times:
        state = advance(state, known_at(spans, now), (GPU,), stretch_at(now, length, 0.0, UTC), now)
    assert state is not None
    begin = max(times[0], times[-1] // length * length)
    assert state.spent[GPU] == independent(spans, GPU, begin, times[-1])
    if state.last is not None:
        first, last = state.last.since / 1000, state.last.until / 1000
        assert state.last.spent[GPU] == independent(known_at(spans, times[-1]), GPU, max(first, times[0]), last)


def test_what_is_gone_since_the_last_sum_is_bounded_not_invented() -> None:
    """Two of three cards are found no more by a process that watches since 40: they ended between 10 and then."""
    first = advance(None, [HeldSpan(0.0, None, {GPU: 3})], (GPU,), ALWAYS, 10.0)
    second = advance(first, [HeldSpan(0.0, None, {GPU: 1})], (GPU,), ALWAYS, 50.0, watched_since=40.0)
    assert second.spent == {GPU: 40_000}
    assert second.unseen == {GPU: 2 * 30_000}
    third = advance(second, [HeldSpan(0.0, None, {GPU: 1})], (GPU,), ALWAYS, 60.0, watched_since=40.0)
    assert third.unseen == second.unseen


def test_who_watched_all_the_time_misses_nothing() -> None:
    first = advance(None, [HeldSpan(0.0, None, {GPU: 3})], (GPU,), ALWAYS, 10.0, watched_since=5.0)
    second = advance(first, [HeldSpan(0.0, 12.0, {GPU: 3})], (GPU,), ALWAYS, 50.0, watched_since=5.0)
    assert (second.spent, second.unseen, second.rate) == ({GPU: 6000}, {GPU: 0}, {GPU: 0})


@pytest.mark.parametrize(
    ("zone", "now", "begin", "end"),
    [
        ("UTC", "2028-02-29T23:59:59Z", "2028-02-01T00:00:00Z", "2028-03-01T00:00:00Z"),  # a leap day
        ("UTC", "2026-12-31T23:59:59Z", "2026-12-01T00:00:00Z", "2027-01-01T00:00:00Z"),
        ("UTC", "2026-01-31T12:00:00Z", "2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"),
        ("Europe/Berlin", "2026-03-31T22:30:00Z", "2026-03-31T22:00:00Z", "2026-04-30T22:00:00Z"),
        ("Europe/Berlin", "2026-03-15T00:00:00Z", "2026-02-28T23:00:00Z", "2026-03-31T22:00:00Z"),  # an hour less
        ("Pacific/Apia", "2011-12-31T00:00:00Z", "2011-12-01T10:00:00Z", "2011-12-31T10:00:00Z"),  # a day less
    ],
)
def test_months(zone: str, now: str, begin: str, end: str) -> None:
    at, first, last = (datetime.fromisoformat(text).timestamp() for text in (now, begin, end))
    found = month_at(at, zone_named(zone))
    assert (found.begin, found.end) == (first, last)


@given(
    st.integers(int(datetime(1990, 1, 1, tzinfo=UTC).timestamp()), int(datetime(2040, 1, 1, tzinfo=UTC).timestamp())),
    st.sampled_from(ZONES),
)
def test_periods_follow_each_other_without_a_gap(now: int, zone: str) -> None:
    for at in (month_at, week_at):
        found = at(now, zone_named(zone))
        assert found.begin <= now < found.end
        following, before = at(found.end, zone_named(zone)), at(found.begin - 1, zone_named(zone))
        assert following.begin == found.end
        assert before.end == found.begin


@given(st.integers(0, 10**18))
def test_amounts_are_written_exactly(held: int) -> None:
    assert parse_held(format_held(held)) == held


@pytest.mark.parametrize(
    ("text", "held"), [("500h", 1_800_000_000), ("1h30m", 5_400_000), ("0.25s", 250), ("0s", 0), ("1.5h", 5_400_000)]
)
def test_amounts_are_read(text: str, held: int) -> None:
    assert parse_held(text) == held


@pytest.mark.parametrize("text", ["", "500", "-1h", "1d", "1h ", "1h" * 9, "1.h", "h", "1e3h", "9" * 99 + "h"])
def test_what_is_no_amount_is_refused_with_what_is(text: str) -> None:
    with pytest.raises(ValueError, match=r"must be an amount times hours, such as 500h or 90m"):
        parse_held(text)


def test_amounts_for_people() -> None:
    held = (0, 1000, 90_000, 5_400_000, 1_800_000_000)
    assert [in_hours(each) for each in held] == ["0h", "1s", "0.03h", "1.5h", "500h"]
