"""Pods that give back what is lent, from a team's pod that waits to the ones that go (docs/spec/queues.md#7)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from builders import JSON, accelerator_quota, card, node
from quota.objects import GPU, LARGE, pod
from quota.quota_env import QuotaEnv

from hami_webhook.cluster.api import Forbidden, Kind, Unavailable
from hami_webhook.kube.pod_group import NAME, SIZE
from hami_webhook.queueing.words import sentence

A, B, C = "team-a", "team-b", "team-c"
ALL = "AcceleratorQuota/all"
CARDS = node("n1", card("GPU-1", LARGE))
MINUTES = 60.0


def team(name: str, nominal: int, reclaim: str = "on", hard: int = 10, **spec: Any) -> JSON:
    more = {"nominal": {GPU: nominal}, "reclaim": reclaim, **spec}
    return accelerator_quota(name, {"matchLabels": {"team": name}}, more, gpu=hard)


def common(hard: int = 4, **spec: Any) -> JSON:
    return accelerator_quota("all", {}, {"enforcement": "queue", **spec}, gpu=hard)


class Env(QuotaEnv):
    """Teams with a namespace each, under a quota of all."""

    async def __aenter__(self) -> Env:
        for name in (A, B, C):
            await self.cluster.ensure_namespace(name, {"team": name})
        await super().__aenter__()
        return self

    async def run_pods(self, namespace: str, *names: str, age: float = 11 * MINUTES, **fields: Any) -> None:
        """Pods that are released, and have run for a while."""
        for name in names:
            await self.create(pod(name, namespace=namespace, gpu=1, mem=1, **fields))
        await self.release()
        await self.later(age)

    async def later(self, seconds: float) -> None:
        """Time passes, and watches are alive."""
        self.now += seconds
        self.cluster.bookmark()
        await self.drain()

    async def wait(self, namespace: str, *names: str, **fields: Any) -> None:
        """Pods that find no room."""
        for name in names:
            await self.create(pod(name, namespace=namespace, **{"gpu": 1, "mem": 1, **fields}))
        await self.release()

    async def reclaim(self, rounds: int = 2) -> None:
        """More rounds than one, as no one after the first may evict more."""
        for _ in range(rounds):
            await self.reclaimer.step()
            await self.drain()
            await self.release()
            await self.later(1)

    def names(self, namespace: str, *, gated: bool | None = None) -> list[str]:
        found = self.cluster.peek_all(Kind.PODS, namespace)
        return [
            each["metadata"]["name"]
            for each in found
            if "deletionTimestamp" not in each["metadata"]
            and gated in (None, bool(each["spec"].get("schedulingGates")))
        ]

    def note(self, name: str) -> str:
        return self.reclaimer.notes.get(f"uid-{name}", "")

    async def settle(self) -> None:
        """What ended is counted, and what waits for it is released."""
        await self.run(12)
        await self.later(0)
        await self.release()


async def test_the_fewest_youngest_go_and_what_they_free_goes_to_who_they_went_for() -> None:
    async with Env(CARDS, common(), team(A, 2), team(B, 2)) as env:
        for name in ("b1", "b2", "b3", "b4"):
            await env.run_pods(B, name)
        await env.wait(B, "other")  # it is older than those of A
        await env.wait(A, "a1", "a2", "a3")
        await env.reclaim()
        assert env.names(B) == ["b1", "b2", "other"]
        assert set(env.events("QuotaReclaimed")) == {
            "evicted because AcceleratorQuota/team-b holds more than its nominal, and a pod of AcceleratorQuota/team-a "
            "waits for its own part"
        }
        assert {each.note.name for each in env.cluster.events if each.note.reason == "QuotaReclaimed"} == {"b3", "b4"}
        assert env.events("QuotaReclaiming") == 2 * [f"1 pod of AcceleratorQuota/team-b evicted for {GPU} of {ALL}"]
        await env.settle()
        assert (env.names(A, gated=False), env.names(A, gated=True)) == (["a1", "a2"], ["a3"])
        assert env.names(B, gated=True) == ["other"]
        await env.reclaim(9)
        assert env.reclaimer.reclaimed == {"team-b": 2}
        assert env.core.failures == {}


@pytest.mark.parametrize(
    ("quotas", "waiting", "note"),
    [
        ([common(), team(A, 2, "off"), team(B, 2)], {}, ""),
        # beyond its own nominal nobody reclaims, and of who has none nothing
        ([common(), team(A, 0), team(B, 2)], {}, ""),
        ([common(), accelerator_quota(A, {"matchLabels": {"team": A}}, gpu=9), team(B, 2)], {}, ""),
        ([common(), team(A, 2), accelerator_quota(B, {"matchLabels": {"team": B}}, gpu=9)], {}, "no team holds enough"),
        ([common(), team(A, 2), team(B, 4)], {}, "no team holds enough beyond its nominal"),
        ([common(), team(A, 2), team(B, 2, reclaimMinRuntime="1h")], {}, "haven't run for their quotas' reclaimMin"),
        # no card is as large, and no node has the label
        ([common(), team(A, 2), team(B, 2)], {"mem": LARGE + 1}, "no node would have the cards for it"),
        ([common(), team(A, 2), team(B, 2)], {"nodeSelector": {"pool": "none"}}, "no node would have the cards"),
        # what is freed would go to who comes first
        ([common(enforcement="enforce"), team(A, 2, enforcement="queue"), team(B, 2)], {}, ""),
    ],
)
async def test_nobody_is_evicted_where_it_wouldnt_help_or_isnt_owed(
    quotas: Sequence[JSON], waiting: JSON, note: str
) -> None:
    enforced = quotas[0]["spec"]["enforcement"] == "enforce"
    async with Env(CARDS, *quotas) as env:
        await env.run_pods(B, "b1", "b2", "b3", "b4")
        if not enforced:
            await env.wait(A, "a1", **waiting)
            assert env.names(A, gated=True) == ["a1"]
        await env.reclaim()
        assert env.names(B) == ["b1", "b2", "b3", "b4"]
        assert note in env.note("a1")
        assert bool(note) == bool(env.note("a1"))
        assert env.events("QuotaReclaimed") == []


async def test_a_dry_run_says_whom_it_would_evict() -> None:
    async with Env(CARDS, common(), team(A, 2, "dry-run"), team(B, 2)) as env:
        await env.run_pods(B, "b1", "b2", "b3", "b4")
        await env.wait(A, "a1", "a2", "a3")
        await env.reclaim(9)
        assert env.names(B) == ["b1", "b2", "b3", "b4"]
        text = f"1 pod of AcceleratorQuota/team-b would be evicted for {GPU} of {ALL} (reclaim: dry-run)"
        assert env.events("QuotaReclaimDryRun") == [text, text]
        assert [each.count for each in env.cluster.events if each.note.reason == "QuotaReclaimDryRun"] == [1, 1]
        (first, *_) = env.releaser.decision.waiting
        assert text in sentence(first, env.core.state.pod, env.note("a1"))


@pytest.mark.parametrize("seen", [True, False])
async def test_a_budget_that_allows_nothing_holds(seen: bool) -> None:
    """One that is seen before, or one that the API server holds against it later: an empty selector covers all."""
    async with Env(CARDS, common(), team(A, 2), team(B, 2)) as env:
        await env.run_pods(B, "b1", "b2", "b3", "b4", labels={"app": "b"}, status={"phase": "Running"})
        budget = {
            "metadata": {"name": "none", "namespace": B},
            "spec": {"selector": {"matchLabels": {"app": "b"}}},
            "status": {"disruptionsAllowed": 0 if seen else 1},
        }
        await env.cluster.create(Kind.POD_DISRUPTION_BUDGETS, budget)
        if not seen:

            async def pause(step: str) -> None:
                if step == "evict_pod:before":
                    patch = {"status": {"disruptionsAllowed": 0}}
                    await env.cluster.patch_status(Kind.POD_DISRUPTION_BUDGETS, "none", patch, B)

            env.cluster.pause = pause
        await env.wait(A, "a1")
        await env.reclaim(9)
        assert env.names(B) == ["b1", "b2", "b3", "b4"]
        protect = "nobody is evicted for it: PodDisruptionBudgets protect the pods of teams beyond their nominal"
        assert env.events("QuotaReclaimBlocked") == [protect]
        assert env.note("a1") == protect


async def test_what_the_next_leader_finds_ending_is_enough() -> None:
    async with Env(CARDS, common(), team(A, 2), team(B, 2)) as env:
        await env.run_pods(B, "b1", "b2", "b3", "b4")
        await env.wait(A, "a1", "a2")
        for name in ("b3", "b4"):
            await env.delete(name, 30, B)
        await env.drain()
        await env.reclaim(9)
        assert env.names(B) == ["b1", "b2"]
        assert env.events("QuotaReclaimed") == []
        # charges of pods that have ended count as free, too, before the recompute
        await env.cluster.set_phase(B, "b2", "Succeeded")
        await env.reclaim(9)
        assert env.names(B) == ["b1", "b2"]


async def test_a_pod_group_goes_as_a_whole_and_is_reclaimed_for_as_a_whole() -> None:
    def group(name: str) -> JSON:
        return {"labels": {NAME: name, SIZE: "2"}}

    async with Env(CARDS, common(6), team(A, 3), team(B, 2)) as env:
        for name in ("b2", "b1"):
            await env.run_pods(B, name)
        await env.run_pods(B, "g1", "g2", **group("g"))
        await env.run_pods(B, "b3", "b4", priority=5)
        await env.wait(A, "a1", "a2", **group("train"))
        await env.reclaim()
        assert env.names(B) == ["b1", "b2", "b3", "b4"]
        await env.settle()
        assert env.names(A, gated=False) == ["a1", "a2"]
        # two of three that are its own run: one more may be had, and that takes single pods
        await env.wait(A, "a3")
        await env.reclaim()
        assert env.names(B) == ["b2", "b3", "b4"]


async def test_cards_are_freed_where_the_pod_fits() -> None:
    """The youngest holds a card that is too small for who waits: the one on the large card goes.

    Of that card the next one gets nothing, so nobody goes for it.
    """
    small, large = node("small", card("S", 4000)), node("large", card("L", LARGE))
    async with Env(small, large, common(2), team(A, 2), team(B, 0)) as env:
        for name, mem in (("old", LARGE), ("young", 4000)):
            await env.create(pod(name, namespace=B, gpu=1, mem=mem))
            await env.release()
            await env.node_of(name, B)
            await env.later(11 * MINUTES)
        await env.later(1)
        await env.wait(A, "a1", mem=20000)
        await env.reclaim()
        assert env.names(B) == ["young"]
        await env.wait(A, "a2", mem=20000)
        await env.reclaim()
        assert env.names(A, gated=True) == ["a1", "a2"], "the pod that was evicted is ending"
        assert env.names(B) == ["young"]


async def test_of_cards_that_are_free_already_one_pod_takes_its_own_once() -> None:
    """It lacks room in the quota alone: the one idle card is its own, so the youngest goes, wherever that runs."""
    small, idle = node("small", card("S", 8000)), node("idle", card("I", LARGE))
    async with Env(small, idle, common(2), team(A, 1), team(B, 0)) as env:
        await env.run_pods(B, "old", "young")
        await env.wait(A, "a1", mem=LARGE)
        await env.reclaim()
        assert len(env.names(B)) == 1


@pytest.mark.parametrize("bound", [False, True])
async def test_a_team_that_deletes_what_others_were_evicted_for_has_to_wait(bound: bool) -> None:
    """In 15 seconds its pods, bound or not, have one of another team evicted as often as they can; then it is owed what
    is its own.
    """
    async with Env(CARDS, common(hard=24), team(A, 2), team(B, 2, hard=24)) as env:
        await env.run_pods(B, *(f"b{number}" for number in range(24)))
        for number in range(5):
            await env.wait(A, f"a{number}")
            await env.reclaim(rounds=1)
            await env.settle()
            if bound and env.names(A, gated=False):
                await env.node_of(f"a{number}", A)
            await env.delete(f"a{number}", namespace=A)
            await env.later(2)
            await env.wait(B, f"again{number}")
        assert env.reclaimer.reclaimed == {"team-b": 2}
        await env.wait(A, "honest")
        await env.reclaim(rounds=1)
        assert env.note("honest").startswith(f"nobody is evicted: pods of namespace {A} had others evicted 2 times")
        await env.later(60)
        await env.reclaim()
        assert env.reclaimer.reclaimed == {"team-b": 3}


async def test_a_flood_of_hopeless_pods_keeps_no_other_team_waiting() -> None:
    """Team A's pods, each of which no card is large enough for, wait before the one of C."""
    async with Env(CARDS, common(), team(A, 2), team(B, 0), team(C, 1)) as env:
        await env.run_pods(B, "b1", "b2", "b3", "b4")
        await env.wait(A, *(f"a{number:02}" for number in range(30)), mem=LARGE + 1, priority=100)
        await env.wait(C, "c1")
        await env.reclaim(1)
        assert len(env.names(B)) == 3
        assert len(env.events("QuotaReclaimBlocked")) == 1
        await env.settle()
        assert env.names(C, gated=False) == ["c1"]


