"""When pods that wait start at the latest, and which may pass them (docs/spec/time.md#2, #3)."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from math import floor, inf

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from hami_webhook.quota.queue_order import Demand, QueueDecision, QueuedPod, QueueOrder, QueueRoom, decide
from hami_webhook.quota.starts import with_starts
from hami_webhook.quota.windows import LimitSchedule, LimitWindow

NOON = 1767268800.0
Q = Mapping[str, QueueRoom]
STRICT, AT_ONCE, LATER = QueueOrder(strict=True), QueueOrder(overtaking=0), QueueOrder(overtaking=30)


def pod(name: str, amount: int = 1, runtime: float | None = None, age: float = 10, quota: str = "q") -> QueuedPod:
    return QueuedPod(name, f"team/{name}", 0, NOON - age, ((quota, (("gpu", amount),)),), runtime=runtime)


def room(
    free: int = 0, *held: tuple[float, int], order: QueueOrder | None = AT_ONCE, hard: int = 10, timed: bool = True
) -> QueueRoom:
    """`held` says in how many seconds how much ends."""
    ends = [(NOON + seconds, "gpu", amount) for seconds, amount in held]
    return QueueRoom({"gpu": hard}, {"gpu": free}, order, held=ends, timed=timed, endless="3 pods have no end")


def decided(rooms: Q, *pods: QueuedPod) -> QueueDecision:
    return with_starts(decide(pods, rooms, NOON), rooms, NOON)


def seconds(decision: QueueDecision) -> dict[str, float | str]:
    """In how many seconds each one that waits starts, or why that isn't known."""
    found: dict[str, float | str] = {}
    for each in decision.waiting:
        assert each.start is not None
        found[each.pod.uid] = each.start.why if each.start.at is None else each.start.at - NOON
    return found


def test_a_start_is_when_enough_has_ended() -> None:
    found = decided({"q": room(1, (60, 1), (30, 1), (90, 2))}, pod("three", 3), pod("one", age=5), pod("two", 2, age=3))
    assert seconds(found) == {"three": 60, "one": 90, "two": "turns before it have no end"}


def test_turns_before_it_hold_their_room_until_they_end() -> None:
    found = decided({"q": room(0, (60, 1))}, pod("a", runtime=100), pod("b", runtime=50, age=5), pod("c", age=3))
    assert seconds(found) == {"a": 60, "b": 160, "c": 210}


def test_what_is_held_without_an_end_is_said() -> None:
    found = decided({"q": room(0, (60, 1))}, pod("two", 2))
    assert seconds(found) == {"two": "3 pods have no end"}


def test_a_start_beyond_the_calendar_is_not_known() -> None:
    found = decided({"q": room(0, (60, 1))}, pod("first", runtime=1e12), pod("next", age=5))
    assert seconds(found) == {"first": 60, "next": "turns before it have no end"}


@pytest.mark.parametrize(
    ("rooms", "why"),
    [
        ({"q": room(0, (60, 1), order=LATER)}, "others may pass it for a while, by the overtaking of q"),
        ({"q": room(0, (60, 1), order=None)}, "q doesn't queue, so nothing is kept there"),
        ({"q": replace(room(0, (60, 1)), own={"gpu": 0}, namespaces=1)}, "teams lend each other room"),
    ],
)
def test_nothing_is_promised_where_no_room_is_kept(rooms: Q, why: str) -> None:
    assert seconds(decided(rooms, pod("p"))) == {"p": why}


def test_nothing_is_promised_in_a_wider_quota_before_the_narrower_has_room() -> None:
    rooms = {"q": room(0, (60, 1)), "s": replace(room(5), namespaces=2)}
    both = replace(pod("p"), demand=(("q", (("gpu", 1),)), ("s", (("gpu", 1),))))
    assert seconds(decided(rooms, both)) == {"p": "s reserves no room for it until q has room"}


def test_a_turn_whose_start_is_not_known_may_take_its_room_at_any_time() -> None:
    rooms = {"q": room(0, (60, 1)), "r": room(0), "s": replace(room(1, (60, 1)), namespaces=2)}

    def of(name: str, quota: str, age: float) -> QueuedPod:
        return replace(pod(name, age=age), demand=((quota, (("gpu", 1),)), ("s", (("gpu", 1),))))

    found = decided(rooms, of("stuck", "r", 9), replace(pod("two", 2, age=8), demand=(("s", (("gpu", 2),)),)))
    assert seconds(found)["two"] == "turns before it have no end"


def test_a_turn_whose_start_is_not_known_may_close_a_wider_strict_quota_later() -> None:
    rooms = {"q": room(0, order=STRICT), "s": replace(room(2, (60, 5), order=STRICT), namespaces=2)}
    both = replace(pod("stuck", age=9), demand=(("q", (("gpu", 1),)), ("s", (("gpu", 1),))))
    found = decided(rooms, both, replace(pod("large", 3, age=8), demand=(("s", (("gpu", 3),)),)))
    assert seconds(found)["large"] == "turns before it have no end"


