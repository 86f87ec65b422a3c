"""A quota's accounts and the evaluation of charges (docs/spec/quota.md#2, #6, #7, #11)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from msgspec.structs import replace

from hami_webhook.cluster.api import JSON
from hami_webhook.quota.account import ChargeRequest, NeedsRecompute, QuotaAccount
from hami_webhook.quota.batch import BatchResult, evaluate_batch
from hami_webhook.quota.known_quotas import KnownQuotas
from hami_webhook.quota.ledger import LEDGER, Entry, State, encode, reservation_id, update_id
from hami_webhook.quota.pricing import Charge, ClusterCapacity, price_pending
from hami_webhook.quota.refusals import Refusal

from .objects import CORES, GPU, KEYS, MEM, NOON, account_of, full, quota, read_pod, vendors

SECRET = reservation_id("s")
"""The ledger's id of the reservation with the secret `s`."""


def read(
    used: JSON | None = None, ledger: dict[str, Entry] | None = None, name: str = "q", **hard: Any
) -> QuotaAccount:
    made = quota(name, **{"pods": "9", "requests.nvidia.com/gpu": "1", **hard})
    made["metadata"] |= {
        "resourceVersion": "7",
        "annotations": {"mine": "x", **({LEDGER: encode(ledger)} if ledger else {})},
    }
    limits = {KEYS[key]: str(value) for key, value in hard.items()}
    amounts = dict.fromkeys(limits, "0") | {KEYS[key]: str(value) for key, value in (used or {}).items()}
    made["status"] = {"hard": limits, "used": {"pods": "3", **amounts}}
    return account_of(made)


def ask(identity: str = "u", *, reservation: str = "", dry_run: bool = False, **amounts: Any) -> ChargeRequest:
    asked = read_pod("p", uid=identity, **amounts)
    return ChargeRequest(identity, asked, price_pending(asked, vendors(), ClusterCapacity()), dry_run, reservation)


def judged(
    one: QuotaAccount, *with_limits: ChargeRequest, full_at: int = 1000, recomputed: frozenset[str] = frozenset()
) -> BatchResult:
    return evaluate_batch({one.name: one}, with_limits, NOON + 0.9, full_at, recomputed=recomputed)


def entry(mem: int, state: State = State.ADMITTED, **more: Any) -> Entry:
    return Entry(state, int(NOON), full(mem=mem), **more)


@pytest.mark.parametrize(
    ("written", "limit"),
    [("3k", 3000), ("2Gi", 2147483648), (5, 5), ("1500m", 1), ("0", 0), ("nonsense", 0), ("12288", 12288)],
)
def test_hard_is_a_quantity_obeyed_literally(written: object, limit: int) -> None:
    found = QuotaAccount.read(account_of(quota(mem=written)).quota, vendors())
    assert (found.hard, found.exact_hard(MEM)) == ({MEM: limit}, limit)


def test_only_limits_of_configured_resources_are_managed() -> None:
    keys = [
        "requests.nvidia.com/gpu",
        "nvidia.com/gpu",
        "limits.nvidia.com/gpumem-percentage",
        "limits.NVIDIA.com/gpu",
        "pods",
    ]
    unmanaged: JSON = dict.fromkeys(keys, "1")
    assert account_of(quota(mem=1, **unmanaged)).hard == {MEM: 1}


@pytest.mark.parametrize("key", ["limits.nvidia.com/gpumem", "limits.nvidia.com/gpu", "limits.nvidia.com/gpucores"])
def test_a_key_nobody_computed_is_unknown(key: str) -> None:
    one = account_of(quota(mem=9, gpu=9, cores=900))
    charge = ask(gpu=1, mem=1, cores=1).charge
    assert key in one.unknown(charge)
    with pytest.raises(NeedsRecompute, match="gpu-quota"):
        judged(one, ask(gpu=1, mem=1))
    recomputed = frozenset(("gpu-quota",))
    refusal = judged(one, ask(gpu=1, mem=1), recomputed=recomputed).refusals[0]
    assert refusal == Refusal(403, f"status unknown for quota: gpu-quota, resources: {GPU},{MEM}")
    more = structs.replace(ask(update_id("u"), gpu=1, mem=2), former=ask(gpu=1, mem=1))
    assert judged(one, more, recomputed=recomputed).refusals[0] == refusal


