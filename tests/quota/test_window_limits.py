"""Windows with the whole core: who is admitted, who waits, and who goes (docs/spec/time.md#6)."""

from __future__ import annotations

from typing import Any

import pytest
from builders import accelerator_quota, card, node
from msgspec.structs import replace
from replicas import reconciling

from hami_webhook.cluster.api import JSON, Kind
from hami_webhook.controller.accelerator_quotas import AcceleratorQuotaReconciler
from hami_webhook.controller.quotas import ReconcileIntervals
from hami_webhook.kube.objects import format_time
from hami_webhook.queueing.words import OTHER_LIMIT, reason_of, sentence
from hami_webhook.quota.accelerator_quota import read_accelerator_quota
from hami_webhook.quota.account import QuotaAccount
from hami_webhook.quota.limits import limited_at, written_at

from .objects import GPU, LARGE, MEM, NOON, TEAM, pod
from .quota_env import QuotaEnv

CARDS = node("n1", *(card(f"G{n}", LARGE) for n in range(8)))
HOUR = 3600.0


def at(seconds: float, hard: int, length: float = HOUR) -> JSON:
    """A window that begins so many seconds after noon."""
    return {"at": format_time(NOON + seconds)[:-1], "for": f"{length:.0f}s", "hard": {GPU: hard}}


def night(*windows: JSON, hard: int = 4, **spec: Any) -> JSON:
    return accelerator_quota("night", spec={"windows": [*windows], **spec}, gpu=hard)


def queued(*windows: JSON, hard: int = 4, **spec: Any) -> JSON:
    return night(*windows, hard=hard, enforcement="queue", **spec)


def asking(name: str, gpu: int = 1, deadline: float | None = None, **spec: Any) -> JSON:
    made = pod(name, gpu=gpu, mem=100)
    made["spec"] |= {"terminationGracePeriodSeconds": 0, **spec}
    if deadline is not None:
        made["spec"]["activeDeadlineSeconds"] = int(deadline)
    return made


def status(env: QuotaEnv) -> JSON:
    found: JSON = env.above("night")["status"]
    return found


async def release(env: QuotaEnv) -> None:
    env.cluster.bookmark()
    await env.release()


def waiting(env: QuotaEnv) -> dict[str, str]:
    """What each pod that waits is told."""
    return {each.pod.key.partition("/")[2]: sentence(each, lambda uid: None) for each in env.releaser.decision.waiting}


async def test_the_status_says_what_holds_now() -> None:
    async with QuotaEnv(CARDS, night(at(60, 8), at(2 * HOUR, 0))) as env:
        await env.run(10)
        assert status(env)["hard"] == {GPU: "4"}
        assert status(env)["window"] == {"since": format_time(NOON), "until": format_time(NOON + 60), "names": []}
        await env.run(60)
        assert status(env)["hard"] == {GPU: "8"}
        assert status(env)["window"]["names"] == [at(60, 8)["at"]]
        assert status(env)["window"]["until"] == format_time(NOON + 60 + HOUR)
        await env.run(3 * HOUR + 60)
        assert status(env)["hard"] == {GPU: "4"}
        assert "until" not in status(env)["window"], "nothing comes any more"


async def test_a_higher_limit_holds_for_pods_that_end_within_its_window() -> None:
    async with QuotaEnv(CARDS, night(at(60, 8))) as env:
        await env.run(10)
        await env.create(asking("day", gpu=4))
        refusal = await env.refused(asking("early", gpu=4, deadline=30))
        assert refusal.message.endswith(
            "used: limits.nvidia.com/gpu=4, limited: limits.nvidia.com/gpu=4; "
            "this limit holds until 2026-01-01T12:01:00Z"
        )
        await env.run(60)
        refusal = await env.refused(asking("endless", gpu=2))
        assert refusal.message.endswith(
            "limited: limits.nvidia.com/gpu=4; it is lower from 2026-01-01T13:01:00Z on, and the pod may run beyond "
            "that; set a shorter activeDeadlineSeconds, or wait"
        )
        await env.refused(asking("long", gpu=2, deadline=HOUR))
        await env.create(asking("short", gpu=2, deadline=HOUR / 2))
        refusal = await env.refused(asking("more", gpu=4, deadline=HOUR / 2))
        assert refusal.message.endswith(
            "limited: limits.nvidia.com/gpu=8; this limit holds until 2026-01-01T13:01:00Z (window 2026-01-01T12:01:00)"
        )


