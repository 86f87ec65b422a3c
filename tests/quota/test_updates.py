"""What an update of a waiting pod adds is charged or refused, as a creation is (docs/spec/quota.md#7.2)."""

from __future__ import annotations

from typing import Any

import pytest
from builders import accelerator_quota, card, node

from hami_webhook.admission.denial import Denied
from hami_webhook.cluster.api import JSON, Kind
from hami_webhook.quota.card_selection import DEVICE_TYPES

from .objects import GPU, KEYS, LARGE, SMALL, TEAM, change, pod, quota
from .quota_env import QuotaEnv

H100 = node("h", *(card(f"H{n}", LARGE, index=n, type="NVIDIA-H100") for n in range(8)))
A10 = node("a", *(card(f"A{n}", SMALL, index=n, type="NVIDIA-A10") for n in range(8)), labels={"pool": "a"})
OTHERS = "others"


def h100_quota(count: int) -> JSON:
    made = quota("h100", gpu=count)
    made["metadata"]["annotations"] = {DEVICE_TYPES: "H100"}
    return made


def above(env: QuotaEnv) -> int:
    return env.account_above().used.get(GPU, 0)


def of_type(name: str, types: str = "A10", **more: Any) -> JSON:
    return pod(name, annotations={"nvidia.com/use-gputype": types} if types else {}, gpu=1, mem=1000, **more)


BOTH = (h100_quota(2), accelerator_quota(spec={"deviceTypes": ["H100"]}, gpu=4))


async def test_a_waiting_pod_that_is_to_get_other_cards_is_charged_for_them() -> None:
    """The report: used was 13 of 4 above and 12 of 1 below, and other teams were refused."""
    async with QuotaEnv(H100, A10, *BOTH, replicas=2) as env:
        await env.cluster.ensure_namespace(OTHERS)
        for number in range(13):
            await env.create(of_type(f"p{number}"))
        await env.run(20)
        assert (env.used("h100"), above(env)) == ({"gpu": 0}, 0)
        refused = []
        for number in range(13):
            try:
                await env.annotate(f"p{number}", use_gputype="H100", replica=number % 2)
            except Denied as denied:
                refused.append((denied.code, denied.message))
            assert env.used("h100")["gpu"] <= 2
            assert above(env) <= 4
        text = f"exceeding resource quota: exceeded quota: h100, requested: {GPU}=1, used: {GPU}=2, limited: {GPU}=2"
        assert refused == [(403, text)] * 11
        await env.run(120)
        assert (env.used("h100"), above(env), env.in_flight("h100")) == ({"gpu": 2}, 2, {})
        for number in range(2):
            await env.create(of_type(f"q{number}", "H100", namespace=OTHERS), uid=f"o{number}")
        assert above(env) == 4
        assert [await env.node_of(f"p{number}") for number in range(2)] == ["h", "h"]
        await env.run(60)
        assert (env.used("h100"), above(env)) == ({"gpu": 2}, 4)


async def test_pods_that_came_before_any_node_cost_nothing_until_they_are_placed() -> None:
    async with QuotaEnv(*BOTH) as env:
        await env.cluster.ensure_namespace(OTHERS)
        for number in range(6):
            await env.create(of_type(f"p{number}", "H100"))
        await env.run(60)
        await env.add(H100)
        await env.run(60)
        assert (env.used("h100"), above(env)) == ({"gpu": 0}, 0)
        for number in range(2):
            await env.create(of_type(f"q{number}", "H100", namespace=OTHERS), uid=f"o{number}")
        assert above(env) == 2
        assert [await env.node_of(f"p{number}") for number in range(2)] == ["h", "h"]
        assert await env.reasons("p2") == {"h": "8/8 ResourceQuotaNotFit"}
        await env.run(60)
        assert (env.used("h100"), above(env)) == ({"gpu": 2}, 4)


async def test_an_update_that_is_refused_later_leaves_nothing_beyond_its_time() -> None:
    async with QuotaEnv(H100, A10, h100_quota(2)) as env:
        await env.create(of_type("p"))
        await env.run(60)
        before = env.cluster.peek(Kind.PODS, "p", TEAM)
        assert before is not None
        notes = {"nvidia.com/use-gputype": "H100"}
        after = {**before, "metadata": {**before["metadata"], "annotations": notes}}
        for _ in range(3):
            await env.core.admission.validate(change(before, after))
            assert env.used("h100") == {"gpu": 1}, "once, however often it is reviewed"
        await env.run(30)
        assert (env.used("h100"), list(env.in_flight("h100"))) == ({"gpu": 1}, ["update:uid-p"])
        await env.run(20)
        assert (env.used("h100"), env.in_flight("h100")) == ({"gpu": 0}, {})