def test_a_charge_enters_used_and_ledger() -> None:
    one = read(mem=4000, gpu=4)
    after = judged(one, ask(gpu=2, mem=2000)).accounts["q"]
    assert after.used == full(mem=4000, gpu=2)
    assert after.ledger == {"u": Entry(State.ADMITTED, int(NOON), full(mem=4000, gpu=2))}
    assert one.patch(after) == {
        "metadata": {"resourceVersion": "7", "annotations": {LEDGER: encode(after.ledger)}},
        "status": {"used": {GPU: "2", MEM: "4000"}},
    }


def test_only_keys_of_the_quota_are_charged_and_compared() -> None:
    after = judged(read(mem=4000), ask(gpu=2, mem=2000, cores=50)).accounts["q"]
    assert after.ledger["u"].amounts == full(mem=4000)


@pytest.mark.parametrize(
    ("hard", "used", "asked", "message"),
    [
        (
            {"gpu": 2, "mem": 3000, "cores": 10},
            {"gpu": 1, "mem": 0},
            {"gpu": 2, "mem": 2000, "cores": 3},
            f"exceeding resource quota: exceeded quota: q, requested: {GPU}=2,{MEM}=4000, used: {GPU}=1,{MEM}=0, "
            f"limited: {GPU}=2,{MEM}=3000 (memory: 3.9Gi requested, 0Mi used, 2.9Gi limited)",
        ),
        (
            {"mem": "4k"},
            {"mem": "4k"},
            {"gpu": 1, "mem": 1},
            f"exceeding resource quota: exceeded quota: q, requested: {MEM}=1, used: {MEM}=4000, limited: {MEM}=4000"
            " (memory: 1Mi requested, 3.9Gi used, 3.9Gi limited)",
        ),
        (
            {"mem": 0},
            {},
            {"gpu": 1},
            f"exceeding resource quota: exceeded quota: q, requested: {MEM}=1 (smallest eligible card), "
            f"used: {MEM}=0, limited: {MEM}=0 (memory: 1Mi requested, 0Mi used, 0Mi limited)",
        ),
        (
            {"gpu": 0, "mem": 10},
            {},
            {"gpu": 1},
            f"exceeding resource quota: exceeded quota: q, requested: {GPU}=1, used: {GPU}=0, limited: {GPU}=0",
        ),
    ],
)
def test_the_refusal_names_only_the_overflowing_keys(hard: JSON, used: JSON, asked: JSON, message: str) -> None:
    refusal = judged(read(used, **hard), ask(**asked)).refusals[0]
    assert refusal == Refusal(403, message, overrun=True)


def test_exactly_full_is_allowed_and_an_unconsumed_key_is_not_compared() -> None:
    assert not judged(read({"mem": 2000, "cores": 90}, mem=4000, cores=50), ask(gpu=1, mem=2000)).refusals


def test_a_quota_concerns_pods_that_are_charged_together_if_it_limits_one_of_them() -> None:
    limited, free = ask("a", gpu=1, mem=5), ask("b")
    for made, concerned in ((quota(mem=9), True), (quota(cores=9), False)):
        known = KnownQuotas({"q": account_of(made)}, 0, current=True, none=False)
        assert known.concern(replace(free, others=(limited,))) is concerned
        assert known.concern(replace(limited, others=(free,))) is concerned
        assert not known.concern(free)


def test_a_batch_is_judged_in_order_and_a_refusal_changes_nothing() -> None:
    found = judged(read(mem=5), ask("a", gpu=1, mem=3), ask("b", gpu=1, mem=4), ask("c", gpu=1, mem=2))
    assert set(found.refusals) == {1}
    assert found.accounts["q"].used == full(mem=5)
    assert set(found.accounts["q"].ledger) == {"a", "c"}


