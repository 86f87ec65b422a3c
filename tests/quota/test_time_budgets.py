"""Budgets of hours, with the whole core: what is summed by whom, and who is admitted (docs/spec/time.md#4)."""

from __future__ import annotations

import random
from typing import Any

import pytest
from builders import accelerator_quota, card, node
from replicas import reconciling

from hami_webhook.cluster.api import JSON, Kind
from hami_webhook.controller.accelerator_quotas import AcceleratorQuotaReconciler
from hami_webhook.controller.quotas import ReconcileIntervals
from hami_webhook.kube.objects import format_time
from hami_webhook.quota.accelerator_quota import read_accelerator_quota
from hami_webhook.quota.held_time import HeldTime, millis
from hami_webhook.quota.time_budget import budget_faults

from .objects import GPU, LARGE, MEM, NOON, TEAM, pod
from .quota_env import QuotaEnv

CARDS = node("n1", *(card(f"G{n}", LARGE) for n in range(8)))
HOUR = 3600


def budgeted(amounts: JSON | None = None, **spec: Any) -> JSON:
    """A quota of 8 cards with a budget, of 10 hours of cards in a month unless others are given."""
    more: JSON = {key: spec.pop(key) for key in ("enforcement", "nominal") if key in spec}
    budget = {"amounts": amounts or {GPU: "10h"}, "period": "Month", **spec}
    return accelerator_quota("research", spec={"budget": budget, **more}, gpu=8, mem=8 * LARGE)


def sums(env: QuotaEnv) -> HeldTime:
    budget = env.account_above("research").time_budget
    assert budget is not None
    assert budget.state is not None
    return budget.state


async def start(env: QuotaEnv, name: str, gpu: int = 1, **spec: Any) -> None:
    """Create a pod, and place it."""
    made = pod(name, gpu=gpu, mem=1000)
    made["spec"] |= spec
    await env.create(made)
    await env.node_of(name)


async def end(env: QuotaEnv, name: str, at: float | None = None) -> None:
    """A pod succeeds; its node says that it ended `at`, now unless given."""
    finished = {"state": {"terminated": {"exitCode": 0, "finishedAt": format_time(at or env.now)}}, "name": "c"}
    await env.cluster.set_phase(TEAM, name, "Succeeded", containerStatuses=[finished])


def leader(env: QuotaEnv) -> AcceleratorQuotaReconciler:
    """A process that leads and has seen nothing yet."""
    return AcceleratorQuotaReconciler(
        *reconciling(env.core, env.core.accelerator_recomputer), ReconcileIntervals(), jitter=lambda: 0.5
    )


async def kill_leader(env: QuotaEnv, seconds: float = 0.0) -> None:
    """The leader is killed, and another process leads after so many seconds that was started then.

    Nothing is left of what the one before knew, and what happened meanwhile nobody saw.
    """
    await env.drain()
    env.now += seconds
    killed, new = env.reconcilers[1], leader(env)
    vars(killed).clear()
    vars(killed).update(vars(new))
    for quota in env.core.caches.accelerator_quotas.all():
        killed.quota_changed(None, quota)
    killed.resync()


async def release(env: QuotaEnv) -> None:
    """Let pods go whose turn has come; the watches are alive."""
    env.cluster.bookmark()
    await env.release()


async def test_what_is_placed_is_summed_from_placement_to_end() -> None:
    async with QuotaEnv(CARDS, budgeted({GPU: "10h", MEM: "100000h"})) as env:
        await env.run(10)
        await env.create(pod("waits", gpu=4, mem=1000))
        await start(env, "p", gpu=2)
        await env.run(HOUR)
        await end(env, "p")
        await env.run(HOUR)
        found = sums(env)
        assert found.spent == {GPU: 2 * HOUR * 1000, MEM: 2000 * HOUR * 1000}
        assert found.rate == {GPU: 0, MEM: 0}
        assert not any(found.unseen.values())


