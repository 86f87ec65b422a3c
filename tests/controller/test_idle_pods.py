"""Pods that hold cards and compute nothing get a notice, and are evicted (docs/spec/time.md#5)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from builders import JSON, accelerator_quota, card, node
from quota.objects import LARGE, NOON, TEAM, pod, quota
from quota.quota_env import QuotaEnv

from hami_webhook.cluster.api import Kind, NotFound
from hami_webhook.cluster.object_events import ObjectEvents
from hami_webhook.controller.idle_pods import QUOTA_IDLE, IdlePods
from hami_webhook.kube.pod_group import NAME, SIZE
from hami_webhook.quota.idle import IDLE, IDLE_AFTER
from hami_webhook.usage.api import ContainerUsage, Meta, PodUsage

N1 = node("n1", card("GPU-1", LARGE), card("GPU-2", LARGE))
HOUR = 3600.0
NEVER = object()
"""A pod that never used CUDA, on a card that doesn't compute."""


def limiting(after: str | None = "2h", mode: str | None = "Evict", **more: str) -> JSON:
    made = quota(gpu=8)
    written = {IDLE_AFTER: after, IDLE: mode, **more}
    made["metadata"]["annotations"] = {key: text for key, text in written.items() if text is not None}
    return made


class IdleEnv(QuotaEnv):
    """`computed` is when pods computed last, by name; nothing is known of others."""

    def __init__(self, *objects: JSON) -> None:
        super().__init__(N1, *objects)
        self.computed: dict[str, object] = {}
        self.asked: list[str] = []
        self.down = False
        self.ahead = 0.0
        """Seconds by which the clock of who measures is ahead."""
        self.lead()

    async def __aenter__(self) -> IdleEnv:
        await super().__aenter__()
        return self

    def lead(self) -> None:
        """Another process leads."""
        events = ObjectEvents(self.cluster, Counter())
        self.idle = IdlePods(self.cluster, self.core.view, self._usages, events)

    async def _usages(self, namespace: str) -> Sequence[PodUsage]:
        self.asked.append(namespace)
        if self.down:
            raise NotFound("the server could not find the requested resource")
        at = self.now + self.ahead
        return [
            PodUsage(Meta(name, TEAM), datetime.fromtimestamp(at, UTC), self._containers(last))
            for name, last in self.computed.items()
        ]

    def _containers(self, last: object) -> tuple[ContainerUsage, ...]:
        if last is NEVER:
            return ()
        assert last is None or isinstance(last, float)
        used = None if last is None else datetime.fromtimestamp(last + self.ahead, UTC)
        return (ContainerUsage("main", (), used),)

    async def runs(self, *names: str, used: object = NOON, uid: str = "", **fields: Any) -> None:
        for name in names:
            await self.create(pod(name, gpu=1, mem=1, **fields), uid=uid)
        await self.release()
        for name in names:
            await self.place(name)
            await self.cluster.set_phase(TEAM, name, "Running")
            await self.cluster.patch_status(
                Kind.PODS, name, {"status": {"startTime": datetime.fromtimestamp(self.now, UTC).isoformat()}}, TEAM
            )
            self.computed[name] = used
        await self.drain()

    async def after(self, seconds: float, rounds: int = 1) -> None:
        self.now += seconds
        for _ in range(rounds):
            await self.idle.step()
            await self.drain()

    def told(self) -> list[str]:
        """The reasons of events about idle pods."""
        return [each.note.reason for each in self.cluster.events if each.note.reason.startswith("QuotaIdle")]

    def blocked(self) -> list[str]:
        """The pods with an event that a budget protects them."""
        return [each.note.name for each in self.cluster.events if each.note.reason == "QuotaIdleBlocked"]

    def left(self) -> list[str]:
        pods = self.cluster.peek_all(Kind.PODS, TEAM)
        return sorted(each["metadata"]["name"] for each in pods if "deletionTimestamp" not in each["metadata"])

    def condition(self, name: str) -> tuple[str, str]:
        found = self.cluster.peek(Kind.PODS, name, TEAM)
        assert found is not None
        made = [each for each in found["status"].get("conditions", ()) if each["type"] == QUOTA_IDLE]
        return (made[0]["status"], made[0]["message"]) if made else ("", "")


TOLD_OF_SHARED = "holds cards and has computed nothing for 120m; evicted in 120m by quota AcceleratorQuota/shared"
TOLD = "holds cards and has computed nothing for 60m; evicted in 60m by quota gpu-quota, unless it computes"


async def test_an_idle_pod_is_told_at_half_of_its_time_and_evicted_at_the_end() -> None:
    async with IdleEnv(limiting()) as env:
        await env.runs("p")
        await env.after(HOUR - 1)
        assert env.condition("p") == ("", "")
        await env.after(1)
        assert (env.condition("p"), env.events("QuotaIdle")) == (("True", TOLD), [TOLD])
        await env.after(HOUR - 1, rounds=3)
        assert (env.left(), len(env.events("QuotaIdle"))) == (["p"], 1)
        await env.after(1)
        assert env.left() == []
        why = "evicted because it computed nothing for 120m: quota gpu-quota lets pods be idle for 120m"
        assert env.events("QuotaIdleEvicted") == [why]


