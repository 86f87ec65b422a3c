"""What still fits, against the simulation: exactly that much finds a node, and the next larger amount finds none."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from builders import card, container, node, pod
from hypothesis import given
from hypothesis import strategies as st

from hami_webhook.cluster.loading import LoadedObject, load_objects, sort_objects
from hami_webhook.doctor.installation import assumed
from hami_webhook.kubectl.capacity import COUNTS, Capacity, LargestRequest, capacities
from hami_webhook.simulate.results import Pods
from hami_webhook.simulate.simulation import Simulation

JSON = dict[str, object]
NOW = 1_767_225_600.0
EXAMPLES = Path(__file__).parents[2] / "manifests" / "examples"


async def cluster(objects: Sequence[LoadedObject], *pods: JSON) -> Simulation:
    bundle = sort_objects([each for each in objects if each.kind in ("Node", "Device")])
    simulation = await assumed("hami-system").simulation(bundle, NOW)
    await simulation.run(Pods(pods))
    return simulation


def nodes(*made: JSON) -> list[LoadedObject]:
    return [LoadedObject(each, "", 0) for each in made]


def shown(simulation: Simulation, pool: str = "", closed: Sequence[str] = ()) -> list[Capacity]:
    return capacities(simulation.core.state.views(), simulation.core.vendors, pool, closed)


def amounts(found: Sequence[LargestRequest | None]) -> list[int | None]:
    return [None if each is None else each.memory for each in found]


def test_on_a_card_that_the_node_s_monitor_calls_unhealthy_nothing_fits() -> None:
    sick = node("n1", card("A"), card("B"), unhealthy={"A": ["lost"]})
    (found,) = shown(asyncio.run(cluster(nodes(sick))))
    assert (found.cards, found.healthy, found.empty, found.free) == (2, 1, 1, 40960)
    assert amounts(found.largest) == [40960, None, None, None]


def linked(*groups: Sequence[str]) -> JSON:
    uuids = [uuid for group in groups for uuid in group]
    together = {(x, y) for group in groups for x in group for y in group}
    return {x: {y: 200 if (x, y) in together else 10 for y in uuids if y != x} for x in uuids}


def test_a_model_is_summed_up_over_its_nodes() -> None:
    first = node("n1", card("A1"), card("A2"), card("A3", health=False), labels={"pool": "x"})
    second = node("n2", card("B1"), card("C1", 24576, type="NVIDIA A10"), labels={"pool": "y"})
    simulation = asyncio.run(cluster(nodes(first, second), pod("p", container(gpu=2, mem=10000, cores=30))))
    held = sorted(view.name for view in simulation.core.state.views() if view.usage)
    assert held == ["n1"]
    a10, a100 = shown(simulation)
    assert (a100.model, a100.nodes, a100.cards, a100.healthy, a100.empty) == ("NVIDIA A100-SXM4-40GB", 2, 4, 3, 1)
    assert (a100.used_slots, a100.slots, a100.used_cores, a100.cores) == (2, 40, 60, 400)
    assert (a100.used_memory, a100.memory) == (20000, 4 * 40960)
    assert (a100.free, a100.free_on_empty, a100.fragmentation) == (2 * 30960 + 40960, 40960, 61)
    assert amounts(a100.largest) == [40960, 30960, None, None]
    assert a100.largest[1] == LargestRequest(2, 30960, "n1")
    assert (a10.cards, a10.fragmentation, amounts(a10.largest)) == (1, 0, [24576, None, None, None])
    assert [(each.model, each.pool, each.cards) for each in shown(simulation, "pool")] == [
        ("NVIDIA A10", "y", 1),
        ("NVIDIA A100-SXM4-40GB", "x", 3),
        ("NVIDIA A100-SXM4-40GB", "y", 1),
    ]
    closed = shown(simulation, closed=["n2"])
    assert [(each.cards, each.free, amounts(each.largest)) for each in closed] == [
        (1, 0, [None] * 4),
        (4, 2 * 30960, [30960, 30960, None, None]),
    ]


def test_linked_cards_are_those_of_one_group() -> None:
    uuids = [f"G{index}" for index in range(4)]
    made = node("n1", *(card(uuid) for uuid in uuids), scores=linked(uuids[:2], uuids[2:]))
    simulation = asyncio.run(cluster(nodes(made), pod("p", container(gpu=1, mem=960))))
    (found,) = shown(simulation)
    assert (amounts(found.largest), amounts(found.linked)) == ([40960, 40960, 40000, None], [40960, None, None])


def test_of_linked_cards_each_two_are_as_a_pod_asks_for_them() -> None:
    ring = [f"G{index}" for index in range(4)]
    pairs = linked(*zip(ring, [*ring[1:], ring[0]], strict=True))
    simulation = asyncio.run(cluster(nodes(node("n1", *(card(uuid) for uuid in ring), scores=pairs))))
    (found,) = shown(simulation)
    assert (amounts(found.largest), amounts(found.linked)) == ([40960, 40960, 40960, None], [40960, None, None])


@pytest.mark.parametrize(
    ("example", "model", "expected"),
    [
        ("ascend.yaml", "Ascend910B3", [65536, 65536, 65536, None]),
        ("awsneuron.yaml", "AWSNeuron", [0, 0, 0, 0]),
        ("cambricon.yaml", "MLU370-X8", [23296, 23296, 23296, None]),
        ("enflame.yaml", "Enflame", [100, 100, None, None]),
        ("hygon.yaml", "DCU-Z100L", [32752, 32752, None, None]),
        ("iluvatar.yaml", "BI-V150", [32768, 32768, None, None]),
        ("kunlun.yaml", "XPU", [98304, 98304, 98304, 98304]),
        ("metax.yaml", "Metax-SGPU", [65536, 65536, 65536, None]),
        ("mthreads.yaml", "Mthreads", [49152, 49152, 49152, None]),
        ("vastai.yaml", "Vastai", [0, 0, 0, None]),
    ],
)
def test_each_vendors_empty_cards_are_asked_for_whole(example: str, model: str, expected: list[int | None]) -> None:
    simulation = asyncio.run(cluster(load_objects((EXAMPLES / example).read_text(), example)))
    found = next(each for each in shown(simulation) if each.model == model)
    assert amounts(found.largest) == expected


@given(
    st.lists(st.lists(st.sampled_from([16384, 24576, 40960]), min_size=1, max_size=4), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(1, 3), st.integers(1, 20000), st.sampled_from([None, 0, 30, 100])), max_size=8),
)
def test_exactly_the_largest_request_fits_and_no_larger_one(
    fleet: list[list[int]], pods: list[tuple[int, int, int | None]]
) -> None:
    made = [
        node(f"n{x}", *(card(f"G{x}-{y}", memory, type="M") for y, memory in enumerate(cards)))
        for x, cards in enumerate(fleet)
    ]
    before = [
        pod(f"p{index}", container(gpu=count, mem=memory, cores=cores))
        for index, (count, memory, cores) in enumerate(pods)
    ]
    none_fits = asyncio.run(cluster(nodes(*made), *before))
    (found,) = shown(none_fits)

    def fits(simulation: Simulation, count: int, memory: int) -> bool:
        asked = pod(f"asked-{count}", container(gpu=count, mem=memory))
        result = asyncio.run(simulation.run(Pods([asked])))
        return result.pods[-1].placement is not None

    for count, largest in zip(COUNTS, found.largest, strict=True):
        assert not fits(none_fits, count, 1 if largest is None else largest.memory + 1)
        if largest is not None:
            assert fits(asyncio.run(cluster(nodes(*made), *before)), count, largest.memory)
