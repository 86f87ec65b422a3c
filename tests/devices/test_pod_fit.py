"""A pod's containers on one node: init containers, sidecars and apps; within a quota in `test_quota_in_fit.py`."""

from __future__ import annotations

import pytest
from builders import ALLOCATED, card, container, pod, read_node
from tables import in_one_test

from hami_webhook.cluster.api import JSON
from hami_webhook.devices.model import FixedMemory, Inventory, NodeView, Request
from hami_webhook.devices.pod_fit import PodRequest, fit_pod, read_pod_request
from hami_webhook.kube.objects import Node, Pod

from .fit_env import CHART, FitEnv, Placed, asked

A, B = card("a", 8000), card("b", 8000)
ONE_OF_TWO = "1/2 AllocatedCardsInsufficientRequest, 1/2 CardInsufficientMemory"


@pytest.mark.parametrize(
    ("apps", "inits", "outcome"),
    [
        ([container(gpu=1, mem=5000), container(gpu=1, mem=4000)], [], "b,NVIDIA,5000,0:;a,NVIDIA,4000,0:;"),
        ([container(gpu=1, mem=3000), container(gpu=1, mem=4000)], [], "b,NVIDIA,3000,0:;a,NVIDIA,4000,0:;"),
        ([container(gpu=1, mem=8000)], [container(gpu=2, mem=8000)],
         "b,NVIDIA,8000,0:a,NVIDIA,8000,0:;b,NVIDIA,8000,0:;"),
        ([container(gpu=1, mem=8000)], [container(gpu=1, mem=8000), container(gpu=1, mem=8000)],
         "b,NVIDIA,8000,0:;b,NVIDIA,8000,0:;b,NVIDIA,8000,0:;"),
        ([container(gpu=2, mem=8000)], [container(gpu=1, mem=1000, sidecar=True)], ONE_OF_TWO),
        ([container(gpu=2, mem=7000)], [container(gpu=1, mem=1000, sidecar=True)],
         "b,NVIDIA,1000,0:;a,NVIDIA,7000,0:b,NVIDIA,7000,0:;"),
        (
            [container(gpu=1, mem=1)],
            [container(gpu=1, mem=7000, sidecar=True), container(gpu=2, mem=2000)],
            ONE_OF_TWO,
        ),
        ([container(gpu=1, mem=1)], [container(gpu=2, mem=2000), container(gpu=1, mem=7000, sidecar=True)],
         "b,NVIDIA,2000,0:a,NVIDIA,2000,0:;b,NVIDIA,7000,0:;a,NVIDIA,1,0:;"),
        ([container(gpu=3, mem=1)], [], "NodeInsufficientDevice"),
        ([container()], [container(gpu=1, mem=1)], "b,NVIDIA,1,0:;;"),
        ([container(gpu=1, mem=9000)], [container(gpu=1, mem=1)], "2/2 CardInsufficientMemory"),
    ],
    ids=[
        "apps add up", "the emptier card next", "init takes all cards alone", "each init alone", "a sidecar stays",
        "apps beside the sidecar", "init beside the sidecar before it", "not beside the sidecar after it",
        "more than the node has", "only init asks", "the first container that fails gives the reason",
    ],
)  # fmt: skip
def test_containers_are_fitted_in_their_order_and_by_their_kind(
    apps: list[JSON], inits: list[JSON], outcome: str
) -> None:
    """Written is the allocated annotation, or the reason."""
    env = FitEnv([read_node("n", A, B)])
    placed = env.place(pod("p", *apps, init=inits), admit=False)
    assert (placed.annotations[ALLOCATED] if isinstance(placed, Placed) else placed["n"]) == outcome


def test_a_pod_that_asks_for_nothing_has_no_ask() -> None:
    for limits in (container(), container(gpu=0)):
        assert read_pod_request(Pod.from_object(pod("p", limits)), CHART, "spread") is None


@in_one_test("key", CHART)
def test_a_node_with_other_backends_cards_only_has_insufficient_devices(key: str) -> None:
    incoming = Pod.from_object(pod("p"))
    terms = {key: CHART[key].terms(incoming, "spread")}
    request = PodRequest(incoming, [{key: Request(1, FixedMemory(1), 0)}], terms)
    bare = Node.from_object({"metadata": {"name": "n"}})
    others = NodeView(bare, {"other": Inventory(())})
    assert str(fit_pod(others, request, CHART, None)) == "NodeInsufficientDevice"
    assert str(fit_pod(NodeView(bare), request, CHART, None)) == "node unregistered"


DCU: JSON = {"hygon.com/dcunum": 1}


@pytest.mark.parametrize(
    ("containers", "inits", "reason"),
    [
        ([container(gpu=1, mem=9000), container(**DCU)], [], "1/1 CardInsufficientMemory"),
        ([container(**DCU), container(gpu=1, mem=9000)], [], "NodeInsufficientDevice"),
        ([container(**DCU)], [container(gpu=1, mem=9000)], "1/1 CardInsufficientMemory"),
        ([container(gpu=1, mem=9000)], [container(**DCU)], "NodeInsufficientDevice"),
        ([container(gpu=1, mem=1000), container(), container(**DCU)], [], "NodeInsufficientDevice"),
        ([container(gpu=1, mem=9000, **DCU)], [], "NodeInsufficientDevice"),
    ],
)
def test_the_reason_is_that_of_the_first_container_that_does_not_fit(
    containers: list[JSON], inits: list[JSON], reason: str
) -> None:
    """Also where another one requests cards that the node has none of; a container's backends come by their keys."""
    request = asked(pod("p", *containers, init=inits), CHART)
    view = FitEnv([read_node("n", card("a", 8000))]).state.view("n")
    assert view is not None
    assert str(fit_pod(view, request, CHART, None)) == reason
