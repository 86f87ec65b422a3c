"""How many equal pods an empty cluster could hold at most (docs/spec/queues.md#5.1)."""

from __future__ import annotations

import pytest
from builders import card, container

from hami_webhook.devices.cluster_capacity import room_for
from hami_webhook.devices.device_lister import DeviceLister
from hami_webhook.devices.model import Requests
from hami_webhook.kube.objects import Node
from hami_webhook.state.cluster_cache import ClusterCache

from .cards import mig_card, node
from .fit_env import CHART, JSON, NOW, Placed, pod
from .test_conformance import pod_of
from .test_conformance_fit import Taken, every_first

SIZE = 50


def requests(*containers: JSON) -> dict[str, Requests]:
    return {"NVIDIA": CHART["NVIDIA"].requests_of(pod_of(pod("p", *containers)))}


def cluster(*nodes: Node) -> DeviceLister:
    state = ClusterCache(CHART)
    for each in nodes:
        state.set_node(each, NOW)
    return state


CARDS = cluster(
    node(card("a", devmem=24576), card("b", devmem=24576), name="n1"), node(card("c", devmem=40960), name="n2")
)


@pytest.mark.parametrize(
    ("containers", "room"),
    [
        ([container(gpu=1, mem=8000)], 11),
        ([container(gpu=1, mem=8000, cores=40)], 6),
        ([container(gpu=1, mem=100)], 30),  # ten slots a card
        ([container(gpu=1)], 3),
        ([container(gpu=1, percent=30)], 9),
        ([container(gpu=2, mem=8000)], 5),
        ([container(gpu=1, mem=8000), container("b", gpu=1, mem=20000)], 4),
        ([container(gpu=1, mem=50000)], 0),
    ],
)
def test_cards_are_full_at_the_first_of_slots_memory_and_cores(containers: list[JSON], room: int) -> None:
    for size in (room, room + 1, SIZE):
        assert room_for(size, requests(*containers), CHART, CARDS) == room


@pytest.mark.parametrize(
    "unbounded",
    [cluster(), cluster(node(name="n1")), cluster(node(mig_card("m"), name="n1"))],
    ids=["none", "bare", "mig"],
)
def test_what_is_not_known_limits_nothing(unbounded: DeviceLister) -> None:
    assert room_for(SIZE, requests(container(gpu=1, mem=8000)), CHART, unbounded) == SIZE


@every_first
def test_fit_never_places_more_than_that_on_an_empty_node(taken: Taken) -> None:
    env, asked = taken.env(), taken.case.vendor.requests_of(pod_of(taken.manifest()))
    placed = 0
    while placed < SIZE and isinstance(env.place(taken.manifest(f"p{placed}")), Placed):
        placed += 1
    assert placed
    assert room_for(placed, {taken.case.key: asked}, taken.case.vendors, env.state) == placed
