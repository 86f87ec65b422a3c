"""Starts of pods that wait, and who passes them, with the whole program (docs/spec/time.md#2, #3)."""

from __future__ import annotations

from typing import Any

import pytest
from builders import JSON, accelerator_quota, card, node
from quota.objects import LARGE, NOON, TEAM, pod
from quota.quota_env import QuotaEnv

from hami_webhook.cluster.api import Kind
from hami_webhook.kube.objects import format_time
from hami_webhook.queueing.promises import Promises
from hami_webhook.queueing.words import sentence, start_in, with_durations
from hami_webhook.quota.queue_order import QueuedPod, QueueOrder, QueueRoom, decide
from hami_webhook.quota.runtime import DEFAULT_RUNTIME, MAX_RUNTIME
from queueing.test_releaser import queueing, waits
from queueing.test_reports import condition, reports_of, written

L = node("n1", card("GPU-L", LARGE))
NOT_KEPT = f"AcceleratorQuota/all reserves no room for it until {TEAM}/gpu-quota has room"


def limited(order: str = "best-effort", longest: str = "1h", **hard: Any) -> JSON:
    made = queueing(order=order, **hard)
    made["metadata"]["annotations"][MAX_RUNTIME] = longest
    return made


async def wait(env: QuotaEnv, name: str, gpu: int, seconds: int | None = None, **fields: Any) -> None:
    deadline: dict[str, Any] = {} if seconds is None else {"activeDeadlineSeconds": seconds}
    await env.create(pod(name, gpu=gpu, mem=1, terminationGracePeriodSeconds=0, **deadline, **fields))
    await env.release()
    env.now += 1


async def start(env: QuotaEnv, name: str, ago: float = 0) -> None:
    status = {"phase": "Running", "startTime": format_time(env.now - ago)}
    await env.cluster.patch_status(Kind.PODS, name, {"status": status}, TEAM)
    await env.run(3)
    await env.release()


def said(env: QuotaEnv, name: str) -> str:
    """What its condition says of the pod's start."""
    standing = next(each for each in env.releaser.decision.waiting if each.pod.key == f"{TEAM}/{name}")
    return with_durations(start_in(sentence(standing, env.core.state.pod)), env.now)


async def test_a_pod_that_waits_says_when_it_starts_and_keeps_that_promise() -> None:
    async with QuotaEnv(L, limited(gpu=2)) as env:
        await wait(env, "runs", 2, 60)
        await start(env, "runs")
        await wait(env, "next", 2, 600)
        assert said(env, "next") == "starts within 66s at the latest"
        await env.run(58)
        await env.finish("runs")
        await env.run(5)
        await env.release()
        assert waits(env) == []
        assert env.releaser.start_errors.count == 1
        assert -20 < env.releaser.start_errors.last < 0


@pytest.mark.parametrize(("hard", "ends"), [(10, 60), (9, 90)])
def test_a_promise_is_kept_as_long_as_no_limit_changes(hard: int, ends: float) -> None:
    """What it waits for ends later than was said."""
    promises, order = Promises(), QueueOrder(overtaking=0)
    for limit, end in ((10, 60.0), (hard, 90.0)):
        held = [(NOON + end, "gpu", 1)]
        rooms = {"q": QueueRoom({"gpu": limit}, {"gpu": 0}, order, held=held, timed=True)}
        waiting = [QueuedPod("p", "team/p", 0, NOON - 10, (("q", (("gpu", 1),)),))]
        promises.given(decide(waiting, rooms, NOON), rooms, NOON, frozenset())
    assert promises.promised == {"p": NOON + ends}


@pytest.mark.parametrize("order", ["best-effort", "strict"])
async def test_a_short_pod_passes_and_a_longer_one_does_not(order: str) -> None:
    async with QuotaEnv(L, limited(order, gpu=3)) as env:
        await wait(env, "runs", 2, 600)
        await start(env, "runs")
        for name, gpu, seconds in (("head", 3, 3600), ("long", 1, 600), ("short", 1, 300)):
            await wait(env, name, gpu, seconds)
        assert waits(env) == ["head", "long"]
        before = said(env, "head")
        await env.release()
        assert said(env, "head").startswith("starts within 9m") or before == said(env, "head")


async def test_where_an_end_is_missing_it_says_so() -> None:
    async with QuotaEnv(L, queueing(gpu=2)) as env:
        await wait(env, "older", 1)
        await start(env, "older")
        patch = {"metadata": {"annotations": {MAX_RUNTIME: "1h"}}}
        await env.cluster.patch(Kind.RESOURCE_QUOTAS, "gpu-quota", patch, TEAM)
        await env.drain()
        await wait(env, "next", 2)
        assert said(env, "next") == "its start isn't known: 1 pod without an end"


async def test_below_a_common_quota_nothing_is_promised_while_the_own_one_is_full() -> None:
    """Pods of other namespaces may take the common room meanwhile. Where that alone is short, its start is known."""
    common = accelerator_quota("all", spec={"enforcement": "queue", "maxRuntime": "1h"}, gpu=4)
    async with QuotaEnv(L, limited(gpu=2), common) as env:
        await env.cluster.ensure_namespace("other")
        await env.drain()
        await wait(env, "runs", 2, 60)
        await start(env, "runs")
        await wait(env, "next", 2, 600)
        assert said(env, "next") == f"its start isn't known: {NOT_KEPT}"
        await env.finish("runs")
        await env.run(5)
        await env.release()
        assert waits(env) == []


