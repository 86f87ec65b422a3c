"""Pods whose turn Kueue, Volcano or Koordinator decides, where a quota queues (docs/spec/queues.md#6)."""

from __future__ import annotations

from typing import Any

import pytest
from builders import JSON, card, node
from tables import in_one_test

from hami_webhook.cluster.api import Kind
from hami_webhook.quota.enforcement import QUEUE_OVERTAKING
from hami_webhook.quota.other_managers import manager_of

from .objects import GPU, LARGE, TEAM, pod, quota, read_pod, vendors
from .quota_env import QuotaEnv
from .test_queues import GATES, queueing, waits

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


async def test_quotas_that_do_not_queue_ask_for_nothing_more() -> None:
    async with QuotaEnv(L, quota(gpu=1)) as env:
        await env.create(pod("theirs", gpu=1, mem=1, **FORGED))


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
