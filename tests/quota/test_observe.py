"""Quotas that only observe: nothing is refused, everything is counted (docs/spec/quota.md#7.1)."""

from __future__ import annotations

from typing import Any

import pytest
from builders import JSON, card, node
from charging.test_queue import Desk, desk
from charging.test_queue import ask as request_of
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from prometheus_client import generate_latest

from hami_webhook.assembly import Core
from hami_webhook.charging.queue import RETRIES, ChargeResult
from hami_webhook.cluster.api import Conflict, Kind
from hami_webhook.controller.showback import Showback
from hami_webhook.kubectl.overview import Overview
from hami_webhook.quota.account import QuotaAccount
from hami_webhook.quota.batch import evaluate_batch
from hami_webhook.quota.enforcement import ENFORCEMENT, OBSERVED, Enforcement
from hami_webhook.quota.ledger import Entry, State, decode, encode
from hami_webhook.scheduling.placer import Placement
from hami_webhook.server.cluster_metrics import ClusterCollector

from .objects import GPU, LARGE, MEM, NOON, SMALL, TEAM, account_of, full, pod, quota
from .quota_env import QuotaEnv
from .test_account import ask, read
from .test_quota_lint import judged

L, S = node("n1", card("GPU-L", LARGE)), node("n2", card("GPU-S", SMALL))
SAID = "quota is observed, not enforced: exceeding resource quota: exceeded quota: "


def observing(value: str = "observe", name: str = "gpu-quota", **hard: Any) -> JSON:
    made = quota(name, **hard)
    made["metadata"]["annotations"] = {ENFORCEMENT: value}
    return made


def annotations_of(env: QuotaEnv, name: str = "gpu-quota") -> dict[str, str]:
    return dict(env.quota(name)["metadata"]["annotations"])


async def set_enforcement(env: QuotaEnv, value: str | None, name: str = "gpu-quota") -> None:
    patch = {"metadata": {"annotations": {ENFORCEMENT: value}}}
    await env.cluster.patch(Kind.RESOURCE_QUOTAS, name, patch, TEAM)


async def test_what_is_over_passes_with_the_refusal_as_a_warning_and_is_charged() -> None:
    async with QuotaEnv(L, observing(mem=3000)) as env:
        _, answer = await env.admit(pod("a", gpu=1, mem=2000))
        assert answer.warnings == ()
        _, answer = await env.admit(pod("b", gpu=1, mem=2000))
        assert answer.warnings == (
            f"{SAID}gpu-quota, requested: {MEM}=2000, used: {MEM}=2000, limited: {MEM}=3000"
            " (memory: 2Gi requested, 2Gi used, 2.9Gi limited)",
        )
        assert env.mem() == 4000
        assert annotations_of(env)[OBSERVED] == "1"
        await env.drain()
        [shown] = Overview(env.core.view, env.now).quotas(TEAM)
        assert "is observed, not enforced; charges that passed without room: 1" in shown.notes


@pytest.mark.parametrize("path", ["/validate", "/webhook"])
async def test_fifty_pass_with_fifty_warnings_and_then_the_next_is_refused(path: str) -> None:
    async with QuotaEnv(L, observing(gpu=0), replicas=2) as env:
        for number in range(50):
            stored, answer = await env.admit(
                pod(f"p{number}", gpu=1, mem=1), uid=f"u{number}", replica=number % 2, path=path
            )
            await env.cluster.create(Kind.PODS, stored)
            assert answer.warnings == (f"{SAID}gpu-quota, requested: {GPU}=1, used: {GPU}={number}, limited: {GPU}=0",)
        await env.run(12)
        assert env.used()["gpu"] == 50
        counted = [event.count for event in env.cluster.events if event.note.reason == "QuotaObserved"]
        assert sum(counted) == 50
        for core in env.cores:
            metric = f'hami_webhook_quota_observed_total{{namespace="{TEAM}",quota="gpu-quota"}} 50.0'
            assert metric in exposition(core)
        await set_enforcement(env, "enforce")
        denial = await env.refused(pod("p50", gpu=1, mem=1))  # its cache may lag
        assert denial.message.endswith(f"requested: {GPU}=1, used: {GPU}=50, limited: {GPU}=0")
        await env.run(30)
        assert env.used()["gpu"] == 50
        assert annotations_of(env)[OBSERVED] == "50"


def exposition(core: Core) -> str:
    return generate_latest(ClusterCollector(core.view, Showback(core.view))).decode()


@pytest.mark.parametrize("value", ["enforce", "Observe", "observed", "", "off"])
async def test_any_other_value_enforces(value: str) -> None:
    async with QuotaEnv(L, observing(value, mem=1000)) as env:
        denial = await env.refused(pod(gpu=1, mem=2000))
        assert denial.code == 403


@pytest.mark.parametrize(("value", "reported"), [("enforce", False), ("observe", False), ("Observe", True), ("", True)])
def test_an_unknown_value_is_told(value: str, reported: bool) -> None:
    text = f"{ENFORCEMENT}: {value} isn't known, so the quota is enforced; write observe, queue or enforce"
    found = judged({MEM: "9"}, annotations={ENFORCEMENT: value})
    assert found == ([("QuotaMisread", text)] if reported else [])


async def test_an_enforced_quota_beside_it_refuses_and_nothing_is_charged() -> None:
    async with QuotaEnv(L, observing(name="a", mem=1000), quota("b", mem=3000)) as env:
        await env.create(pod("p", gpu=1, mem=2000))
        denial = await env.refused(pod("q", gpu=1, mem=2000))
        assert "exceeded quota: b" in denial.message
        await env.run(5)
        assert (env.mem("a"), env.mem("b")) == (2000, 2000)
        assert annotations_of(env, "a")[OBSERVED] == "1"


