"""AcceleratorQuotas and labels of namespaces that a silent watch doesn't show (docs/spec/quota.md#7)."""

from __future__ import annotations

import asyncio

import pytest
import virtual_time
from builders import accelerator_quota
from quota.objects import pod, quota
from quota.quota_env import QuotaEnv
from quota.test_accelerator_quotas import RESEARCH, A, joined, namespace, teams, used

from hami_webhook.admission.denial import Denied
from hami_webhook.cluster.api import Kind, Unavailable


@pytest.mark.parametrize("path", ["/validate", "/webhook"])
async def test_a_quota_that_is_made_while_the_watch_is_silent_counts_and_refuses(path: str) -> None:
    async with QuotaEnv() as env:
        await joined(env, *teams(2))
        await env.create(pod("runs", namespace=A, gpu=1, mem=400))
        await env.silence(2.1)
        await env.add(accelerator_quota(mem=1000))
        refusal = await env.refused(pod("p", namespace=A, gpu=1, mem=601), path=path)
        assert "AcceleratorQuota all" in refusal.message
        assert "used: limits.nvidia.com/gpumem=400," in refusal.message, "the pods of namespaces that it selects"
        await env.create(pod("q", namespace=A, gpu=1, mem=600), path=path)
        assert used(env) == {"mem": 1000}


async def test_a_namespace_that_is_labelled_while_the_watch_is_silent_is_selected() -> None:
    async with QuotaEnv(accelerator_quota(selector=RESEARCH, mem=1000)) as env:
        await joined(env, namespace(A))
        await env.silence(2.1)
        await env.create(pod("before", namespace=A, gpu=1, mem=2000))
        await env.cluster.patch(Kind.NAMESPACES, A, namespace(A, group="research"))
        env.now += 2.1
        await env.refused(pod("p", namespace=A, gpu=1, mem=1001))
        assert used(env) == {"mem": 2000}, "it is recomputed before it refuses, and counts the pods that were there"


async def test_an_ordinary_day_asks_nothing() -> None:
    """The watches said something within two seconds."""
    objects = quota(namespace=A, gpu=9, mem=9000), accelerator_quota(selector=RESEARCH, mem=9000)
    async with QuotaEnv(*objects) as env:
        await joined(env, namespace(A, group="research"), namespace("team-b"))
        await env.create(pod("first", namespace=A, gpu=1, mem=10))
        await env.cluster.patch(Kind.NAMESPACES, "team-b", namespace("team-b", other="label"))
        await env.drain()
        asked = env.api_calls()
        await env.create(pod("p", namespace=A, gpu=1, mem=10))
        await env.create(pod("q", namespace="team-b", gpu=1, mem=10))
        assert not {"list", "get"} & asked.keys()


@pytest.mark.parametrize("objects", [[], [accelerator_quota(selector=RESEARCH, mem=9000)]], ids=["none", "one"])
async def test_beside_a_silent_watch_one_list_serves_all_reviews_of_two_seconds(
    objects: list[dict[str, object]],
) -> None:
    async with QuotaEnv(*objects) as env:
        await joined(env, *teams(1, group="research"))
        await env.silence(2.1)
        asked = env.api_calls()
        await asyncio.gather(*(env.admit(pod(f"p{n}", namespace=A, gpu=1, mem=10)) for n in range(20)))
        # AcceleratorQuotas, the namespace's own ResourceQuotas; the namespace where its labels matter
        assert (asked["list"], asked["get"]) == (2, len(objects))
        env.now += 0.9
        await env.admit(pod("q", namespace=A, gpu=1, mem=10))
        assert (asked["list"], asked["get"]) == (2, len(objects))


async def test_reviews_that_go_on_never_wait_for_a_list() -> None:
    """The next list begins while the last one is still good."""
    async with QuotaEnv() as env:
        await joined(env, *teams(1))
        await env.silence(2.1)
        await env.admit(pod("first", namespace=A, gpu=1, mem=10))
        held = asyncio.Event()

        async def pause(step: str) -> None:
            if step == "list:before":
                await held.wait()

        env.cluster.pause = pause
        env.now += 1.1
        await asyncio.wait_for(env.admit(pod("p", namespace=A, gpu=1, mem=10)), 10)
        held.set()
        await env.drain()
        env.cluster.pause = None
        env.now += 1.5
        asked = env.api_calls()
        await env.admit(pod("q", namespace=A, gpu=1, mem=10))
        assert asked["list"] <= 2, "those that begin early, one for each kind"


async def test_what_can_not_be_read_beside_a_silent_watch_is_refused_for_now() -> None:
    async with QuotaEnv(accelerator_quota(selector=RESEARCH, mem=9000)) as env:
        await joined(env, *teams(1, group="research"))
        await env.silence(2.1)
        for failing in ("list:before", "get:before"):

            async def pause(step: str, failing: str = failing) -> None:
                if step == failing:
                    raise Unavailable("no answer")

            env.cluster.pause = pause
            with pytest.raises(Denied) as refused:
                await env.admit(pod("p", namespace=A, gpu=1, mem=10))
            assert (refused.value.code, refused.value.retry_after) == (503, 1)
        env.cluster.pause = None
        await env.admit(pod("p", namespace=A, gpu=1, mem=10))


@pytest.mark.parametrize("unanswered", ["list:before", "patch_status:before"])
def test_neither_a_list_nor_a_write_takes_longer_than_a_review_may(unanswered: str) -> None:
    async def pause(step: str) -> None:
        if step == unanswered:
            await asyncio.Event().wait()

    async def run() -> None:
        async with QuotaEnv(quota(namespace=A, mem=9000), accelerator_quota(selector=RESEARCH, mem=9000)) as env:
            await joined(env, *teams(1, group="research"))
            await env.silence(2.1)
            loop = asyncio.get_running_loop()
            env.cluster.pause, began = pause, loop.time()
            with pytest.raises(Denied) as refused:
                await env.core.admission.validate(env.review(pod("p", namespace=A, uid="u", gpu=1, mem=10)), 1.0)
            text = f"quota: can't charge namespace {A} now: no answer from the API server in time; try again"
            assert (refused.value.message, loop.time() - began) == (text, 1.0)

    virtual_time.run(run())


async def test_a_quota_and_the_label_that_it_selects_are_made_while_the_watches_are_silent() -> None:
    async with QuotaEnv() as env:
        await joined(env, namespace(A))
        await env.silence(2.1)
        await env.add(accelerator_quota(selector=RESEARCH, mem=1000))
        await env.create(pod("before", namespace=A, gpu=1, mem=2000))
        await env.cluster.patch(Kind.NAMESPACES, A, namespace(A, group="research"))
        env.now += 2.1
        await env.refused(pod("p", namespace=A, gpu=1, mem=1001))