def test_all_quotas_must_hold_and_the_first_failing_by_name_is_told() -> None:
    many = {n: read(name=n, mem=m) for n, m in (("c", 1), ("b", 2), ("a", 10))}
    found = evaluate_batch(many, [ask(gpu=1, mem=5)], NOON, 9, recomputed=frozenset())
    assert "exceeded quota: b," in found.refusals[0].message
    assert found.accounts == many


@pytest.mark.parametrize(
    ("known", "mem", "used", "refused"),
    [
        (entry(5), 5, 5, False),
        (entry(5), 3, 5, False),
        (entry(5), 8, 8, False),
        (entry(5), 11, 5, True),
        (entry(5, State.WAITING), 3, 5, False),
        (entry(5, State.PLACING, actual=full(mem=4)), 3, 5, False),
    ],
)
def test_the_same_id_is_charged_once(known: Entry, mem: int, used: int, refused: bool) -> None:
    one = read({"mem": 5}, {"u": known}, mem=10)
    found = judged(one, ask(gpu=1, mem=mem))
    assert (0 in found.refusals) is refused
    assert found.accounts["q"].used == full(mem=used)
    if mem <= 5 or known.state is not State.ADMITTED:
        assert found.accounts["q"] is one


def test_equal_amounts_are_equal_although_a_key_left_hard() -> None:
    known = Entry(State.ADMITTED, 1, full(mem=5, cores=10))
    one = read({"mem": 5}, {"u": known}, mem=5)
    assert judged(one, ask(gpu=1, mem=5, cores=10)).accounts["q"] is one


@pytest.mark.parametrize(
    ("stood", "ids", "used"),
    [
        (entry(5), {"u"}, 5),
        (entry(3), {"u"}, 5),
        (entry(6), {SECRET, "u"}, 11),
        (entry(5, State.WAITING), {SECRET, "u"}, 10),
        (entry(5, State.PLACING), {SECRET, "u"}, 10),
    ],
)
def test_a_reservation_is_taken_over_once_and_no_other_charge_is(stood: Entry, ids: set[str], used: int) -> None:
    one = read({"mem": stood.amounts[MEM]}, {SECRET: stood}, mem=20)
    after = judged(one, ask(reservation="s", gpu=1, mem=5)).accounts["q"]
    assert set(after.ledger) == ids
    assert after.used == full(mem=used)


def test_a_reservation_does_not_push_out_the_entry_that_is_there() -> None:
    one = read({"mem": 10}, {SECRET: entry(5), "u": entry(5)}, mem=10)
    assert judged(one, ask(reservation="s", gpu=1, mem=5)).accounts["q"] is one


@pytest.mark.parametrize("brought", ["v", SECRET, ""])
def test_the_id_of_an_entry_is_no_reservation(brought: str) -> None:
    """Everybody in the namespace may read the ledger."""
    one = read({"mem": 10}, {SECRET: entry(5), "v": entry(5)}, mem=20)
    after = judged(one, ask(reservation=brought, gpu=1, mem=5)).accounts["q"]
    assert (after.used, set(after.ledger)) == (full(mem=15), {SECRET, "u", "v"})


@given(
    first=st.fixed_dictionaries({}, optional={k: st.integers(0, 9) for k in ("gpu", "mem", "cores")}),
    later=st.fixed_dictionaries({}, optional={k: st.integers(0, 9) for k in ("gpu", "mem", "cores")}),
    reservation=st.sampled_from(["", "s", "u", SECRET]),
)
def test_an_admission_never_lowers_a_charge(first: dict[str, int], later: dict[str, int], reservation: str) -> None:
    """Whatever comes under an id that is known, used and each amount of the entry only grow."""
    one = read(
        {"gpu": 9, "mem": 9, "cores": 9}, {"u": Entry(State.ADMITTED, 1, full(**first))}, gpu=20, mem=20, cores=20
    )
    charge = Charge(full(**later))
    after = evaluate_batch(
        {"q": one},
        [ChargeRequest("u", ask(gpu=1).pod, charge, reservation=reservation)],
        NOON,
        9,
        recomputed=frozenset(),
    ).accounts["q"]
    assert all(after.used[key] >= amount for key, amount in one.used.items())
    assert all(after.ledger["u"].amounts.get(key, 0) >= amount for key, amount in one.ledger["u"].amounts.items())


