"""The choice of nodes by NVLink groups, and `nvidia.com/require-nvlink` (docs/spec/nvidia.md#8)."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import pytest
from builders import REGISTER, bound_pod, card, node, pod
from every_node import evaluate
from hypothesis import given
from hypothesis import strategies as st

from hami_webhook.cluster.api import JSON
from hami_webhook.kube.objects import Node, Pod
from hami_webhook.logs import TRACE
from hami_webhook.policy.file import PolicyFile
from hami_webhook.state.cluster_cache import ClusterCache

from .placer_env import ALLOCATED, NOW, VENDORS, PlacerEnv, request_of

TOPOLOGY = {"hami.io/gpu-scheduler-policy": "topology-aware"}
REQUIRED = {**TOPOLOGY, "nvidia.com/require-nvlink": "true"}
NVLINK, PCIE = 210, 10
CARD_1 = '{"NVIDIA":[{"Idx":1,"UUID":"n1","Type":"NVIDIA","Usedmem":1024,"Usedcores":0}'


def grouped(name: str, *sizes: int) -> JSON:
    """A node whose cards are linked by NVLink in groups of these sizes."""
    groups = [group for group, size in enumerate(sizes) for _ in range(size)]
    table = [[NVLINK if one == other else PCIE for other in groups] for one in groups]
    return scored(name, table)


def scored(name: str, table: Sequence[Sequence[int]]) -> JSON:
    uuids = [f"{name}{i}" for i in range(len(table))]
    scores = {uuid: {peer: table[x][y] for y, peer in enumerate(uuids) if x != y} for x, uuid in enumerate(uuids)}
    return node(name, *(card(uuid, 40960, index=i) for i, uuid in enumerate(uuids)), scores=scores)


def taken(name: str, cards: Sequence[int]) -> JSON:
    """A pod that holds whole cards of a node."""
    return bound_pod(f"on-{name}", name, "".join(f"{name}{i},NVIDIA,40960,100:" for i in cards) + ";")


def placed(gpus: int, *objects: JSON, notes: dict[str, str] = TOPOLOGY) -> tuple[str, set[int]]:
    """The node that takes the pod, and its cards there by position."""

    async def scenario() -> tuple[str, set[int]]:
        env = PlacerEnv()
        await env.add(*objects)
        placement = await env.placed(pod("p", gpu=gpus, mem=1024, annotations=notes))
        text = env.read("p").annotations[ALLOCATED]
        uuids = [entry.split(",")[0] for entry in text.rstrip(";").rstrip(":").split(":")]
        return placement.node, {int(uuid.removeprefix(placement.node)) for uuid in uuids}

    return asyncio.run(scenario())


@pytest.mark.parametrize("sizes", [(2, 2, 4), (4, 2, 2)])
def test_of_numa_nodes_that_are_linked_as_well_one_whose_groups_are_used_up_is_taken(sizes: tuple[int, ...]) -> None:
    found = grouped("n", *sizes)
    register = found["metadata"]["annotations"][REGISTER]
    cards = [{**each, "numa": place // 4} for place, each in enumerate(json.loads(register))]
    found["metadata"]["annotations"][REGISTER] = json.dumps(cards)
    bound = {**TOPOLOGY, "nvidia.com/numa-bind": "true"}
    of_two = {place for place in range(8) if (place < 4) == (sizes[0] == 2)}
    assert placed(2, found, notes=bound)[1] < of_two


# against brute force


@st.composite
def clusters(draw: st.DrawFn) -> list[tuple[list[list[int]], list[int]]]:
    """Nodes as pair scores and the cards that are taken."""
    nodes = []
    for _ in range(draw(st.integers(1, 4))):
        cards = draw(st.integers(1, 10))
        values = draw(st.sampled_from([(10, 110), (10, 20, 50, 110, 210), (0, 100), (1210,), (10,)]))
        table = [[0] * cards for _ in range(cards)]
        for x, y in combinations(range(cards), 2):
            table[x][y] = table[y][x] = draw(st.sampled_from(values))
        nodes.append((table, draw(st.lists(st.sampled_from(range(cards)), unique=True))))
    return nodes


class Oracle:
    """A node by the letter of the chapter: every set of its free cards is looked at."""

    def __init__(self, name: str, table: Sequence[Sequence[int]], held: Sequence[int]) -> None:
        self.name, self.table, self.held = name, table, held
        # among idle cards of one kind the last registered is tried first
        self.free = [card for card in reversed(range(len(table))) if card not in held]

    def linked(self, x: int, y: int) -> bool:
        return self.table[x][y] >= 100

    def best(self, count: int, *, required: bool) -> tuple[int, ...] | None:
        sets = list(combinations(self.free, count))
        if required:
            sets = [each for each in sets if self.fully_linked(each)]
        if count == 1:
            return min(sets, key=lambda each: (self.degree(each[0]), self.total(each[0])), default=None)
        return max(sets, key=lambda each: (self.quality(each), self.pairs_left(each)), default=None)

    def degree(self, x: int) -> int:
        return sum(self.linked(x, y) for y in self.free if y != x)

    def total(self, x: int) -> int:
        return sum(self.table[x][y] for y in self.free if y != x)

    def quality(self, cards: tuple[int, ...]) -> int:
        if len(cards) == 1:
            return -self.total(cards[0])
        return sum(self.table[x][y] for x, y in combinations(cards, 2))

    def pairs_left(self, cards: tuple[int, ...]) -> int:
        return sum(self.linked(x, y) for x, y in combinations([c for c in self.free if c not in cards], 2))

    def fully_linked(self, cards: tuple[int, ...]) -> bool:
        return all(self.linked(x, y) for x, y in combinations(cards, 2))

    def left_in_groups(self, cards: tuple[int, ...]) -> int:
        reached = set(cards)
        for _ in self.free:
            reached |= {y for y in self.free for x in reached if x != y and self.linked(x, y)}
        return len(reached) - len(cards)

    def key(self, cards: tuple[int, ...]) -> tuple[Any, ...]:
        fullness = len(self.held) / len(self.table)
        ours = (not self.fully_linked(cards), self.left_in_groups(cards), len(self.free), len(self.table))
        return (*ours, -self.quality(cards), -fullness, self.name)


@pytest.mark.parametrize("notes", [TOPOLOGY, REQUIRED], ids=["preferred", "required"])
@given(cluster=clusters(), count=st.integers(1, 4))
def test_nodes_and_cards_are_those_of_brute_force_over_all_sets(
    notes: dict[str, str], cluster: list[tuple[list[list[int]], list[int]]], count: int
) -> None:
    state = ClusterCache(VENDORS)
    expected = []
    for number, (table, held) in enumerate(cluster):
        name = f"n{number}-"
        state.set_node(Node.from_object(scored(name, table)), NOW)
        if held:
            raw = taken(name, held)
            raw["metadata"]["uid"] = f"uid-{name}"
            state.set_pod(Pod.from_object(raw), NOW)
        oracle = Oracle(name, table, held)
        best = oracle.best(count, required=notes is REQUIRED)
        if best is not None:
            expected.append((oracle.key(best), name, [f"{name}{card}" for card in best]))
    request = request_of(pod("p", gpu=count, mem=1024, annotations=notes))
    found = evaluate(list(state.views()), request, VENDORS, None, "binpack")
    chosen = [(fit.node, [device.uuid for device in fit.fit.rows[0]["NVIDIA"].devices]) for fit in found.fits]
    assert chosen == [(name, cards) for _, name, cards in sorted(expected)]


@pytest.mark.parametrize(
    ("gpus", "level", "words"),
    [
        (2, TRACE, f"best device combination={CARD_1},"),
        (1, TRACE, f"worst device={CARD_1}]}}"),
        (2, logging.DEBUG, ""),
    ],
)
def test_the_log_has_the_documents_line_on_the_chosen_cards(
    gpus: int, level: int, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(level):
        placed(gpus, grouped("n", 2, 4))
    lines = [line for line in caplog.messages if "device allocate success" in line]
    assert len(lines) == bool(words)
    assert all(line.startswith(f'"device allocate success" pod="default/p" {words}') for line in lines)


# nvidia.com/require-nvlink


async def test_a_required_link_refuses_the_nodes_without_and_an_event_names_them() -> None:
    env = PlacerEnv()
    await env.add(grouped("pairs", 2, 2), grouped("pcie", 1, 1, 1, 1), node("blind", *map(card, "abcd")))
    wants = pod("p", gpu=4, mem=1024, annotations=REQUIRED)
    assert await env.refused(wants) == dict.fromkeys(("pairs", "pcie", "blind"), "4/4 NVLinkNotFit")
    messages = [message for _, reason, message in env.events("p") if reason == "FilteringFailed"]
    assert "3 nodes NVLinkNotFit(blind,pairs,pcie)" in messages
    assert any("hami.io/node-nvidia-score, which isn't on blind" in message for message in messages), messages
    await env.add(grouped("nvlink", 4))
    assert (await env.placed(wants)).node == "nvlink"


@pytest.mark.parametrize("part", ["default", "enforce"])
async def test_policy_can_require_links(part: str) -> None:
    env = PlacerEnv()
    rule = f"policies: [{{name: training, {part}: {{nvidia.com/require-nvlink: 'true'}}}}]"
    env.rules = PolicyFile.parse(rule, "policy.yaml", VENDORS)
    await env.add(grouped("pcie", 1, 1, 1, 1))
    own = {**TOPOLOGY, "nvidia.com/require-nvlink": "false"} if part == "enforce" else TOPOLOGY
    assert await env.refused(pod("p", gpu=4, mem=1024, annotations=own)) == {"pcie": "4/4 NVLinkNotFit"}
