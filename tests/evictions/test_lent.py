"""Who is evicted for a pod that is within its team's nominal (docs/spec/queues.md#7)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from math import inf

from hypothesis import given
from hypothesis import strategies as st
from tables import in_one_test

from hami_webhook.evictions.lent import Blocked, Evictable, Reclaiming, Shortage, Team
from hami_webhook.time_slices import Steps, run_at_once

NOON = 1_767_268_800.0
ALL = "AcceleratorQuota/all"
Fit = Callable[[frozenset[str]], bool]


def candidate(
    uid: str,
    team: str = "b",
    gpu: int = 1,
    age: float = 900,
    priority: int = 0,
    budgets: Sequence[str] = (),
    **more: int,
) -> Evictable:
    """A pod that has run for `age` seconds; `mem=5` is another key."""
    costs = {"gpu": gpu, **more}
    return Evictable((uid,), (team,), priority, NOON - age, 600, {ALL: costs, team: costs}, dict.fromkeys(budgets, 1))


def shortage(gpu: int = 1, **more: int) -> Shortage:
    demand = ((ALL, (("gpu", gpu), *sorted(more.items()))), ("a", (("gpu", gpu), *sorted(more.items()))))
    return Shortage({"a"}, demand, {(ALL, key): amount for key, amount in {"gpu": gpu, **more}.items() if amount})


def reclaiming(
    candidates: Sequence[Evictable], nominal: Mapping[str, Mapping[str, int]], allowed: Mapping[str, int] | None = None
) -> Reclaiming:
    used: dict[str, Counter[str]] = {name: Counter() for name in nominal}
    for each in candidates:
        for team in each.teams:
            used[team].update(each.costs[team])
    teams = {name: Team(own, used[name]) for name, own in nominal.items()}
    return Reclaiming(teams, candidates, allowed or {}, NOON)


def select(of: Reclaiming, wanted: Shortage, fit: Fit = lambda gone: True) -> list[str] | Blocked:
    def fits(gone: frozenset[str]) -> Steps[bool]:
        yield
        return fit(gone)

    found = run_at_once(of.selecting(wanted, fits))
    if isinstance(found, Blocked):
        return found
    of.take(wanted, found)
    return sorted(uid for each in found for uid in each.uids)


TWO = [candidate(uid) for uid in ("b1", "b2")]


@in_one_test(
    ("candidates", "nominal", "wanted", "victims"),
    [
        # the lowest priority, then the youngest
        (
            [candidate("x", age=700), candidate("y", age=800), candidate("z", priority=5)],
            {"gpu": 1},
            shortage(2),
            ["x", "y"],
        ),
        ([candidate("x", age=900), candidate("y", age=800), candidate("z", age=700)], {"gpu": 0}, shortage(1), ["z"]),
        # one that is enough, not two; and none that is larger than it has to be
        ([candidate("x", gpu=2, age=999), *TWO], {"gpu": 0}, shortage(2), ["x"]),
        ([candidate("x", gpu=8), candidate("y", gpu=2, age=999)], {"gpu": 0}, shortage(2), ["y"]),
        # nobody below its nominal, nor for less than is needed
        (TWO, {"gpu": 1}, shortage(2), Blocked.NOBODY),
        (TWO, {"gpu": 2}, shortage(1), Blocked.NOBODY),
        ([candidate("x", gpu=4)], {"gpu": 2}, shortage(2), Blocked.NOBODY),
        # of a key that it has nothing of its own of, it gives nothing
        ([candidate("x", gpu=1, mem=9)], {"gpu": 0}, shortage(0, mem=1), Blocked.NOBODY),
        # it can't protect what it borrows by using little of something else
        ([candidate("x", gpu=1, mem=1), candidate("y", gpu=1, mem=1)], {"gpu": 1, "mem": 99}, shortage(1), ["x"]),
        ([candidate("x", age=599)], {"gpu": 0}, shortage(1), Blocked.YOUNG),
        ([candidate("x", budgets=["pdb"])], {"gpu": 0}, shortage(1), Blocked.PROTECTED),
        ([candidate("x", budgets=["pdb"]), candidate("y", age=999)], {"gpu": 0}, shortage(1), ["y"]),
    ],
)
def test_who_goes(
    candidates: list[Evictable], nominal: Mapping[str, int], wanted: Shortage, victims: list[str] | Blocked
) -> None:
    assert select(reclaiming(candidates, {"a": {"gpu": 9, "mem": 99}, "b": nominal}), wanted) == victims


@in_one_test("held", [{"gpu": 0}, {}])
def test_a_team_that_holds_none_of_a_key_is_not_beyond_its_nominal_of_none(held: Mapping[str, int]) -> None:
    """c has twice its memory lent, b a tenth: c gives first, though b has no nominal of cards at all."""
    small = {"mem": 1, **held}
    of_b = [Evictable((f"b{number:02}",), ("b",), 0, NOON - 900, 600, {ALL: small, "b": small}) for number in range(11)]
    of_c = [candidate(uid, "c", gpu, mem=5) for uid, gpu in (("c1", 1), ("c2", 0), ("c3", 1))]
    nominal = {"a": {}, "b": {"gpu": 0, "mem": 10}, "c": {"gpu": 1, "mem": 5}}
    found = select(reclaiming([*of_b, *of_c], nominal), shortage(1, mem=6))
    assert found == ["c1", "c2"]


def test_of_two_that_free_as_much_of_all_that_lacks_and_nothing_besides_the_youngest_goes() -> None:
    """w and x free half of each key, y all of the one, z all of the other."""
    halves = [candidate(uid, gpu=2, mem=2, age=700) for uid in ("w", "x")]
    whole = [candidate("y", gpu=4, mem=0), candidate("z", gpu=0, mem=4)]
    lent: dict[str, dict[str, int]] = {"a": {}, "b": {"gpu": 0, "mem": 0}}
    assert select(reclaiming([*halves, *whole], lent), shortage(4, mem=4)) == ["w", "x"]


@in_one_test(("count", "pauses"), [(255, 0), (256, 1), (511, 1), (512, 2)])
def test_after_so_many_candidates_others_have_their_turn(count: int, pauses: int) -> None:
    of = reclaiming([candidate(f"{number:03}") for number in range(count)], {"a": {}, "b": {"gpu": 0}})
    assert len([*of.as_many_as_may(shortage(1))]) == pauses


def test_when_enough_will_have_run_for_long_enough() -> None:
    """Of three that are too young two are enough: those that can go first."""
    of = reclaiming(
        [candidate(uid, age=age) for uid, age in (("x", 25), ("y", 40), ("z", 10))], {"a": {}, "b": {"gpu": 0}}
    )
    assert select(of, shortage(2)) is Blocked.YOUNG
    assert run_at_once(of.ripe_at(shortage(2))) == NOON + 575


def test_members_of_a_group_go_together() -> None:
    group = Evictable(("m1", "m2", "m3"), ("b",), 0, NOON - 900, 600, {ALL: {"gpu": 3}, "b": {"gpu": 3}})
    assert select(reclaiming([group], {"a": {}, "b": {"gpu": 0}}), shortage(2)) == ["m1", "m2", "m3"]
    assert select(reclaiming([group], {"a": {}, "b": {"gpu": 1}}), shortage(2)) is Blocked.NOBODY


def test_what_is_on_other_nodes_is_left_where_it_is() -> None:
    """Two cards of one node are needed: of 6 candidates on 3 nodes go those of the node with the least important."""
    of = [candidate(uid, priority=priority) for priority, uid in enumerate(("x1", "y1", "z1", "x2", "z2", "y2"))]

    def fit(gone: frozenset[str]) -> bool:
        return any({f"{node}1", f"{node}2"} <= gone for node in "xyz")

    assert select(reclaiming(of, {"a": {}, "b": {"gpu": 0}}), shortage(2), fit) == ["x1", "x2"]
    assert select(reclaiming(of, {"a": {}, "b": {"gpu": 0}}), shortage(2), lambda gone: False) is Blocked.CARDS


def test_nobody_goes_where_those_on_the_right_nodes_free_less_than_is_lacking() -> None:
    """Of 5, of which 2 are its own, b can give either pod: the one that is enough isn't on the node that would do."""
    of = [candidate("x", gpu=2, age=700), candidate("y", gpu=3)]
    assert select(reclaiming(of, {"a": {}, "b": {"gpu": 2}}), shortage(3)) == ["y"]
    assert select(reclaiming(of, {"a": {}, "b": {"gpu": 2}}), shortage(3), lambda gone: "x" in gone) is Blocked.CARDS


