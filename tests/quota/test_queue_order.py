"""The order in which pods that wait for quota are released (docs/spec/queues.md#3)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tables import in_one_test

from hami_webhook.quota.queue_order import (
    OF_SUBJECT,
    Demand,
    PendingReason,
    QueueDecision,
    QueuedPod,
    QueueOrder,
    QueueRoom,
    Shortfall,
    decide,
)

NOON = 1_767_268_800.0
BEST_EFFORT, STRICT = QueueOrder(), QueueOrder(strict=True)


def room(free: int, hard: int = 10, order: QueueOrder | None = BEST_EFFORT, **other: int) -> QueueRoom:
    return QueueRoom({"gpu": hard, **dict.fromkeys(other, 100)}, {"gpu": free, **other}, order)


def wide(free: int, order: QueueOrder = BEST_EFFORT) -> QueueRoom:
    return QueueRoom({"gpu": 10}, {"gpu": free}, order, namespaces=5)


def waiting(uid: str, gpu: int = 1, age: float = 60, priority: int = 0, quota: str = "q", **other: int) -> QueuedPod:
    """A pod of one quota; `mem=5` is another key of it."""
    demand: Demand = ((quota, (("gpu", gpu), *sorted(other.items()))),)
    return QueuedPod(uid, f"team/{uid}", priority, NOON - age, demand)


def in_both(uid: str, gpu: int, age: float = 60) -> QueuedPod:
    return QueuedPod(uid, f"team/{uid}", 0, NOON - age, (("q", (("gpu", gpu),)), ("r", (("gpu", gpu),))))


Q = Mapping[str, QueueRoom]


@in_one_test(
    ("rooms", "pods", "released"),
    [
        ({"q": room(2)}, [waiting("new", age=1), waiting("old", age=9), waiting("mid", age=5)], ["old", "mid"]),
        ({"q": room(1)}, [waiting("old", age=9), waiting("high", age=1, priority=5)], ["high"]),
        ({"q": room(1)}, [waiting("b", age=5), waiting("a", age=5)], ["a"]),
        # the second doesn't fit and lets the third pass
        ({"q": room(3)}, [waiting("a", 1, 9), waiting("b", 5, 8), waiting("c", 2, 7)], ["a", "c"]),
        ({"q": room(3, order=STRICT)}, [waiting("a", 1, 9), waiting("b", 5, 8), waiting("c", 2, 7)], ["a"]),
        # it has waited for long enough: its room is kept, in what it needs alone
        ({"q": room(3)}, [waiting("b", 5, 600), waiting("c", 2, 7)], []),
        ({"q": room(3)}, [waiting("b", 5, 599), waiting("c", 2, 7)], ["c"]),
        ({"q": room(3, order=QueueOrder(overtaking=5))}, [waiting("b", 5, 6), waiting("c", 2, 7)], ["c"]),
        ({"q": room(3, order=QueueOrder(overtaking=5))}, [waiting("b", 5, 8), waiting("c", 2, 7)], []),
        ({"q": room(3, mem=9)}, [waiting("b", 2, 900, mem=10), waiting("c", 1, 7), waiting("d", 1, 6)], ["c"]),
        # above the limit for ever: nobody waits for it
        ({"q": room(3)}, [waiting("b", 11, 900), waiting("c", 2, 7)], ["c"]),
        ({"q": room(3, order=STRICT)}, [waiting("b", 11, 900), waiting("c", 2, 7)], ["c"]),
        # other quotas are other queues
        ({"q": room(0, order=STRICT), "r": room(1)}, [waiting("a"), waiting("b", quota="r")], ["b"]),
        # all quotas have to have room, and what is kept is kept in all
        ({"q": room(5), "r": room(1)}, [in_both("a", 2), waiting("b", 5)], ["b"]),
        ({"q": room(5), "r": room(1)}, [in_both("a", 2, 600), waiting("b", 5), waiting("c", 3, 1)], ["c"]),
        ({"q": room(5, order=STRICT), "r": room(1)}, [in_both("a", 2), waiting("b", 1)], []),
        # what a team's own quota has no room for keeps nothing from other teams; once it has, they wait for it
        ({"q": wide(5), "r": room(1)}, [in_both("a", 2, 600), waiting("b", 5)], ["b"]),
        ({"q": wide(1), "r": room(2)}, [in_both("a", 2, 600), waiting("b", 1), waiting("c", 1, quota="r")], []),
        ({"q": wide(1), "r": room(1)}, [in_both("a", 2, 600), waiting("b", 1), waiting("c", 1, quota="r")], ["b"]),
        # nor does it close a strict quota to them, as one does that finds no room there
        ({"q": wide(5, STRICT), "r": room(1)}, [in_both("a", 2), waiting("b", 5)], ["b"]),
        ({"q": wide(1, STRICT), "r": room(2)}, [in_both("a", 2), waiting("b", 1)], []),
        ({"q": wide(5, STRICT), "r": room(1, order=STRICT)}, [in_both("a", 2), waiting("c", 1, quota="r")], []),
        (
            {"q": wide(5, STRICT), "r": room(1, order=STRICT)},
            [in_both("a", 2), in_both("d", 1, age=50), waiting("b", 5, age=40)],
            ["b"],
        ),
        # a quota that doesn't queue is waited for, and none that is unknown
        ({"q": room(0, order=None)}, [waiting("a")], []),
        ({}, [waiting("a", 99)], ["a"]),
        ({"q": QueueRoom({"gpu": 5}, {})}, [waiting("a", 5), waiting("b", 6)], ["a"]),
        ({"q": room(-3)}, [waiting("a"), waiting("free", 0, 1)], []),
    ],
)
def test_who_is_released(rooms: Q, pods: Sequence[QueuedPod], released: list[str]) -> None:
    assert [pod.uid for pod in decide(pods, rooms, NOON).released] == released


def test_of_one_second_who_was_promised_an_earlier_start_comes_first() -> None:
    pods = [
        waiting("a", age=5),
        waiting("b", age=5),
        waiting("c", age=5),
        waiting("old", age=6),
        waiting("high", 1, 1, 1),
    ]
    released = decide(pods, {"q": room(4)}, NOON, promised={"c": NOON + 5, "b": NOON + 9, "a": NOON + 10}).released
    assert [pod.uid for pod in released] == ["high", "old", "c", "b"]


def test_who_comes_last_comes_once_after_all_others() -> None:
    pods = [waiting("late", age=9), waiting("a", age=5), waiting("b", age=1)]
    order = [pod.uid for pod in decide(pods, {"q": room(3)}, NOON, last={"late"}).released]
    assert order == ["a", "b", "late"]


def teams(free: int, a: int, b: int, c: int = 0) -> dict[str, QueueRoom]:
    """A quota of all teams, with what is free, and the teams', with what is left of their nominal."""
    left = {"a": a, "b": b, "c": c}
    return {
        "all": QueueRoom({"gpu": 30}, {"gpu": free}, BEST_EFFORT, namespaces=3),
        **{name: QueueRoom({"gpu": 30}, {"gpu": 30}, None, 1, {"gpu": own}) for name, own in left.items()},
    }


