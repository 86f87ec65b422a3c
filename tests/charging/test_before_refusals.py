"""An AcceleratorQuota refuses by the pods that exist: before, it is recomputed (docs/spec/quota.md#5.2)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from builders import accelerator_quota
from quota.objects import pod, quota
from quota.quota_env import QuotaEnv
from quota.test_accelerator_quotas import A, B, joined, own_used, teams, used

from hami_webhook.cluster.api import Kind

NAMESPACES = 3
"""Which the quotas select: two teams' and the environment's own. Each is listed by itself."""


class ListedPods:
    """Counts the lists of pods, each of which takes so many seconds."""

    def __init__(self, env: QuotaEnv, monkeypatch: pytest.MonkeyPatch, took: float = 0.0) -> None:
        self.times = 0
        listing: Callable[..., Awaitable[Any]] = env.cluster.list

        async def noted(kind: Kind, namespace: str = "") -> Any:
            if kind is Kind.PODS:
                self.times += 1
                env.now += took
            return await listing(kind, namespace)

        monkeypatch.setattr(env.cluster, "list", noted)


@pytest.mark.parametrize("path", ["/validate", "/webhook"])
async def test_pods_that_are_gone_keep_nobody_out(path: str) -> None:
    """The controller comes seconds later; meanwhile one tenant's own quota takes its next pods already."""
    async with QuotaEnv(quota(namespace=A, mem=600), accelerator_quota(mem=1000)) as env:
        await joined(env, *teams(2))
        await env.create(pod("p", namespace=A, gpu=1, mem=600), path=path)
        await env.delete("p", namespace=A)
        await env.drain()
        assert used(env) == {"mem": 600}
        await env.create(pod("q", namespace=B, gpu=1, mem=900), path=path)
        assert used(env) == {"mem": 900}


async def test_a_pod_that_ended_keeps_nobody_out() -> None:
    async with QuotaEnv(accelerator_quota(mem=1000)) as env:
        await joined(env, *teams(2))
        await env.create(pod("p", namespace=A, gpu=1, mem=600))
        await env.cluster.set_phase(A, "p", "Succeeded")
        await env.drain()
        await env.create(pod("q", namespace=B, gpu=1, mem=900))
        assert used(env) == {"mem": 900}


async def test_where_no_pod_left_a_refusal_lists_no_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ordinary day of a full quota: a controller tries again and again."""
    async with QuotaEnv(accelerator_quota(mem=1000)) as env:
        await joined(env, *teams(2))
        await env.create(pod("p", namespace=A, gpu=1, mem=600))
        lists = ListedPods(env, monkeypatch)
        for number in range(5):
            await env.refused(pod(f"q{number}", namespace=B, gpu=1, mem=401))
        assert lists.times == NAMESPACES, "for the first refusal of the process"


async def test_of_two_quotas_without_room_the_namespaces_own_refuses_without_a_list(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who is over its own quota can't make others' quotas be recomputed."""
    async with QuotaEnv(quota(namespace=A, mem=100), accelerator_quota(mem=100)) as env:
        await joined(env, *teams(2))
        await env.run(3)
        lists = ListedPods(env, monkeypatch)
        refusal = await env.refused(pod("p", namespace=A, gpu=1, mem=101))
        assert "exceeded quota: gpu-quota," in refusal.message
        assert (lists.times, own_used(env), used(env)) == (0, {"mem": 0}, {"mem": 0})


async def test_a_quota_whose_pods_take_long_to_list_is_recomputed_a_fifth_of_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with QuotaEnv(accelerator_quota(mem=1000)) as env:
        await joined(env, *teams(2))

        async def come_and_go(name: str) -> None:
            await env.create(pod(name, namespace=A, gpu=1, mem=600))
            await env.delete(name, namespace=A)
            await env.drain()

        await come_and_go("p")
        lists = ListedPods(env, monkeypatch, took=0.25)
        await env.create(pod("q", namespace=B, gpu=1, mem=500))
        assert lists.times == NAMESPACES
        await env.delete("q", namespace=B)
        await env.drain()
        env.now += 4 * NAMESPACES * 0.25 - 0.6
        await env.refused(pod("r", namespace=B, gpu=1, mem=600))
        assert lists.times == NAMESPACES
        env.now += 0.1
        await env.create(pod("r", namespace=B, gpu=1, mem=600))
        assert lists.times == 2 * NAMESPACES
        await env.delete("r", namespace=B)
        await env.drain()
        env.now += 60
        await env.create(pod("s", namespace=B, gpu=1, mem=600))
        assert lists.times == 3 * NAMESPACES
