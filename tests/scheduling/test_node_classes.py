"""Nodes that differ in nothing but names are asked once, and that never changes an answer: for every vendor."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from random import Random

import pytest
from builders import card, pod, read_node
from devices.fit_env import CHART, JSON, NOW, FitEnv, placed_pod
from devices.test_conformance import CASES, Case, every_vendor
from devices.test_fit_never_raises import (
    POLICIES,
    admitted,
    budget_of,
    changed_text,
    hostile_node,
    hostile_pod,
    running_pod,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from hami_webhook.devices.codecs import DeviceEntry, encode_pod_devices
from hami_webhook.devices.model import BadRequest, NodeView
from hami_webhook.devices.pod_fit import PodRequest, read_pod_request
from hami_webhook.devices.reasons import Rejection
from hami_webhook.devices.registry import Vendors
from hami_webhook.kube.objects import Node, Pod
from hami_webhook.quota.budget import PodBudget
from hami_webhook.quota.card_selection import CardSelection
from hami_webhook.scheduling.filter_cache import FilterCache
from hami_webhook.scheduling.node_classes import NodeClasses
from hami_webhook.scheduling.scoring import NodeRank, fit_and_score
from hami_webhook.state.cluster_cache import ClusterCache
from hami_webhook.state.nominations import Nominations

EXAMPLES = settings().max_examples
"""For each vendor, of clusters that change twice: 10,000 and more where each property has 200."""
LABELS: Sequence[Mapping[str, str]] = ({}, {"pool": "train"})


def like(design: Node, name: str, vendors: Vendors, labels: Mapping[str, str]) -> Node:
    """A node that differs from another in its name, its cards' names, and labels."""
    state = ClusterCache(vendors)
    state.set_node(design, NOW)
    view = state.view(design.name)
    assert view is not None
    uuids = {device.uuid for inventory in view.inventories.values() for device in inventory.devices}
    annotations = dict(design.annotations)
    for uuid in sorted(uuids, key=len, reverse=True):
        if len(uuid) > 2:  # else it may be a part of anything
            annotations = {key: text.replace(uuid, f"{uuid}-{name}") for key, text in annotations.items()}
    return replace(design, name=name, annotations=annotations, labels={**design.labels, **labels})


def cards_of(views: Sequence[NodeView]) -> list[str]:
    return [each.uuid for view in views for inventory in view.inventories.values() for each in inventory.devices]


def held_alike(held: Pod, name: str, one: NodeView, other: NodeView) -> Pod:
    """A pod that holds of one node what another does of one like it."""
    annotations = dict(held.annotations)
    names = dict(zip(cards_of([one]), cards_of([other]), strict=False))
    for uuid in sorted(names, key=len, reverse=True):
        annotations = {key: text.replace(uuid, names[uuid]) for key, text in annotations.items()}
    return replace(held, uid=f"uid-{name}", name=name, node_name=other.name, annotations=annotations)