async def test_sums_alone_are_written_once_a_minute_at_most() -> None:
    async with QuotaEnv(CARDS, budgeted({GPU: "100h"})) as env:
        await env.run(10)
        await start(env, "p")
        await env.run(20)
        asked = env.api_calls()
        await env.run(HOUR)
        assert 50 <= asked["patch_status"] <= 61
        await end(env, "p")
        await env.run(20)
        asked = env.api_calls()
        await env.run(HOUR)
        assert asked["patch_status"] <= 7


async def test_an_ordinary_quota_is_written_and_read_as_before() -> None:
    """Without a budget: no field of the status, and not one write or recompute more in an hour."""
    async with QuotaEnv(CARDS, accelerator_quota("research", gpu=8)) as env:
        await start(env, "p")
        await env.run(20)
        asked = env.api_calls()
        await env.run(HOUR)
        assert not asked["patch_status"]
        assert "budget" not in env.above("research")["status"]


async def test_twenty_kills_of_the_leader_lose_and_double_nothing() -> None:
    rng = random.Random(50)
    async with QuotaEnv(CARDS, budgeted({GPU: "1000h"})) as env:
        await env.run(10)
        begun: dict[str, float] = {}
        lived: dict[str, tuple[float, float]] = {}
        for number in range(60):
            name = f"p{number}"
            await start(env, name)
            begun[name] = env.now
            await env.run(rng.choice((1, 3, 10, 70, 200)))
            while len(begun) > 6 or (begun and rng.random() < 0.5):
                gone = rng.choice(sorted(begun))
                lived[gone] = begun.pop(gone), float(int(env.now))
                await end(env, gone, lived[gone][1])
            if number % 3 == 0:
                await kill_leader(env)
        for name, since in begun.items():
            lived[name] = since, float(int(env.now))
            await end(env, name, env.now)
        await env.run(700)
        expected = sum(millis(last) - millis(first) for first, last in lived.values())
        # placements are written in whole seconds
        assert sums(env).spent[GPU] == pytest.approx(expected, abs=1000 * len(lived))
        assert expected > HOUR * 1000


async def test_a_pod_that_went_while_nobody_watched_is_bounded() -> None:
    async with QuotaEnv(CARDS, budgeted({GPU: "100h"})) as env:
        await env.run(10)
        await start(env, "stays")
        await start(env, "goes", gpu=2)
        await env.run(100)
        before = sums(env)
        await env.delete("goes", grace=0)
        await kill_leader(env, 30)
        await env.run(5)
        found = sums(env)
        between = found.summed_to - before.summed_to
        assert found.spent[GPU] - before.spent[GPU] == between
        assert 2 * 30_000 <= found.unseen[GPU] <= 2 * between


async def test_who_leads_again_counts_nothing_of_pods_that_ended_meanwhile() -> None:
    """The first leader saw a pod, another one led while that ended, and the first leads again."""
    async with QuotaEnv(CARDS, budgeted({GPU: "100h"})) as env:
        await env.run(10)
        second = leader(env)
        for quota in env.core.caches.accelerator_quotas.all():
            second.quota_changed(None, quota)
        await start(env, "p")
        begun = env.now
        await env.run(100)
        gone = env.pod("p")
        await env.delete("p", grace=0)
        await env.drain()
        second.pod_changed(gone, None)  # its watch shows the same
        ended = env.now
        second.resync()
        await second.step()  # before the first looks again
        await env.drain()
        env.now += 50
        await env.run(700)
        assert sums(env).spent[GPU] == pytest.approx(millis(ended - begun), abs=1000)


async def test_a_spent_budget_refuses_and_the_next_period_doesnt() -> None:
    async with QuotaEnv(CARDS, budgeted({GPU: "2h"}, timeZone="Europe/Berlin")) as env:
        await env.run(10)
        await start(env, "p", gpu=2)
        await env.run(HOUR + 120)
        refusal = await env.refused(pod("q", gpu=1, mem=10))
        assert refusal.message == (
            "budget of quota research: 2h of limits.nvidia.com/gpu in January are spent; next period begins 2026-02-01"
        )
        assert sums(env).exhausted_at == pytest.approx(millis(NOON + 10 + HOUR), abs=62_000)
        assert env.pod("p").node_name == "n1", "who runs stays"
        await end(env, "p")
        env.now = 1769900390.0  # ten seconds before February in Berlin
        await env.refused(pod("q", gpu=1, mem=10))
        await env.run(11)
        await env.create(pod("q", gpu=1, mem=10))
        assert sums(env).last is not None
        assert sums(env).exhausted_at is None


