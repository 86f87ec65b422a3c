"""Pods whose turn Kueue, Volcano or Koordinator decides, where a quota queues (docs/spec/queues.md#6)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from builders import JSON, card, node
from quota.objects import GPU, LARGE, TEAM, pod, quota, read_pod, vendors
from quota.quota_env import QuotaEnv
from tables import in_one_test

from hami_webhook.cluster.api import Kind
from hami_webhook.queueing.headroom import manager_of
from hami_webhook.quota.enforcement import QUEUE_OVERTAKING
from queueing.test_releaser import GATES, enforce, queueing, shared, waits

L = node("n1", card("GPU-L", LARGE))
FORGED: dict[str, Any] = {"labels": {"kueue.x-k8s.io/queue-name": "mine"}}


@in_one_test(
    ("fields", "manager"),
    [
        ({}, ""),
        (FORGED, "Kueue"),
        ({"labels": {"kueue.x-k8s.io/managed": "true"}}, "Kueue"),
        ({"labels": {"kueue.x-k8s.io/managed": "false", "kueue.x-k8s.io/queue-name": ""}}, ""),
        ({"annotations": {"kueue.x-k8s.io/workload": "job-a"}}, "Kueue"),
        ({"schedulingGates": [{"name": "kueue.x-k8s.io/topology"}]}, "Kueue"),
        ({"schedulingGates": [{"name": "example.com/mine"}]}, ""),
        ({"schedulerName": "volcano"}, "Volcano"),
        ({"schedulerName": "koord-scheduler"}, "Koordinator"),
        ({"schedulerName": "hami-scheduler", "annotations": {"scheduling.k8s.io/group-name": "g"}}, ""),
    ],
)
def test_what_marks_a_pod_of_another_manager(fields: dict[str, Any], manager: str) -> None:
    assert manager_of(read_pod(gpu=1, **fields), vendors()) == manager


@pytest.mark.parametrize("fields", [FORGED, {"schedulerName": "volcano"}])
async def test_it_is_charged_at_its_creation_or_refused(fields: dict[str, Any]) -> None:
    async with QuotaEnv(L, queueing(gpu=1)) as env:
        stored, answer = await env.admit(pod("theirs", gpu=1, mem=1, **fields))
        assert (stored["spec"].get("schedulingGates"), answer.audit) == (None, {"quota": f"gpu-quota:{GPU}=1"})
        await env.cluster.create(Kind.PODS, stored)
        refused = await env.refused(pod("more", gpu=1, mem=1, **fields))
        assert refused.message.startswith("exceeding resource quota: exceeded quota: gpu-quota")


async def queue(env: QuotaEnv, *names: str, **amounts: Any) -> None:
    for name in names:
        await env.create(pod(name, mem=1, **amounts))


@pytest.mark.parametrize(
    ("order", "age", "passes"), [("best-effort", 5, True), ("best-effort", 61, False), ("strict", 5, False)]
)
async def test_who_forges_a_mark_passes_those_that_wait_no_more_than_the_rule_says(
    order: str, age: int, passes: bool
) -> None:
    made = queueing(order=order, gpu=4)
    made["metadata"]["annotations"][QUEUE_OVERTAKING] = "1m"
    async with QuotaEnv(L, made) as env:
        await queue(env, "runs", gpu=3)
        await env.release()
        await queue(env, "large", gpu=3)
        await env.run(age)
        await env.release()
        assert waits(env) == ["large"]
        if passes:
            await env.create(pod("forged", gpu=1, mem=1, **FORGED))
        else:
            message = (await env.refused(pod("forged", gpu=1, mem=1, **FORGED))).message
            assert message.startswith(
                "quota gpu-quota queues pods, and those that wait come first: this one is managed by"
            )


async def test_room_that_a_waiting_pod_is_about_to_get_is_not_taken() -> None:
    async with QuotaEnv(L, queueing(gpu=2)) as env:
        await queue(env, "runs", gpu=2)
        await env.release()
        await queue(env, "next", gpu=1)
        await env.finish("runs")
        await env.run(12)
        await env.create(pod("a", gpu=1, mem=1, **FORGED))
        await env.refused(pod("b", gpu=1, mem=1, **FORGED))
        await env.release()
        assert (waits(env), env.used()) == ([], {"gpu": 2})


async def test_our_gate_stays_where_kueue_adds_its_own_later() -> None:
    async with QuotaEnv(L, queueing(gpu=1)) as env:
        stored, _ = await env.admit(pod("p", gpu=1, mem=1))
        later: JSON = {
            **stored,
            "spec": {**stored["spec"], "schedulingGates": [*GATES, {"name": "kueue.x-k8s.io/admission"}]},
        }
        answer = await env.core.admission.validate(env.review(later))
        assert answer.audit == {}
        await env.cluster.create(Kind.PODS, later)
        await env.release()
        assert (waits(env), env.used()) == (["p"], {"gpu": 0})
        await env.cluster.patch(Kind.PODS, "p", {"spec": {"schedulingGates": GATES}}, TEAM)
        await env.release()
        assert (waits(env), env.used()) == ([], {"gpu": 1})


# pods that another manager holds behind its gate

KUEUES = {"name": "kueue.x-k8s.io/admission"}
NAME, TOTAL = "kueue.x-k8s.io/pod-group-name", "kueue.x-k8s.io/pod-group-total-count"


def held(name: str, gate: JSON = KUEUES, **fields: Any) -> JSON:
    return pod(name, gpu=1, mem=1, schedulingGates=[gate], **fields)


async def let_go(env: QuotaEnv, *names: str) -> None:
    """The gate of the other manager is removed."""
    for name in names:
        await env.cluster.patch(Kind.PODS, name, {"spec": {"schedulingGates": GATES}}, TEAM)


@pytest.mark.parametrize("gate", [KUEUES, {"name": "example.com/mine"}])
@pytest.mark.parametrize("enforcement", ["enforce", "queue", "observe"])
@pytest.mark.parametrize("above", [False, True])
async def test_what_another_manager_holds_costs_nothing_until_it_lets_it_go(
    gate: JSON, enforcement: str, above: bool
) -> None:
    made = shared(enforcement=enforcement, gpu=1) if above else queueing(gpu=1)
    async with QuotaEnv(L, made, *([quota(gpu=9)] if above else [])) as env:
        if not above:
            await enforce(env, enforcement)
        for name in "abc":
            stored, answer = await env.admit(held(name, gate))
            assert stored["spec"]["schedulingGates"] == [gate, *GATES]
            assert (answer.warnings, answer.audit) == ((), {})
            await env.cluster.create(Kind.PODS, stored)
        await env.release()
        await env.run(60)
        assert (waits(env), env.used()) == (["a", "b", "c"], {"gpu": 0})
        await let_go(env, "b", "c")
        await env.release()
        await env.run(12)
        if enforcement == "observe":
            assert (waits(env), env.used()) == (["a"], {"gpu": 2})
        else:
            assert (waits(env), env.used()) == (["a", "c"], {"gpu": 1})


def group(name: str, *, annotated: bool) -> Iterable[JSON]:
    names, size = {NAME: name}, {TOTAL: "4"}
    where: dict[str, Any] = {"annotations": names | size} if annotated else {"labels": names, "annotations": size}
    return [held(f"{name}{number}", **where) for number in range(4)]


@pytest.mark.parametrize("annotated", [False, True])
@pytest.mark.parametrize("enforcement", ["enforce", "queue"])
async def test_of_two_groups_that_kueue_lets_go_one_runs_whole_and_then_the_other(
    enforcement: str, annotated: bool
) -> None:
    async with QuotaEnv(L, queueing(gpu=6)) as env:
        await enforce(env, enforcement)
        pods = [
            each for pair in zip(*(group(name, annotated=annotated) for name in "ab"), strict=True) for each in pair
        ]
        for each in pods:
            await env.create(each)
        await let_go(env, *(each["metadata"]["name"] for each in pods))
        await env.release()
        first = {name[0] for name in waits(env)}
        assert (len(waits(env)), len(first), env.used()) == (4, 1, {"gpu": 4})
        for name in {"a", "b"} - first:
            for number in range(4):
                await env.finish(f"{name}{number}")
        await env.run(12)
        await env.release()
        assert (waits(env), env.used()) == ([], {"gpu": 4})


def of_set(name: str, number: int, size: int = 4) -> JSON:
    """A pod of a StatefulSet, as Kueue leaves it."""
    marks = {NAME: name, TOTAL: str(size), "kueue.x-k8s.io/pod-group-fast-admission": "true"}
    return held(f"{name}{number}", annotations=marks)


async def test_of_two_stateful_sets_that_kueue_lets_go_one_runs_whole() -> None:
    """Their pods come and are let go one by one, and by turns; the 3 s are those of docs/spec/queues.md#5.2."""
    async with QuotaEnv(L, queueing(gpu=6)) as env:
        for number in range(4):
            for name in "ab":
                await env.create(of_set(name, number))
                await let_go(env, f"{name}{number}")
            if number < 3:
                await env.release()
                assert env.used() == {"gpu": 0}
        await env.release()
        assert (sorted(name[0] for name in waits(env)), env.used()) in (
            (["a"] * 2, {"gpu": 6}),
            (["b"] * 2, {"gpu": 6}),
        )