class Fleet:
    """Nodes of few designs, and pods on them, some of which hold equal cards equally."""

    def __init__(self, random: Random, case: Case) -> None:
        self.random, self.case, self.vendors = random, case, case.vendors
        self.state = ClusterCache(case.vendors)
        self.nominations = Nominations(self.state, case.vendors, clock=lambda: NOW)
        self.card_policy = random.choice(POLICIES)  # one, as of each extender
        self.wild = random.choice((0.0, 0.0, 0.1, 0.4))
        self.names = ["a", "b", "c", "d", "e", "f"][: random.choice((2, 4, 6))]
        self.designs = [hostile_node(random, "design", self._kinds(), self.wild) for _ in range(random.choice((1, 2)))]
        self.design_of: dict[str, Node] = {}
        for name in self.names:
            self._register(name)
        for name in self.names:
            self._run(name)

    def _kinds(self) -> Sequence[Node]:
        kinds = [self.random.choice(self.case.nodes)]
        others = [each for each in CASES if each.vendors is self.vendors]
        return [*kinds, self.random.choice(self.random.choice(others).nodes)] if self.random.random() < 0.3 else kinds

    def _register(self, name: str) -> None:
        self.design_of[name] = design = self.random.choice(self.designs)
        node = like(design, name, self.vendors, self.random.choice(LABELS))
        if node.annotations and self.random.random() < 0.3:  # nearly like it
            key = self.random.choice(sorted(node.annotations))
            text = changed_text(self.random, node.annotations[key], 1)
            node = replace(node, annotations={**node.annotations, key: text})
        self.state.set_node(node, NOW)

    def views(self) -> list[NodeView]:
        return list(self.state.views())

    def _run(self, name: str) -> None:
        """Run a pod on a node, or what one like it runs."""
        view = self.state.view(name)
        assert view is not None
        like_it = [each for each in self.names if each != name and self.design_of[each] is self.design_of[name]]
        if like_it and self.random.random() < 0.6:
            other = self.random.choice(like_it)
            model = self.state.view(other)
            assert model is not None
            for number, each in enumerate(self.state.allocations(other)):
                held = held_alike(each.pod, f"{name}-{number}", model, view)
                notes = self._notes() if self.random.random() < 0.3 else {}
                self.state.set_pod(replace(held, annotations={**held.annotations, **notes}), NOW)
        elif self.random.random() < 0.7:
            held = running_pod(self.random, f"{name}-0", view, self.vendors)
            self.state.set_pod(replace(held, annotations={**self._notes(), **held.annotations}), NOW)

    def _notes(self) -> Mapping[str, str]:
        """What the owner of a pod that runs has written of its cards, such as who may share them."""
        written = [notes for _, notes in self.case.requests if notes]
        return self.random.choice(written) if written else {}

    def change(self) -> None:
        name = self.random.choice(self.names)
        match self.random.choice(("run", "end", "register", "gone", "nominate", "plugin")):
            case "run":
                self._run(name)
            case "end":
                self.state.remove_pod(f"uid-{name}-0")
            case "register":
                self._register(name)
            case "gone":
                self.state.remove_node(name)
                self._register(name)
            case "nominate":
                waiting = hostile_pod(self.random, f"nominated-{name}", [self.case], (), self.wild)
                self.nominations.nominate([(Pod.from_object(waiting), name)], NOW + 60, {})
            case "plugin":  # its cards are gone, and may still be held
                node = self.state.node(name)
                assert node is not None
                self.state.set_node(replace(node, annotations={}), NOW)

    def asking(self) -> tuple[PodRequest, PodBudget | None] | None:
        uuids = cards_of(self.views())
        manifest = hostile_pod(self.random, "asking", [self.case], uuids, self.wild)
        incoming = admitted(manifest, self.state, self.vendors)
        try:
            request = read_pod_request(incoming, self.vendors, self.card_policy)
        except (BadRequest, ValueError):
            return None
        budget = budget_of(self.random, incoming, self.vendors)
        if budget is not None and self.random.random() < 0.5:
            cards = CardSelection(node_labels=(("pool", "train"),))
            budget = PodBudget({}, incoming.kinds, self.vendors, selected={cards: budget})
        return None if request is None else (request, budget)


def one_by_one(
    fleet: Fleet, request: PodRequest, budget: PodBudget | None, policy: str
) -> Mapping[str, NodeRank | Rejection]:
    """What every node answers by itself."""
    answers: dict[str, NodeRank | Rejection] = {}
    for each in fleet.views():
        view = fleet.nominations.view(each, request.pod)
        found = fit_and_score(view, request, fleet.vendors, budget, policy)
        answers[each.name] = found if isinstance(found, Rejection) else found[1]
    return answers


