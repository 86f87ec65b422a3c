"""The recompute (docs/spec/quota.md#9) and how ledger entries move (the table of docs/spec/quota.md#6)."""

from __future__ import annotations

import random
from typing import Any

import pytest
from builders import card, node
from tables import in_one_test

from hami_webhook.charging.recomputer import read_pods
from hami_webhook.kube.objects import RESERVATION, Pod
from hami_webhook.quota.floors import floor_id
from hami_webhook.quota.ledger import Entry, State, reservation_id
from hami_webhook.quota.recompute import LedgerBounds, Recomputed, recompute, vanished

from .objects import (
    ALLOCATED,
    CORES,
    LARGE,
    MEM,
    NOON,
    SMALL,
    account_of,
    allocation,
    full,
    pod,
    quota,
    read_pod,
    vendors,
)
from .test_account import read
from .test_pricing import state

TIMES = LedgerBounds()
CARDS = state(node("n1", card("GPU-L", LARGE)), node("n2", card("GPU-S", SMALL)))
FRESH, OLD = int(NOON) - 10, int(NOON) - 45
ADMITTED, WAITING, PLACING = State.ADMITTED, State.WAITING, State.PLACING


def derivable(uid: str = "u", **how: Any) -> Pod:
    return read_pod(uid, gpu=1, mem=2000, uid=uid, **how)


def half(uid: str = "u", mem: int = 0, *, bound: bool = False, age: int = 0, **how: Any) -> Pod:
    """A pod that asks for half a card; with `mem`, one that was placed."""
    notes = {
        "hami.io/vgpu-node": "n1",
        "hami.io/vgpu-time": str(int(NOON) - age),
        ALLOCATED: allocation([("A", mem, 0)]),
    }
    spec = {"nodeName": "n1"} if bound else {}
    return read_pod(uid, gpu=1, percent=50, uid=uid, annotations=notes if mem else {}, **spec, **how)


def again(ledger: dict[str, Entry], *pods: Pod, lost: dict[str, Entry] | None = None, **hard: Any) -> Recomputed:
    return recompute(read({}, ledger, **(hard or {"mem": 90000})), pods, vendors(), CARDS.capacity, NOON, TIMES, lost)


def e(state_: State, time: int = FRESH, mem: int = 5000, actual: int | None = None) -> Entry:
    return Entry(state_, time, full(mem=mem), None if actual is None else full(mem=actual))


FLOOR = SMALL // 2
FLOOR_ID = floor_id(half(), vendors())


def floor(mem: int = FLOOR, time: int = int(NOON)) -> dict[str, Entry]:
    """The floor entry of pods that request half a card."""
    return {FLOOR_ID: Entry(State.FLOOR, time, full(mem=mem))}


def of_u(*how: Any, **more: Any) -> dict[str, Entry]:
    return {"u": e(*how, **more)}


