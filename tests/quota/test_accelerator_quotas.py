"""AcceleratorQuotas: quotas of many namespaces, charged with the namespaces' own (docs/spec/quota.md#5.2)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import pytest
import virtual_time
from builders import accelerator_quota, card, node
from hypothesis import given
from hypothesis import strategies as st

from hami_webhook.admission.denial import Denied
from hami_webhook.cluster.api import JSON, ClusterError, Kind, Unavailable
from hami_webhook.kube.objects import Pod, format_time
from hami_webhook.quota.accelerator_quota import read_accelerator_quota, status_patch
from hami_webhook.quota.accelerator_report import with_report
from hami_webhook.quota.account import QuotaAccount
from hami_webhook.quota.card_selection import COUNTED
from hami_webhook.quota.enforcement import OBSERVED
from hami_webhook.quota.ledger import LEDGER
from hami_webhook.scheduling.placer import Placement

from .objects import KEYS, LARGE, NOON, SMALL, account_of, full, pod, quota, vendors
from .quota_env import QuotaEnv

A, B, C = "team-a", "team-b", "team-c"
BEFORE = "2026-01-01T00:00:00Z"
RESEARCH = {"matchLabels": {"group": "research"}}


def namespace(name: str, **labels: str) -> JSON:
    return {"metadata": {"name": name, "labels": labels}}


async def joined(env: QuotaEnv, *namespaces: JSON) -> None:
    for each in namespaces:
        name = each["metadata"]["name"]
        await env.cluster.ensure_namespace(name)
        await env.cluster.patch(Kind.NAMESPACES, name, each)
    await env.run(3)


def teams(count: int = 3, **labels: str) -> list[JSON]:
    return [namespace(f"team-{letter}", **labels) for letter in "abcdefgh"[:count]]


def used(env: QuotaEnv, name: str = "all") -> dict[str, int]:
    account = env.account_above(name)
    return {short: account.used[key] for short, key in KEYS.items() if key in account.used}


def own_used(env: QuotaEnv, namespace: str = A) -> dict[str, int]:
    found = env.cluster.peek(Kind.RESOURCE_QUOTAS, "gpu-quota", namespace)
    assert found is not None
    account = account_of(found, env.vendors)
    return {short: account.used[key] for short, key in KEYS.items() if key in account.used}


async def test_pods_of_all_selected_namespaces_are_charged_to_one_quota() -> None:
    async with QuotaEnv(accelerator_quota(selector=RESEARCH, mem=1000)) as env:
        await joined(env, *teams(2, group="research"), namespace(C))
        await env.create(pod("p", namespace=A, gpu=1, mem=600))
        await env.create(pod("p", namespace=C, gpu=1, mem=600), uid="in-c")
        assert used(env) == {"mem": 600}
        refusal = await env.refused(pod("q", namespace=B, gpu=1, mem=401))
        assert refusal.message == (
            "exceeding resource quota: exceeded quota: AcceleratorQuota all, requested: limits.nvidia.com/gpumem=401, "
            "used: limits.nvidia.com/gpumem=600, limited: limits.nvidia.com/gpumem=1000"
            " (memory: 401Mi requested, 600Mi used, 1000Mi limited)"
        )
        await env.create(pod("q", namespace=B, gpu=1, mem=400))
        assert used(env) == {"mem": 1000}
        await env.delete("p", namespace=A)
        await env.run(15)
        assert used(env) == {"mem": 400}


async def test_what_the_second_refuses_is_taken_out_of_the_first() -> None:
    """Two quotas above, full in different keys of which the cache knows only one."""
    async with QuotaEnv(quota(namespace=A, gpu=10), accelerator_quota(mem=1000), replicas=2) as env:
        await joined(env, *teams(1))
        await env.run(3)
        pods = [pod(f"p{n}", namespace=A, gpu=1, mem=600) for n in range(2)]
        came = await asyncio.gather(
            *(env.admit(each, replica=n) for n, each in enumerate(pods)), return_exceptions=True
        )
        assert sum(isinstance(each, Denied) for each in came) == 1
        assert own_used(env)["gpu"] == 1
        assert used(env) == {"mem": 600}


async def test_namespaces_that_enter_or_leave_are_recounted() -> None:
    async with QuotaEnv(accelerator_quota(selector=RESEARCH, mem=1000)) as env:
        await joined(env, namespace(A, group="research"), namespace(B))
        await env.create(pod("p", namespace=A, gpu=1, mem=600))
        await env.create(pod("p", namespace=B, gpu=1, mem=300), uid="in-b")
        await env.run(15)
        assert used(env) == {"mem": 600}
        await env.cluster.patch(Kind.NAMESPACES, B, {"metadata": {"labels": {"group": "research"}}})
        await env.run(15)
        assert used(env) == {"mem": 900}
        await env.cluster.patch(Kind.NAMESPACES, A, {"metadata": {"labels": {"group": None}}})
        await env.run(15)
        assert used(env) == {"mem": 300}


async def test_placements_are_debited_and_refused_above_namespaces() -> None:
    cards = node("n1", card("G1", LARGE)), node("n2", card("G2", SMALL))
    async with QuotaEnv(*cards, accelerator_quota(mem=LARGE + 1000)) as env:
        await joined(env, *teams(2))
        await env.create(pod("p", namespace=A, gpu=1, percent=100))
        assert used(env) == {"mem": SMALL}, "the smallest card that it could get"
        await env.create(pod("q", namespace=B, gpu=1, mem=5000))
        placed = await env.place("p", A)
        assert isinstance(placed, Placement)
        assert (placed.node, {node: str(why) for node, why in placed.failed.items()}) == (
            "n2",
            {"n1": "1/1 ResourceQuotaNotFit"},
        )
        await env.run(15)
        assert used(env) == {"mem": SMALL + 5000}


async def test_a_quota_of_some_cards_counts_what_is_on_them() -> None:
    cards = (
        node("n1", card("G1", LARGE, type="NVIDIA-H100"), labels={"pool": "train"}),
        node("n2", card("G2", LARGE, type="NVIDIA-A10")),
    )
    some = accelerator_quota(spec={"deviceTypes": ["H100"], "nodeSelector": {"pool": "train"}}, mem=1000)
    async with QuotaEnv(*cards, some) as env:
        await joined(env, *teams(2))
        assert env.above()["status"]["countedCards"] == "types h100; nodes pool=train"
        await env.create(pod("p", namespace=A, gpu=1, mem=900))
        assert used(env) == {"mem": 0}, "it could get the other card"
        only = pod("q", namespace=B, gpu=1, mem=800, annotations={"nvidia.com/use-gputype": "H100"})
        await env.create(only)
        assert used(env) == {"mem": 800}
        assert await env.node_of("p", A) == "n2"
        assert used(env) == {"mem": 800}


async def test_a_quota_that_observes_refuses_nothing() -> None:
    async with QuotaEnv(accelerator_quota(spec={"enforcement": "observe"}, mem=500)) as env:
        await joined(env, *teams(1))
        _, answer = await env.admit(pod("p", namespace=A, gpu=1, mem=900))
        assert [text for text in answer.warnings if "AcceleratorQuota all" in text]
        assert used(env) == {"mem": 900}
        assert env.above()["status"]["observed"] == 1
        await env.cluster.patch(Kind.ACCELERATOR_QUOTAS, "all", {"spec": {"enforcement": "enforce"}})
        await env.run(1)
        await env.refused(pod("q", namespace=A, gpu=1, mem=1))


def test_what_is_written_into_its_status_is_read_back() -> None:
    notes = {LEDGER: '{"u":{}}', COUNTED: "types a100", OBSERVED: "3"}
    amounts = {"used": {KEYS["mem"]: "5"}, "hard": {KEYS["mem"]: "9"}}
    patch = status_patch({"metadata": {"resourceVersion": "7", "annotations": notes}, "status": amounts})
    meta = {"name": "all", "uid": "u", **patch["metadata"]}
    found = read_accelerator_quota({**accelerator_quota(mem=9), "metadata": meta, "status": patch["status"]}, {})
    assert (found.name, found.uid, found.resource_version) == ("all", "u", "7")
    assert (found.annotations, found.used, found.status_hard) == (notes, amounts["used"], amounts["hard"])
    assert status_patch({"metadata": {"resourceVersion": "7"}}) == {"metadata": {"resourceVersion": "7"}, "status": {}}


@pytest.mark.parametrize(("used", "status", "since"), [(9, "False", BEFORE), (10, "True", format_time(NOON))])
def test_its_condition_has_the_time_of_its_change_and_others_stay(used: int, status: str, since: str) -> None:
    other = {"type": "Ready", "status": "True"}
    conditions = [other, {"type": "Exceeded", "status": "False", "lastTransitionTime": BEFORE}]
    found = read_accelerator_quota({**accelerator_quota(mem=9), "status": {"conditions": conditions}}, {})
    report = with_report(QuotaAccount.read(found, vendors()), full(mem=used), {}, NOON).report
    kept, ours = report["conditions"]
    assert (kept, ours["status"], ours["lastTransitionTime"]) == (other, status, since)


async def test_the_status_says_what_each_namespace_uses_and_waits_for() -> None:
    async with QuotaEnv(node("n1", card("G1", LARGE)), accelerator_quota(mem=10_000)) as env:
        await joined(env, *teams(2))
        await env.create(pod("p", namespace=A, gpu=1, mem=600))
        await env.create(pod("q", namespace=A, gpu=1, mem=300))
        await env.create(pod("r", namespace=B, gpu=1, mem=100))
        assert await env.node_of("p", A) == "n1"
        await env.run(60)
        status, key = env.above()["status"], KEYS["mem"]
        assert status["namespaces"] == [
            {"name": A, "used": {key: "900"}, "waiting": {key: "300"}},
            {"name": B, "used": {key: "100"}, "waiting": {key: "100"}},
        ]
        (condition,) = status["conditions"]
        assert (condition["type"], condition["status"], condition["reason"]) == ("Exceeded", "False", "WithinHard")
        assert condition["message"] == "used is within hard"
        await env.cluster.patch(Kind.ACCELERATOR_QUOTAS, "all", {"spec": {"hard": {key: 800}}})
        await env.run(60)
        (condition,) = env.above()["status"]["conditions"]
        assert (condition["status"], condition["message"]) == ("True", f"{key}: used 1000, limited 800")
        assert [event for event in env.events("QuotaExceeded") if "used 1000, limited 800" in event]


@pytest.mark.parametrize("lost", [0.0, 0.1])
async def test_a_burst_over_fifty_namespaces(lost: float) -> None:
    """Three replicas: never above hard, used equals an independent sum, and few writes."""
    spaces = [f"space-{n:02}" for n in range(50)]
    own = [quota(namespace=space, mem=500) for space in spaces[:5]]
    async with QuotaEnv(accelerator_quota(mem=20_000), *own, replicas=3) as env:
        for space in spaces:
            await env.cluster.ensure_namespace(space)
        await env.run(3)
        writes = 0
        calls = 0

        async def pause(step: str) -> None:
            nonlocal writes, calls
            if step == "patch_status:after":
                writes += 1
                sums()
            calls += 1
            if step == "patch_status:before" and lost and calls % int(1 / lost) == 0:
                raise ClusterError("injected")
            await asyncio.sleep(0)

        def sums() -> int:
            total = 0
            for space in spaces:
                of = [Pod.from_object(each) for each in env.cluster.peek_all(Kind.PODS, space)]
                mine = sum(int(each.containers[0].limits["nvidia.com/gpumem"]) for each in of)
                assert space not in spaces[:5] or mine <= 500
                total += mine
            assert total <= 20_000
            return total

        env.cluster.pause = pause

        async def come(number: int) -> bool:
            manifest = pod(f"p{number}", namespace=spaces[number % 50], gpu=1, mem=100)
            try:
                stored_pod, _ = await env.admit(manifest, replica=number % 3)
            except Denied:
                return False
            await env.cluster.create(Kind.PODS, stored_pod)
            return True

        came = await asyncio.gather(*(come(number) for number in range(300)))
        assert writes < 0.3 * 300, writes
        env.cluster.pause = None
        await env.run(120)
        assert sum(came) * 100 == sums() == used(env)["mem"]
        assert lost or sum(came) == 200
        assert sum(int(each["used"][KEYS["mem"]]) for each in env.above()["status"]["namespaces"]) == sums()


SPACES = {A: {"group": "research"}, B: {"group": "research"}, C: {"group": "other"}}
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("create"), st.sampled_from(sorted(SPACES)), st.integers(1, 900), st.integers(0, 1)),
        st.tuples(st.just("place"), st.integers(0, 30)),
        st.tuples(st.just("delete"), st.integers(0, 30)),
        st.tuples(st.just("fail"), st.integers(1, 6)),
        st.tuples(st.just("wait"), st.sampled_from([1.0, 20.0, 60.0])),
    ),
    max_size=25,
)


@given(ACTIONS)
def test_every_quota_of_both_kinds_holds_whatever_happens(actions: list[tuple[Any, ...]]) -> None:
    """Two replicas; `fail`: the API server's next so many-th write fails before or after it took effect."""
    virtual_time.run(_run(actions))


