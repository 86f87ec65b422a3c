"""Memory keys whose hard may be bytes (`16Gi`), beside quotas that count the same key in units.

Source: docs/spec/quota.md#2.
"""

from __future__ import annotations

import functools
from fractions import Fraction
from typing import Any

import pytest
from builders import card, node
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from msgspec.structs import replace
from prometheus_client import generate_latest
from tables import in_one_test

from hami_webhook.cluster.api import JSON
from hami_webhook.controller.showback import Showback
from hami_webhook.device_config import builtin_device_config
from hami_webhook.devices.debit import Debit
from hami_webhook.devices.model import DeviceHold
from hami_webhook.devices.registry import Vendors
from hami_webhook.devices.vendors.nvidia import Nvidia
from hami_webhook.kube.objects import ContainerKind
from hami_webhook.kube.quantity import Quantity, is_binary
from hami_webhook.quota.account import ChargeRequest, NeedsRecompute, QuotaAccount
from hami_webhook.quota.batch import evaluate_batch
from hami_webhook.quota.budget import PodBudget, pod_budget
from hami_webhook.quota.ledger import LEDGER, Entry, State, encode
from hami_webhook.quota.pricing import Charge, ClusterCapacity, in_bytes, in_units, price_pending
from hami_webhook.quota.recompute import LedgerBounds, recompute
from hami_webhook.server.cluster_metrics import ClusterCollector

from .objects import GPU, LARGE, MEM, NOON, TEAM, account_of, pod, quota, read_pod
from .quota_env import QuotaEnv

GIB, MIB = 2**30, 2**20


class InBytes(Nvidia):
    """A vendor whose memory resource is GiB, and may be bytes in a ResourceQuota."""

    memory_may_be_bytes = True


class OtherInBytes(InBytes):
    key = "Other"


@functools.cache
def vendors(*kinds: type[Nvidia], factor: int = 1024, other_factor: int = 1024) -> Vendors:
    section = builtin_device_config().config.section("nvidia")
    factors = (factor, other_factor)
    return Vendors(
        [
            kind(section.model_copy(update={"memory_factor": each}))
            for kind, each in zip(kinds or (InBytes,), factors, strict=False)
        ]
    )


def quota_of(used: object = None, ledger: dict[str, Entry] | None = None, **hard: Any) -> QuotaAccount:
    made = quota("q", **hard)
    made["metadata"] |= {"resourceVersion": "7", "annotations": {LEDGER: encode(ledger)} if ledger else {}}
    made["status"] = {} if used is None else {"hard": made["spec"]["hard"], "used": {MEM: str(used)}}
    return account_of(made, vendors())


def ask(identity: str, mem: int) -> ChargeRequest:
    incoming = read_pod(identity, gpu=1, mem=mem, uid=identity)
    return ChargeRequest(identity, incoming, price_pending(incoming, vendors(), ClusterCapacity()))


@in_one_test(
    ("hard", "limit", "counts_bytes"),
    [
        ("16", 16, False),
        (16, 16, False),
        ("4k", 4000, False),
        ("16G", 16 * 10**9, False),
        ("17179869184", 16 * GIB, False),
        ("1e3", 1000, False),
        ("16Gi", 16 * GIB, True),
        ("1.5Gi", 1536 * MIB, True),
        ("512Ki", 524288, True),
        ("0", 0, False),
    ],
)
def test_a_binary_suffix_means_bytes_and_no_other_does(hard: object, limit: int, counts_bytes: bool) -> None:
    found = quota_of(mem=hard, gpu="2Ki")
    assert (found.hard, found.in_bytes) == ({MEM: limit, GPU: 2048}, frozenset((MEM,) if counts_bytes else ()))


def test_a_key_without_the_flag_is_obeyed_literally() -> None:
    found = account_of(quota(mem="2Gi"), vendors(Nvidia))
    assert (found.hard, found.in_bytes, vendors(Nvidia).bytes_per_unit) == ({MEM: 2 * GIB}, frozenset(), {})