async def test_where_a_quota_warns_nobody_goes() -> None:
    async with IdleEnv(limiting(mode=None)) as env:
        await env.runs("p")
        await env.after(2 * HOUR - 1)
        assert env.condition("p") == ("", "")
        await env.after(1)
        text = "holds cards and has computed nothing for 120m, by quota gpu-quota idle after 120m"
        assert (env.condition("p"), env.events("QuotaIdle")) == (("True", text), [text])
        await env.after(100 * HOUR)
        assert env.left() == ["p"]


async def test_who_computes_again_has_its_whole_time_again() -> None:
    async with IdleEnv(limiting()) as env:
        await env.runs("p")
        await env.after(1.5 * HOUR)
        env.now += 60
        env.computed["p"] = env.now
        await env.after(HOUR / 2)
        assert env.condition("p") == ("False", "the pod has computed since")
        await env.after(HOUR / 2 + 1)
        assert env.condition("p")[0] == "True"
        await env.after(HOUR - 60)
        assert env.left() == ["p"]
        await env.after(61)
        assert env.left() == []


async def test_a_new_leader_goes_on_where_the_last_one_ended_and_tells_before_it_evicts() -> None:
    async with IdleEnv(limiting()) as env:
        await env.runs("told", "untold")
        env.computed["untold"] = None
        await env.after(HOUR)
        env.lead()
        env.computed["untold"] = NOON
        await env.after(HOUR)
        assert (env.left(), len(env.events("QuotaIdle"))) == (["untold"], 2)
        await env.after(HOUR - 1)
        assert env.left() == ["untold"]
        await env.after(1)
        assert env.left() == []


async def test_a_pod_that_never_used_cuda_is_idle_since_it_is_seen_so() -> None:
    async with IdleEnv(limiting()) as env:
        await env.runs("p", used=NEVER)
        await env.after(0)
        await env.after(1.5 * HOUR)
        assert env.condition("p")[0] == "True"
        del env.computed["p"]  # its card computes, without HAMi-core
        await env.after(HOUR)
        env.computed["p"] = NEVER
        await env.after(10)
        await env.after(HOUR - 20)
        assert env.left() == ["p"]


async def test_a_group_is_idle_once_all_its_pods_are() -> None:
    async with IdleEnv(limiting()) as env:
        await env.runs("launcher", "worker", labels={NAME: "train", SIZE: "2"})
        env.computed["worker"] = NOON + HOUR
        await env.after(2 * HOUR)
        assert (env.left(), env.condition("launcher")[0]) == (["launcher", "worker"], "True")
        env.computed["worker"] = env.now
        await env.after(1.9 * HOUR)
        assert env.left() == ["launcher", "worker"]
        await env.after(2 * HOUR)
        assert env.left() == []


async def test_a_pod_disruption_budget_keeps_an_idle_pod_and_an_event_says_so_once() -> None:
    async with IdleEnv(limiting()) as env:
        budget = {
            "metadata": {"name": "keep", "namespace": TEAM},
            "spec": {"selector": {}},
            "status": {"disruptionsAllowed": 0},
        }
        await env.cluster.create(Kind.POD_DISRUPTION_BUDGETS, budget)
        await env.runs("p")
        await env.after(HOUR)
        await env.after(HOUR, rounds=5)
        why = "idle, and not evicted by quota gpu-quota: a PodDisruptionBudget doesn't allow it now"
        assert (env.left(), env.events("QuotaIdleBlocked")) == (["p"], [why])
        await env.cluster.patch_status(Kind.POD_DISRUPTION_BUDGETS, "keep", {"status": {"disruptionsAllowed": 1}}, TEAM)
        await env.after(0)
        assert env.left() == []


async def test_of_several_quotas_the_strictest_holds() -> None:
    shared = accelerator_quota("shared", spec={"idleAfter": "4h", "idle": "Evict"}, gpu=8)
    async with IdleEnv(limiting("1h", "Warn"), shared) as env:
        await env.runs("p")
        await env.after(2 * HOUR)
        assert env.condition("p") == ("True", f"{TOLD_OF_SHARED}, unless it computes")
        await env.after(2 * HOUR)
        assert env.left() == []


@pytest.mark.parametrize("ahead", [-7200.0, 7200.0])
async def test_the_clock_of_who_measures_does_not_matter(ahead: float) -> None:
    async with IdleEnv(limiting()) as env:
        env.ahead = ahead
        await env.runs("p")
        await env.after(HOUR - 1)
        assert env.condition("p") == ("", "")
        await env.after(1)
        await env.after(HOUR)
        assert env.left() == []


