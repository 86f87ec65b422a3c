"""The extender asks nodes anew only where something changed, and no request walks the cluster's pods."""

from __future__ import annotations

from typing import Any

import pytest
from builders import bound_pod, card, node, pod, quota
from scheduling.front import Front

from .counting import counted_calls

FIT = "scheduling.fit:fit_pod"
CARD = "devices.fit_request:Candidate.__init__"


async def yard(mode: str, nodes: int, pods: int) -> Front:
    front = Front(mode)
    for number in range(nodes):
        await front.add(node(f"n{number}", card(f"G{number}", 40000), card(f"H{number}", 40000)))
    for number in range(pods):
        on = number % nodes
        await front.add(bound_pod(f"r{number}", f"n{on}", f"G{on},NVIDIA,{100 + number},1:;"))
    await front.add(quota("q", gpu=1000, mem=10**6, used={}))
    return front


async def filtered(front: Front, name: str, nodes: int) -> Any:
    await front.add(pod(name, gpu=1, mem=1000))
    with counted_calls() as counts:
        answer = await front.filter(name, *(f"n{number}" for number in range(nodes)))
    assert answer["NodeNames"], answer
    return counts


@pytest.mark.parametrize(("mode", "again"), [("cooperative", 0), ("single", 1)])
async def test_the_second_pod_of_a_shape_asks_no_node_that_did_not_change(mode: str, again: int) -> None:
    front = await yard(mode, 30, 30)
    first = await filtered(front, "a", 30)
    assert first[FIT] == 30 + again  # in single mode the best node is asked for its cards too
    changed = again  # the placement of the pod before
    second = await filtered(front, "b", 30)
    assert second[FIT] == changed + again
    front.state.set_pod(front.read("r7"), front.now)
    third = await filtered(front, "c", 30)
    assert third[FIT] == changed + again
    await front.add(bound_pod("late", "n3", "H3,NVIDIA,500,1:;"))
    assert (await filtered(front, "d", 30))[FIT] == changed + again + 1


@pytest.mark.parametrize("mode", ["cooperative", "single"])
async def test_a_steady_request_costs_the_same_whatever_runs_on_the_cluster(mode: str) -> None:
    async def steady(nodes: int, pods: int) -> int:
        front = await yard(mode, nodes, pods)
        for name in "ab":
            await filtered(front, name, nodes)
        return sum((await filtered(front, "c", nodes)).values())

    base = await steady(10, 10)
    assert await steady(10, 60) <= base * 1.1
    # no function of ours is called per node: what depends on their number is left to the interpreter's own loops
    assert await steady(60, 60) <= base * 1.1 + 60 * 3


async def test_no_more_is_done_for_a_node_that_is_new_to_a_shape_than_looking_at_each_card_once() -> None:
    async def cold(nodes: int) -> Any:
        return await filtered(await yard("cooperative", nodes, 0), "a", nodes)

    few, many = await cold(10), await cold(20)
    assert (few[CARD], many[CARD]) == (20, 40)
    assert sum(many.values()) - sum(few.values()) <= 10 * 140, many.most_common(20)