def test_one_on_the_right_node_that_frees_a_part_of_what_lacks_does_not_go_alone() -> None:
    of = [candidate("x", mem=0, age=700), candidate("y", mem=5)]
    lent: dict[str, dict[str, int]] = {"a": {}, "b": {"gpu": 0, "mem": 0}}
    assert select(reclaiming(of, lent), shortage(1, mem=5)) == ["y"]
    assert select(reclaiming(of, lent), shortage(1, mem=5), lambda gone: "x" in gone) == ["x", "y"]


def test_what_one_pod_was_given_isnt_given_to_the_next() -> None:
    one = reclaiming(TWO, {"a": {}, "b": {"gpu": 0}})
    assert [select(one, shortage(1)) for _ in range(3)] == [["b1"], ["b2"], Blocked.NOBODY]


@st.composite
def rounds(draw: st.DrawFn) -> tuple[list[Evictable], dict[str, dict[str, int]], dict[str, int], Shortage, int]:
    teams = ["b", "c", "d"]
    candidates = [
        candidate(
            f"{number}",
            draw(st.sampled_from(teams)),
            draw(st.integers(0, 3)),
            draw(st.sampled_from([0, 599, 600, 700, 900])),
            draw(st.integers(0, 2)),
            draw(st.lists(st.sampled_from(["p", "q"]), max_size=1)),
            mem=draw(st.integers(0, 3)),
        )
        for number in range(draw(st.integers(0, 12)))
    ]
    nominal = {team: {key: draw(st.integers(0, 6)) for key in ("gpu", "mem")} for team in ["a", *teams]}
    allowed = {name: draw(st.integers(0, 3)) for name in ("p", "q")}
    return (
        candidates,
        nominal,
        allowed,
        shortage(draw(st.integers(0, 4)), mem=draw(st.integers(0, 4))),
        draw(st.integers(0, 3)),
    )


