"""Binding in both modes: what is refused, what a failure leaves, and what may happen meanwhile.

Source: docs/spec/core.md#9.2.
"""

from __future__ import annotations

import asyncio

import pytest
from builders import bound_pod, card, container, node, pod

from hami_webhook.cluster.api import Conflict, Kind, Listing, Unavailable

from .extender_env import MODES, ExtenderEnv, turns
from .placer_env import ALLOCATED, VENDORS

both = pytest.mark.parametrize("mode", MODES)


@both
async def test_a_bound_pod_keeps_its_place(mode: str) -> None:
    env = ExtenderEnv(mode)
    await env.add(node("a", card("A", 8000)), node("b", card("B", 8000)))
    assert await env.scheduled(pod("p", gpu=1, mem=1000), "a") == ""
    before = env.raw("p")
    env.hear("p")
    assert (await env.filter("p", "b", "a"))["NodeNames"] == ["a"]
    unbound = {**before, "spec": {k: v for k, v in before["spec"].items() if k != "nodeName"}}
    late = await env.ask({"Pod": unbound, "NodeNames": ["b", "a"]})
    assert late["NodeNames"] == ["a"], "even if kube-scheduler doesn't know yet"
    assert await env.bind("p", "a") == "", "bound there already"
    assert await env.bind("p", "b") == "pod default/p is bound to a already"
    assert env.raw("p") == before
    assert env.used("a", "A") == (1, 1000, 0)


async def test_a_bind_to_another_node_than_was_decided_is_refused() -> None:
    env = ExtenderEnv("single")
    await env.add(node("a", card("A", 8000)), node("b", card("B", 8000)), pod("p", gpu=1, mem=1000))
    await env.filter("p", "a")
    message = "pod default/p was placed on a, not on b"
    assert await env.bind("p", "b") == message
    assert env.events("p")[-1] == ("Warning", "BindingFailed", message)
    assert await env.bind("p", "ghost") == 'node "ghost" not found'
    assert env.used("a", "A") == (1, 1000, 0), "another node's absence frees nothing"
    assert await env.bind("p", "a") == ""


@both
async def test_a_pod_that_is_gone_holds_nothing_any_longer(mode: str) -> None:
    env = ExtenderEnv(mode)
    await env.add(node("a", card("A", 8000)), pod("p", gpu=1, mem=1000))
    await env.filter("p", "a")
    uid = env.read("p").uid
    await env.cluster.delete(Kind.PODS, "p", "default")
    assert await env.bind("p", "a", uid=uid) == 'pod "p" not found'
    assert env.used("a", "A") == (0, 0, 0)
    assert env.queue.times_freed == 1


@both
async def test_a_node_that_is_gone_is_told_and_one_the_cache_lacks_is_asked_for(mode: str) -> None:
    env = ExtenderEnv(mode)
    await env.add(node("a", card("A", 8000)), pod("p", gpu=1, mem=1000))
    await env.filter("p", "a")
    env.state.remove_node("a")
    error = await env.bind("p", "a")
    assert error == "" if mode == "single" else "node unregistered" in error
    await env.add(node("b", card("B", 8000)), pod("q", gpu=1, mem=1000))
    await env.filter("q", "b")
    env.state.remove_node("b")
    await env.cluster.delete(Kind.NODES, "b")
    assert await env.bind("q", "b") == 'node "b" not found'
    assert env.events("q")[-1] == ("Warning", "BindingFailed", "failed to get node b")
    await env.add(node("b", card("B", 8000)))
    assert env.used("b", "B") == (0, 0, 0)