def test_ordinary_day_without_runtimes_a_decision_stays_what_it_is() -> None:
    rooms = {"q": room(1, (60, 1), timed=False)}
    decision = decide([pod("two", 2), pod("one", age=5)], rooms, NOON)
    assert with_starts(decision, rooms, NOON) is decision


@pytest.mark.parametrize("order", [STRICT, AT_ONCE])
@pytest.mark.parametrize(("runtime", "passes"), [(60, True), (61, False), (None, False)])
def test_who_ends_before_the_room_is_needed_passes(order: QueueOrder, runtime: float | None, passes: bool) -> None:
    found = decided({"q": room(1, (60, 1), order=order)}, pod("head", 2), pod("short", runtime=runtime, age=5))
    assert [each.uid for each in found.released] == ["short"] * passes
    assert seconds(found)["head"] == 60


def test_who_passes_takes_no_more_than_there_is() -> None:
    shorts = [pod(f"s{number}", runtime=30, age=5 - number) for number in range(4)]
    found = decided({"q": room(2, (60, 1))}, pod("head", 3), *shorts)
    assert [each.uid for each in found.released] == ["s0", "s1"]


def test_nobody_passes_one_whose_start_is_not_known() -> None:
    found = decided({"q": room(1)}, pod("head", 2), pod("short", runtime=1, age=5))
    assert found.released == []


def test_who_passes_in_a_wide_quota_is_bound_by_all_that_wait_for_it() -> None:
    rooms = {"q": room(5), "r": room(5), "s": replace(room(1, (60, 1)), namespaces=2)}

    def of(name: str, quota: str, amount: int, runtime: float | None, age: float) -> QueuedPod:
        demand = ((quota, (("gpu", amount),)), ("s", (("gpu", amount),)))
        return replace(pod(name, runtime=runtime, age=age), demand=demand)

    found = decided(rooms, of("head", "q", 2, None, 9), of("short", "r", 1, 60, 5), of("longer", "r", 1, 61, 4))
    assert [each.uid for each in found.released] == ["short"]


# brute force: random queues, with ends that come early and others that come later


class Simulated:
    """Quotas `q` and `r` of a namespace each, and `s` above both, while pods come, are released, and end."""

    def __init__(
        self,
        orders: Mapping[str, QueueOrder],
        hard: int,
        *,
        windows: Sequence[tuple[str, LimitWindow]] = (),
    ) -> None:
        self.orders = orders
        self.hard = {name: hard * (2 if name == "s" else 1) for name in orders}
        self.schedules = {
            name: LimitSchedule(dict.fromkeys(("gpu", "mem"), limit), own)
            for name, limit in self.hard.items()
            if (own := [window for quota, window in windows if quota == name])
        }
        self.now = NOON
        self.waiting: dict[str, QueuedPod] = {}
        self.running: dict[str, tuple[QueuedPod, float, float]] = {}
        """With when each ends at the latest, and when it does."""
        self.promised: dict[str, float] = {}
        self.passed = 0
        self.heads = 0

    def rooms(self) -> dict[str, QueueRoom]:
        found = {}
        for name, order in self.orders.items():
            schedule = self.schedules.get(name)
            hard = dict.fromkeys(("gpu", "mem"), self.hard[name]) if schedule is None else schedule.at(self.now).hard
            free, held = dict(hard), []
            for pod, latest, _ in self.running.values():
                for key, amount in dict(pod.demand).get(name, ()):
                    free[key] -= amount
                    held += [(latest, key, amount)] if latest < inf else []
            width = 2 if name == "s" else 0
            found[name] = QueueRoom(
                hard, free, order, width, held=held, timed=True, endless="some have no end", schedule=schedule
            )
            assert min(free.values()) >= 0
        return found

    def step(self, runs: Mapping[str, float]) -> None:
        """What a round of the controller does; `runs` is for how long each pod really runs."""
        while True:
            rooms = self.rooms()
            plain = decide(self.waiting.values(), rooms, self.now, promised=self.promised)
            decision = with_starts(plain, rooms, self.now, promised=self.promised)
            for each in decision.waiting:
                uid, at = each.pod.uid, None if each.start is None else each.start.at
                if at is not None:
                    assert self.now <= at <= self.promised.get(uid, inf)
                    self.promised[uid] = at
            if len(decision.released) > len(plain.released):
                self.passed += 1
                for each in decision.waiting:
                    if each.start and each.start.at is not None:
                        assert self.start(each.pod, decision.released) <= each.start.at
                head, start = decision.waiting[0].pod, decision.waiting[0].start
                if start and start.at is not None and not self.schedules:  # room for a turn after a window is kept now
                    self.heads += 1
                    assert self.start(head, decision.released) <= self.start(head, plain.released)
            self.release(decision.released, runs)
            late = {uid: at for uid, at in self.promised.items() if uid in self.waiting and at <= self.now}
            if not decision.released:
                assert not late, (late, self.now)
                return

    def release(self, pods: Iterable[QueuedPod], runs: Mapping[str, float]) -> None:
        for pod in pods:
            del self.waiting[pod.uid]
            latest = inf if pod.runtime is None else self.now + pod.runtime
            self.running[pod.uid] = pod, latest, min(latest, self.now + runs.get(pod.uid, inf))

    def start(self, pod: QueuedPod, released: Iterable[QueuedPod]) -> float:
        """By brute force: when it starts if these are released now, then nobody passes, and all run to their ends."""
        later = copy(self)
        later.waiting = dict(self.waiting)
        later.running = {uid: (each, latest, latest) for uid, (each, latest, _) in self.running.items()}
        later.release(released, {})
        while pod.uid in later.waiting:
            later.now = min((end for _, _, end in later.running.values()), default=inf)
            if later.now == inf:
                break
            later.running = {uid: each for uid, each in later.running.items() if each[2] > later.now}
            turns = decide(later.waiting.values(), later.rooms(), later.now, promised=self.promised)
            later.release(turns.released, {})
        return later.now

    def run(self, arrivals: Sequence[tuple[float, QueuedPod]], runs: Mapping[str, float]) -> None:
        coming = [(NOON + at, number, pod) for number, (at, pod) in enumerate(arrivals)]
        heapq.heapify(coming)
        for _ in range(400):
            times = [end for _, _, end in self.running.values() if end < inf]
            times += [at for at, _, _ in coming[:1]]
            times += [at for uid, at in self.promised.items() if uid in self.waiting]
            times += [pod.created + each.overtaking for pod in self.waiting.values() for each in self.orders.values()]
            times += [at for each in self.schedules.values() if (at := each.at(self.now).until) < inf]
            times = [at for at in times if at > self.now] if self.now > NOON else [NOON]
            if not times:
                return
            self.now = min(times) if self.now > NOON or not coming else coming[0][0]
            self.running = {uid: each for uid, each in self.running.items() if each[2] > self.now}
            while coming and coming[0][0] <= self.now:
                _, _, pod = heapq.heappop(coming)
                self.waiting[pod.uid] = replace(pod, created=floor(self.now))  # as the API server does
            self.step(runs)
            if self.now == NOON:
                self.now += 1e-6