@pytest.mark.parametrize(
    ("notes", "charged"),
    [
        ({"nvidia.com/use-gputype": "H100"}, 1),
        ({"nvidia.com/nouse-gputype": "A10"}, 1),
        ({"nvidia.com/use-gpuuuid": "H0,H1"}, 1),
        ({"nvidia.com/use-gpuuuid": "H0,A1"}, 0),
        ({"nvidia.com/nouse-gpuuuid": "A1"}, 0),
        ({"team.example/note": "x" * 100}, 0),
    ],
)
async def test_what_an_annotation_adds(notes: dict[str, str], charged: int) -> None:
    async with QuotaEnv(H100, A10, h100_quota(9)) as env:
        await env.create(of_type("p", ""))
        written: JSON = {key.removeprefix("nvidia.com/").replace("-", "_"): text for key, text in notes.items()}
        await env.annotate("p", **written)
        assert env.used("h100") == {"gpu": charged}
        await env.run(60)
        assert (env.used("h100"), env.in_flight("h100")) == ({"gpu": charged}, {})


async def test_a_tightened_node_selector_raises_the_floor() -> None:
    nodes = (node("l", card("L", LARGE), labels={"pool": "l"}), node("s", card("S", SMALL)))
    async with QuotaEnv(*nodes, quota(mem=10_000)) as env:
        # only a pod with gates may have another nodeSelector, and it is charged where it came past our mutation
        made = pod(
            "p", gpu=1, percent=50, uid="uid-p", schedulerName="hami-scheduler", schedulingGates=[{"name": "wait"}]
        )
        await env.core.admission.validate(env.review(made))
        await env.cluster.create(Kind.PODS, made)
        await env.drain()
        assert env.mem() == SMALL // 2
        before = env.cluster.peek(Kind.PODS, "p", TEAM)
        assert before is not None
        after = {**before, "spec": {**before["spec"], "nodeSelector": {"pool": "l"}}}
        with pytest.raises(Denied) as denied:
            await env.core.admission.validate(change(before, after))
        more = (LARGE - SMALL) // 2
        assert f"requested: {KEYS['mem']}={more} (smallest eligible card), used" in denied.value.message
        assert env.mem() == SMALL // 2


async def test_updates_that_change_nothing_of_the_charge_ask_nothing() -> None:
    """Of labels, annotations of others, conditions, and of pods that run."""
    async with QuotaEnv(H100, A10, *BOTH) as env:
        await env.create(of_type("p"))
        await env.run(60)
        before = env.cluster.peek(Kind.PODS, "p", TEAM)
        assert before is not None
        meta = before["metadata"]
        bound = {**before, "spec": {**before["spec"], "nodeName": "a"}}
        lists = {"nvidia.com/use-gputype": "H100"}
        ordinary = [
            (before, {**before, "metadata": {**meta, "labels": {"a": "b"}}}),
            (before, {**before, "metadata": {**meta, "annotations": {**meta["annotations"], "a/b": "c"}}}),
            (before, {**before, "status": {"phase": "Pending", "conditions": [{"type": "PodScheduled"}]}}),
            (before, {**before, "spec": {**before["spec"], "tolerations": [{"operator": "Exists"}]}}),
            (bound, {**bound, "metadata": {**meta, "annotations": lists}}),
        ]
        for old, new in ordinary:
            env.cluster.pause = refuse_calls
            await env.core.admission.validate(change(old, new))
            env.cluster.pause = None


async def refuse_calls(step: str) -> None:
    raise AssertionError(f"{step}: an ordinary update needs no call")


async def test_a_dry_run_of_an_update_is_judged_and_not_written() -> None:
    async with QuotaEnv(H100, A10, h100_quota(0)) as env:
        await env.create(of_type("p"))
        before = env.cluster.peek(Kind.PODS, "p", TEAM)
        assert before is not None
        after = {**before, "metadata": {**before["metadata"], "annotations": {"nvidia.com/use-gputype": "H100"}}}
        written = env.quota("h100")["metadata"]["resourceVersion"]
        with pytest.raises(Denied):
            await env.core.admission.validate(change(before, after, dry_run=True))
        assert env.quota("h100")["metadata"]["resourceVersion"] == written
