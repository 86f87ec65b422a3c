"""Long work lets others have their turn, and what they change meanwhile is looked at again."""

from __future__ import annotations

import asyncio
from itertools import count

from builders import bound_pod, card, node, pod

from hami_webhook.kube.objects import Pod
from hami_webhook.scheduling.filter_cache import FilterCache
from hami_webhook.scheduling.framework import Handle
from hami_webhook.scheduling.placer import CycleState, Placer
from hami_webhook.time_slices import SLICE, Steps, TimeSlices, run_at_once

from .placer_env import NOW, VENDORS, PlacerEnv, request_of


async def test_work_is_interrupted_when_its_slice_is_over_and_only_then() -> None:
    now, turns = [0.0], list[int]()

    def work() -> Steps[str]:
        for step in range(6):
            now[0] += SLICE / 2
            turns.append(step)
            yield
        return "done"

    async def others() -> None:
        turns.append(-1)

    slices = TimeSlices(lambda: now[0])
    found, _ = await asyncio.gather(slices.run(work()), others())
    assert found == "done"
    assert (turns.index(-1), slices.interruptions) == (2, 3)


def after_every_node() -> TimeSlices:
    times = count()
    return TimeSlices(lambda: next(times))


async def env_of(*names: str) -> PlacerEnv:
    env = PlacerEnv()
    await env.add(*(node(name, card(f"GPU-{name}")) for name in names))
    return env


def test_each_node_tested_is_a_step_of_its_own_and_known_ones_are_none() -> None:
    env = asyncio.run(env_of(*"abcd"))
    memory = FilterCache(env.state, VENDORS, "binpack")
    request = request_of(pod("p", gpu=1))
    assert len(list(memory.filtering(request, None, "abcd"))) == 4
    assert not list(memory.filtering(request, None, "dcba"))


def test_what_another_filter_does_in_an_interruption_changes_no_answer() -> None:
    """Another pod of the shape with another priority or budget has its own answers."""
    env = asyncio.run(env_of(*"abc"))
    memory = FilterCache(env.state, VENDORS, "binpack")
    request = request_of(pod("p", gpu=1))
    steps = memory.filtering(request, None, "abc")
    next(steps)
    for name in "abc":  # another filter, after which each node changes
        run_at_once(memory.filtering(request, None, "abc"))
        held = bound_pod(f"on-{name}", name, f"GPU-{name},NVIDIA,40960,100:;", uid=name)
        env.state.set_pod(Pod.from_object(held), NOW)
    run_at_once(memory.filtering(request, None, "a"))
    result = run_at_once(steps)
    assert [each.node for each in result.fits] == ["a"]  # as it was when it was tested
    assert set(result.failed) == {"b", "c"}
    again = memory.filtered(request, None, "abc")
    assert not again.fits


async def test_a_node_that_fills_meanwhile_is_not_chosen() -> None:
    env = await env_of(*"abcdef")
    placer = Placer(Handle(env.cluster, env.state, VENDORS, lambda: NOW), slices=after_every_node)
    await env.add(pod("p", gpu=1))

    async def others() -> None:
        env.state.set_pod(Pod.from_object(bound_pod("first", "a", "GPU-a,NVIDIA,40960,100:;", uid="first")), NOW)

    found, _ = await asyncio.gather(placer.consider(env.read("p"), [*"abcdef"], [], choose=True), others())
    assert isinstance(found, CycleState)
    assert found.best is not None
    assert (found.best.node, "a" in found.filtered.failed) == ("b", True)
