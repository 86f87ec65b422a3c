"""Pods that start together are charged in one write or not at all (docs/spec/queues.md#5.2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from builders import JSON
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from queueing.test_releaser import L, queueing, shared, waits

from hami_webhook.cluster.api import Kind, Unavailable
from hami_webhook.kube.objects import QUOTA_GATE, Pod
from hami_webhook.kube.pod_group import MOST_PODS
from hami_webhook.queueing.group_turns import group_turns
from hami_webhook.queueing.words import sentence
from hami_webhook.quota.ledger import decode
from hami_webhook.quota.queue_order import QueuedPod, QueueRoom, decide
from hami_webhook.state.pods_by_namespace import PodsByNamespace

from .objects import GPU, MEM, TEAM, pod, quota, read_pod
from .quota_env import QuotaEnv

NAME, SIZE = "hami.io/pod-group", "hami.io/pod-group-size"


def labels(group: str, size: object) -> dict[str, str]:
    return {NAME: group, SIZE: str(size)}


def member(name: str, group: str, size: object, gpu: int = 1, **more: Any) -> JSON:
    return pod(name, gpu=gpu, mem=100, labels=labels(group, size), **more)


def standings(env: QuotaEnv) -> dict[str, str]:
    """What each pod that waits is told."""
    return {each.pod.key.partition("/")[2]: sentence(each, lambda uid: None) for each in env.releaser.decision.waiting}


# the order, pure


def read(name: str, group: str = "", size: int = 0, **fields: Any) -> Pod:
    """A pod, by `name` its UID, that waits behind the gate unless `gates` says otherwise."""
    made = pod(name, uid=name, labels=labels(group, size) if group else None)
    made["spec"]["schedulingGates"] = [{"name": each} for each in fields.pop("gates", [QUOTA_GATE])]
    made["metadata"]["creationTimestamp"] = f"2026-01-01T00:00:{fields.pop('age', 0):02}Z"
    return Pod.from_object({**made, **fields})


def turns(*pods: Pod, cost: Mapping[str, int] | None = None) -> tuple[list[tuple[str, ...]], dict[str, str]]:
    """The pods of each turn, and what the others lack."""
    waiting = {
        each.uid: QueuedPod(
            each.uid, each.key, 0, each.created or 0.0, (("q", (("gpu", (cost or {}).get(each.uid, 1)),)),)
        )
        for each in pods
        if each.gates == (QUOTA_GATE,)
    }
    there = PodsByNamespace()
    for each in pods:
        there.keep(each)
    found = group_turns(waiting, {each.uid: each for each in pods}, there.there, 0.0)
    return [tuple(found.pods[turn.uid]) for turn in found.turns], dict(found.incomplete)


def in_job(pod: Pod, uid: str) -> Pod:
    return replace(pod, labels={**pod.labels, "batch.kubernetes.io/controller-uid": uid})


def test_who_takes_a_turn() -> None:
    a, b, c = (read(name, "train", 3) for name in "abc")
    alone = read("alone")
    assert turns(alone, a, b, c) == ([("alone",), ("a", "b", "c")], {})
    two = "2 of 3 pods of pod group train are there"
    assert turns(alone, a, b) == ([("alone",)], {"a": two, "b": two})
    # another's gate has to go first
    held = read("c", "train", 3, gates=[QUOTA_GATE, "example.com/mine"])
    assert turns(a, b, held) == ([], {"a": two, "b": two})
    # one that was made anew, beside those that run; and one too many
    runs, also = read("a", "train", 3, gates=[]), read("b", "train", 3, gates=[])
    more = read("d", "train", 3)
    assert turns(runs, also, c) == ([("c",)], {})
    assert turns(runs, also, c, more) == ([("c",)], {"d": "pod group train has its 3 pods already"})
    assert turns(runs, also, read("x", "train", 3, gates=[]), read("y", "train", 3, gates=[]), c)[0] == []
    # those that succeeded, in whatever size, aren't made anew; those that failed are
    done = read("a", "train", 3, gates=[], status={"phase": "Succeeded"})
    assert turns(done, also, c) == ([("c",)], {})
    assert turns(done, b, c) == ([("b", "c")], {})
    assert turns(done, read("b", "train", 4, gates=[], status={"phase": "Succeeded"}), c) == ([("c",)], {})
    failed = read("a", "train", 3, gates=[], status={"phase": "Failed"})
    assert turns(failed, also, c) == ([], {"c": two})
    # an earlier run of the same name, in another Job, leaves none; and a whole new one starts as a whole
    assert turns(in_job(done, "1"), in_job(b, "2"), in_job(c, "2")) == ([], {"b": two, "c": two})
    assert turns(in_job(done, "1"), in_job(also, "1"), in_job(c, "1")) == ([("c",)], {})
    dones = [read(f"done{each}", "train", 3, gates=[], status={"phase": "Succeeded"}) for each in range(3)]
    assert turns(*dones, a, b, c) == ([("a", "b", "c")], {})
    other = read("c", "train", 4)
    text = "pods of pod group train have different sizes: 3, 4"
    assert turns(a, b, other) == ([], dict.fromkeys("abc", text))


def test_a_group_is_one_turn_of_its_least_priority_and_its_youngest_pod() -> None:
    def queued(uid: str, priority: int, created: float, cost: int) -> QueuedPod:
        return QueuedPod(uid, f"team/{uid}", priority, created, (("q", (("gpu", cost),)),))

    pods = [read(name, "train", 2) for name in "ab"]
    waiting = {"a": queued("a", 10, 5.0, 1), "b": queued("b", 2, 7.0, 3), "z": queued("z", 2, 6.0, 1)}
    found = group_turns(waiting, {each.uid: each for each in [*pods, read("z")]}, lambda key: pods, 0.0)
    together = next(turn for turn in found.turns if turn.pods == 2)
    assert (together.priority, together.created, together.demand) == (2, 7.0, (("q", (("gpu", 4),)),))
    decision = decide(found.turns, {"q": QueueRoom({"gpu": 4}, {"gpu": 1})}, 8.0)
    assert [each.uid for each in decision.released] == ["z"]
    each = found.of_each_pod(decision, waiting)
    assert [(standing.pod.uid, standing.obstacle.lacks[0].requested) for standing in each.waiting] == [
        ("a", 4),
        ("b", 4),
    ]


def test_pods_of_a_group_with_fast_admission_that_came_within_ten_seconds_stand_beside_each_other() -> None:
    kueues = {"name": "set", "total-count": "3"}
    marks = {f"kueue.x-k8s.io/pod-group-{key}": text for key, text in {**kueues, "fast-admission": "true"}.items()}
    pods = {name: read_pod(name, uid=name, annotations=marks) for name in "abc"}
    waiting = {
        name: QueuedPod(name, f"team/{name}", 0, created, (("q", (("gpu", 1),)),))
        for name, created in zip("abc", (0.0, 10.0, 10.5), strict=True)
    }
    found = group_turns(waiting, pods, lambda key: [], 0.0)
    assert [(turn.created, turn.beside) for turn in found.turns] == [(0.0, "a"), (0.0, "a"), (10.5, "")]


@given(data=st.data())
def test_of_no_group_a_part_has_a_turn(data: st.DataObject) -> None:
    pods: list[Pod] = []
    for number in range(data.draw(st.integers(1, 4))):
        size = data.draw(st.integers(2, 5))
        there = data.draw(st.integers(0, size + 2))
        gates = st.sampled_from([[QUOTA_GATE], [], [QUOTA_GATE, "x"]])
        pods += [read(f"{number}-{each}", f"g{number}", size, gates=data.draw(gates)) for each in range(there)]
    found, incomplete = turns(*pods)
    by_uid = {each.uid: each for each in pods}
    released = [uid for turn in found for uid in turn]
    assert len(released) == len({*released})
    assert {*released, *incomplete} == {each.uid for each in pods if each.gates == (QUOTA_GATE,)}
    for turn in found:
        group = by_uid[turn[0]].labels
        free = sum(not each.queued for each in pods if each.labels == group)
        assert all(by_uid[uid].labels == group for uid in turn)
        assert len(turn) + free == int(group[SIZE])


# the charge


async def test_what_a_tenant_leaves_succeeded_starts_its_own_group_in_part_and_no_other() -> None:
    """Attack: a pod that starts before its group is whole is charged as any pod, and the labels count in no other
    namespace."""
    async with QuotaEnv(L, queueing(gpu=3)) as env:
        await env.cluster.ensure_namespace("other")
        await env.drain()
        await env.create(member("x", "train", 2))
        await env.create(member("y", "train", 2))
        await env.release()
        for name in ("x", "y"):
            await env.finish(name)
        await env.run(60)
        assert env.used() == {"gpu": 0}
        await env.create(member("z", "train", 2))
        await env.create(member("theirs", "train", 2, namespace="other"))
        await env.release()
        assert (waits(env), waits(env, "other")) == ([], ["theirs"])
        assert env.used() == {"gpu": 1}


async def test_a_group_waits_until_it_is_whole_and_is_charged_at_once() -> None:
    async with QuotaEnv(L, quota(gpu=5)) as env:  # which doesn't queue
        ledgers: list[set[str]] = []

        async def note(step: str) -> None:
            if step == "patch_status:after":
                found = env.cluster.peek(Kind.RESOURCE_QUOTAS, "gpu-quota", TEAM) or {}
                ledgers.append({*decode((found["metadata"].get("annotations") or {}).get("hami.io/quota-ledger"))})

        for name in "ab":
            await env.create(member(name, "train", 3))
        await env.create(pod("alone", gpu=1, mem=1))
        await env.release()
        assert (waits(env), env.used()) == (["a", "b"], {"gpu": 1})
        assert standings(env) == dict.fromkeys("ab", "2 of 3 pods of pod group train are there")
        env.cluster.pause = note
        await env.create(member("c", "train", 3))
        await env.release()
        assert (waits(env), env.used()) == ([], {"gpu": 4})
        group = {f"uid-{name}" for name in "abc"}
        assert ledgers
        assert all(group & ledger in (set(), group) for ledger in ledgers)


@pytest.mark.parametrize("quotas", [(queueing(gpu=4),), (quota(gpu=4),), (queueing(gpu=6), shared(gpu=4))])
async def test_two_groups_that_fit_one_by_one_only_are_charged_one_after_the_other(quotas: tuple[JSON, ...]) -> None:
    async with QuotaEnv(L, *quotas) as env:
        for name in "123":
            for group in "ab":
                await env.create(member(name + group, group, 3))
        await env.release()
        assert (waits(env), env.used()["gpu"]) == (["1b", "2b", "3b"], 3)
        name = "AcceleratorQuota all" if len(quotas) > 1 else "quota gpu-quota"
        text = f"Waits for {name}: needs 3 nvidia.com/gpu, 1 free of 4; first in line"
        assert standings(env) == dict.fromkeys(["1b", "2b", "3b"], text)
        await env.finish("1a")
        await env.run(12)
        await env.release()
        assert waits(env) == ["1b", "2b", "3b"]
        await env.finish("2a")
        await env.run(12)
        await env.release()
        assert (waits(env), env.used()["gpu"]) == ([], 4)


@pytest.mark.parametrize("made", [queueing, quota])
async def test_a_pod_by_which_its_group_costs_more_than_the_limit_is_refused(made: Callable[..., JSON]) -> None:
    async with QuotaEnv(L, made(gpu=2, mem=250)) as env:
        for name in "ab":
            await env.create(member(name, "large", 4))
        denied = await env.refused(member("c", "large", 4))
        costs = (
            f"3 of them cost {GPU}=3, limited: 2, {MEM}=300, limited: 250. Make the group smaller, or raise the limit"
        )
        text = (
            f"pod group large of 4 pods costs more than the limit of quota gpu-quota, so it would never start: {costs}"
        )
        assert (denied.code, denied.message) == (403, text)
        await env.create(member("c", "other", 4))


async def test_a_group_that_costs_more_than_the_limit_holds_nobody_up() -> None:
    async with QuotaEnv(L, queueing(order="strict", gpu=2)) as env:
        await env.create(member("a", "large", 2))
        await env.create(member("b", "large", 2, gpu=2))
        await env.create(pod("small", gpu=1, mem=1))
        await env.release()
        assert waits(env) == ["a", "b"]
        assert "limited to 2; it waits until the limit is raised" in standings(env)["a"]


async def test_groups_that_never_complete_and_those_of_other_namespaces_hold_nobody_up() -> None:
    async with QuotaEnv(L, queueing(order="strict", gpu=2), shared(gpu=4)) as env:
        await env.cluster.ensure_namespace("other")
        await env.drain()
        await env.create(member("forged", "train", 2, namespace="other"))
        await env.create(member("first", "never", 2))
        await env.create(member("a", "train", 2))
        await env.create(pod("alone", gpu=1, mem=1))
        await env.release()
        assert (waits(env), waits(env, "other")) == (["a", "first"], ["forged"])
        assert standings(env)["a"] == "1 of 2 pods of pod group train are there"


async def test_sizes_that_differ_are_refused_and_volcanos_pods_are_not_gated() -> None:
    async with QuotaEnv(L, quota(gpu=5)) as env:
        await env.create(member("a", "train", 3))
        denied = await env.refused(member("b", "train", 4))
        text = "pod a of pod group train says 3; all its pods must say the same"
        assert (denied.code, denied.message) == (403, f"label {SIZE} 4: {text}")
        for wrong in ("0", str(MOST_PODS + 1), "three"):
            assert (
                f"label {SIZE} {wrong} must be a number of pods" in (await env.refused(member("b", "x", wrong))).message
            )
        stored, _ = await env.admit(member("v", "theirs", 3, schedulerName="volcano"))
        assert "schedulingGates" not in stored["spec"]
        # what asks for no cards is none of our business
        stored, _ = await env.admit(pod("cpu", cpu=1, labels={NAME: "train"}))
        assert "schedulingGates" not in stored["spec"]


@pytest.mark.parametrize("at", ["patch:before", "patch:after", "patch_status:after"])
@pytest.mark.parametrize("crashing", [1, 2])
@pytest.mark.parametrize("seconds", [1, 50])
async def test_the_next_leader_finishes_what_a_crash_left(at: str, crashing: int, seconds: float) -> None:
    """Also where nobody led for longer than the charge lasts; the other group is charged in no part ever."""
    async with QuotaEnv(L, queueing(gpu=3), shared(gpu=3)) as env:
        for group in "ab":
            for name in "12":
                await env.create(member(group + name, group, 2))
        left = crashing

        async def crash(step: str) -> None:
            nonlocal left
            left -= step == at
            if step == at and left == 0:
                env.cluster.pause = None
                raise Unavailable("the process ended")

        env.cluster.pause = crash
        await env.releaser.step()
        await env.run(seconds)
        assert env.used()["gpu"] <= 2
        await env.release()
        await env.run(60)
        await env.release()
        assert (waits(env), env.used(), env.ledger()) == (["b1", "b2"], {"gpu": 2}, {})