async def test_what_cannot_end_before_a_lower_limit_is_not_started() -> None:
    async with QuotaEnv(CARDS, queued(at(HOUR, 0))) as env:
        await env.run(10)
        for name, deadline in (("long", HOUR), ("short", HOUR / 2)):
            await env.create(asking(name, deadline=deadline))
        await release(env)
        assert waiting(env) == {
            "long": "Waits for another time: needs 1 nvidia.com/gpu, and AcceleratorQuota night has a limit of 0 from "
            "2026-01-01T13:00:00Z on (window 2026-01-01T13:00:00), before the pod surely ends; set a shorter "
            "activeDeadlineSeconds, or wait"
        }
        assert reason_of(env.releaser.decision.waiting[0].obstacle) == OTHER_LIMIT
        assert not env.pod("short").gated
        await env.finish("short")
        await env.run(HOUR)
        await release(env)
        assert env.pod("long").gated, "the window has begun"
        await env.run(HOUR)
        await release(env)
        assert not env.pod("long").gated


async def test_a_pod_for_a_later_window_waits_for_it() -> None:
    """It costs more than the limit of now, but less than one that comes; one that costs more than all is refused."""
    async with QuotaEnv(CARDS, queued(at(60, 8))) as env:
        await env.run(10)
        await env.create(asking("wide", gpu=6, deadline=HOUR / 2))
        refusal = await env.refused(asking("wider", gpu=9, deadline=60))
        assert "limited: limits.nvidia.com/gpu=8" in refusal.message
        refusal = await env.refused(asking("endless", gpu=6))
        assert "limited: limits.nvidia.com/gpu=4" in refusal.message, "no window is long enough"
        await release(env)
        assert waiting(env)["wide"].endswith("AcceleratorQuota night has a limit of 4 until 2026-01-01T12:01:00Z")
        await env.run(60)
        await release(env)
        assert not waiting(env)


async def test_starts_say_when_limits_change() -> None:
    async with QuotaEnv(CARDS, queued(at(HOUR, 2), maxRuntime="2h")) as env:
        await env.run(10)
        await env.create(asking("runs", gpu=4, deadline=600))
        await release(env)
        for name, gpu, deadline in (("a", 4, 60), ("b", 1, 1800), ("c", 2, 3000)):
            await env.create(asking(name, gpu=gpu, deadline=deadline))
        await release(env)
        assert "; starts by 2026-01-01T12:10:" in waiting(env)["a"]
        assert "; starts by 2026-01-01T12:11:" in waiting(env)["b"]
        assert (
            "; its start isn't known: limits of AcceleratorQuota/night change at 2026-01-01T13:00:00Z;"
            in (waiting(env)["c"])
        ), "it would end in time now, and not by the time that there is room"


async def test_nothing_is_placed_beyond_a_lower_limit_that_came_first() -> None:
    """Charged before anybody knew of the window, and not placed yet."""
    async with QuotaEnv(CARDS, night()) as env:
        await env.run(10)
        await env.create(asking("charged", gpu=2))
        await env.cluster.patch(Kind.ACCELERATOR_QUOTAS, "night", {"spec": {"windows": [at(HOUR, 1)]}})
        await env.run(5)
        assert "n1" in await env.reasons("charged")
        await env.run(2 * HOUR)
        assert await env.node_of("charged") == "n1"