@st.composite
def weeks(draw: st.DrawFn) -> tuple[dict[str, QueueOrder], list[tuple[float, QueuedPod]], dict[str, float]]:
    """Orders, pods with the seconds at which they come, and for how long each really runs."""
    orders = {name: draw(st.sampled_from([STRICT, STRICT, AT_ONCE, AT_ONCE, LATER])) for name in ("q", "r", "s")}
    endless = draw(st.sampled_from([False, False, True]))
    at, arrivals = 0.0, []
    runs: dict[str, float] = {}
    for number in draw(st.permutations(range(draw(st.integers(6, 16))))):
        at += draw(st.sampled_from([0, 0, 0.25, 0.25, 1, 5]))
        amounts = (
            ("gpu", draw(st.sampled_from([1, 1, 2, 3, 4]))),
            *((("mem", draw(st.integers(1, 4))),) if draw(st.booleans()) else ()),
        )
        names = draw(st.sampled_from([("q",), ("q", "s"), ("r", "s"), ("s",), ("s",)]))
        runtime = draw(st.sampled_from([1, 5, 5, 10, 30, 60, 100, None if endless else 20]))
        uid = f"u{number:02}"
        demand: Demand = tuple((name, amounts) for name in names)
        arrivals.append((at, QueuedPod(uid, f"team/{uid}", 0, 0.0, demand, runtime=runtime)))
        runs[uid] = draw(st.sampled_from([1, 9, 1000, 1000]))
    return orders, arrivals, runs


@settings(max_examples=1000, deadline=None)
@given(weeks(), st.integers(4, 6))
def test_no_promised_start_is_missed_and_who_passes_does_not_delay_the_head(
    week: tuple[dict[str, QueueOrder], list[tuple[float, QueuedPod]], dict[str, float]], hard: int
) -> None:
    orders, arrivals, runs = week
    simulated = Simulated(orders, hard)
    simulated.run(arrivals, runs)
    event(f"{min(simulated.passed, 2)} rounds in which some passed")
    event(f"{min(simulated.heads, 2)} of them with a head that has a start")


WINDOWS = st.lists(
    st.tuples(
        st.sampled_from(("q", "r", "s")), st.integers(1, 120), st.sampled_from((5, 20, 60)), st.sampled_from((0, 2, 9))
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=300, deadline=None)
@given(weeks(), st.integers(4, 6), WINDOWS)
def test_no_limit_of_a_window_is_exceeded_and_no_promised_start_is_missed(
    week: tuple[dict[str, QueueOrder], list[tuple[float, QueuedPod]], dict[str, float]],
    hard: int,
    spans: list[tuple[str, int, int, int]],
) -> None:
    """All pods end in time for the lower limit: what is free is never below 0, which `rooms` asserts."""
    orders, arrivals, runs = week
    windows = [
        (quota, LimitWindow(f"w{number}", "", NOON + at, seconds, "", (("gpu", limit), ("mem", limit))))
        for number, (quota, at, seconds, limit) in enumerate(spans)
    ]
    simulated = Simulated(orders, hard, windows=windows)
    simulated.run(arrivals, runs)
    event(f"{min(len(simulated.waiting), 1)} waits for ever")