async def test_a_stateful_set_that_makes_one_pod_after_the_other_is_not_waited_for() -> None:
    async with QuotaEnv(L, queueing(gpu=2)) as env:
        await env.create(of_set("a", 0))
        await let_go(env, "a0")
        await env.release()
        assert waits(env) == ["a0"]
        await env.run(3)
        await env.release()
        assert waits(env) == []
        # others are running by now; of four there is room for two, and scaled up it goes on
        await env.create(of_set("a", 1))
        await env.create(of_set("a", 2, size=8))
        await let_go(env, "a1", "a2")
        await env.release()
        assert (waits(env), env.used()) == (["a2"], {"gpu": 2})
        # what Kueue holds of it keeps none of the others waiting once some run
        await env.create(of_set("a", 3))
        await env.finish("a0")
        await env.run(12)
        await env.release()
        assert (waits(env), env.used()) == (["a3"], {"gpu": 2})


async def test_a_pod_that_never_starts_keeps_no_place_for_those_of_its_set_that_come_later() -> None:
    async with QuotaEnv(L, queueing(gpu=2)) as env:
        await env.create(pod("runs", gpu=2, mem=1))
        await env.release()
        await env.create(of_set("a", 0, size=1))
        await let_go(env, "a0")
        await env.run(20)
        await env.create(pod("other", gpu=1, mem=1))
        await env.run(20)
        await env.create(of_set("a", 1, size=1))
        await let_go(env, "a1")
        await env.finish("runs")
        await env.run(12)
        await env.release()
        assert (waits(env), env.used()) == (["a1"], {"gpu": 2})