@pytest.mark.parametrize(("age", "renewed"), [(0, False), (9, False), (10, True)])
def test_a_floor_entry_is_renewed_every_ten_seconds_where_nothing_else_is_written(age: int, renewed: bool) -> None:
    floor = Entry(State.FLOOR, int(NOON) - age, full(mem=1))
    one = read({"mem": 1}, {"f": floor}, mem=10)
    again = structs.replace(ask(update_id("u"), gpu=1), former=ask(gpu=1), floor_id=lambda: "f")
    after = judged(one, again).accounts["q"]
    assert after.ledger == {"f": replace(floor, time=int(NOON)) if renewed else floor}
    assert (after is one) is not renewed


def test_a_full_ledger_is_pruned_first_and_refused_then() -> None:
    one = read({"mem": 1}, {"other": entry(1)}, mem=10)
    with pytest.raises(NeedsRecompute):
        judged(one, ask(gpu=1, mem=1), full_at=1)
    refusal = judged(one, ask(gpu=1, mem=1), full_at=1, recomputed=frozenset("q")).refusals[0]
    assert refusal.code == 503
    assert refusal.message == (
        "quota: can't charge namespace team now: the ledger of quota q is full (1 entries); try again"
    )
    assert not judged(one, ask("other", gpu=1, mem=2), full_at=1).refusals


def test_a_dry_run_is_judged_on_what_came_before_and_leaves_nothing() -> None:
    one = read(mem=5)
    found = judged(
        one, ask("a", gpu=1, mem=3), ask("b", dry_run=True, gpu=1, mem=3), ask("c", dry_run=True, gpu=1, mem=2)
    )
    assert set(found.refusals) == {1}
    assert set(found.accounts["q"].ledger) == {"a"}


@pytest.mark.parametrize(
    ("status", "patch"),
    [
        ({"hard": {MEM: "9", GPU: "2"}, "used": {MEM: "1", GPU: "1"}}, None),
        ({"hard": {MEM: "8", GPU: "2"}, "used": {MEM: "1", GPU: "1"}}, {"hard": {MEM: "9"}}),
        ({"hard": {MEM: "9"}, "used": {MEM: "1", GPU: "1"}}, {"hard": {GPU: "2"}}),
        (
            {
                "hard": {MEM: "9", GPU: "2", CORES: "5", "pods": "1"},
                "used": {MEM: "1", GPU: "1", CORES: "3", "pods": "1"},
            },
            {"hard": {CORES: None}, "used": {CORES: None}},
        ),
        ({"hard": {MEM: "9", GPU: "2", CORES: "5"}, "used": {MEM: "1", GPU: "1"}}, {"hard": {CORES: None}}),
        ({"hard": {MEM: "9", GPU: "2"}, "used": {MEM: "1", GPU: "1", CORES: "3"}}, {"used": {CORES: None}}),
    ],
)
def test_status_hard_follows_and_keys_that_left_are_deleted(status: JSON, patch: JSON | None) -> None:
    made = quota(mem=9, gpu=2)
    made["metadata"]["resourceVersion"] = "7"
    one = account_of({**made, "status": status})
    assert one.patch(one) == (patch and {"metadata": {"resourceVersion": "7"}, "status": patch})


def test_an_emptied_ledger_is_deleted() -> None:
    one = read({"mem": 5}, {"u": entry(5)}, mem=10)
    assert one.patch(one.with_entry("u", None)) == {
        "metadata": {"resourceVersion": "7", "annotations": {LEDGER: None}},
        "status": {"used": {MEM: "0"}},
    }


def test_used_never_falls_below_zero() -> None:
    one = read({"mem": 3}, {"u": entry(5)}, mem=10)
    assert one.with_entry("u", None).used == full(mem=0)
