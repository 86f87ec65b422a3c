"""What is written on pods that wait for quota (docs/spec/queues.md#4)."""

from __future__ import annotations

import pytest
from builders import JSON
from quota.objects import GPU, MEM, TEAM, pod, read_pod
from quota.quota_env import QuotaEnv
from replicas import events_of

from hami_webhook.cluster.api import Kind, Unavailable
from hami_webhook.kube.objects import QUOTA_RESERVED, format_time
from hami_webhook.queueing.reports import QueueReports
from hami_webhook.queueing.words import earliest, reason_of, sentence, with_durations
from hami_webhook.quota.queue_order import PendingReason, QueuedPod, QueuePosition, Shortfall
from queueing.test_releaser import L, queueing


def lack(quota: str = "team/gpu-quota", requested: int = 4, free: int = 1, hard: int = 10) -> Shortfall:
    return Shortfall(quota, GPU, requested, free, hard)


PODS = {"u1": read_pod("first", uid="u1"), "u2": read_pod("secret", uid="u2", namespace="others")}


@pytest.mark.parametrize(
    ("obstacle", "ahead", "text"),
    [
        (
            PendingReason((lack(),)),
            0,
            "Waits for quota gpu-quota: needs 4 nvidia.com/gpu, 1 free of 10; first in line",
        ),
        (
            PendingReason((lack("AcceleratorQuota/all", free=-2),), kept_for=("u1", "u2", "gone")),
            2,
            "Waits for AcceleratorQuota all: needs 4 nvidia.com/gpu, 0 free of 10; "
            "room is kept for first; 2 pods wait before it",
        ),
        (
            PendingReason((lack(free=0),), kept_for=("u2",)),
            1,
            "Waits for quota gpu-quota: needs 4 nvidia.com/gpu, 0 free of 10; "
            "room is kept for pods of other namespaces; 1 pod waits before it",
        ),
        (
            PendingReason(
                (lack(), Shortfall("team/gpu-quota", MEM, 9, 3, 8), lack("AcceleratorQuota/all")), never=False
            ),
            0,
            "Waits for quota gpu-quota: needs 4 nvidia.com/gpu, 1 free of 10 and 9 nvidia.com/gpumem, 3 free of 8, "
            "and for AcceleratorQuota all: needs 4 nvidia.com/gpu, 1 free of 10; first in line",
        ),
        (
            PendingReason(closed="team/gpu-quota"),
            1,
            "Waits for its turn; quota gpu-quota lets no pod pass those that wait before it; 1 pod waits before it",
        ),
        (
            PendingReason((lack(requested=12),), never=True),
            3,
            "Waits for quota gpu-quota: needs 12 nvidia.com/gpu, limited to 10; it waits until the limit is raised",
        ),
        (PendingReason(incomplete="2 of 4 pods"), 1, "2 of 4 pods"),
        (
            PendingReason(refused="too late"),
            1,
            "others are charged before it until its charge succeeds: too late",
        ),
        (PendingReason(spent="until Monday"), 1, "Waits for the next period: until Monday"),
    ],
)
def test_what_a_pod_waits_for(obstacle: PendingReason, ahead: int, text: str) -> None:
    standing = QueuePosition(QueuedPod("me", f"{TEAM}/me", 0, 0.0, ()), ahead, obstacle)
    assert sentence(standing, PODS.get) == text


@pytest.mark.parametrize(
    ("obstacle", "reason"),
    [
        (PendingReason((lack(),)), "Waiting"),
        (PendingReason((lack(requested=12),), never=True), "AboveHard"),
        (PendingReason(incomplete="2 of 4 pods"), "PodGroupIncomplete"),
        (PendingReason(refused="too late"), "ChargeRefused"),
        (PendingReason(spent="until Monday"), "BudgetSpent"),
    ],
)
def test_what_is_in_the_way_has_a_reason(obstacle: PendingReason, reason: str) -> None:
    assert reason_of(obstacle) == reason


def condition(env: QuotaEnv, name: str, namespace: str = TEAM) -> JSON | None:
    found = env.cluster.peek(Kind.PODS, name, namespace)
    assert found is not None
    conditions = found.get("status", {}).get("conditions", [])
    return next((each for each in conditions if each["type"] == QUOTA_RESERVED), None)


async def written(env: QuotaEnv, reports: QueueReports) -> None:
    await env.release()
    await reports.step()
    await env.drain()


def reports_of(env: QuotaEnv) -> QueueReports:
    return QueueReports(env.cluster, env.core.view, env.releaser, events_of(env.core))