@in_one_test(
    ("entry", "pods", "used", "stays"),
    [
        # admitted: pod seen → dropped, with a floor entry where it depends on the cards; older than the TTL and no
        # pod → dropped
        (e(ADMITTED), [], 5000, of_u(ADMITTED)),
        (e(ADMITTED, OLD), [], 0, {}),
        (e(ADMITTED, OLD + 1), [], 5000, of_u(ADMITTED, OLD + 1)),
        (e(ADMITTED), [derivable()], 2000, {}),
        (e(ADMITTED), [half()], 5000, floor(5000)),
        (e(ADMITTED, OLD), [half()], 5000, floor(5000)),
        (e(ADMITTED), [half(mem=7000)], 7000, {}),
        (e(ADMITTED), [derivable(status={"phase": "Failed"})], 0, {}),
        # waiting, of older versions: placed or gone
        (e(WAITING, OLD), [half()], 5000, of_u(WAITING, OLD)),
        (e(WAITING, OLD), [], 0, {}),
        (e(WAITING, OLD), [half(mem=7000)], 7000, {}),
        (e(WAITING), [half(status={"phase": "Succeeded"})], 0, {}),
        # placing: shown, gone, or too old
        (e(PLACING, mem=9000, actual=7000), [half()], 9000, of_u(PLACING, mem=9000, actual=7000) | floor()),
        (e(PLACING, mem=9000, actual=7000), [half(mem=7000)], 7000, {}),
        (e(PLACING, mem=9000, actual=7000), [half(mem=6000)], 9000, of_u(PLACING, mem=9000, actual=7000)),
        (e(PLACING, mem=9000, actual=7000), [half(mem=9500)], 9500, of_u(PLACING, mem=9000, actual=7000)),
        (e(PLACING, mem=9000, actual=7000), [], 0, {}),
        (e(PLACING, OLD, mem=9000, actual=7000), [half(mem=6000)], 6000, {}),
        (e(PLACING, OLD, mem=9000, actual=7000), [half()], FLOOR, floor()),
        (e(PLACING, mem=9000, actual=7000), [derivable()], 9000, of_u(PLACING, mem=9000, actual=7000)),
        # no entry
        (None, [half()], FLOOR, floor()),
        (None, [half(mem=7000)], 7000, {}),
        (None, [half(mem=7000, age=300)], FLOOR, floor()),
        (None, [half(mem=7000, age=300, bound=True)], 7000, {}),
        (None, [derivable()], 2000, {}),
    ],
)
def test_entries_move_as_the_table_says(
    entry: Entry | None, pods: list[Pod], used: int, stays: dict[str, Entry]
) -> None:
    result = again({"u": entry} if entry else {}, *pods)
    assert result.after.used == full(mem=used)
    assert result.after.ledger == stays
    assert result.expired == (entry is not None and entry.state is ADMITTED and entry.time == OLD and not pods)
    assert result.confirmed == ({"u"} if entry and pods else set())
    # nothing happens, so nothing changes
    settled = recompute(result.after, pods, vendors(), CARDS.capacity, NOON, TIMES)
    assert (settled.after.used, settled.after.ledger) == (result.after.used, result.after.ledger)


def test_a_reservation_is_matched_once_and_never_by_an_id() -> None:
    secret = reservation_id("s")
    carrying = {"annotations": {RESERVATION: "s"}}
    result = again({secret: e(ADMITTED, mem=FLOOR)}, read_pod("a", gpu=1, percent=50, uid="a", **carrying))
    assert result.after.ledger == floor()
    two = again({secret: e(ADMITTED, mem=FLOOR)}, *(read_pod(n, gpu=1, percent=50, uid=n, **carrying) for n in "ab"))
    assert two.after.used == full(mem=FLOOR + FLOOR)
    assert two.after.ledger == floor()
    # a reservation of more than admission charges the pod isn't the pod's, one of less doesn't lower its charge
    more = again({secret: e(ADMITTED, mem=9000)}, read_pod("a", gpu=1, percent=50, uid="a", **carrying))
    assert more.after.ledger == {**floor(), secret: e(ADMITTED, mem=9000)}
    assert more.after.used == full(mem=9000 + FLOOR)
    less = again({secret: e(ADMITTED, mem=8)}, read_pod("a", gpu=1, percent=50, uid="a", **carrying))
    assert (less.after.ledger, less.after.used) == (floor(), full(mem=FLOOR))
    copied = read_pod("a", gpu=1, percent=50, uid="a", annotations={RESERVATION: secret})
    assert again({secret: e(ADMITTED, mem=FLOOR)}, copied).after.used == full(mem=FLOOR + FLOOR)
    thief = read_pod("a", gpu=1, percent=50, uid="a", annotations={RESERVATION: "b"})
    result = again({"b": e(ADMITTED, mem=9000)}, thief, half("b"))
    assert (result.after.ledger, result.after.used) == (floor(9000), full(mem=18000))
    result = again({"b": e(WAITING, mem=9000)}, thief)
    assert result.after.used == full(mem=FLOOR)


def test_pods_out_of_scope_or_ended_do_not_count() -> None:
    one = account_of({**quota(mem=9), "spec": {"hard": {MEM: "9"}, "scopes": ["Terminating"]}})
    pods = [derivable("a"), derivable("b", activeDeadlineSeconds=5)]
    assert recompute(one, pods, vendors(), CARDS.capacity, NOON, TIMES).after.used == full(mem=2000)
    leaving = pod("p", gpu=1, mem=2000, uid="p")
    leaving["metadata"] |= {"deletionTimestamp": "2026-01-01T12:00:00Z", "deletionGracePeriodSeconds": 30}
    found = read_pods([leaving])
    for now, used in ((NOON + 30, 2000), (NOON + 30.5, 0)):
        assert recompute(read({}, mem=9), found, vendors(), CARDS.capacity, now, TIMES).after.used == full(mem=used)


