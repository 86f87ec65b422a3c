"""Pods that wait for quota, from their creation to their release (docs/spec/queues.md#2)."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from builders import JSON, accelerator_quota, card, node
from quota.objects import GPU, LARGE, SMALL, TEAM, pod, quota, read_pod
from quota.quota_env import QuotaEnv
from replicas import events_of
from virtual_time import run

from hami_webhook.admission.denial import Denied
from hami_webhook.admission.identities import AdmissionRules, User, refuse_release
from hami_webhook.cluster.api import Kind
from hami_webhook.kube.objects import QUOTA_GATE
from hami_webhook.queueing.reports import QueueReports
from hami_webhook.queueing.words import sentence
from hami_webhook.quota.account import ChargeRequest
from hami_webhook.quota.enforcement import ENFORCEMENT, QUEUE_ORDER
from hami_webhook.quota.refusals import Refusal

L, S = node("n1", card("GPU-L", LARGE)), node("n2", card("GPU-S", SMALL))
GATES = [{"name": QUOTA_GATE}]
_AMD: dict[str, Any] = {"amd.com/gpu": 1}
_OF_AMD: dict[str, Any] = {"limits.amd.com/gpu": 5}
AMD_POD, AMD_QUOTA = pod(**_AMD), quota("amd", **_OF_AMD)


def queueing(name: str = "gpu-quota", order: str = "best-effort", **hard: Any) -> JSON:
    made = quota(name, **hard)
    made["metadata"]["annotations"] = {ENFORCEMENT: "queue", QUEUE_ORDER: order}
    return made


def shared(name: str = "all", enforcement: str = "queue", **hard: Any) -> JSON:
    return accelerator_quota(name, spec={"enforcement": enforcement}, **hard)


def waits(env: QuotaEnv, namespace: str = TEAM) -> list[str]:
    """The names of the pods that have a gate."""
    found = env.cluster.peek_all(Kind.PODS, namespace)
    return [item["metadata"]["name"] for item in found if item["spec"].get("schedulingGates")]


async def enforce(env: QuotaEnv, value: str | None) -> None:
    patch = {"metadata": {"annotations": {ENFORCEMENT: value}}}
    await env.cluster.patch(Kind.RESOURCE_QUOTAS, "gpu-quota", patch, TEAM)
    await env.drain()


async def test_pods_wait_for_nothing_and_are_charged_and_released_as_others_end() -> None:
    async with QuotaEnv(L, queueing(gpu=2)) as env:
        for name in "abcd":
            stored, answer = await env.admit(pod(name, gpu=1, mem=100))
            assert stored["spec"]["schedulingGates"] == GATES
            assert (answer.warnings, answer.audit) == ((), {})
            await env.cluster.create(Kind.PODS, stored)
        await env.run(5)
        assert (waits(env), env.used()) == (["a", "b", "c", "d"], {"gpu": 0})
        await env.release()
        assert (waits(env), env.used()) == (["c", "d"], {"gpu": 2})
        await env.run(12)
        assert (env.used(), env.ledger()) == ({"gpu": 2}, {})
        await env.finish("a")
        await env.run(5)
        await env.release()
        assert (waits(env), env.used()) == (["d"], {"gpu": 2})
        await env.delete("d")
        await env.run(60)
        assert (env.used(), env.ledger()) == ({"gpu": 2}, {})
        assert env.releaser.released == 3


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (pod(gpu=3, mem=1), f"exceeded quota: gpu-quota, requested: {GPU}=3, used: {GPU}=0, limited: {GPU}=2"),
        (pod(gpu=1, mem=1, annotations={"hami.io/vgpu-node": "n1"}), "is written by the scheduler only"),
    ],
)
async def test_what_can_never_run_is_refused_at_once(made: JSON, message: str) -> None:
    async with QuotaEnv(L, queueing(gpu=2)) as env:
        for dry_run in (False, True):
            assert message in (await env.refused(made, dry_run=dry_run)).message


@pytest.mark.parametrize(
    "made",
    [pod(), pod(cpu=1), pod(gpu=1, mem=1, namespace="other"), AMD_POD],
)
async def test_pods_that_no_queue_covers_get_no_gate(made: JSON) -> None:
    async with QuotaEnv(L, queueing(gpu=1), AMD_QUOTA) as env:
        await env.cluster.ensure_namespace("other")
        await env.drain()
        stored, _ = await env.admit(made)
        assert "schedulingGates" not in stored["spec"]


async def held(env: QuotaEnv, name: str) -> None:
    """Create a pod that another gate holds, too."""
    await env.create(pod(name, gpu=1, mem=1, schedulingGates=[{"name": "x.io/hold"}]))


async def opened(env: QuotaEnv, name: str) -> None:
    await env.cluster.patch(Kind.PODS, name, {"spec": {"schedulingGates": GATES}}, TEAM)
    await env.drain()


@pytest.mark.parametrize("leader_is_new", [False, True])
async def test_who_was_held_by_another_gate_waits_since_that_went(leader_is_new: bool) -> None:
    """Attack: pods that are hidden behind a gate, and shown when there is room, pass none that waited in the open."""
    async with QuotaEnv(L, queueing(gpu=1)) as env:
        await env.create(pod("runs", gpu=1, mem=1))
        await env.release()
        await held(env, "hidden")
        await held(env, "hides")
        await env.run(10)
        await env.create(pod("open", gpu=1, mem=1))
        await env.run(10)
        await opened(env, "hidden")
        await env.run(5)
        await env.create(pod("late", gpu=1, mem=1))
        await env.release()
        assert [each.pod.key for each in env.releaser.decision.waiting] == [
            f"{TEAM}/{name}" for name in ("open", "hidden", "late")
        ]
        reports = QueueReports(env.cluster, env.core.view, env.releaser, events_of(env.core))
        await reports.step()
        await env.drain()
        assert env.pod("open").waits_since == env.pod("open").created
        assert env.pod("hidden").waits_since == env.now - 5
        if leader_is_new:
            env.releaser._opened.clear()
        await env.run(5)
        await opened(env, "hides")
        order = ["runs"]
        while left := waits(env):
            await env.finish(order[-1])
            await env.run(5)
            await env.release()
            order += {*left} - {*waits(env)}
            assert {*left} != {*waits(env)}
        assert order == ["runs", "open", "hidden", "late", "hides"]


async def test_a_pod_without_the_gate_passes_nobody() -> None:
    async with QuotaEnv(L, queueing(gpu=2)) as env:
        handler = env.core.admission
        with pytest.raises(Denied) as caught:
            await handler.validate(env.review(pod(gpu=1, mem=1)))
        assert caught.value.code == 403
        assert caught.value.message.startswith(
            f"quota gpu-quota queues pods, but this pod has no scheduling gate {QUOTA_GATE}"
        )
        with pytest.raises(Denied, match="nobody would remove it here"):
            await handler.webhook(env.review(pod(gpu=1, mem=1, schedulingGates=GATES)))
        _, answer = await env.admit(pod(gpu=1, mem=1), path="/webhook")  # HAMi's chart asks for no updates: it enforces
        assert answer.audit == {"quota": f"gpu-quota:{GPU}=1"}


CONTROLLER = "system:serviceaccount:hami-system:hami-webhook-controller"


async def test_a_pod_that_has_to_wait_is_admitted_without_a_request() -> None:
    async with QuotaEnv(L, queueing(gpu=1), shared(gpu=1), quota("cap", mem=250)) as env:
        steps: list[str] = []

        async def note(step: str) -> None:
            steps.append(step)

        env.cluster.pause = note
        for name in "abc":
            await env.admit(pod(name, gpu=1, mem=100))
        assert steps == []


@pytest.mark.parametrize(
    ("before", "after", "user", "refused"),
    [
        (GATES, None, "jane", True),
        (GATES, [{"name": "other"}], "system:admin", True),
        ([*GATES, {"name": "other"}], GATES, "jane", False),
        (GATES, GATES, "jane", False),
        (GATES, None, CONTROLLER, False),
        ([{"name": "other"}], None, "jane", False),
    ],
)
def test_only_the_controller_removes_the_gate(before: object, after: object, user: str, refused: bool) -> None:
    old, new = (read_pod(gpu=1, schedulingGates=gates) for gates in (before, after))
    rules = AdmissionRules(controllers=frozenset({CONTROLLER}))
    if not refused:
        refuse_release(old, new, User(user), rules)
        return
    with pytest.raises(Denied, match=f"{user} may not remove it"):
        refuse_release(old, new, User(user), rules)


async def test_several_quotas_all_have_to_have_room() -> None:
    async with QuotaEnv(L, queueing(gpu=3), shared(gpu=2), quota("cap", mem=250)) as env:
        for name in ("a", "b", "c"):
            await env.create(pod(name, gpu=1, mem=100))
        await env.release()
        assert (waits(env), env.used(), env.mem("cap")) == (["c"], {"gpu": 2}, 200)
        # an enforced quota refuses what it has no room for now
        assert "exceeded quota: cap" in (await env.refused(pod("d", gpu=1, mem=100))).message
        await env.create(pod("d", gpu=1, mem=50))
        await env.finish("a")
        await env.run(12)
        await env.release()
        assert (waits(env), env.mem("cap")) == (["d"], 200)


async def test_what_waits_stays_when_the_quota_enforces_and_goes_when_it_observes() -> None:
    async with QuotaEnv(L, queueing(gpu=1)) as env:
        for name in ("a", "b", "c"):
            await env.create(pod(name, gpu=1, mem=1))
        await env.release()
        await enforce(env, None)
        await env.refused(pod("d", gpu=1, mem=1))
        await env.release()
        assert waits(env) == ["b", "c"]
        await env.finish("a")
        await env.run(12)
        await env.release()
        assert waits(env) == ["c"]
        await enforce(env, "observe")
        await env.release()
        assert (waits(env), env.used()) == ([], {"gpu": 2})


async def test_an_update_is_charged_nothing_and_released_as_it_is_then() -> None:
    async with QuotaEnv(L, queueing(mem=20000)) as env:
        await env.create(pod("half", gpu=1, percent=50))

        async def update(step: str) -> None:
            if step == "patch:before":  # its gate was about to be removed
                env.cluster.pause = None
                await env.annotate("half", use_gputype="A100")

        env.cluster.pause = update
        await env.releaser.step()
        assert (waits(env), env.mem()) == (["half"], LARGE // 2)
        await env.release()
        assert (waits(env), env.mem()) == ([], LARGE // 2)


@pytest.mark.parametrize(("times", "rounds"), [(1, 1), (19, 1), (20, 2), (39, 2)])
async def test_a_pod_that_is_relabelled_is_released_in_the_same_round(times: int, rounds: int) -> None:
    """As often as 20 patches allow, and in the next round after that."""
    async with QuotaEnv(L, queueing(gpu=1)) as env:
        await env.create(pod("a", gpu=1, mem=1))
        left = times

        async def relabel(step: str) -> None:
            nonlocal left
            if step == "patch:before" and left:
                left -= 1
                env.cluster.pause = None
                await env.cluster.patch(Kind.PODS, "a", {"metadata": {"labels": {"n": str(left)}}}, TEAM)
                env.cluster.pause = relabel

        env.cluster.pause = relabel
        for number in range(rounds):
            assert waits(env) == ["a"]
            assert await env.releaser.step() == (number + 1 < rounds)
            await env.drain()
        assert (waits(env), env.releaser.released) == ([], 1)


async def test_changes_that_do_not_matter_wake_nobody_and_those_that_do_wake() -> None:
    async with QuotaEnv(L, queueing(gpu=1)) as env:
        await env.create(pod("runs", gpu=1, mem=1))
        await env.release()
        await env.create(pod("a", gpu=1, mem=1))

        async def wakes(patch: JSON) -> bool:
            env.releaser.woken.clear()
            await env.cluster.patch(Kind.PODS, "a", patch, TEAM)
            await env.drain()
            return env.releaser.woken.is_set()

        assert not await wakes({"metadata": {"labels": {"n": "1"}}})
        assert await wakes({"metadata": {"labels": {"hami.io/pod-group": "g", "hami.io/pod-group-size": "2"}}})
        assert await wakes({"metadata": {"annotations": {"nvidia.com/use-gputype": "A10"}}})


@pytest.mark.parametrize(("seconds", "rounds"), [(0.05, 1), (0.2, 3)])
def test_a_hundred_gates_are_removed_a_few_at_a_time_and_none_is_given_up(
    seconds: float, rounds: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The API server takes one after the other, as if each took so many seconds; another pod's turn doesn't wait."""

    async def main() -> None:
        async with QuotaEnv(L, queueing(gpu=100)) as env:
            for number in range(100):
                await env.create(pod(f"p{number}", gpu=1, mem=1))
            busy, most, api_server = 0, 0, asyncio.Lock()

            async def take_time(step: str) -> None:
                nonlocal busy, most
                if step == "patch:before":
                    busy += 1
                    most = max(most, busy)
                    async with api_server:
                        await asyncio.sleep(seconds)
                    busy -= 1

            env.cluster.pause = take_time
            for number in range(rounds):
                began = asyncio.get_running_loop().time()
                assert await env.releaser.step() == (number + 1 < rounds)
                assert asyncio.get_running_loop().time() - began < 10
                await env.drain()
            assert (waits(env), env.releaser.released, env.used()) == ([], 100, {"gpu": 100})
            assert most == 10

    run(main())
    assert [each.message for each in caplog.records if "gate" in each.message] == []