def of(team: str, uid: str, gpu: int = 1, age: float = 60, priority: int = 0) -> QueuedPod:
    demand = (("all", (("gpu", gpu),)), (team, (("gpu", gpu),)))
    return QueuedPod(uid, f"{team}/{uid}", priority, NOON - age, demand)


@pytest.mark.parametrize(
    ("rooms", "pods", "reclaimed_for", "released"),
    [
        # who is within its team's nominal comes first, as many as are
        (teams(2, 1, 0), [of("b", "old", age=900, priority=9), of("a", "x"), of("a", "y", age=50)], [], ["x", "old"]),
        (teams(2, 2, 0), [of("b", "old", age=900), of("a", "x"), of("a", "y", age=50)], [], ["x", "y"]),
        # from who is beyond, its room is kept at once
        (teams(3, 4, 0), [of("a", "x", 4), of("b", "y", 1)], [], []),
        (teams(3, 3, 0), [of("a", "x", 4), of("b", "y", 1)], [], ["y"]),
        # not from who is within the nominal of another team, however long it waits: both have theirs
        (teams(3, 4, 0, 1), [of("a", "x", 4, 900), of("c", "z"), of("b", "y")], [], ["z"]),
        # what others were evicted for, goes to the pod that they were evicted for
        (teams(1, 2, 0), [of("a", "x"), of("a", "y", age=50)], ["y"], ["y"]),
        (teams(1, 0, 0), [of("a", "x"), of("b", "y", age=90)], [], ["y"]),
    ],
)
def test_pods_within_their_teams_nominal_come_first(
    rooms: Q, pods: Sequence[QueuedPod], reclaimed_for: list[str], released: list[str]
) -> None:
    assert [pod.uid for pod in decide(pods, rooms, NOON, {*reclaimed_for}).released] == released


def test_of_users_who_share_a_quota_the_one_who_uses_least_is_next() -> None:
    def of_user(user: str, uid: str, age: float) -> QueuedPod:
        demand: Demand = (("q", (("gpu", 1),)), (f"q of {user}", (("gpu", 1),)))
        return QueuedPod(uid, f"team/{uid}", 0, NOON - age, demand)

    def limit(user: str, free: int) -> QueueRoom:
        return QueueRoom({"gpu": 10}, {"gpu": free}, BEST_EFFORT, OF_SUBJECT, part_of="q", subject=user)

    rooms = {"q": room(6), "q of ann": limit("ann", 8), "q of ben": limit("ben", 9)}
    pods = [of_user("ann", f"ann-{n}", 90 - n) for n in range(4)] + [
        of_user("ben", f"ben-{n}", 50 - n) for n in range(4)
    ]
    released = [pod.uid for pod in decide(pods, rooms, NOON).released]
    assert released == ["ben-0", "ann-0", "ben-1", "ann-1", "ben-2", "ann-2"]


