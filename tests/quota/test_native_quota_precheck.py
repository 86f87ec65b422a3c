"""Pods that the API server refuses after every webhook leave no charge (docs/spec/quota.md#7.2)."""

from __future__ import annotations

from typing import Any

import pytest
from builders import accelerator_quota

from hami_webhook.cluster.api import JSON, Kind, Unavailable

from .objects import TEAM, creation, pod, quota
from .quota_env import QuotaEnv

PATHS = pytest.mark.parametrize("path", ["/validate", "/webhook"])


def asked(name: str = "p", **how: Any) -> JSON:
    return pod(name, **{"gpu": 1, "mem": 100, **how})


def above(env: QuotaEnv) -> tuple[str, str]:
    """What is used of the AcceleratorQuota, and its ledger."""
    status = env.above().get("status", {})
    return status.get("used", {}).get("limits.nvidia.com/gpu", "0"), status.get("ledger") or ""


async def sign_of_life(env: QuotaEnv) -> None:
    """Every watch shows something."""
    await env.cluster.patch(Kind.NAMESPACES, TEAM, {"metadata": {"annotations": {"now": str(env.now)}}})
    for kind in (Kind.RESOURCE_QUOTAS, Kind.ACCELERATOR_QUOTAS):
        for item in env.cluster.peek_all(kind):
            meta = item["metadata"]
            await env.cluster.patch(kind, meta["name"], {"metadata": {"labels": {"x": "y"}}}, meta.get("namespace", ""))
    await env.drain()


@PATHS
async def test_pods_that_a_native_quota_refuses_fill_no_quota(path: str) -> None:
    """The attack: 50 pods of a namespace that may have none, under 4 cards of everybody's."""
    objects = quota("room", pods=99, used={}), quota("none", pods=0, used={}), accelerator_quota(gpu=4)
    async with QuotaEnv(*objects) as env:
        await env.cluster.ensure_namespace("team-b")
        await env.run(3)
        for number in range(50):
            refusal = await env.refused(asked(f"p{number}"), path=path)
            assert (refusal.code, refusal.cause) == (403, "quota")
            assert refusal.message == "exceeded quota: none, requested: pods=1, used: pods=0, limited: pods=0"
        assert above(env) == ("0", "")
        for number in range(4):
            await env.create(asked(f"other{number}", namespace="team-b"), path=path)


@PATHS
async def test_pods_whose_name_is_taken_fill_no_quota(path: str) -> None:
    async with QuotaEnv(accelerator_quota(gpu=4)) as env:
        await env.run(3)
        await env.create(asked("taken"), path=path)
        for _ in range(50):
            refusal = await env.refused(asked("taken"), uid="other", path=path)
            assert (refusal.code, refusal.reason, refusal.message) == (
                409,
                "AlreadyExists",
                'pods "taken" already exists',
            )
        await env.delete("taken", grace=30)
        refusal = await env.refused(asked("taken"), uid="other", path=path)
        assert refusal.message == 'object is being deleted: pods "taken" already exists'
        await env.run(60)
        assert above(env)[0] == "1"


@PATHS
async def test_a_pod_that_is_made_anew_is_admitted_although_the_cache_has_the_old_one(path: str) -> None:
    """As StatefulSets do; the watch hasn't shown the deletion yet."""
    async with QuotaEnv(accelerator_quota(gpu=4)) as env:
        await env.create(asked("db-0"), path=path)
        for task in env._tasks:
            task.cancel()
        await env.delete("db-0", grace=0)
        assert env.core.caches.has_pod(TEAM, "db-0")
        await env.admit(asked("db-0"), uid="new", path=path)


async def test_names_of_pods_that_are_gone_are_forgotten() -> None:
    async with QuotaEnv(accelerator_quota(gpu=4)) as env:
        await env.create(asked("p"))
        await env.delete("p", grace=0)
        await env.drain()
        assert not env.core.caches.has_pod(TEAM, "p")
        assert not env.core.caches._pods, "nothing is kept of the namespace"
        await env.create(asked("p"), uid="new")
        env.core.caches.drop(Kind.PODS, {"metadata": {"name": "p", "namespace": TEAM, "uid": "uid-p"}})
        assert env.core.caches.has_pod(TEAM, "p"), "a late deletion is of the one before"


async def test_the_same_pod_again_is_no_other() -> None:
    """A review that is sent once more after its pod was stored."""
    async with QuotaEnv(quota(gpu=4)) as env:
        stored, _ = await env.admit(asked())
        await env.cluster.create(Kind.PODS, stored)
        await env.drain()
        await env.core.admission.validate(env.review(stored))


async def test_a_name_that_is_generated_later_is_nobodys() -> None:
    """`/webhook` sees the prefix; a pod may be called so."""
    async with QuotaEnv(accelerator_quota(gpu=4)) as env:
        await env.create(asked("web"))
        generated = asked("")
        generated["metadata"]["generateName"] = "web"
        await env.core.admission.webhook(creation("", generated))


@PATHS
async def test_a_native_quota_that_was_raised_meanwhile_refuses_nothing(path: str) -> None:
    async with QuotaEnv(quota("none", pods=0, used={}), accelerator_quota(gpu=4)) as env:
        await env.run(3)
        for task in env._tasks:
            task.cancel()
        await env.cluster.patch_status(Kind.RESOURCE_QUOTAS, "none", {"status": {"hard": {"pods": "9"}}}, TEAM)
        await env.admit(asked(), path=path)
        await env.cluster.delete(Kind.RESOURCE_QUOTAS, "none", TEAM)
        await env.admit(asked("q"), path=path)


@PATHS
async def test_what_can_not_be_verified_is_charged(path: str) -> None:
    """Without the right to read the object that stands in the way; the API server decides."""
    async with QuotaEnv(quota("none", pods=0, used={}), quota(gpu=4)) as env:
        await env.run(3)
        await sign_of_life(env)

        async def pause(step: str) -> None:
            if step == "get:before":
                raise Unavailable("no answer")

        env.cluster.pause = pause
        _, answer = await env.admit(asked(), path=path)
        assert answer.audit["quota"].startswith("gpu-quota:")


async def test_an_ordinary_day_reads_nothing() -> None:
    hard: JSON = {"pods": 9, "requests.cpu": 99, "requests.nvidia.com/gpu": 9}
    async with QuotaEnv(quota("native", used={}, **hard), quota(gpu=9, mem=9000), accelerator_quota(gpu=9)) as env:
        await env.create(asked("first", cpu=1))
        await sign_of_life(env)
        calls = env.api_calls()
        for number in range(5):
            await env.create(asked(f"p{number}", cpu=1))
        await env.admit(pod("no-cards", cpu=500))
        assert not {"list", "get"} & calls.keys()


async def test_amounts_are_compared_where_they_are_final_only() -> None:
    """Not before other webhooks had their say, nor with what a RuntimeClass or the pod itself adds."""
    hard: JSON = {"requests.cpu": 1}
    async with QuotaEnv(quota("small", used={}, **hard), accelerator_quota(gpu=4)) as env:
        await env.run(3)
        large = asked()
        large["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "2"}
        assert "requested: requests.cpu=2" in (await env.refused(large)).message
        await env.admit(large, path="/webhook")
        for field in ("overhead", "resources"):
            await env.admit({**large, "spec": {**large["spec"], field: {"cpu": "1"}}})