async def test_a_pod_says_that_it_waits_where_it_stands_and_that_it_is_charged() -> None:
    async with QuotaEnv(L, queueing(gpu=1)) as env:
        reports = reports_of(env)
        for name in "abc":
            await env.create(pod(name, gpu=1, mem=1))
        status = {"status": {"conditions": [{"type": "PodScheduled", "status": "False"}]}}
        await env.cluster.patch_status(Kind.PODS, "c", status, TEAM)
        await written(env, reports)
        assert condition(env, "a") is None
        found = condition(env, "c")
        lacks = "Waits for quota gpu-quota: needs 1 nvidia.com/gpu, 0 free of 1"
        assert found is not None
        assert (found["status"], found["reason"]) == ("False", "Waiting")
        assert found["message"] == f"{lacks}; 1 pod waits before it"
        stored = await env.cluster.get(Kind.PODS, "c", TEAM)
        assert [each["type"] for each in stored["status"]["conditions"]] == ["PodScheduled", QUOTA_RESERVED]
        assert env.events("QuotaWaiting") == [f"{lacks}; first in line", f"{lacks}; 1 pod waits before it"]
        await env.finish("a")
        await env.run(12)
        await written(env, reports)
        found = condition(env, "b")
        assert found is not None
        now = format_time(env.now)
        assert (found["status"], found["reason"], found["lastTransitionTime"]) == ("True", "Reserved", now)
        found = condition(env, "c")
        assert found is not None
        assert found["message"].endswith("1 pod waits before it")  # it was written to less than a minute ago
        await env.run(60)
        await written(env, reports)
        found = condition(env, "c")
        assert found is not None
        assert found["message"].endswith("first in line")
        assert len(env.events("QuotaWaiting")) == 2


async def test_the_event_is_renewed_when_the_numbers_change_and_not_for_a_place() -> None:
    """`kubectl describe pod` shows of the condition the name alone: the event has to say what holds now."""
    async with QuotaEnv(L, queueing(gpu=2)) as env:
        reports = reports_of(env)
        for name in "abcd":
            await env.create(pod(name, gpu=1, mem=1))
        await written(env, reports)
        first = "Waits for quota gpu-quota: needs 1 nvidia.com/gpu, 0 free of 2"
        assert env.events("QuotaWaiting") == [f"{first}; first in line", f"{first}; 1 pod waits before it"]
        await env.edit_hard(gpu=1)
        await env.run(60)
        await written(env, reports)
        second = "Waits for quota gpu-quota: needs 1 nvidia.com/gpu, 0 free of 1"
        assert env.events("QuotaWaiting")[2:] == [f"{second}; first in line", f"{second}; 1 pod waits before it"]
        for _ in range(3):
            await env.run(60)
            await written(env, reports)
        assert len(env.events("QuotaWaiting")) == 4


def test_when_something_is_possible_is_a_time_where_it_is_stored_and_a_duration_where_it_is_read() -> None:
    text = f"nobody is evicted for it: x, {earliest(1575.0)}; 1 pod waits before it"
    assert text == "nobody is evicted for it: x, earliest at 1970-01-01T00:26:15Z; 1 pod waits before it"
    assert with_durations(text, 1000.0) == "nobody is evicted for it: x, earliest in 9m35s; 1 pod waits before it"
    assert with_durations(text, 9000.0) == "nobody is evicted for it: x, earliest in 0s; 1 pod waits before it"
    assert with_durations("earliest at 9999-99-99T99:99:99Z", 1.0) == "earliest at 9999-99-99T99:99:99Z"


async def test_a_flood_is_written_to_slowly_and_delays_no_other_namespace() -> None:
    async with QuotaEnv(L, queueing(gpu=1), queueing("other", gpu=1, namespace="other")) as env:
        reports = reports_of(env)
        for number in range(40):
            await env.create(pod(f"p{number:02}", gpu=1, mem=1))
        for name in ("x", "y"):
            await env.create(pod(name, gpu=1, mem=1, namespace="other", uid=f"z-{name}"), uid=f"z-{name}")
        await written(env, reports)
        assert condition(env, "y", "other") is not None
        assert len(env.events("QuotaWaiting")) == 5
        for _ in range(10):
            await written(env, reports)
        assert len(env.events("QuotaWaiting")) == 40


async def test_what_cannot_be_written_is_tried_again_and_a_new_leader_repeats_no_event() -> None:
    async with QuotaEnv(L, queueing(gpu=1)) as env:
        reports = reports_of(env)
        for name in "ab":
            await env.create(pod(name, gpu=1, mem=1))

        async def fail(step: str) -> None:
            if step == "patch_status:before":
                raise Unavailable("no answer")

        await env.release()
        env.cluster.pause = fail
        await reports.step()
        assert condition(env, "b") is None
        env.cluster.pause = None
        await written(env, reports)
        await written(env, reports_of(env))
        assert len(env.events("QuotaWaiting")) == 1