def standing(decision: QueueDecision) -> dict[str, tuple[int, PendingReason]]:
    return {each.pod.uid: (each.ahead, each.obstacle) for each in decision.waiting}


def test_a_waiting_pod_knows_what_it_lacks_and_how_many_are_before_it() -> None:
    rooms = {"q": room(3), "s": room(1, order=STRICT)}
    pods = [
        waiting("big", 5, 900),
        waiting("next", 2, 800),
        waiting("never", 11, 700),
        waiting("head", 2, 60, quota="s"),
        waiting("small", 1, 50, quota="s"),
    ]
    assert standing(decide(pods, rooms, NOON)) == {
        "big": (0, PendingReason((Shortfall("q", "gpu", 5, 3, 10),))),
        "next": (1, PendingReason((Shortfall("q", "gpu", 2, -2, 10),), kept_for=("big",))),
        "never": (2, PendingReason((Shortfall("q", "gpu", 11, -2, 10),), never=True)),
        "head": (0, PendingReason((Shortfall("s", "gpu", 2, 1, 10),))),
        "small": (1, PendingReason(closed="s")),
    }


ORDERS = st.sampled_from([None, QueueOrder(), QueueOrder(overtaking=50), STRICT])
AMOUNTS = st.dictionaries(st.sampled_from(["gpu", "mem"]), st.integers(1, 6), min_size=1)
DEMANDS = st.dictionaries(st.sampled_from(["q", "r", "s"]), AMOUNTS, min_size=1)


@st.composite
def queues(draw: st.DrawFn) -> tuple[list[QueuedPod], Q]:
    rooms = {
        name: QueueRoom(
            {"gpu": 5, "mem": 5}, {key: draw(st.integers(-1, 5)) for key in ("gpu", "mem")}, draw(ORDERS), width
        )
        for name, width in (("q", 0), ("r", 0), ("s", 2))
    }
    pods = [
        QueuedPod(
            f"u{number}",
            f"team/u{number}",
            draw(st.integers(0, 2)),
            NOON - draw(st.integers(0, 700)),
            tuple((name, tuple(sorted(amounts.items()))) for name, amounts in sorted(draw(DEMANDS).items())),
        )
        for number in range(draw(st.integers(0, 8)))
    ]
    return pods, rooms


def amounts_of(*pods: QueuedPod) -> Counter[tuple[str, str]]:
    found: Counter[tuple[str, str]] = Counter()
    for pod in pods:
        for name, amounts in pod.demand:
            found.update({(name, key): amount for key, amount in amounts})
    return found


@given(queues(), st.randoms(use_true_random=True))
def test_the_rule_holds_for_all_that_wait(queue: tuple[list[QueuedPod], Q], shuffling: random.Random) -> None:
    pods, rooms = queue
    decision = decide(pods, rooms, NOON)
    shuffled = list(pods)
    shuffling.shuffle(shuffled)
    assert decide(shuffled, rooms, NOON) == decision
    assert sorted([*decision.released, *(each.pod for each in decision.waiting)], key=lambda p: p.uid) == pods
    spent = amounts_of(*decision.released)
    for (name, key), amount in spent.items():  # never above hard
        assert amount <= rooms[name].free[key]
    for each in decision.waiting:
        pod, mine = each.pod, amounts_of(each.pod)
        orders = [order for name, _ in pod.demand if (order := rooms[name].order)]
        assert each.obstacle.never == any(amount > 5 for amount in mine.values())
        later = [other for other in decision.released if other.turn > pod.turn]
        if each.obstacle.never:
            continue
        lacking = min((rooms[lack.quota].namespaces for lack in each.obstacle.lacks), default=2)
        in_the_way = min(lacking, rooms[each.obstacle.closed].namespaces if each.obstacle.closed else 2)
        strict = {
            name
            for name, _ in pod.demand
            if (order := rooms[name].order) and order.strict and rooms[name].namespaces <= in_the_way
        }
        assert not any(name in strict for other in later for name, _ in other.demand)
        before = amounts_of(*(other for other in decision.released if other.turn < pod.turn))
        if NOON - pod.created >= min((order.overtaking for order in orders), default=600):
            taken = amounts_of(*later)
            for (name, key), amount in mine.items():  # nobody after it takes what it could have
                if rooms[name].namespaces > lacking:
                    continue
                left = rooms[name].free[key] - before[name, key]
                assert taken[name, key] <= max(0, left - amount)
        if each.obstacle.closed == "s":  # by one before it whose own quotas have room, and aren't closed to it
            assert any(
                "s" in dict(other.pod.demand)
                and not other.obstacle.never
                and other.obstacle.closed not in ("q", "r")
                and {lack.quota for lack in other.obstacle.lacks} <= {"s"}
                for other in decision.waiting
                if other.pod.turn < pod.turn
            )
        # it doesn't wait for nothing: somebody before it, or what is used, stands in its way
        first = not any(other.turn < pod.turn for other in pods)
        lacks = any(rooms[name].free[key] - before[name, key] < amount for (name, key), amount in mine.items())
        assert lacks or not first
