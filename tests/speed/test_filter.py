"""The extender asks nodes anew only where something changed, and no request walks the cluster's pods."""

from __future__ import annotations

from collections import Counter

import pytest
from builders import bound_pod, card, node, pod, quota
from scheduling.extender_env import ExtenderEnv

from hack.bench.counting import counted_calls

FIT = "devices.pod_fit:fit_pod"
CARD = "devices.fit_request:Candidate.__init__"


async def filled(mode: str, nodes: int, pods: int) -> ExtenderEnv:
    env = ExtenderEnv(mode)
    for number in range(nodes):
        await env.add(node(f"n{number}", card(f"G{number}", 40000), card(f"H{number}", 40000)))
    for number in range(pods):
        on = number % nodes
        await env.add(bound_pod(f"r{number}", f"n{on}", f"G{on},NVIDIA,{100 + number},1:;"))
    await env.add(quota("q", gpu=1000, mem=10**6, used={}))
    return env


async def filtered(env: ExtenderEnv, name: str, nodes: int) -> Counter[str]:
    await env.add(pod(name, gpu=1, mem=1000))
    with counted_calls() as counts:
        answer = await env.filter(name, *(f"n{number}" for number in range(nodes)))
    assert answer["NodeNames"], answer
    return counts


@pytest.mark.parametrize(("mode", "again"), [("cooperative", 0), ("single", 1)])
async def test_the_second_pod_of_a_shape_asks_no_node_that_did_not_change(mode: str, again: int) -> None:
    env = await filled(mode, 30, 30)
    first = await filtered(env, "a", 30)
    assert first[FIT] == 30 + again  # in single mode the best node is asked for its cards too
    changed = again  # the placement of the pod before
    second = await filtered(env, "b", 30)
    assert second[FIT] == changed + again
    env.state.set_pod(env.read("r7"), env.now)
    third = await filtered(env, "c", 30)
    assert third[FIT] == changed + again
    await env.add(bound_pod("late", "n3", "H3,NVIDIA,500,1:;"))
    assert (await filtered(env, "d", 30))[FIT] == changed + again + 1


@pytest.mark.parametrize("mode", ["cooperative", "single"])
async def test_a_steady_request_costs_the_same_whatever_runs_on_the_cluster(mode: str) -> None:
    async def steady(nodes: int, pods: int) -> int:
        env = await filled(mode, nodes, pods)
        for name in "ab":
            await filtered(env, name, nodes)
        return sum((await filtered(env, "c", nodes)).values())

    base = await steady(10, 10)
    assert await steady(10, 60) <= base * 1.1
    # no function of ours is called per node: what depends on their number is left to the interpreter's own loops
    assert await steady(60, 60) <= base * 1.1 + 60 * 3


async def cold(nodes: int, classes: int) -> Counter[str]:
    """A shape that is new to nodes, of which so many classes are used differently, and have answered other pods."""
    env = await filled("cooperative", nodes, 0)
    for number in range(nodes):
        await env.add(bound_pod(f"r{number}", f"n{number}", f"G{number},NVIDIA,{100 + number % classes},1:;"))
    await env.add(pod("other", gpu=1, mem=2000))
    await env.filter("other", *(f"n{number}" for number in range(nodes)))
    return await filtered(env, "a", nodes)


async def test_no_more_is_done_for_a_node_that_is_new_to_a_shape_than_looking_at_each_card_once() -> None:
    few, many = await cold(10, 10), await cold(20, 20)
    assert (few[CARD], many[CARD]) == (20, 40)
    assert sum(many.values()) - sum(few.values()) <= 10 * 141, many.most_common(20)


async def test_of_nodes_that_are_alike_one_is_asked() -> None:
    few, many = await cold(10, 5), await cold(60, 5)
    assert few[CARD] == many[CARD] == 10
    assert sum(many.values()) - sum(few.values()) <= 50 * 7, many.most_common(20)