async def test_without_figures_nothing_happens() -> None:
    async with IdleEnv(limiting()) as env:
        await env.runs("p")
        env.computed["p"] = None
        await env.after(3 * HOUR)
        del env.computed["p"]
        await env.after(3 * HOUR)
        env.computed["p"], env.down = NOON, True
        await env.after(3 * HOUR, rounds=3)
        assert (env.left(), env.condition("p"), env.told()) == (["p"], ("", ""), [])


async def test_attack_figures_of_a_pod_of_the_same_name_before_count_from_its_own_start() -> None:
    async with IdleEnv(limiting()) as env:
        await env.runs("p")
        await env.after(1.5 * HOUR)
        await env.delete("p", grace=0)
        await env.drain()
        await env.runs("p", used=NOON, uid="uid-next")
        await env.after(HOUR - 1, rounds=2)
        assert (env.left(), env.condition("p")) == (["p"], ("", ""))


async def test_attack_hundreds_of_idle_pods_are_told_and_evicted_ten_in_a_round() -> None:
    async with IdleEnv(limiting()) as env:
        await env.cluster.patch(
            Kind.RESOURCE_QUOTAS, "gpu-quota", {"spec": {"hard": {"limits.nvidia.com/gpu": "20"}}}, TEAM
        )
        await env.runs(*(f"p{number:02}" for number in range(15)))
        await env.after(HOUR)
        assert len(env.events("QuotaIdle")) == 10
        await env.after(0)
        assert len(env.events("QuotaIdle")) == 15
        await env.after(HOUR)
        assert len(env.left()) == 5
        await env.after(0)
        assert env.left() == []


async def test_attack_more_pods_than_go_in_a_round_that_a_budget_protects_keep_no_others() -> None:
    async with IdleEnv(limiting()) as env:
        await env.cluster.patch(
            Kind.RESOURCE_QUOTAS, "gpu-quota", {"spec": {"hard": {"limits.nvidia.com/gpu": "20"}}}, TEAM
        )
        kept = [f"a{number:02}" for number in range(12)]
        await env.runs(*kept, "other")
        for name in kept:
            await env.cluster.patch(Kind.PODS, name, {"metadata": {"labels": {"app": "kept"}}}, TEAM)
        budget = {
            "metadata": {"name": "keep", "namespace": TEAM},
            "spec": {"selector": {"matchLabels": {"app": "kept"}}},
            "status": {"disruptionsAllowed": 0},
        }
        await env.cluster.create(Kind.POD_DISRUPTION_BUDGETS, budget)
        await env.after(HOUR, rounds=2)
        await env.after(HOUR, rounds=2)
        assert env.left() == kept
        await env.after(0, rounds=2)
        assert len(set(env.blocked())) == len(kept)


async def test_attack_a_pod_that_was_told_and_a_condition_that_was_removed_stay_as_they_are_known() -> None:
    """Who may write the status of pods gains nothing by removing the condition while a leader leads."""
    async with IdleEnv(limiting()) as env:
        await env.runs("p")
        await env.after(HOUR)
        await env.cluster.patch_status(Kind.PODS, "p", {"status": {"conditions": []}}, TEAM)
        await env.after(HOUR)
        assert env.left() == []


@pytest.mark.parametrize("written", [{}, {"after": None}, {"after": "soon"}, {"after": "0s"}, {"mode": "kill"}])
async def test_ordinary_day_nothing_is_asked_without_a_limit_and_who_computes_is_left_alone(
    written: dict[str, str | None],
) -> None:
    async with IdleEnv(limiting(**written)) as env:  # type: ignore[arg-type]  # of different types
        await env.runs("p")
        before = env.cluster.peek(Kind.PODS, "p", TEAM)
        for _ in range(30):
            env.computed["p"] = env.now + 300
            await env.after(600)
        assert (env.left(), env.told()) == (["p"], [])
        assert env.cluster.peek(Kind.PODS, "p", TEAM) == before
        assert env.asked == ([] if written not in ({}, {"mode": "kill"}) else [TEAM] * 30)


async def test_ordinary_day_pods_that_hold_no_cards_of_the_quota_are_not_looked_at() -> None:
    """Those that wait, those that ended, those of other namespaces, and those of no cards."""
    async with IdleEnv(limiting()) as env:
        await env.create(pod("pending", gpu=1, mem=1))
        await env.runs("ended")
        await env.finish("ended")
        await env.drain()
        await env.after(5 * HOUR)
        assert (env.asked, env.left()) == ([], ["ended", "pending"])


async def test_ordinary_day_a_quota_that_observes_evicts_nobody() -> None:
    async with IdleEnv(limiting(**{"hami.io/quota-enforcement": "observe"})) as env:
        await env.runs("p")
        await env.after(2 * HOUR)
        await env.after(9 * HOUR)
        assert (env.left(), len(env.events("QuotaIdle"))) == (["p"], 1)