async def test_a_pod_with_a_deadline_needs_hours_of_its_own() -> None:
    async with QuotaEnv(CARDS, budgeted()) as env:
        await env.run(10)
        made = pod("long", gpu=4, mem=1000)
        made["spec"]["activeDeadlineSeconds"] = 3 * HOUR
        refusal = await env.refused(made)
        assert refusal.message == (
            "budget of quota research: the pod may hold 12h of limits.nvidia.com/gpu until its activeDeadlineSeconds, "
            "and a whole period has 10h; lower activeDeadlineSeconds"
        )
        await start(env, "p")
        await env.run(4 * HOUR)
        made["spec"]["activeDeadlineSeconds"] = 2 * HOUR
        refusal = await env.refused(made)
        assert refusal.message == (
            "budget of quota research: the pod may hold 8h of limits.nvidia.com/gpu until its activeDeadlineSeconds, "
            "and 6h of 10h of limits.nvidia.com/gpu in January are left; lower activeDeadlineSeconds, or wait: next "
            "period begins 2026-02-01"
        )
        made["spec"]["activeDeadlineSeconds"] = HOUR
        await env.create(made)


async def test_pods_wait_for_the_next_period_where_the_quota_queues() -> None:
    async with QuotaEnv(CARDS, budgeted({GPU: "1h"}, then="Queue", period="2h", enforcement="queue")) as env:
        await env.run(10)
        await env.create(pod("p", gpu=2, mem=1000))
        await env.release()
        await env.node_of("p")
        await env.run(HOUR)
        await env.create(pod("q", gpu=1, mem=10))
        await release(env)
        assert env.pod("q").queued
        assert [each.obstacle.spent for each in env.releaser.decision.waiting] == [
            "budget of quota research: 1h of limits.nvidia.com/gpu since 2026-01-01 12:00 are spent; next period "
            "begins 2026-01-01 14:00"
        ]
        never = pod("never", gpu=1, mem=10)
        never["spec"]["activeDeadlineSeconds"] = 2 * HOUR
        assert "a whole period has 1h" in (await env.refused(never)).message
        await end(env, "p")
        await env.run(HOUR + 10)
        await release(env)
        assert not env.pod("q").queued


async def test_a_pod_that_waits_may_be_changed_while_the_budget_is_spent() -> None:
    """With `then: Refuse` new pods are refused; those that wait for room already are not, whatever is changed."""
    async with QuotaEnv(CARDS, budgeted({GPU: "1h"}, enforcement="queue")) as env:
        await env.run(10)
        await env.create(pod("p", gpu=8, mem=10))
        await release(env)
        await env.node_of("p")
        waits = await env.create(pod("q", gpu=1, mem=10))
        await env.run(HOUR)
        await env.refused(pod("new", gpu=1, mem=10))
        await env.annotate(waits.name, use_gputype="A10")
        assert env.pod("q").queued


async def test_a_quota_that_observes_lets_pass_and_counts() -> None:
    async with QuotaEnv(CARDS, budgeted({GPU: "1h"}, enforcement="observe")) as env:
        await env.run(10)
        await start(env, "p", gpu=2)
        await env.run(HOUR)
        _, answer = await env.admit(pod("q", gpu=1, mem=10))
        assert any("1h of limits.nvidia.com/gpu in January are spent" in each for each in answer.warnings)
        assert env.account_above("research").observed == 1


async def test_attack_pods_that_never_run_empty_no_budget() -> None:
    """Ten thousand seconds of pods that are created, charged and deleted, and never placed."""
    async with QuotaEnv(CARDS, budgeted({GPU: "1h"})) as env:
        await env.run(10)
        for number in range(100):
            await env.create(pod(f"p{number}", gpu=8, mem=10))
            await env.run(100)
            await env.delete(f"p{number}", grace=0)
            await env.run(1)
        assert sums(env).spent == {GPU: 0}