async def test_a_leader_that_is_late_lets_nobody_pass_a_lower_limit() -> None:
    async with QuotaEnv(CARDS, night(at(60, 1), at(60 + HOUR, 8))) as env:
        await env.run(10)
        env.now += 100  # no leader: nothing is written
        assert status(env)["hard"] == {GPU: "4"}
        await env.create(asking("one", deadline=60))
        refusal = await env.refused(asking("two", deadline=60))
        assert "limited: limits.nvidia.com/gpu=1;" in refusal.message
        env.now += HOUR
        refusal = await env.refused(asking("wide", gpu=5, deadline=60))
        assert refusal.message.endswith(
            "limited: limits.nvidia.com/gpu=1; a higher limit holds as soon as the leader of the controller has "
            "written it; try again"
        )
        await env.run(5)
        await env.create(asking("wide", gpu=5, deadline=60))


async def test_two_leaders_with_clocks_apart_dont_write_in_turns() -> None:
    async with QuotaEnv(CARDS, night(at(60, 8))) as env:
        await env.run(70)
        account = env.account_above("night")
        assert account.hard == {GPU: 8}
        assert written_at(account, NOON + 30) is account, "a clock that is behind changes nothing"
        assert limited_at(account, NOON + 30).hard == {GPU: 4}, "and admits by the lower limit"
        second = AcceleratorQuotaReconciler(
            *reconciling(env.core, env.core.accelerator_recomputer), ReconcileIntervals(), jitter=lambda: 0.5
        )
        for quota in env.core.caches.accelerator_quotas.all():
            second.quota_changed(None, quota)
        version = env.above("night")["metadata"]["resourceVersion"]
        second.resync()
        await second.step()
        await env.run(20)
        assert env.above("night")["metadata"]["resourceVersion"] == version


async def test_a_status_that_somebody_edits_admits_nothing_and_is_put_right() -> None:
    """Who may write the status of an AcceleratorQuota is an administrator; a tenant has no such right."""
    async with QuotaEnv(CARDS, night(at(HOUR, 2))) as env:
        await env.run(10)
        forged = {"hard": {GPU: "1000"}, "window": {"until": format_time(NOON + 30 * HOUR), "names": ["mine"]}}
        await env.cluster.patch_status(Kind.ACCELERATOR_QUOTAS, "night", {"status": forged})
        await env.drain()
        refusal = await env.refused(asking("wide", gpu=5, deadline=60))
        assert "limited: limits.nvidia.com/gpu=4" in refusal.message
        await env.run(5)
        assert status(env)["hard"] == {GPU: "4"}
        assert status(env)["window"]["names"] == []
        forged = {"hard": {GPU: "0"}, "window": {"since": "2999-01-01T00:00:00Z", "until": None, "names": []}}
        await env.cluster.patch_status(Kind.ACCELERATOR_QUOTAS, "night", {"status": forged})
        await env.run(5)
        assert status(env)["hard"] == {GPU: "4"}


async def test_windows_that_are_changed_hold_at_once_and_leave_nothing_when_removed() -> None:
    async with QuotaEnv(CARDS, night(at(HOUR, 2))) as env:
        await env.run(10)
        await env.cluster.patch(Kind.ACCELERATOR_QUOTAS, "night", {"spec": {"windows": [at(-60, 1)]}})
        await env.drain()
        assert "limited: limits.nvidia.com/gpu=1" in (await env.refused(asking("p", gpu=2, deadline=60))).message
        await env.run(5)
        assert status(env)["hard"] == {GPU: "1"}
        await env.cluster.patch(Kind.ACCELERATOR_QUOTAS, "night", {"spec": {"windows": None}})
        await env.run(5)
        assert status(env)["hard"] == {GPU: "4"}
        assert "window" not in status(env)
        await env.create(asking("p", gpu=2))


async def test_an_ordinary_day_without_windows_says_and_writes_nothing_of_them() -> None:
    async with QuotaEnv(CARDS, night(windows=[])) as env:
        await env.create(asking("p"))
        await env.node_of("p")
        await env.run(20)
        asked = env.api_calls()
        await env.run(HOUR)
        assert not asked["patch_status"]
        assert "window" not in status(env)