async def test_a_dry_run_warns_and_counts_nothing() -> None:
    async with QuotaEnv(L, observing(mem=1000)) as env:
        _, answer = await env.admit(pod(gpu=1, mem=2000), dry_run=True)
        assert len(answer.warnings) == 1
        assert OBSERVED not in annotations_of(env)
        assert env.mem() == 0


async def test_the_same_pod_again_is_warned_again_and_counted_once() -> None:
    async with QuotaEnv(L, observing(mem=1000)) as env:
        for _ in range(2):
            _, answer = await env.admit(pod(gpu=1, mem=2000))
            assert answer.warnings == (
                f"{SAID}gpu-quota, requested: {MEM}=2000, used: {MEM}=0, limited: {MEM}=1000"
                " (memory: 2Gi requested, 0Mi used, 1000Mi limited)",
            )
        assert annotations_of(env)[OBSERVED] == "1"
        assert env.mem() == 2000


async def test_a_placement_is_refused_no_card_and_counted_where_it_costs_more_than_was_charged() -> None:
    async with QuotaEnv(L, observing(mem=10000)) as env:
        await env.create(pod("half", gpu=1, percent=50))  # charged 12288: over
        assert annotations_of(env)[OBSERVED] == "1"
        assert await env.node_of("half") == "n1"
    async with QuotaEnv(L, S, observing(mem=9000)) as env:
        await env.create(pod("half", gpu=1, percent=50))
        assert OBSERVED not in annotations_of(env)
        placed = await env.core.placer.place(env.pod("half"), ["n1"])
        assert isinstance(placed, Placement)
        assert env.mem() == LARGE // 2
        assert annotations_of(env)[OBSERVED] == "1"
        await set_enforcement(env, None)
        await env.run(5)
        assert (await env.refused(pod("next", gpu=1, mem=1))).code == 403


@desk({})
async def test_a_warning_outlives_a_conflict_on_another_quota(one: Desk) -> None:
    made = observing(name="a", mem=1)
    made["status"] = {"hard": made["spec"]["hard"], "used": {MEM: "0"}}
    await one.cluster.create(Kind.RESOURCE_QUOTAS, made)
    await one.add("b", mem=10)
    one.fail(Conflict, "patch_status:before", [2])
    outcome = await one.charger.charge(request_of())
    assert isinstance(outcome, ChargeResult)
    assert outcome.warnings == (
        f"{SAID}a, requested: {MEM}=5, used: {MEM}=0, limited: {MEM}=1 (memory: 5Mi requested, 0Mi used, 1Mi limited)",
    )
    assert one.read("a").annotations[OBSERVED] == "1"


@desk({})
async def test_what_is_taken_back_is_not_counted(one: Desk) -> None:
    made = observing(name="a", mem=1)
    made["status"] = {"hard": made["spec"]["hard"], "used": {MEM: "0"}}
    await one.cluster.create(Kind.RESOURCE_QUOTAS, made)
    await one.add("b", mem=10)
    one.fail(Conflict, "patch_status:before", range(2, 2 + RETRIES.attempts))
    outcome = await one.charger.charge(request_of())
    assert not isinstance(outcome, ChargeResult)
    assert one.state("a") == (0, set())
    assert one.read("a").annotations[OBSERVED] == "0"


def test_the_ledger_says_which_charges_had_no_room() -> None:
    entry = Entry(State.ADMITTED, 5, {"k": 2}, observed=True)
    assert encode({"a": entry}) == '{"a":{"s":"admitted","t":5,"c":{"k":2},"o":true}}'
    assert decode(encode({"a": entry})) == {"a": entry}
    assert decode('{"a":{"s":"admitted","t":5,"c":{"k":2},"o":1}}') == {}


@pytest.mark.parametrize(
    ("written", "count"),
    [("7", 7), ("9" * 15, 10**15 - 1), *((text, 0) for text in ("-1", "x", "", "1.5", "²", "9" * 16, "9" * 40))],
)
def test_a_count_that_can_not_be_read_is_none(written: str, count: int) -> None:
    made = quota(mem=1)
    made["metadata"]["annotations"] = {OBSERVED: written}
    assert account_of(made).observed == count


SIZES = st.lists(st.integers(1, 6), min_size=1, max_size=12)


@given(sizes=SIZES, hard=st.integers(0, 12), used=st.integers(0, 12))
def test_observing_charges_as_if_there_were_no_limit_and_warns_as_if_there_were_one(
    sizes: list[int], hard: int, used: int
) -> None:
    requests = [ask(f"u{index}", gpu=1, mem=size) for index, size in enumerate(sizes)]

    def evaluated(limit: int, enforcement: Enforcement) -> tuple[QuotaAccount, int, dict[int, int]]:
        account = replace(read({"mem": used}, mem=limit), enforcement=enforcement)
        result = evaluate_batch({"q": account}, requests, NOON, 1000, recomputed=frozenset())
        assert not (enforcement is Enforcement.OBSERVE and result.refusals)
        warned = {index: len(refusals) for index, refusals in result.observed.items() if refusals}
        return result.accounts["q"], len(result.refusals), warned

    observed, _, warned = evaluated(hard, Enforcement.OBSERVE)
    unlimited, refused, _ = evaluated(10**6, Enforcement.ENFORCE)
    assert refused == 0
    assert observed.used == unlimited.used == full(mem=used + sum(sizes))
    assert {key: entry.amounts for key, entry in observed.ledger.items()} == {
        key: entry.amounts for key, entry in unlimited.ledger.items()
    }
    over = {index: 1 for index in range(len(sizes)) if used + sum(sizes[: index + 1]) > hard}
    assert warned == over
    assert observed.observed == len(over) == sum(entry.observed for entry in observed.ledger.values())