async def test_a_pod_that_is_charged_and_does_not_start_promises_nothing() -> None:
    """Cards are short, or nodes: of these no quota knows."""
    async with QuotaEnv(L, limited(gpu=1)) as env:
        await wait(env, "charged", 1, 600)
        await wait(env, "next", 1)
        assert said(env, "next").startswith("starts within")
        await env.run(75)
        await env.release()
        assert said(env, "next") == "its start isn't known: 1 pod charged but not started, as cards or nodes are short"


@pytest.mark.parametrize("ago", [-1000, 4000])
async def test_attack_a_node_that_lies_about_a_start_promises_no_room_before_it_is_free(ago: float) -> None:
    """In the future it counts as now; long ago it is past its deadline."""
    async with QuotaEnv(L, limited(gpu=1)) as env:
        await wait(env, "runs", 1, 3600)
        await start(env, "runs", ago)
        await wait(env, "next", 1)
        words = "starts within 60m at the latest" if ago < 0 else "its start isn't known: 1 pod past the deadline"
        assert said(env, "next") == words


async def test_attack_a_pod_that_comes_again_just_before_its_end_does_not_keep_its_place() -> None:
    async with QuotaEnv(L, limited(gpu=1)) as env:
        await wait(env, "runs", 1, 600)
        await start(env, "runs")
        await wait(env, "next", 1, 600)
        await env.delete("runs")
        await env.create(pod("runs", gpu=1, mem=1, activeDeadlineSeconds=600), uid="second")
        await env.run(12)
        await env.release()
        assert waits(env) == ["runs"]


async def test_attack_ten_thousand_short_pods_do_not_delay_the_head() -> None:
    """Few suffice here: each that passes ends before the head's promise, which stays what it is."""
    async with QuotaEnv(L, limited("strict", gpu=3)) as env:
        await wait(env, "runs", 2, 600)
        await start(env, "runs")
        await wait(env, "head", 3, 60)
        promised = env.now
        for number in range(20):
            await wait(env, f"s{number}", 1, 560 - 20 * number)
            if number == 0:
                await start(env, "s0")
        head = next(each for each in env.releaser.decision.waiting if each.pod.key == f"{TEAM}/head")
        assert head.start is not None
        assert head.start.at is not None
        assert head.start.at <= promised + 610
        assert len(waits(env)) == 20


async def test_attack_a_group_with_one_endless_member_passes_nobody_and_promises_nothing() -> None:
    async with QuotaEnv(L, queueing(gpu=3)) as env:
        labels = {"hami.io/pod-group": "g", "hami.io/pod-group-size": "2"}
        await wait(env, "runs", 2, 600)
        await start(env, "runs")
        await wait(env, "endless", 1, labels=labels)
        patch = {"metadata": {"annotations": {MAX_RUNTIME: "1h", "hami.io/quota-queue-overtaking": "0s"}}}
        await env.cluster.patch(Kind.RESOURCE_QUOTAS, "gpu-quota", patch, TEAM)
        await env.drain()
        await wait(env, "head", 3, 60)
        await wait(env, "timed", 1, 60, labels=labels)
        await env.release()
        assert sorted(waits(env)) == ["endless", "head", "timed"]
        await wait(env, "short", 1, 60)
        assert "short" not in waits(env)


async def test_ordinary_day_without_a_runtime_nothing_is_said_and_nobody_passes() -> None:
    async with QuotaEnv(L, queueing(order="strict", gpu=3)) as env:
        await wait(env, "runs", 2, 600)
        await start(env, "runs")
        await wait(env, "head", 3, 60)
        await wait(env, "short", 1, 1)
        assert waits(env) == ["head", "short"]
        assert said(env, "head") == ""


async def test_attack_a_pod_that_is_deleted_with_a_long_grace_period_frees_its_room_after_that() -> None:
    """As by `kubectl delete --grace-period`: kubelet lets it end within that, and looks at no deadline any longer."""
    async with QuotaEnv(L, limited(gpu=1)) as env:
        await wait(env, "runs", 1, 60)
        await start(env, "runs")
        stored = env.cluster.peek(Kind.PODS, "runs", TEAM)
        assert stored is not None
        deletion = {"deletionTimestamp": format_time(env.now + 7200), "deletionGracePeriodSeconds": 7200}
        env.core.caches.put(Kind.PODS, {**stored, "metadata": {**stored["metadata"], **deletion}})
        await wait(env, "next", 1, 60)
        assert said(env, "next") == "starts within 4h at the latest"


@pytest.mark.parametrize("grace", [10**12, 2**63 - 1])
async def test_attack_a_pod_that_ends_after_all_calendars_keeps_no_reports_of_others_away(grace: int) -> None:
    """The API server takes any grace period; a quota with a default runtime alone has to admit it."""
    made = queueing(order="strict", gpu=1)
    made["metadata"]["annotations"][DEFAULT_RUNTIME] = "1h"
    async with QuotaEnv(L, made) as env:
        await env.create(pod("runs", gpu=1, mem=1, terminationGracePeriodSeconds=grace))
        await env.release()
        await start(env, "runs")
        await wait(env, "next", 1)
        assert said(env, "next") == "its start isn't known: 1 pod without an end"
        await written(env, reports_of(env))
        found = condition(env, "next")
        assert found is not None
        assert "its start isn't known: 1 pod without an end" in found["message"]