async def test_what_a_tenant_writes_on_its_pods_protects_none() -> None:
    """Neither a priority, nor the name of a group, nor that it never starts, nor a day of grace."""
    async with Env(CARDS, common(), team(A, 4), team(B, 0)) as env:
        await env.run_pods(B, "high", priority=1_000_000_000)
        await env.run_pods(B, "group", labels={"scheduling.x-k8s.io/pod-group": "g"})
        await env.run_pods(B, "never", nodeSelector={"pool": "none"})
        await env.run_pods(B, "slow", terminationGracePeriodSeconds=86400)
        await env.node_of("slow", B)
        await env.wait(A, "a1", "a2", "a3", "a4")
        await env.reclaim(1)
        assert env.names(B) == []
        (slow,) = env.cluster.peek_all(Kind.PODS, B)
        assert slow["metadata"]["deletionGracePeriodSeconds"] == 600


async def test_without_a_nominal_nothing_is_asked() -> None:
    async with Env(CARDS, common()) as env:
        await env.run_pods(B, "b1", "b2", "b3", "b4")
        await env.wait(A, "a1")

        async def pause(step: str) -> None:
            raise AssertionError(step)

        env.cluster.pause = pause
        await env.reclaimer.step()


@pytest.mark.parametrize(("step", "error"), [("evict_pod", Unavailable("busy")), ("list", Forbidden("no right"))])
async def test_what_fails_is_survived_and_tried_again(step: str, error: Exception) -> None:
    async with Env(CARDS, common(), team(A, 2), team(B, 2)) as env:
        await env.run_pods(B, "b1", "b2", "b3", "b4")
        await env.wait(A, "a1")
        failures = [error]

        async def pause(at: str) -> None:
            if at == f"{step}:before" and failures:
                raise failures.pop()

        env.cluster.pause = pause
        await env.reclaim()
        assert len(env.names(B)) == 4
        await env.later(6)
        await env.reclaim()
        assert len(env.names(B)) == 3
        assert (failures, env.core.failures) == ([], {})