async def test_a_gate_of_a_tenants_own_gains_it_nothing() -> None:
    """Neither room that nobody charged, nor more than hard, nor a place before those that wait already."""
    async with QuotaEnv(L, queueing(gpu=1)) as env:
        mine = {"name": "example.com/mine"}
        await env.create(held("parked", mine))
        for enforcement in ("enforce", "queue"):
            await enforce(env, enforcement)
            message = (await env.refused(pod("large", gpu=2, mem=1, schedulingGates=[mine]))).message
            assert message.startswith("exceeding resource quota: exceeded quota: gpu-quota")
        await env.create(pod("runs", gpu=1, mem=1))
        await env.release()
        # all gates at once, which takes ours: by nobody but the controller (test_queues.py), and so it waits for room
        await let_go(env, "parked")
        await env.release()
        assert (waits(env), env.used()) == (["parked"], {"gpu": 1})


async def test_pods_without_gates_and_namespaces_without_quotas_are_as_ever() -> None:
    async with QuotaEnv(L, quota(gpu=1)) as env:
        stored, _ = await env.admit(pod("p", gpu=1, mem=1))
        assert "schedulingGates" not in stored["spec"]
        await env.cluster.ensure_namespace("other")
        for made in (held("gated", namespace="other"), pod("cpu", cpu=1, schedulingGates=[KUEUES])):
            stored, _ = await env.admit(made)
            assert stored["spec"]["schedulingGates"] == [KUEUES]