async def _run(actions: list[tuple[Any, ...]]) -> None:
    limits = {"all": 2500, "research": 1500}
    objects = (
        node("n1", card("G1", LARGE), card("G2", LARGE)),
        quota(namespace=A, mem=1000),
        accelerator_quota(mem=limits["all"]),
        accelerator_quota("research", RESEARCH, mem=limits["research"]),
    )
    async with QuotaEnv(*objects, replicas=2) as env:
        await joined(env, *(namespace(name, **labels) for name, labels in SPACES.items()))
        left = 0

        async def pause(step: str) -> None:
            nonlocal left
            if step.startswith("patch_status") and left:
                left -= 1
                if not left:
                    raise Unavailable("injected")

        def memory(spaces: Iterable[str]) -> int:
            pods = [pod for space in spaces for pod in env.cluster.peek_all(Kind.PODS, space)]
            return sum(int(Pod.from_object(pod).containers[0].limits["nvidia.com/gpumem"]) for pod in pods)

        env.cluster.pause = pause
        pods: list[tuple[str, str]] = []
        for number, (action, *rest) in enumerate(actions):
            if action == "create":
                space, mem, replica = rest
                with suppress(Denied):
                    await env.create(pod(f"p{number}", namespace=space, gpu=1, mem=mem), replica=replica)
                    pods.append((f"p{number}", space))
            elif action == "place" and pods:
                with suppress(ClusterError):
                    await env.core.placer.place(env.pod(*pods[rest[0] % len(pods)]))
                await env.drain()
            elif action == "delete" and pods:
                name, space = pods.pop(rest[0] % len(pods))
                await env.delete(name, 0, space)
            elif action == "fail":
                left = rest[0]
            elif action == "wait":
                await env.run(rest[0])
            assert memory([A]) <= 1000
            assert memory([A, B]) <= limits["research"]
            assert memory(SPACES) <= limits["all"]
        env.cluster.pause = None
        await env.run(120)
        assert own_used(env) == {"mem": memory([A])}
        assert used(env, "research") == {"mem": memory([A, B])}
        assert used(env) == {"mem": memory(SPACES)}