@pytest.mark.parametrize(
    ("kinds", "other_factor", "per_unit"),
    [
        ((InBytes,), 1024, {MEM: GIB}),
        ((InBytes, OtherInBytes), 1024, {MEM: GIB}),
        ((InBytes, OtherInBytes), 1, {}),
        ((Nvidia, OtherInBytes), 1024, {}),
    ],
)
def test_vendors_that_share_a_key_must_agree_on_it(
    kinds: tuple[type[Nvidia], ...], other_factor: int, per_unit: dict[str, int]
) -> None:
    known = vendors(*kinds, other_factor=other_factor)  # type: ignore[arg-type]  # mypy takes a class for an object of it, which has no hash
    assert known.bytes_per_unit == per_unit


def test_vendors_that_share_a_key_are_rounded_together() -> None:
    both = vendors(InBytes, OtherInBytes)
    debits = {"NVIDIA": Debit(1, 1500, 0), "Other": Debit(1, 500, 0)}
    assert in_units(debits, both) == {GPU: 2, MEM: 2}
    assert in_bytes(debits, both) == {MEM: 2000 * MIB}


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=3))
def test_a_pods_memory_is_rounded_up_once_in_units_and_never_in_bytes(amounts: list[int]) -> None:
    debit = Debit(1, sum(amounts), 0)
    expected = -(-sum(amounts) // 1024)
    assert in_units({"NVIDIA": debit}, vendors()).get(MEM, 0) == expected
    assert in_bytes({"NVIDIA": debit}, vendors()).get(MEM, 0) == sum(amounts) * MIB


@pytest.mark.parametrize(
    ("hard", "used", "text"), [("16Gi", 8 * GIB, "8Gi"), ("16", 8, "8"), ("16384Mi", 8 * GIB, "8Gi")]
)
def test_a_charge_enters_used_in_the_quotas_unit_and_the_ledger_in_bytes(hard: str, used: int, text: str) -> None:
    one = quota_of(0, mem=hard)
    after = evaluate_batch({"q": one}, [ask("u", 8)], NOON, 9, recomputed=frozenset()).accounts["q"]
    assert after.used == {MEM: used}
    assert after.ledger["u"].amounts == {MEM: 8 * GIB}
    patch = one.patch(after)
    assert patch is not None
    assert patch["status"]["used"] == {MEM: text}


def test_used_that_is_no_whole_number_of_gibibytes_is_told_in_mebibytes() -> None:
    one = quota_of(0, mem="16Gi")
    patch = one.patch(one.with_increase("u", None, {MEM: 1536 * MIB}))
    assert patch is not None
    assert patch["status"] == {"used": {MEM: "1536Mi"}}


def test_a_status_that_lags_is_told_hard_as_it_is_written() -> None:
    one = replace(
        quota_of(0, mem="16Gi"), quota=structs.replace(quota_of(0, mem="16Gi").quota, status_hard={MEM: "8Gi"})
    )
    patch = one.patch(one)
    assert patch is not None
    assert patch["status"] == {"hard": {MEM: "16Gi"}}


def test_the_refusal_is_in_the_quotas_unit() -> None:
    refusals = [
        evaluate_batch({"q": quota_of(used, mem=hard)}, [ask("u", 8)], NOON, 9, recomputed=frozenset())
        .refusals[0]
        .message
        for used, hard in (("9Gi", "16Gi"), ("9", "16"))
    ]
    start = f"exceeding resource quota: exceeded quota: q, requested: {MEM}="
    in_gi = " (memory: 8Gi requested, 9Gi used, 16Gi limited)"
    assert refusals == [
        f"{start}{8 * GIB}, used: {MEM}={9 * GIB}, limited: {MEM}={16 * GIB}{in_gi}",
        f"{start}8, used: {MEM}=9, limited: {MEM}=16{in_gi}",
    ]


@pytest.mark.parametrize(
    ("hard", "used", "known"),
    [
        ("16Gi", "8Gi", 8 * GIB),
        ("16Gi", "0", 0),
        ("16", "8", 8),
        ("16", "0", 0),
        ("16Gi", "12", None),
        ("16Gi", str(8 * GIB), None),
        ("16", "8Gi", None),
    ],
)
def test_used_in_the_other_unit_is_unknown(hard: str, used: str, known: int | None) -> None:
    """It is left from before hard was rewritten: 12 GiB must not pass for 12 bytes."""
    found = quota_of(used, mem=hard)
    assert found.used.get(MEM) == known
    if known is None:
        with pytest.raises(NeedsRecompute):
            evaluate_batch({"q": found}, [ask("u", 1)], NOON, 9, recomputed=frozenset())


@pytest.mark.parametrize(("hard", "used"), [("16", 6), ("16Gi", 5632 * MIB)])
def test_an_entry_counts_the_same_whatever_way_hard_is_written_now(hard: str, used: int) -> None:
    ledger = {
        "a": Entry(State.ADMITTED, int(NOON), {MEM: 2560 * MIB}),
        "b": Entry(State.WAITING, int(NOON), {MEM: 3 * GIB}),
    }
    waiting = read_pod("b", gpu=1, percent=50, uid="b")
    found = recompute(
        quota_of("1", ledger, mem=hard), [waiting], vendors(), ClusterCapacity(), NOON, LedgerBounds()
    ).after
    assert found.used == {MEM: used}
    assert found.ledger == ledger


pods = st.lists(st.integers(1, 6000), max_size=6)
hards = st.one_of(
    st.integers(0, 12).map(str), st.integers(0, 12).map("{}Gi".format), st.integers(0, 12000).map("{}Mi".format)
)


def fits(hard: str, mebibytes: list[int]) -> bool:
    """The rule by itself: bytes are added up exactly, units after each pod was rounded up."""
    if is_binary(hard):
        return sum(mebibytes) * MIB <= Quantity.parse(hard).value
    return sum(Fraction(-(-each // 1024)) for each in mebibytes) <= int(hard)


def charge(identity: str, mebibytes: int) -> ChargeRequest:
    """A pod that holds so many MiB, which its unit of GiB couldn't say."""
    found = ask(identity, 1)
    debit = {"NVIDIA": Debit(0, mebibytes, 0)}
    amounts = Charge(in_units(debit, vendors()), in_bytes=in_bytes(debit, vendors()))
    return ChargeRequest(identity, found.pod, amounts)


@given(pods, hards, hards)
def test_pods_are_admitted_as_long_as_every_quota_has_room_in_its_own_unit(
    wanted: list[int], one: str, two: str
) -> None:
    both = {"a": quota_of(0, mem=one), "b": quota_of(0, mem=two)}
    with_limits = [charge(str(index), mebibytes) for index, mebibytes in enumerate(wanted)]
    found = evaluate_batch(both, with_limits, NOON, 99, recomputed=frozenset())
    admitted: list[int] = []
    for index, mebibytes in enumerate(wanted):
        more = [*admitted, mebibytes]
        assert (index not in found.refusals) is (fits(one, more) and fits(two, more))
        if index not in found.refusals:
            admitted = more
    for name, hard in (("a", one), ("b", two)):
        in_full = found.accounts[name].used[MEM]
        assert in_full == (sum(admitted) * MIB if is_binary(hard) else sum(-(-each // 1024) for each in admitted))
        assert in_full <= max(found.accounts[name].hard[MEM], 0)


@given(st.integers(0, 12), st.integers(0, 12000), st.lists(st.integers(1, 6000), min_size=1, max_size=3))
def test_a_budget_holds_in_units_and_in_bytes(units: int, mebibytes: int, held: list[int]) -> None:
    found = PodBudget({MEM: units}, (ContainerKind.APP,), vendors(), {MEM: mebibytes * MIB})
    claims = [DeviceHold("NVIDIA", f"GPU-{index}", 0, each, 0) for index, each in enumerate(held)]
    assert found.admits(claims) is (-(-sum(held) // 1024) <= units and sum(held) <= mebibytes)


def test_the_budget_of_a_pod_has_the_smallest_limit_of_either_unit() -> None:
    mine = read_pod("mine", gpu=1, mem=2, uid="mine")
    quotas = [quota_of(used, mem=hard) for used, hard in (("2Gi", "16Gi"), ("9Gi", "12Gi"), ("2", "7"), ("0", "9"))]

    def budget_of(accounts: list[QuotaAccount]) -> PodBudget | None:
        nobody: dict[str, int] = {MEM: 0}
        return pod_budget(mine, accounts, lambda account: nobody, vendors(), ClusterCapacity(), NOON, 300)

    found = budget_of(quotas)
    assert found is not None
    assert (found.limits, found.byte_limits) == ({MEM: 7}, {MEM: 5 * GIB})
    only = budget_of(quotas[:1])
    assert only is not None
    assert (only.limits, only.byte_limits) == ({}, {MEM: 16 * GIB})


# on a cluster

N1 = node("n1", card("GPU-1", LARGE), card("GPU-2", 1536))


def pod_with_limits(name: str, **amounts: Any) -> JSON:
    return pod(name, gpu=1, uid=f"uid-{name}", **amounts)


def written(env: QuotaEnv) -> Any:
    return env.quota()["status"]["used"][MEM]


async def test_a_quota_in_bytes_from_admission_to_the_end() -> None:
    async with QuotaEnv(N1, quota(mem="16Gi"), of=vendors()) as env:
        await env.create(pod_with_limits("a", mem=8))
        assert (env.mem(), written(env)) == (8 * GIB, "8Gi")
        await env.create(pod_with_limits("b"))  # the smallest card has 1536 MiB
        assert written(env) == "9728Mi"
        refused = await env.refused(pod_with_limits("c", mem=7))
        assert f"requested: {MEM}={7 * GIB}, used: {MEM}={9728 * MIB}, limited: {MEM}={16 * GIB}" in refused.message
        assert await env.node_of("a") == await env.node_of("b") == "n1"
        await env.run(2)
        assert (env.mem(), env.in_flight()) == (9728 * MIB, {})
        await env.delete("a")
        await env.run(2)
        assert written(env) == "1536Mi"
        assert env.events("QuotaUnitSuspicious") == []


@pytest.mark.parametrize(
    ("before", "after", "room"),
    [("12", "12Gi", 2), ("12Gi", "12", 2), ("12", "8Gi", 0), ("12Gi", "8", 0), ("8", "10Gi", 1)],
)
async def test_hard_rewritten_in_the_other_unit_lets_nobody_in_for_bytes(before: str, after: str, room: int) -> None:
    """4 GiB placed, a floor of 1536 MiB waiting, 2 GiB in flight: 7.5 GiB, or 8 units; then 2 GiB at a time."""
    async with QuotaEnv(N1, quota(mem=before), of=vendors()) as env:
        await env.create(pod_with_limits("placed", mem=4))
        await env.node_of("placed")
        await env.create(pod_with_limits("waiting"))
        await env.run(2)
        await env.admit(pod_with_limits("flying", mem=2))
        await env.edit_hard(mem=after)
        for number in range(room):
            await env.admit(pod_with_limits(f"more-{number}", mem=2))
        assert "exceeded quota" in (await env.refused(pod_with_limits("last", mem=2))).message
        await env.run(3)
        assert env.mem() == (7680 * MIB + room * 2 * GIB if is_binary(after) else 8 + 2 * room)
        await env.run(60)
        assert env.mem() == (5632 * MIB if is_binary(after) else 6)


async def test_metrics_tell_used_and_hard_in_one_unit_and_the_smallest_limit_as_written() -> None:
    quotas = (quota("bytes", mem="4Gi"), quota("units", mem="5"))
    async with QuotaEnv(N1, *quotas, of=vendors()) as env:
        await env.create(pod_with_limits("a", mem=3))
        await env.run(1)
        text = generate_latest(ClusterCollector(env.core.view, Showback(env.core.view))).decode()
        labels = f'namespace="{TEAM}",quota='
        lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))

        def value(metric: str, name: str) -> float:
            found = [v for k, v in lines.items() if k.startswith(metric) and f'"{name}"' in k and MEM in k]
            return float(found[0])

        assert labels in text
        assert (value("hami_webhook_quota_used", "bytes"), value("hami_webhook_quota_hard", "bytes")) == (
            3 * GIB,
            4 * GIB,
        )
        assert (value("hami_webhook_quota_used", "units"), value("hami_webhook_quota_hard", "units")) == (3, 5)
        legacy = [v for k, v in lines.items() if k.startswith("hami_resource_quota_limit")]
        assert [float(v) for v in legacy] == [4 * GIB]
