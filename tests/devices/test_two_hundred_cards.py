"""A node of 200 cards that means harm takes a bounded amount of work, counted in lines of code, whatever the vendor.

Source: docs/spec/core.md#7.6. Nodes and pods are those of `manifests/examples`, with more cards and larger requests.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from functools import cache
from itertools import combinations, cycle
from pathlib import Path
from pkgutil import iter_modules
from types import FrameType
from typing import Any

import pytest
import yaml
from msgspec import structs
from msgspec.structs import replace

from hami_webhook.devices import vendors as vendor_modules
from hami_webhook.devices.model import Inventory, NodeView, Usage
from hami_webhook.devices.pod_fit import NodeFit, PodRequest, fit_pod, read_pod_request
from hami_webhook.devices.pod_preferences import GPU_POLICY
from hami_webhook.devices.reasons import Rejection
from hami_webhook.devices.vendors.nvidia import REQUIRE_NVLINK, NvidiaNode
from hami_webhook.kube.objects import Node, Pod

from .cards import ask, container, pod, room, vendors
from .fit_env import CHART, FitEnv

EXAMPLES = Path(__file__).parents[2] / "manifests" / "examples"
FAMILIES = [module.name for module in iter_modules(vendor_modules.__path__)]
CARDS = 200
MOST_LINES = 1_200_000
"""A Fit without a bound needs more than 10^50; this is some 50 ms of Python, tracing aside."""


class TooManyLines(Exception):
    pass


def within_lines(call: Callable[[], Any], most: int = MOST_LINES) -> Any:
    """What a call returns, if it takes no more lines than this; turns of a comprehension count as lines."""
    lines = 0

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal lines
        if event == "line":
            lines += 1
            if lines > most:
                raise TooManyLines(f"more than {most} lines")
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        return call()
    finally:
        sys.settrace(before)


def hostile(view: NodeView, chance: random.Random) -> NodeView:
    """The node with 200 cards of each backend it has, much alike, and with random links and use."""
    inventories: dict[str, Inventory] = {}
    usage: dict[tuple[str, str], Usage] = {}
    for key, inventory in view.inventories.items():
        kinds = inventory.devices
        cards = tuple(
            replace(
                chance.choice(kinds),
                uuid=f"{key}-{number}",
                index=number % (8 if key in ("kunlun", "XPU") else CARDS),
                numa=chance.randrange(4),
                slots=2**31 - 1,
            )
            for number in range(CARDS)
        )
        facts = inventory.facts
        if isinstance(facts, NvidiaNode):
            facts = replace(facts, scores=random_scores([each.uuid for each in cards], chance))
        inventories[key] = Inventory(cards, facts)
        usage |= {(key, each.uuid): Usage(1) for each in cards if chance.random() < 0.2}
    return replace(view, inventories=inventories, usage=usage)


def random_scores(uuids: list[str], chance: random.Random) -> dict[str, dict[str, int]]:
    scores: dict[str, dict[str, int]] = {uuid: {} for uuid in uuids}
    for x, y in combinations(uuids, 2):
        scores[x][y] = scores[y][x] = chance.randrange(1860)
    return scores


@cache
def requests_of(family: str) -> tuple[list[Node], list[Pod]]:
    documents = [each for each in yaml.safe_load_all((EXAMPLES / f"{family}.yaml").read_text()) if each]
    nodes = [Node.from_object(each) for each in documents if each["kind"] == "Node"]
    pods = []
    for each in documents:
        if each["kind"] == "Pod":
            meta = {"namespace": "default", "annotations": {}, **each["metadata"]}
            admitted = FitEnv(nodes).admit({**each, "metadata": meta}).pod
            if admitted is not None:
                pods.append(Pod.from_object(admitted))
    return nodes, pods


def larger(request: PodRequest, count: int) -> PodRequest:
    """The pod with more cards for each of its containers."""
    rows = [{key: replace(each, count=count) for key, each in row.items()} for row in request.rows]
    return PodRequest(request.pod, rows, request.terms)


@pytest.mark.parametrize(
    ("family", "policy"),
    [*((family, "topology-aware") for family in FAMILIES), ("nvidia", "numa-first,topology-aware")],
)
def test_every_search_is_bounded(family: str, policy: str) -> None:
    chance = random.Random(family + policy)
    nodes, pods = requests_of(family)
    counts, tried = cycle((100, 8, 2)), 0
    for view in FitEnv(nodes).state.views():
        many = hostile(view, chance)
        for one in pods:
            noted = structs.replace(one, annotations={**one.annotations, GPU_POLICY: policy})
            request = read_pod_request(noted, CHART, "spread")
            if request is None or not set(request.vendors) <= set(many.inventories):
                continue
            tried += 1
            asked = larger(request, next(counts))
            result = within_lines(lambda: fit_pod(many, asked, CHART, None))  # noqa: B023  called at once
            assert isinstance(result, NodeFit | Rejection)
    assert tried >= 3


LINKED = NvidiaNode(random_scores([f"GPU-{number}" for number in range(CARDS)], random.Random(1)))
ONE_GROUP = NvidiaNode({f"GPU-{x}": {f"GPU-{y}": 100 for y in range(CARDS)} for x in range(CARDS)})
NEARLY_LINKED = NvidiaNode(
    {
        f"GPU-{x}": {f"GPU-{y}": 99 if abs(x - y) == CARDS // 2 else 100 + (x * y) % 7 for y in range(CARDS)}
        for x in range(CARDS)
    }
)


def node_of(facts: NvidiaNode, cards: int = CARDS) -> NodeView:
    nodes, _ = requests_of("nvidia")
    view = next(view for view in FitEnv(nodes).state.views() if "NVIDIA" in view.inventories)
    kind = next(each for each in view.inventories["NVIDIA"].devices if each.mode != "mig")
    devices = tuple(replace(kind, uuid=f"GPU-{number}", index=number, memory=40960) for number in range(cards))
    return replace(view, inventories={"NVIDIA": Inventory(devices, facts)}, usage={})


@pytest.mark.parametrize("facts", [LINKED, ONE_GROUP, NEARLY_LINKED], ids=["random", "one group", "nearly linked"])
@pytest.mark.parametrize(("count", "limited"), [(24, True), (100, False), (199, True)])
def test_a_topology_aware_pod_gets_its_cards(facts: NvidiaNode, count: int, limited: bool) -> None:
    asked = pod(container(gpu=count, mem=1000), policy="topology-aware")
    request = ask(asked)
    budget = room(asked, memory=1000 * count) if limited else None
    node = node_of(facts)
    found = within_lines(lambda: fit_pod(node, request, vendors(), budget))
    assert isinstance(found, NodeFit)
    assert len({device.uuid for device in found.rows[0]["NVIDIA"].devices}) == count


@pytest.mark.parametrize("count", [2, 100])
def test_required_links_are_found_beyond_the_bound_and_never_only_said(count: int) -> None:
    asked = pod(container(gpu=count, mem=1000), policy="topology-aware", annotations={REQUIRE_NVLINK: "true"})
    request = ask(asked)
    for facts in (ONE_GROUP, NEARLY_LINKED):
        node = node_of(facts)
        found = within_lines(lambda: fit_pod(node, request, vendors(), None))  # noqa: B023  called at once
        assert isinstance(found, NodeFit)
        uuids = [device.uuid for device in found.rows[0]["NVIDIA"].devices]
        assert all(facts.scores[x][y] >= 100 for x, y in combinations(uuids, 2))


def test_a_pod_of_many_containers_is_bounded_too() -> None:
    """Each takes a share of one of 200 cards, whose slots the node says don't end."""
    asked = pod(*(container(f"c{number}", gpu=1, mem=1) for number in range(2000)))
    request = ask(asked)
    view = node_of(LINKED)
    devices = tuple(replace(each, slots=2**31 - 1) for each in view.inventories["NVIDIA"].devices)
    view = replace(view, inventories={"NVIDIA": Inventory(devices, LINKED)})
    assert str(within_lines(lambda: fit_pod(view, request, vendors(), None))) == "SearchLimitExceeded"


@pytest.mark.parametrize(("containers", "limited"), [(32, False), (24, True)])
def test_a_large_pod_on_a_usual_node_is_within_the_bound(containers: int, limited: bool) -> None:
    """16 cards, and each container gets a share of 2 linked ones."""
    asked = pod(*(container(f"c{number}", gpu=2, mem=500) for number in range(containers)), policy="topology-aware")
    request = ask(asked)
    budget = room(asked, memory=2 * 64 * 500) if limited else None
    assert isinstance(fit_pod(node_of(LINKED, 16), request, vendors(), budget), NodeFit)
