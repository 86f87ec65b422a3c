"""Pods that start together are placed all or none (docs/spec/queues.md#5.3)."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from builders import bound_pod, card, node, pod, quota
from hypothesis import given
from hypothesis import strategies as st

from hami_webhook.cluster.api import JSON, ClusterError, Kind
from hami_webhook.kube.pod_group import PodGroup
from hami_webhook.scheduling.pod_groups import HELD_FOR
from hami_webhook.time_slices import TimeSlices

from .extender_env import MODES, ExtenderEnv, turns

both = pytest.mark.parametrize("mode", MODES)
NAME, SIZE = "hami.io/pod-group", "hami.io/pod-group-size"


def member(name: str, group: str, size: int, *, whole: bool = True, **more: Any) -> JSON:
    """A pod that takes a whole card, unless its fields say otherwise."""
    amounts = {"gpu": 1, "cores": 100} if whole else {}
    return pod(name, labels={NAME: group, SIZE: str(size)}, **{**amounts, **more})


def nodes(count: int, cards: int) -> list[JSON]:
    return [node(f"n{n}", *[card(f"n{n}-{c}") for c in range(cards)]) for n in range(count)]


def held(env: ExtenderEnv) -> Counter[str]:
    """By group, how many members hold devices."""
    pods = [each for each in env.state.pods() if env.state.holds_devices(each.uid)]
    return Counter(group.name for each in pods if (group := PodGroup.of(each)) is not None)


async def group(env: ExtenderEnv, name: str, size: int, **more: Any) -> list[str]:
    """A group whose pods are all there; their names."""
    names = [f"{name}{number}" for number in range(size)]
    await env.add(*[member(each, name, size, **more) for each in names])
    return names


def reasons(answer: JSON) -> set[str]:
    return set((answer["FailedNodes"] or {}).values())


@both
async def test_each_member_has_its_own_node_and_others_find_the_devices_taken(mode: str) -> None:
    env = ExtenderEnv(mode)
    await env.add(*nodes(2, 4), pod("alone", gpu=1, cores=100))
    names = await group(env, "train", 8)
    left = {names[0]: (await env.filter(names[0], "n0", "n1"))["NodeNames"]}
    assert held(env) == {"train": 8}
    assert env.queue.times_freed == 1
    assert (await env.filter("alone", "n0", "n1"))["NodeNames"] is None
    for name in names[1:]:
        left[name] = (await env.filter(name, "n0", "n1"))["NodeNames"]
    assert Counter(tuple(each) for each in left.values()) == {("n0",): 4, ("n1",): 4}
    for name in names:
        if env._lock(left[name][0]):
            await env.lock(left[name][0], None)
        assert await env.bind(name, left[name][0]) == ""
        env.hear(name)
    cards = [env.read(name).annotations["hami.io/vgpu-devices-allocated"].split(",")[0] for name in names]
    assert len({*cards}) == 8
    assert env.events(names[0])[0][1] == "FilteringSucceed"


@both
async def test_if_not_all_fit_none_is_held(mode: str) -> None:
    env = ExtenderEnv(mode)
    await env.add(*nodes(1, 5))
    names = await group(env, "train", 8)
    tested: list[int] = []
    for name in names:
        assert reasons(await env.filter(name, "n0")) == {"5 of 8 pods of pod group train fit"}
        assert held(env) == {}
        tested.append(env.placer._filter_cache.tested)
    assert tested[-1] == tested[0], "it is searched once"
    assert ("Warning", "FilteringFailed", "5 of 8 pods of pod group train fit") in env.events(names[0])
    await env.add(*[node("n1", *[card(f"n1-{c}") for c in range(3)])])
    assert (await env.filter(names[3], "n0", "n1"))["NodeNames"] in (["n0"], ["n1"])
    assert held(env) == {"train": 8}


@both
async def test_it_waits_for_the_members_that_are_not_ready(mode: str) -> None:
    env = ExtenderEnv(mode)
    await env.add(*nodes(1, 8), member("a", "train", 3), member("b", "train", 3, schedulingGates=[{"name": "x"}]))
    await env.add(member("c", "train", 3, namespace="other"), member("d", "train", 3, schedulerName="another"))
    text = {"1 of 3 pods of pod group train are ready to be placed"}
    assert reasons(await env.filter("a", "n0")) == text
    await env.add(member("e", "train", 2))
    assert reasons(await env.filter("a", "n0")) == {"pods of pod group train have different sizes: 2, 3"}
    await env.cluster.delete(Kind.PODS, "e", "default")
    env.state.remove_pod(next(each.uid for each in env.state.pods() if each.name == "e"))
    await env.add(member("f", "train", 3), member("g", "train", 3), member("h", "train", 3))
    assert (await env.filter("a", "n0"))["NodeNames"] == ["n0"]
    assert held(env) == {"train": 3}
    answers = [reasons(await env.filter(name, "n0")) for name in "fgh"]
    assert answers.count({"pod group train has its 3 pods already"}) == 1


@both
@pytest.mark.parametrize(
    ("phase", "job", "drained", "placed"),
    [
        ("Succeeded", "", False, True),
        ("Failed", "", False, False),
        ("Succeeded", "1", True, True),
        ("Succeeded", "2", True, False),
    ],
    ids=["succeeded", "failed", "a drain deleted it", "of another run"],
)
async def test_members_that_succeeded_are_ready_and_others_that_ended_are_awaited(
    mode: str, phase: str, job: str, drained: bool, placed: bool
) -> None:
    """One of a Job counts though a drain deleted it."""
    env = ExtenderEnv(mode)
    ended, again = member("a", "train", 2, nodeName="n0", status={"phase": phase}), member("b", "train", 2)
    if job:
        for each, run in ((ended, "1"), (again, job)):
            each["metadata"]["labels"]["batch.kubernetes.io/controller-uid"] = run
    await env.add(*nodes(1, 8), ended, again)
    if drained:
        env.state.remove_pod(env.read("a").uid)
    answer = await env.filter("b", "n0")
    if placed:
        assert answer["NodeNames"] == ["n0"]
    else:
        assert reasons(answer) == {"1 of 2 pods of pod group train are ready to be placed"}


@pytest.mark.parametrize(("policy", "chosen"), [("binpack", "n2"), ("spread", "n1")])
async def test_a_group_keeps_to_one_node_where_one_has_room_for_all(policy: str, chosen: str) -> None:
    env = ExtenderEnv("cooperative")
    made = [node(f"n{n}", *[card(f"n{n}-{c}") for c in range(cards)]) for n, cards in enumerate((2, 8, 5, 2))]
    await env.add(*made, bound_pod("runs", "n2", "n2-0,NVIDIA,40960,100:;"))
    names = await group(env, "train", 4, annotations={"hami.io/node-scheduler-policy": policy})
    await env.filter(names[0], *[each["metadata"]["name"] for each in made])
    places = {env.state.pod(env.read(name).uid).annotations["hami.io/vgpu-node"] for name in names}  # type: ignore[union-attr]  # it is there
    assert places == {chosen}


@both
async def test_holds_end_when_no_member_is_bound_for_long(mode: str) -> None:
    env = ExtenderEnv(mode)
    await env.add(*nodes(1, 4), pod("alone", gpu=1, cores=100))
    names = await group(env, "train", 3)
    await env.filter(names[0], "n0")
    env.now += HELD_FOR - 1
    assert await env.bind(names[0], "n0") == ""
    env.hear(names[0])
    env.now += HELD_FOR - 1
    env.extender.groups.expire()
    assert held(env) == {"train": 3}
    env.now += 2
    freed = env.queue.times_freed
    env.extender.groups.expire()
    assert held(env) == {"train": 1}, "what is bound stays"
    assert env.queue.times_freed == freed + 1
    assert "no devices are held for the pod group" in await env.bind(names[1], "n0")
    await env.lock("n0", None)
    # another group doesn't get what it lacks
    other = await group(env, "other", 2)
    assert reasons(await env.filter(other[0], "n0")) == {"1 of 2 pods of pod group other fit"}
    assert held(env) == {"train": 3}
    assert (await env.filter(names[1], "n0"))["NodeNames"] == ["n0"]


@both
async def test_what_is_being_bound_is_not_let_go(mode: str) -> None:
    env = ExtenderEnv(mode)
    await env.add(*nodes(1, 4))
    names = await group(env, "train", 3)
    await env.filter(names[0], "n0")

    async def late(step: str) -> None:
        env.cluster.pause = None
        env.now += HELD_FOR + 1
        env.extender.groups.expire()
        assert held(env) == {"train": 1}

    env.cluster.pause = late
    assert await env.bind(names[0], "n0") == ""
    assert held(env) == {"train": 1}


@both
async def test_a_bind_that_fails_lets_all_devices_go_but_not_one_that_waits_for_its_turn(mode: str) -> None:
    env = ExtenderEnv(mode, patience=0)
    await env.add(*nodes(1, 4), pod("holder", gpu=1))
    names = await group(env, "train", 3)
    await env.filter(names[0], "n0")
    await env.lock("n0", "2026-01-01T00:00:00Z,default,holder")
    assert "node lock contention" in await env.bind(names[0], "n0")
    assert held(env) == {"train": 3}
    await env.lock("n0", None)

    async def failing(*_: Any, **__: Any) -> None:
        raise ClusterError("the quota no longer allows it")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(env.placer, "commit", failing)
        assert "no longer allows it" in await env.bind(names[0], "n0")
    assert held(env) == {}


@both
async def test_a_pod_that_changed_meanwhile_is_bound_where_it_is_held(mode: str) -> None:
    env = ExtenderEnv(mode)
    await env.add(*nodes(1, 3))
    names = await group(env, "train", 3)
    await env.filter(names[0], "n0")
    await env.cluster.patch(Kind.PODS, names[0], {"metadata": {"labels": {"more": "text"}}}, "default")
    assert await env.bind(names[0], "n0") == ""
    assert held(env) == {"train": 3}


@both
async def test_a_node_that_is_not_offered_is_not_held_again(mode: str) -> None:
    env = ExtenderEnv(mode)
    await env.add(*nodes(2, 3))
    names = await group(env, "train", 3)
    first = (await env.filter(names[0], "n0", "n1"))["NodeNames"]
    other = "n1" if first == ["n0"] else "n0"
    assert (await env.filter(names[1], other))["NodeNames"] == [other]
    assert held(env) == {"train": 3}


@both
async def test_a_group_that_is_bound_in_part_comes_first(mode: str) -> None:
    """As a process left it, whose holds ended with it."""
    env = ExtenderEnv(mode)
    labels = {NAME: "a", SIZE: "4"}
    await env.add(*nodes(1, 6), bound_pod("a", "n0", "n0-0,NVIDIA,40960,100:;", labels=labels, gpu=1, cores=100))
    await env.add(*[member(f"a{number}", "a", 4) for number in range(3)])
    names = await group(env, "b", 3)
    assert reasons(await env.filter(names[0], "n0")) == {"2 of 3 pods of pod group b fit"}
    assert held(env) == {"a": 4}
    assert (await env.filter("a1", "n0"))["NodeNames"] == ["n0"]
    # it can't hold more than there is, and holds nobody up
    await env.add(node("n1", card("n1-0")))
    assert (await env.filter(names[1], "n0", "n1"))["NodeNames"] in (["n0"], ["n1"])
    assert held(env) == {"a": 4, "b": 3}


async def test_members_are_placed_within_their_quota() -> None:
    env = ExtenderEnv("cooperative")
    await env.add(*nodes(1, 4), quota("q", gpu=2, used={}))
    names = await group(env, "train", 3)
    assert reasons(await env.filter(names[0], "n0")) == {"2 of 3 pods of pod group train fit"}
    assert held(env) == {}


class Cycle:
    """kube-scheduler's part: it filters pods that aren't bound, and binds what it was answered, in any order."""

    def __init__(self, env: ExtenderEnv, names: list[str], data: st.DataObject) -> None:
        self.env = env
        self.names = names
        self.data = data
        self.bound: set[str] = set()

    async def step(self, offered: list[str]) -> bool:
        """Whether a pod was bound."""
        env, waiting = self.env, [name for name in self.names if name not in self.bound]
        if not waiting:
            return False
        name = self.data.draw(st.sampled_from(waiting))
        left = (await env.filter(name, *offered))["NodeNames"]
        if not left:
            return False
        if self.data.draw(st.integers(0, 9)) == 0:  # kube-scheduler's own part failed, or took too long
            env.now += HELD_FOR + 1
            env.extender.groups.expire()
            return False
        if env._lock(left[0]):
            await env.lock(left[0], None)
        if await env.bind(name, left[0]) != "":
            return False
        env.hear(name)
        self.bound.add(name)
        return True


@given(data=st.data())
def test_groups_of_any_size_on_any_cluster_all_or_none(data: st.DataObject) -> None:
    """Nothing is held in part, nothing is sold twice, and where one group fits after the other all run in the end."""

    async def run() -> None:
        env = ExtenderEnv(data.draw(st.sampled_from(MODES)))
        cards = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
        await env.add(*[node(f"n{n}", *[card(f"n{n}-{c}") for c in range(count)]) for n, count in enumerate(cards)])
        offered = [f"n{n}" for n in range(len(cards))]
        sizes = data.draw(st.lists(st.integers(2, 5), min_size=1, max_size=3))
        names: list[str] = []
        for number, size in enumerate(sizes):
            names += await group(env, f"g{number}", size)
        cycle = Cycle(env, names, data)
        for _ in range(data.draw(st.integers(1, 25))):
            await cycle.step(offered)
            assert_none_sold_twice(env)
            holding = held(env)
            for number, size in enumerate(sizes):
                bound = sum(name.startswith(f"g{number}") for name in cycle.bound)
                assert holding[f"g{number}"] in (bound, size)

    asyncio.run(run())


def assert_none_sold_twice(env: ExtenderEnv) -> None:
    for view in env.state.views():
        for device in view.inventories["NVIDIA"].devices:
            assert view.used("NVIDIA", device.uuid).cores <= 100


async def test_filters_at_the_same_time_search_once() -> None:
    env = ExtenderEnv("cooperative", slices=lambda: TimeSlices(lambda: 0.0))
    await env.add(*nodes(2, 4))
    names = await group(env, "train", 8)
    answers = await asyncio.gather(*(env.filter(name, "n0", "n1") for name in names))
    await turns()
    assert Counter(each["NodeNames"][0] for each in answers) == {"n0": 4, "n1": 4}
    assert held(env) == {"train": 8}