async def test_attack_short_pods_count_as_long_ones() -> None:
    """A thousand pods of two seconds on four cards hold as much as one on one card for 8,000 seconds."""
    async with QuotaEnv(CARDS, budgeted({GPU: "100h"})) as env:
        await env.run(10)
        began = env.now
        for number in range(250):
            await start(env, f"p{number}", gpu=4)
            await env.run(2)
            if number % 2:
                await end(env, f"p{number}")
            else:
                await env.delete(f"p{number}", grace=0)
        await env.run(70)
        assert sums(env).spent[GPU] == pytest.approx(4 * 1000 * 500, abs=4 * 250 * 500)
        assert env.now - began < 600
        assert len(str(env.above("research"))) < 3000, "it doesn't grow with them"


@pytest.mark.parametrize("finished", [0.0, -86400.0 * 365, 86400.0 * 365])
async def test_attack_a_node_that_lies_about_times_moves_a_minute_at_most(finished: float) -> None:
    async with QuotaEnv(CARDS, budgeted({GPU: "100h"})) as env:
        await env.run(10)
        await start(env, "p")
        begun = env.now
        for _ in range(60):  # it says each minute that the pod starts only now
            await env.cluster.set_phase(TEAM, "p", "Running", startTime=format_time(env.now))
            await env.run(60)
        await end(env, "p", env.now + finished)
        ended = env.now
        await env.run(700)
        assert sums(env).spent[GPU] == pytest.approx(millis(ended - begun), abs=62_000)


async def test_a_budget_that_is_removed_and_set_again_begins_at_nothing() -> None:
    async with QuotaEnv(CARDS, budgeted()) as env:
        await env.run(10)
        await start(env, "p")
        await env.run(600)
        await env.cluster.patch(Kind.ACCELERATOR_QUOTAS, "research", {"spec": {"budget": None}})
        await env.run(HOUR)
        assert "budget" not in env.above("research")["status"]
        again = {"spec": {"budget": {"amounts": {GPU: "10h"}, "period": "Week"}}}
        await env.cluster.patch(Kind.ACCELERATOR_QUOTAS, "research", again)
        await env.run(120)
        assert sums(env).spent[GPU] <= 120_000


def test_a_file_that_names_no_period_has_a_budget_by_month_that_refuses() -> None:
    quota = read_accelerator_quota(accelerator_quota("research", spec={"budget": {"amounts": {GPU: "1h"}}}, gpu=8), {})
    assert quota.budget is not None
    assert (quota.budget.period, quota.budget.then) == ("Month", "Refuse")


def test_faults_of_a_file_are_said() -> None:
    made = budgeted({GPU: "much", "limits.nvidia.com/gpucores": "1h"}, period="Day", timeZone="Berlin", then="Queue")
    texts = [text for _, text in budget_faults(read_accelerator_quota(made, {}))]
    assert texts == [
        "budget limits.nvidia.com/gpu: much can't be read, so it has no effect; write hours, such as 500h",
        "budget limits.nvidia.com/gpucores: it has no effect, as hard doesn't limit it; limit it there, or leave it "
        "out",
        "budget period: Day isn't known, so it is Month; write Month, Week, or 720h",
        "budget timeZone: Berlin isn't known here, so it is UTC; it must be the name of a time zone, such as "
        "Europe/Berlin",
        "budget then: Queue has no effect, as the quota doesn't queue; write hami.io/quota-enforcement: queue",
    ]


async def test_two_leaders_at_once_sum_each_second_once() -> None:
    async with QuotaEnv(CARDS, budgeted({GPU: "100h"})) as env:
        second = leader(env)
        for quota in env.core.caches.accelerator_quotas.all():
            second.quota_changed(None, quota)
        second.resync()
        await env.run(10)
        await start(env, "p")
        begun = env.now
        for _ in range(100):
            await env.run(7)
            second.resync()
            await second.step()
        found = sums(env)
        assert found.spent[GPU] == pytest.approx(found.summed_to - millis(begun), abs=1000)