def test_keys_come_and_go() -> None:
    entry = Entry(WAITING, FRESH, full(mem=5000, cores=7))
    result = again({"u": entry}, half(), mem=90000, gpu=9)
    assert result.after.used == full(mem=5000, gpu=1)
    assert result.after.ledger["u"].amounts == full(mem=5000, gpu=1)
    placing = Entry(PLACING, FRESH, full(mem=9000, cores=5), full(mem=7000, cores=5))
    assert again({"u": placing}, half(mem=7000), mem=90000, gpu=9).after.ledger == {}
    kept = again({"u": placing}, half(), mem=90000).after.ledger["u"]
    assert (kept.amounts, kept.actual) == (full(mem=9000), full(mem=7000))
    assert CORES not in again({"x": Entry(ADMITTED, FRESH, full(mem=1, cores=2))}, mem=9).after.ledger["x"].amounts


def test_wiped_entries_count_unless_their_pod_is_there() -> None:
    lost = {"u": e(ADMITTED, mem=3000), "v": e(ADMITTED, mem=100), "w": e(ADMITTED, OLD)}
    result = again({"x": e(ADMITTED, mem=1)}, derivable(), lost=lost)
    assert result.after.used == full(mem=2101)
    assert set(result.after.ledger) == {"v", "x"}


@pytest.mark.parametrize(
    ("pods", "ledger", "wake"),
    [
        ([], {}, None),
        ([derivable()], {}, None),
        ([], {"u": e(ADMITTED)}, FRESH + 45),
        ([half()], {"u": e(WAITING, OLD)}, None),
        ([half()], {"u": e(PLACING, mem=9000, actual=7000)}, FRESH + 45),
        ([half(mem=5, age=100)], {}, NOON + 200),
        ([], {"no pod's": e(State.FLOOR)}, FRESH + 45),
        ([half(mem=5, age=100, bound=True)], {}, None),
    ],
)
def test_the_result_says_when_time_alone_changes_it(
    pods: list[Pod], ledger: dict[str, Entry], wake: float | None
) -> None:
    assert again(ledger, *pods).wake == wake


def test_order_does_not_matter() -> None:
    pods = [derivable("a"), half("b"), half("c", mem=4000), half("d", mem=9000, bound=True), derivable("e")]
    ledger = {"b": e(WAITING), "x": e(ADMITTED), "c": e(PLACING, mem=9000, actual=4000)}
    wanted = again(ledger, *pods).after
    for seed in range(10):
        random.Random(seed).shuffle(pods)
        found = again(ledger, *pods).after
        assert (found.used, found.ledger) == (wanted.used, wanted.ledger)


def test_pods_that_cannot_be_read_are_left_out() -> None:
    assert [p.name for p in read_pods([{"spec": 5}, pod("good"), None])] == ["good", ""]


def test_a_pod_of_the_same_version_is_not_read_again() -> None:
    def listed(version: object) -> dict[str, object]:
        return {"metadata": {"uid": "u", "name": "now", "resourceVersion": version}}

    known = Pod.from_object({"metadata": {"uid": "u", "name": "then", "resourceVersion": "7"}})
    for version, name in (("7", "then"), ("8", "now"), ("", "now"), (None, "now")):
        assert [p.name for p in read_pods([listed(version)], {"u": known}.get)] == [name]
    assert [p.name for p in read_pods([listed("7")], {"other": known}.get)] == ["now"]
    unversioned = Pod.from_object({"metadata": {"uid": "u", "name": "then"}})
    assert [p.name for p in read_pods([listed("")], {"u": unversioned}.get)] == ["now"]


@pytest.mark.parametrize(
    ("used", "after", "lost"),
    [
        (5, {}, {"u"}),
        (0, {}, set()),
        (7, {}, {"u"}),
        (5, {"v": e(ADMITTED, mem=5)}, set()),
        (6, {"v": e(ADMITTED, mem=1)}, {"u"}),
        (5, {"u": e(WAITING, mem=5)}, set()),
    ],
)
def test_an_entry_vanished_if_it_went_without_its_amount(used: int, after: dict[str, Entry], lost: set[str]) -> None:
    assert set(vanished(read({"mem": 5}, {"u": e(ADMITTED, mem=5)}, mem=9), read({"mem": used}, after, mem=9))) == lost