def _used(candidates: Sequence[Evictable], team: str, key: str) -> int:
    return sum(each.costs[team].get(key, 0) for each in candidates if team in each.teams)


@given(rounds())
def test_whoever_goes_is_needed_and_may_go(
    drawn: tuple[list[Evictable], dict[str, dict[str, int]], dict[str, int], Shortage, int],
) -> None:
    candidates, nominal, allowed, wanted, together = drawn

    def fit(gone: frozenset[str]) -> bool:  # so many of one of two nodes have to go
        return together == 0 or any(sum(int(uid) % 2 == node for uid in gone) >= together for node in (0, 1))

    def enough(gone: frozenset[str]) -> bool:
        freed = [each for each in candidates if each.uids[0] in gone]
        return fit(gone) and all(
            sum(each.costs[quota].get(key, 0) for each in freed) >= lack for (quota, key), lack in wanted.lacks.items()
        )

    found = select(reclaiming(candidates, nominal, allowed), wanted, fit)
    if isinstance(found, Blocked):
        return
    gone = frozenset(found)
    victims = [each for each in candidates if each.uids[0] in gone]
    rest = [each for each in candidates if each.uids[0] not in gone]
    assert enough(gone)
    assert not any(enough(gone - {uid}) for uid in gone)  # nobody goes in vain, and no more than is needed
    assert all(each.since <= NOON - each.min_runtime for each in victims)
    assert all(sum(each.budgets.get(name, 0) for each in victims) <= most for name, most in allowed.items())
    for team, own in nominal.items():
        for key in wanted.keys:
            before, after = _used(candidates, team, key), _used(rest, team, key)
            assert after >= own[key] or before <= own[key]


@given(st.lists(st.tuples(st.sampled_from("bcd"), st.integers(0, 2)), max_size=15), st.integers(1, 6), st.data())
def test_of_equal_pods_go_just_as_many_as_are_needed_in_order(
    pods: list[tuple[str, int]], needed: int, data: st.DataObject
) -> None:
    candidates = [
        candidate(f"{number:02}", team, age=600 + number, priority=priority)
        for number, (team, priority) in enumerate(pods)
    ]
    nominal = {"a": {"gpu": 9}, **{team: {"gpu": data.draw(st.integers(0, 4))} for team in "bcd"}}
    held = {team: _used(candidates, team, "gpu") for team in "bcd"}
    most = sum(max(0, held[team] - nominal[team]["gpu"]) for team in "bcd")
    found = select(reclaiming(candidates, nominal), shortage(needed))
    if isinstance(found, Blocked):
        assert (found, most < needed) == (Blocked.NOBODY, True)
        return
    assert len(found) == needed

    def beyond(team: str, used: int) -> Fraction | float:
        own = nominal[team]["gpu"]
        return Fraction(used - own, own) if own else (inf if used else 0)

    left = dict(held)
    for team in "bcd":
        mine = [each for each in candidates if team in each.teams]
        gone = [each for each in mine if each.uids[0] in found]
        in_order = sorted(mine, key=lambda each: (each.priority, -each.since))
        assert {each.uids for each in gone} == {each.uids for each in in_order[: len(gone)]}
        left[team] -= len(gone)
    for giving in "bcd":
        for other in "bcd" if left[giving] < held[giving] else ():
            assert beyond(giving, left[giving] + 1) >= beyond(other, left[other])