def refusing(patch: pytest.MonkeyPatch, env: QuotaEnv, refusal: Refusal, *names: str) -> list[str]:
    """Have the charges of these pods refused; the names of all that are tried."""
    charge, tried = env.core.charger.charge, list[str]()

    async def failing(request: ChargeRequest, *more: Any) -> Any:
        tried.append(request.pod.name)
        return refusal if request.pod.name in names else await charge(request, *more)

    patch.setattr(env.core.charger, "charge", failing)
    return tried


async def test_who_comes_later_does_not_pass_a_pod_for_which_a_quota_has_no_room() -> None:
    async with QuotaEnv(L, queueing(gpu=5), shared(gpu=5)) as env:
        for name in ("a", "b", "c"):
            await env.create(pod(name, gpu=1, mem=1))
        with pytest.MonkeyPatch.context() as patch:
            refusing(patch, env, Refusal(503, "full by now", no_room_in="AcceleratorQuota/all"), "b")
            assert await env.releaser.step()
            await env.drain()
        assert (waits(env), env.used(), list(env.in_flight())) == (["b", "c"], {"gpu": 1}, ["uid-a"])
        await env.release()
        assert (waits(env), env.used()) == ([], {"gpu": 3})


@pytest.mark.parametrize("code", [503, 403, 422])
async def test_a_pod_whose_charge_is_refused_for_another_reason_steps_aside(code: int) -> None:
    """Attack: pods that need all of what is shared, and are never charged, hold up no later one of another team."""
    async with QuotaEnv(L, shared(gpu=6)) as env:
        await env.cluster.ensure_namespace("other")
        await env.drain()
        for number in range(5):
            await env.create(pod(f"bad{number}", gpu=5, mem=1))
        await env.run(1)
        await env.create(pod("good", gpu=1, mem=1, namespace="other"))
        with pytest.MonkeyPatch.context() as patch:
            tried = refusing(patch, env, Refusal(code, "no"), *(f"bad{number}" for number in range(5)))
            await env.releaser.step()  # the first takes its turn, and all the room
            await env.drain()
            await env.releaser.step()
            await env.drain()
            assert waits(env, "other") == []
            said = {each.pod.key: sentence(each, env.core.state.pod) for each in env.releaser.decision.waiting}
            assert said[f"{TEAM}/bad0"].endswith("until its charge succeeds: no")
            for _ in range(120):
                await env.run(0.5)
                await env.releaser.step()
            # twice as late each time, and 16 s at most: 0.5, 1.5, 3.5, 7.5, 15.5, 31.5, 47.5 s later
            assert Counter(tried)["bad0"] <= 8
            assert len(tried) > 5 * 5
            await env.create(pod("late", gpu=1, mem=1, namespace="other"))
            await env.releaser.step()
            await env.drain()
            assert waits(env, "other") == []
        for name in ("good", "late"):
            await env.delete(name, namespace="other")
        await env.run(60)
        await env.release()
        assert len(waits(env)) == 4  # the refusal's cause is gone
        for number in range(5):
            await env.delete(f"bad{number}")
        await env.release()
        assert not env.releaser.remembered


async def test_a_round_takes_turns_of_all_namespaces_though_one_has_many() -> None:
    async with QuotaEnv(L, shared(gpu=500)) as env:
        await env.cluster.ensure_namespace("other")
        await env.drain()
        for number in range(150):
            await env.create(pod(f"p{number:03}", gpu=1, mem=1))
        await env.create(pod("good", gpu=1, mem=1, namespace="other"))
        assert await env.releaser.step()
        await env.drain()
        assert (waits(env, "other"), len(waits(env))) == ([], 51)