@both
@pytest.mark.parametrize("locked", [True, False], ids=["under the lock", "of a vendor without one"])
@pytest.mark.parametrize(("theirs", "bound"), [("A,NVIDIA,3000,0:;", True), ("A,NVIDIA,7500,0:;", False)])
async def test_a_card_that_another_scheduler_took_meanwhile_is_not_given_twice(
    mode: str, theirs: str, bound: bool, locked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not locked:
        monkeypatch.setattr(VENDORS["NVIDIA"], "lock", None)
    env = ExtenderEnv(mode)
    await env.add(node("a", card("A", 8000), card("B", 500)), pod("p", gpu=1, mem=1000))
    await env.filter("p", "a")
    taken = bound_pod("r", "a", theirs)
    await env.cluster.create(Kind.PODS, taken)  # the watch hasn't told of it yet
    message = "card A of node a was taken by another scheduler meanwhile"
    assert await env.bind("p", "a") == ("" if bound else message)
    assert env.read("p").node_name == ("a" if bound else "")
    if not bound:
        assert env._lock("a") is None
        assert env.events("p")[-1] == ("Warning", "BindingFailed", message)
        env.hear("r")
        env.hear("p")
        assert (await env.filter("p", "a"))["NodeNames"] is None


@both
@pytest.mark.parametrize(
    ("theirs", "bound", "lists"), [("A,NVIDIA,3000,0:;", True, 0), ("A,NVIDIA,7500,0:;", False, 1)]
)
async def test_a_card_that_another_scheduler_took_during_the_wait_for_the_lock_is_not_given_twice(
    mode: str, theirs: str, bound: bool, lists: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache shows it by then; the API server is only asked where it does."""
    steps: list[str] = []

    async def pause(step: str) -> None:
        steps.append(step)
        if step == "patch:before" and steps.count(step) == 1:  # of the lock: the devices are held already
            await env.add(bound_pod("r", "a", theirs))

    env = ExtenderEnv(mode)
    env.complete = True
    await env.add(node("a", card("A", 8000)), pod("p", gpu=1, mem=1000))
    await env.filter("p", "a")
    env.cluster.pause = pause
    listed: list[Kind] = []
    list_of = env.cluster.list

    async def noted(kind: Kind, namespace: str = "", *, node: str = "") -> Listing:
        listed.append(kind)
        return await list_of(kind, namespace, node=node)

    monkeypatch.setattr(env.cluster, "list", noted)
    message = "card A of node a was taken by another scheduler meanwhile"
    assert await env.bind("p", "a") == ("" if bound else message)
    assert env.read("p").node_name == ("a" if bound else "")
    assert listed.count(Kind.PODS) == lists
    assert (env._lock("a") is None) is not bound


@both
async def test_a_card_that_a_pod_holds_which_does_not_say_so_is_not_given_twice(mode: str) -> None:
    """It was bound by a person during the wait for the lock, and is presumed to hold what others leave."""

    async def pause(step: str) -> None:
        if step == "patch:before":
            env.cluster.pause = None
            await env.add(plain)

    plain = pod("r", gpu=1)
    plain["spec"]["nodeName"] = "a"
    env = ExtenderEnv(mode, pause=pause)
    env.complete = True
    await env.add(node("a", card("A", 8000)), pod("p", gpu=1, mem=1000))
    await env.filter("p", "a")
    assert await env.bind("p", "a") == "card A of node a was taken by another scheduler meanwhile"
    assert env._lock("a") is None


@both
async def test_a_lock_whose_taking_was_not_answered_may_be_another_extender_s(mode: str) -> None:
    """Which binds the same pod, and took it within the same second."""
    value = "2026-01-01T00:00:00Z,default,p"

    async def pause(step: str) -> None:
        if step == "patch:before":
            env.cluster.pause = None
            await env.lock("n", value)
            raise Unavailable("no answer")

    env = ExtenderEnv(mode, pause=pause)
    await env.add(node("n", card("G", 8000)), pod("p", gpu=1, mem=1000))
    assert await env.bind("p", "n") == "no answer"
    assert env._lock("n") == value
    assert await env.bind("p", "n") == ""
    assert env._lock("n") == "2026-01-01T00:00:01Z,default,p"


@both
async def test_a_bind_that_is_cancelled_while_it_writes_leaves_the_lock_to_the_pod(mode: str) -> None:
    """As at the end of the process: the Binding may take effect all the same."""
    reached = asyncio.Event()

    async def pause(step: str) -> None:
        if step == "bind:after":
            reached.set()
            await asyncio.Event().wait()

    env = ExtenderEnv(mode, pause=pause)
    await env.add(node("n", card("G", 8000)), pod("p", gpu=1, mem=1000))
    await env.filter("p", "n")
    binding = asyncio.ensure_future(env.bind("p", "n"))
    await reached.wait()
    binding.cancel()
    await asyncio.wait([binding])
    assert env.read("p").node_name == "n"
    assert env._lock("n") == "2026-01-01T00:00:00Z,default,p"


@both
async def test_a_bind_that_nothing_was_decided_for_decides(mode: str) -> None:
    """As after a restart between filter and bind."""
    env = ExtenderEnv(mode)
    await env.add(node("a", card("A", 8000)), pod("p", gpu=1, mem=5000), pod("q", gpu=1, mem=5000))
    assert await env.bind("p", "a") == ""
    assert env.used("a", "A") == (1, 5000, 0)
    assert "can't take the pod any longer: 1/1 CardInsufficientMemory" in await env.bind("q", "a")


@both
async def test_a_former_allocation_is_removed_by_its_annotations(mode: str) -> None:
    env = ExtenderEnv(mode)
    former = {"hami.io/dcu-devices-allocated": "D,DCU,1,1:;", "hami.io/vgpu-node": "n", "hami.io/vgpu-time": "1"}
    await env.add(node("n", card("G", 8000)), pod("p", gpu=1, mem=1000, annotations=former))
    await env.filter("p", "n")
    assert await env.bind("p", "n") == ""
    assert "hami.io/dcu-devices-allocated" not in env.read("p").annotations
    assert env.read("p").annotations[ALLOCATED] == "G,NVIDIA,1000,0:;"


async def test_a_placement_that_is_too_old_is_not_bound() -> None:
    env = ExtenderEnv("single")
    await env.add(node("a", card("A", 8000)), pod("p", gpu=1, mem=1000))
    await env.filter("p", "a")
    env.now += 300
    assert "too old to be bound" in await env.bind("p", "a")
    assert env.read("p").node_name == ""


async def test_a_placement_that_was_given_up_is_not_bound() -> None:
    env = ExtenderEnv("single")
    await env.add(node("a", card("A", 8000)), pod("p", gpu=1, mem=5000))
    await env.filter("p", "a")
    await env.add(bound_pod("r", "a", "A,NVIDIA,8000,0:;"))
    assert (await env.filter("p", "a"))["NodeNames"] is None
    env.hear("p")
    assert env.used("a", "A") == (1, 8000, 0)
    assert "too old to be bound" in await env.bind("p", "a")


@both
async def test_the_lock_is_let_go_by_whom_fails_and_kept_by_whom_is_bound(mode: str) -> None:
    fails = [True]

    async def pause(step: str) -> None:
        if step == "bind:before" and fails:
            fails.pop()
            raise Conflict("no")

    env = ExtenderEnv(mode, pause=pause)
    await env.add(node("n", card("G", 8000)), pod("p", gpu=1, mem=1000))
    await env.filter("p", "n")
    assert await env.bind("p", "n") == "no"
    assert env._lock("n") is None
    assert env.events("p")[-1] == ("Warning", "BindingFailed", "no")
    env.hear("p")
    assert env.used("n", "G") == ((1, 1000, 0) if mode == "single" else (0, 0, 0))
    assert env.queue.times_freed == (0 if mode == "single" else 1)
    await env.filter("p", "n")
    assert await env.bind("p", "n") == ""
    assert env._lock("n") == "2026-01-01T00:00:00Z,default,p"
    env.hear("p")
    assert env.used("n", "G") == (1, 1000, 0)


@both
async def test_pods_with_init_containers_only_lock_too(mode: str) -> None:
    env = ExtenderEnv(mode)
    await env.add(node("n", card("G", 8000)))
    assert await env.scheduled(pod("p", init=[container(gpu=1, mem=1000)]), "n") == ""
    assert env._lock("n") == "2026-01-01T00:00:00Z,default,p"


@both
@pytest.mark.parametrize("effect", [True, False], ids=["it took effect", "it did not"])
async def test_a_bind_whose_answer_is_lost_is_looked_after(mode: str, effect: bool) -> None:
    lost = ["bind:after" if effect else "bind:before"]

    async def pause(step: str) -> None:
        if step in lost:
            lost.remove(step)
            raise Unavailable("lost")

    env = ExtenderEnv(mode, pause=pause)
    await env.add(node("n", card("G", 8000)), pod("p", gpu=1, mem=8000), pod("q", gpu=1, mem=8000))
    await env.filter("p", "n")
    assert await env.bind("p", "n") == ("" if effect else "lost")
    assert env.used("n", "G") == (1, 8000, 0), "who knows: nobody else gets the card"
    assert (await env.filter("q", "n"))["NodeNames"] is None
    assert env._lock("n") == "2026-01-01T00:00:00Z,default,p", "if it is bound its device plugin needs the lock"
    env.hear("p")
    assert (await env.filter("p", "n"))["NodeNames"] == ["n"]
    assert await env.bind("p", "n") == ""
    assert env.used("n", "G") == (1, 8000, 0)


@both
async def test_a_pod_that_is_being_bound_is_neither_placed_anew_nor_bound_twice(mode: str) -> None:
    env = ExtenderEnv(mode)
    await env.add(
        node("n", card("G", 8000)), node("m", card("M", 8000)), pod("p", gpu=1, mem=8000), pod("q", gpu=1, mem=8000)
    )
    await env.filter("p", "n")
    async with env.locks.turn("n"):
        under_way = asyncio.create_task(env.bind("p", "n"))
        await turns()
        assert (await env.filter("p", "m", "n"))["Error"] == "pod default/p is being bound to node n"
        assert await env.bind("p", "n") == "pod default/p is being bound already"
        assert await env.bind("p", "gone") == "pod default/p is being bound already"
        assert await env.bind("nobody", "n", uid=env.read("p").uid) != ""
        assert env.used("n", "G") == (1, 8000, 0)
        assert (await env.filter("q", "n"))["NodeNames"] is None
    assert await under_way == ""
    assert env.read("p").annotations["hami.io/vgpu-node"] == env.read("p").node_name == "n"


async def test_a_bind_that_waited_refuses_a_placement_that_another_scheduler_replaced() -> None:
    env = ExtenderEnv("single")
    await env.add(node("n", card("G", 8000)), node("m", card("M", 8000)), pod("p", gpu=1, mem=8000))
    await env.filter("p", "n")
    async with env.locks.turn("n"):
        under_way = asyncio.create_task(env.bind("p", "n"))
        await turns()
        other = {"metadata": {"annotations": {"hami.io/vgpu-node": "m", ALLOCATED: "M,NVIDIA,8000,0:;"}}}
        await env.cluster.patch(Kind.PODS, "p", other, "default")
    assert await under_way == "pod default/p was placed on m, not on n"
    assert env.read("p").node_name == ""
    assert env._lock("n") is None


async def test_who_does_not_fit_any_longer_learns_it_without_the_lock() -> None:
    env = ExtenderEnv("cooperative")
    await env.add(node("n", card("G", 8000)), pod("p", gpu=1, mem=8000), pod("q", gpu=1, mem=8000))
    await asyncio.gather(env.filter("p", "n"), env.filter("q", "n"))
    async with env.locks.turn("n"):
        first = asyncio.create_task(env.bind("p", "n"))
        await turns()
        message = "node n can't take the pod any longer: 1/1 CardInsufficientMemory"
        assert await env.bind("q", "n") == message
    assert await first == ""
    assert env.queue.refusals == [env.read("q").uid]


@both
async def test_a_uid_that_is_another_pods_is_refused_at_filter(mode: str) -> None:
    env = ExtenderEnv(mode)
    await env.add(node("n", card("G", 8000)), pod("p", gpu=1, mem=8000), pod("q", gpu=1, mem=8000))
    await env.filter("p", "n")
    held = env.used("n", "G")
    forged = {**env.raw("q"), "metadata": {**env.raw("q")["metadata"], "uid": env.read("p").uid}}
    assert "isn't the one with the UID" in (await env.ask({"Pod": forged, "NodeNames": ["n"]}))["Error"]
    assert env.used("n", "G") == held