async def test_an_ordinary_day_with_windows_writes_at_their_edges_only() -> None:
    async with QuotaEnv(CARDS, night(at(HOUR, 8), at(HOUR * 3, 2))) as env:
        await env.run(20)
        asked = env.api_calls()
        await env.run(5 * HOUR)
        assert asked["patch_status"] == 4


@pytest.mark.parametrize(
    ("reclaim", "enforcement", "left"), [("on", "enforce", 2), ("off", "enforce", 4), ("on", "observe", 4)]
)
async def test_what_still_runs_then_goes_where_the_quota_reclaims(reclaim: str, enforcement: str, left: int) -> None:
    """Also where another of its limits isn't exceeded."""
    made = night(at(HOUR, 2), reclaim=reclaim, reclaimMinRuntime="1s", enforcement=enforcement)
    made["spec"]["hard"][MEM] = 8 * LARGE
    async with QuotaEnv(CARDS, made) as env:
        await env.cluster.patch(Kind.ACCELERATOR_QUOTAS, "night", {"spec": {"windows": None}})
        await env.run(5)
        for number in range(4):
            await env.create(asking(f"p{number}", priority=number % 2))
            await env.node_of(f"p{number}")
            await env.run(2)
        await env.cluster.patch(Kind.ACCELERATOR_QUOTAS, "night", {"spec": {"windows": [at(HOUR, 2)]}})
        await env.run(HOUR - 60)
        env.cluster.bookmark()
        await env.reclaimer.step()
        await env.drain()

        def there() -> list[str]:
            found = env.cluster.peek_all(Kind.PODS, TEAM)
            return [each["metadata"]["name"] for each in found if "deletionTimestamp" not in each["metadata"]]

        assert len(there()) == 4, "before the window nobody goes"
        await env.run(60)
        for _ in range(3):
            env.cluster.bookmark()
            await env.reclaimer.step()
            await env.drain()
            env.now += 1
        assert len(there()) == left
        if left == 2:
            assert there() == ["p1", "p3"], "of a higher priority"
            assert env.events("QuotaReclaimed") == 2 * [
                "evicted because AcceleratorQuota/night holds more than its limit limits.nvidia.com/gpu=2; this limit "
                "holds until 2026-01-01T14:00:00Z (window 2026-01-01T13:00:00)"
            ]


async def test_who_has_not_run_long_enough_stays_and_the_others_go() -> None:
    spec: JSON = {"reclaim": "on", "reclaimMinRuntime": "30m"}
    async with QuotaEnv(CARDS, night(**spec)) as env:
        await env.run(5)
        for name in ("old", "young"):
            await env.create(asking(name, gpu=2))
            await env.node_of(name)
            await env.run(1000)
        await env.cluster.patch(Kind.ACCELERATOR_QUOTAS, "night", {"spec": {"windows": [at(2000, 0)]}})
        await env.run(5)
        env.cluster.bookmark()
        await env.reclaimer.step()
        await env.drain()
        assert [each["metadata"]["name"] for each in env.cluster.peek_all(Kind.PODS, TEAM)] == ["young"]


def test_an_account_without_windows_is_returned_as_it_is() -> None:
    quota = read_accelerator_quota(night(), {TEAM: {}})
    account = QuotaAccount.read(quota, QuotaEnv().vendors)
    assert limited_at(account, NOON) is account
    assert written_at(account, NOON) is account
    assert account.schedule is None
    assert replace(account) == account


@pytest.mark.parametrize("order", ["strict", "best-effort"])
async def test_who_waits_for_another_time_lets_all_pass(order: str) -> None:
    async with QuotaEnv(CARDS, queued(at(HOUR, 0), queue={"order": order})) as env:
        await env.run(10)
        await env.create(asking("long", gpu=4, deadline=HOUR))
        await env.run(700)
        for number in range(4):
            await env.create(asking(f"short-{number}", deadline=60))
        await release(env)
        assert [*waiting(env)] == ["long"]