@every_vendor
@settings(max_examples=EXAMPLES if EXAMPLES >= 200 else EXAMPLES // 3)
@given(random=st.randoms(use_true_random=True))
def test_nodes_answer_as_if_each_was_asked(case: Case, random: Random) -> None:
    """As the cluster changes, with pods that name cards, and budgets of some nodes' cards."""
    fleet, policy = Fleet(random, case), random.choice(("binpack", "spread"))
    memory = FilterCache(fleet.state, case.vendors, policy, nominations=fleet.nominations)
    for _ in range(3):
        for _ in range(2):
            if (asking := fleet.asking()) is None:
                continue
            found = memory.filtered(*asking, [view.name for view in fleet.views()])
            assert {**{each.node: each for each in found.fits}, **found.failed} == one_by_one(fleet, *asking, policy)
        fleet.change()


# which nodes are equal


def holds_cards(case: Case, design: Node) -> bool:
    (view,) = case.env([design]).state.views()
    return case.key in view.inventories


def holding_first_card(view: NodeView, number: int, case: Case) -> Pod:
    card = view.inventories[case.key].devices[0]
    entry = DeviceEntry(card.uuid, case.vendor.known_as, card.memory // 2, card.cores // 2)
    return placed_pod(f"held-{number}", on=view.name, **{case.vendor.keys.allocated: encode_pod_devices([[entry]])})


@every_vendor
def test_names_alone_make_no_node_another(case: Case) -> None:
    """With a pod on each that holds the same, all nodes of an example are asked once."""
    for design in case.nodes:
        if not holds_cards(case, design):
            continue
        nodes = [like(design, f"copy-{number}", case.vendors, {"number": str(number)}) for number in range(3)]
        env = case.env(nodes)
        for number, view in enumerate(list(env.state.views())):
            env.state.set_pod(holding_first_card(view, number, case), NOW)
        classes = NodeClasses(case.vendors)
        assert len({classes.of(view) for view in env.state.views()}) == 1, design.name
        env.state.remove_pod("uid-held-1")
        assert len({classes.of(view) for view in env.state.views()}) == 2, design.name


ALLOCATED = CHART["NVIDIA"].keys.allocated
GPUS = [read_node(name, card(f"{name}-0", 8000), card(f"{name}-1", 8000), labels={"pool": name}) for name in "abcd"]


def asked(env: FitEnv, manifest: JSON, budget: PodBudget | None = None) -> int:
    """How many nodes a pod that is new is tested on."""
    memory = FilterCache(env.state, CHART, "binpack")
    request = read_pod_request(Pod.from_object(manifest), CHART, "spread")
    assert request is not None
    memory.filtered(request, budget, "abcd")
    return memory.tested


OTHERS = {
    "memory": read_node("d", card("d-0", 8000), card("d-1", 9000)),
    "order": read_node("d", card("d-1", 8000, index=1), card("d-0", 8000, index=0)),
    "health": read_node("d", card("d-0", 8000), card("d-1", 8000), unhealthy={"d-1": ["lost"]}),
    "links": read_node("d", card("d-0", 8000), card("d-1", 8000), scores={"d-0": {"d-1": 200}, "d-1": {"d-0": 200}}),
    "cordoned": read_node("d", card("d-0", 8000), card("d-1", 8000), **{"hami.io/device-cordon": "d-0"}),
    "twice": read_node("d", card("d-0", 8000), card("d-0", 8000)),
}


@pytest.mark.parametrize("node", OTHERS.values(), ids=OTHERS)
def test_a_node_that_is_registered_otherwise_is_asked_itself(node: Node) -> None:
    assert asked(FitEnv([*GPUS[:3], node]), pod(gpu=1, mem=1000)) == 2


@pytest.mark.parametrize(
    ("annotations", "nodes"),
    [
        ({}, 1),
        ({"nvidia.com/use-gpuuuid": "b-1"}, 2),
        ({"nvidia.com/nouse-gpuuuid": "a-0,c-1,c-0"}, 3),
        ({"nvidia.com/nouse-gpuuuid": "elsewhere"}, 1),
        ({"nvidia.com/use-gputype": "A100"}, 1),
    ],
)
def test_a_pod_that_names_cards_asks_their_nodes_themselves(annotations: JSON, nodes: int) -> None:
    assert asked(FitEnv(GPUS), pod(gpu=1, mem=1000, annotations=annotations)) == nodes


def test_a_quota_of_some_nodes_cards_asks_one_of_them_and_one_of_the_others() -> None:
    cards = CardSelection(node_labels=(("pool", "b"),))
    limits = PodBudget({"limits.nvidia.com/gpumem": 1}, Pod.from_object(pod(gpu=1)).kinds, CHART)
    budget = PodBudget({}, Pod.from_object(pod(gpu=1)).kinds, CHART, selected={cards: limits})
    assert asked(FitEnv(GPUS), pod(gpu=1, mem=1000), budget) == 2


def test_what_pods_hold_makes_a_node_another_until_they_are_gone() -> None:
    env = FitEnv(GPUS)
    classes = NodeClasses(CHART)

    def number() -> int:
        return len({classes.of(view) for view in env.state.views()})

    def hold(pod: str, node: str, card: str) -> None:
        env.state.set_pod(placed_pod(pod, on=node, **{ALLOCATED: f"{card},NVIDIA,100,0:;"}), NOW)

    hold("p", "a", "a-1")
    assert number() == 2
    hold("q", "b", "b-1")
    assert number() == 2
    hold("r", "c", "c-0")
    assert number() == 3
    for uid in [each.uid for each in list(env.state.pods())]:
        env.state.remove_pod(uid)
    assert number() == 1


def test_who_holds_a_metax_card_makes_its_node_another() -> None:
    case = next(each for each in CASES if each.key == "Metax-SGPU")
    env = case.env([like(case.nodes[0], name, CHART, {}) for name in "abc"])
    for number, view in enumerate(list(env.state.views())):
        held = holding_first_card(view, number, case)
        own = {"metax-tech.com/sgpu-app-class": "online"} if view.name == "c" else {}
        env.state.set_pod(replace(held, annotations={**held.annotations, **own}), NOW)
    classes = NodeClasses(CHART)
    assert len({classes.of(view) for view in env.state.views()}) == 2


def test_the_dies_of_a_board_make_nodes_equal_whatever_the_boards_are_called() -> None:
    def node(name: str, *boards: str) -> Node:
        dies = [
            {"id": f"{name}-{i}", "index": i, "count": 1, "devmem": 1, "health": True,
             "custominfo": {"DeviceStrategy": "die", "AIC": board}}
            for i, board in enumerate(boards)
        ]  # fmt: skip
        return read_node(name, **{"hami.io/node-va-register": json.dumps(dies)})

    env = FitEnv([node("a", "x", "x", "y", "y"), node("b", "1", "1", "2", "2"), node("c", "x", "y", "x", "y")])
    classes = NodeClasses(CHART)
    assert [len(view.inventories) for view in env.state.views()] == [1, 1, 1]
    one, same, other = (classes.of(view) for view in env.state.views())
    assert one is same
    assert one is not other


@pytest.mark.vendor_faults
def test_a_fault_of_a_vendor_s_rules_is_counted_and_logged_for_each_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it is in its traits, each node is asked itself."""

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError

    nvidia = CHART["NVIDIA"]
    monkeypatch.setattr(nvidia, "selection", fail)
    before = CHART.faults.counts["fit"]
    assert asked(FitEnv(GPUS), pod(gpu=1, mem=1000)) == 4
    assert CHART.faults.counts["fit"] == before + 4
    monkeypatch.undo()
    monkeypatch.setattr(nvidia, "traits", fail)
    assert asked(FitEnv(GPUS), pod(gpu=1, mem=1000)) == 4
