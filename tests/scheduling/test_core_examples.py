"""The worked examples of docs/spec/core.md#16, by letter; A, B, F and H are in test_extender.py."""

from __future__ import annotations

import pytest
from builders import bound_pod, card, container, node, pod

from hami_webhook.kube.objects import Pod
from hami_webhook.quota.pricing import charge_of

from .placer_env import ALLOCATED, MEM, VENDORS, PlacerEnv


async def test_c_containers_without_cards_keep_their_slots() -> None:
    env = PlacerEnv()
    await env.add(node("n", card("GPU-1", 32768)))
    placement = await env.placed(pod("p", container(), container(gpu=1, mem=3000, cores=30), init=[container()]))
    assert placement.annotations[ALLOCATED] == ";;GPU-1,NVIDIA,3000,30:;"


async def finish_init(env: PlacerEnv, name: str, *containers: str) -> None:
    done = [{"name": container, "state": {"terminated": {"exitCode": 0}}} for container in containers]
    stored = await env.cluster.set_phase("default", name, "Pending", initContainerStatuses=done)
    env.state.set_pod(Pod.from_object(stored), env.now)


def debit_of(env: PlacerEnv, name: str) -> int:
    return charge_of(env.read(name), VENDORS, env.state.capacity, env.now).amounts[MEM]


async def test_d_an_init_container_holds_its_peak_until_it_is_over() -> None:
    env = PlacerEnv()
    await env.add(node("n", card("G", 8000)))
    placement = await env.placed(
        pod("p", gpu=1, mem=4000, cores=20, init=[container("init", gpu=1, mem=5000, cores=20)])
    )
    assert placement.annotations[ALLOCATED] == "G,NVIDIA,5000,20:;G,NVIDIA,4000,20:;"
    assert env.used("n", "G") == (1, 5000, 20)
    assert debit_of(env, "p") == 5000
    await finish_init(env, "p", "init")
    assert env.used("n", "G") == (1, 4000, 20)
    assert debit_of(env, "p") == 4000


@pytest.mark.parametrize(
    ("sidecar_first", "peak"), [(True, 22000), (False, 20000)], ids=["sidecar before init", "init before sidecar"]
)
async def test_e_a_sidecar_counts_beside_the_init_containers_after_it(sidecar_first: bool, peak: int) -> None:
    env = PlacerEnv()
    await env.add(node("n", card("G", 24000)))
    sidecar, init = (
        container("sidecar", gpu=1, mem=2000, cores=1, sidecar=True),
        container("init", gpu=1, mem=20000, cores=1),
    )
    inits = [sidecar, init] if sidecar_first else [init, sidecar]
    await env.placed(pod("p", gpu=1, mem=10000, cores=1, init=inits))
    assert env.used("n", "G")[1] == debit_of(env, "p") == peak
    await finish_init(env, "p", "init")
    assert env.used("n", "G")[1] == debit_of(env, "p") == 12000


async def test_g_the_slots_of_a_card_are_its_app_containers() -> None:
    env = PlacerEnv()
    await env.add(node("n", card("G", 8000, count=3)), bound_pod("full", "n", "G,NVIDIA,10,1:;" * 3))
    assert await env.refused(pod("p", gpu=1, mem=10, cores=1)) == {"n": "1/1 CardTimeSlicingExhausted"}


async def test_g_two_init_containers_and_an_app_take_one_slot() -> None:
    env = PlacerEnv()
    await env.add(node("n", card("G", 8000, count=3)))
    await env.placed(
        pod("p", gpu=1, mem=10, cores=1, init=[container(gpu=1, mem=10, cores=1), container(gpu=1, mem=10, cores=1)])
    )
    assert env.used("n", "G") == (1, 10, 1)
