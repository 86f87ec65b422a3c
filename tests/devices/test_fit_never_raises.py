"""No node, no pod and no quota makes a rule of a vendor raise what isn't announced: for every vendor.

The nodes are those of the examples, several in one, with parts of what they register changed at random; the pods are
what the examples request, with other amounts, kinds of containers and annotations, placed one after another and
changed at random too. What a rule raises reaches the test, as no fault is kept to its node here.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from random import Random
from typing import NoReturn

import pytest
from builders import container
from every_node import evaluate
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from hami_webhook.admission.denial import Denied
from hami_webhook.admission.pods import normalise
from hami_webhook.admission.requests import checked_requests
from hami_webhook.devices.codecs import DeviceEntry, encode_pod_devices
from hami_webhook.devices.model import BadRequest, NodeView
from hami_webhook.devices.pod_fit import NodeFit, read_pod_request
from hami_webhook.devices.pod_preferences import GPU_POLICY, NODE_POLICY, WEIGHTS
from hami_webhook.devices.reasons import Rejection
from hami_webhook.devices.registry import VendorFaults, Vendors
from hami_webhook.explain.node_reports import trace_fit
from hami_webhook.kube.draft import PodDraft
from hami_webhook.kube.objects import Node, Pod
from hami_webhook.quota.budget import PodBudget
from hami_webhook.quota.pricing import charge_of, price_pending
from hami_webhook.scheduling.placement_metadata import placement_annotations
from hami_webhook.scheduling.scoring import combinations, fit_and_score, hints, ranked, remarks, unregistered
from hami_webhook.state.cluster_cache import ClusterCache

from .fit_env import CHART, JSON, NOW, pod
from .test_conformance import CASES, OLD_ILUVATAR, Case, of_each_vendor

WORDS = ("", " ", ",", "x", "null", "0", "-1", "1g.5gb", "mig", "hami-core", "true", ";", ":", "a,b:c;", "\u0663", "{}")
NUMBERS = (-(2**31), -1, 0, 1, 2, 3, 7, 8, 100, 1024, 24576, 98304, 2**31 - 1, 2**31, 2**63)
VALUES: tuple[object, ...] = (*WORDS, *NUMBERS, None, True, False, 0.5, 1e300, [], {}, [[]], {"a": 1}, [None])
QUANTITIES = ("0", "1", "2", "3", "8", "16", "100", "49152", "1Ki", "16Gi", "1e3", "-1", "1500m", "many", "2147483648")
CAPACITIES = ("0", "1", "2", "3", "8", "64", "-1", "1500m", "many", "2147483648", "1e30")
"""Of a node; with a thousand cards a test is slow."""
POLICIES = ("binpack", "spread", "mutex", "numa", "numa-first", "topology-aware", "other", "")
MOST_CARDS = 12


class Loud(VendorFaults):
    """Lets a fault through."""

    def record(self, step: str, node: str, error: Exception) -> NoReturn:
        raise error


@pytest.fixture(autouse=True, scope="module")
def loud() -> object:
    with pytest.MonkeyPatch.context() as patch:
        for vendors in (CHART, OLD_ILUVATAR):
            patch.setattr(vendors, "faults", Loud())
        yield


def changed(random: Random, value: object, odds: float = 0.08) -> object:
    """The value with some of its parts replaced, left out or repeated."""
    if random.random() < odds:
        return random.choice(VALUES)
    if isinstance(value, dict):
        return {key: changed(random, each, odds) for key, each in value.items() if random.random() > odds}
    if isinstance(value, list):
        items = [changed(random, each, odds) for each in value if random.random() > odds]
        return [*items, *random.choices(items, k=1)] if items and random.random() < odds else items[:MOST_CARDS]
    if isinstance(value, int) and not isinstance(value, bool) and random.random() < 3 * odds:
        return random.choice((value + 1, value - 1, value * 2, value // 2, random.choice(NUMBERS)))
    return value


def changed_text(random: Random, text: str, wild: float) -> str:
    """An annotation, changed as what it is: JSON, or fields."""
    if random.random() > wild:
        return text
    with contextlib.suppress(ValueError):
        return json.dumps(changed(random, json.loads(text)))
    fields = text.split(",")
    for index in range(len(fields)):
        if random.random() < 0.1:
            fields[index] = str(random.choice(VALUES))
    return ",".join(fields)


def changed_quantity(random: Random, text: object, wild: float, quantities: Sequence[str] = QUANTITIES) -> str:
    return random.choice(quantities) if random.random() < wild / 2 else str(text)


def hostile_node(random: Random, name: str, kinds: Sequence[Node], wild: float) -> Node:
    """Several nodes of the examples in one, with some of what they register changed, the more the wilder."""
    annotations: dict[str, str] = {}
    capacity: dict[str, object] = {}
    allocatable: dict[str, object] = {}
    labels: dict[str, str] = {}
    for kind in kinds:
        annotations |= kind.annotations
        capacity |= kind.capacity
        allocatable |= kind.allocatable
        labels |= kind.labels
    raw = {
        "metadata": {
            "name": name,
            "labels": labels,
            "annotations": {key: changed_text(random, text, wild) for key, text in annotations.items()},
        },
        "status": {
            "capacity": {name: changed_quantity(random, text, wild, CAPACITIES) for name, text in capacity.items()},
            "allocatable": {
                name: changed_quantity(random, text, wild, CAPACITIES) for name, text in allocatable.items()
            },
        },
    }
    return Node.from_object(raw)


def amounts(random: Random, case: Case, wild: float) -> JSON:
    """What a container requests: as in the example, or of whatever the vendor has names for."""
    limits, _ = random.choice(case.requests)
    found = {name: changed_quantity(random, amount, wild) for name, amount in limits.items()}
    for name, amount in found.items():
        if name != case.vendor.count_name and amount.isdecimal() and random.random() < 0.5:
            found[name] = str(int(amount) * random.choice((1, 2, 4)) // random.choice((1, 2, 4)))
    for name in case.vendor.resource_names:
        if random.random() < wild / 3:
            found[name] = random.choice(QUANTITIES)
    if random.random() < 0.5:
        found[case.vendor.count_name] = str(random.choice((1, 1, 1, 2, 3, 4, 8)))
    return found


def preferences(random: Random, case: Case, uuids: Sequence[str], wild: float) -> dict[str, str]:
    """Annotations that a user writes."""
    _, notes = random.choice(case.requests)
    found = dict(notes)
    keys = case.vendor.keys
    for key in (*keys.lists, *keys.choices):
        if random.random() < wild / 4:
            found[key] = random.choice((*WORDS, *uuids, ",".join(uuids[:3]), f"{','.join(uuids)},"))
    if random.random() < 0.6:
        found[GPU_POLICY] = ",".join(random.choices(POLICIES, k=random.choice((1, 1, 2))))
    if random.random() < 0.2:
        found[NODE_POLICY] = random.choice(POLICIES)
    if random.random() < wild / 6:
        found[WEIGHTS] = random.choice(("slot=1,core=0,memory=2", "slot=0,core=0,memory=0", "x"))
    if random.random() < 0.2:
        found["nvidia.com/numa-bind"] = "true"
    return found


def running_pod(random: Random, name: str, view: NodeView, vendors: Vendors) -> Pod:
    """A pod of one container that holds a part of some of the node's cards, as it says itself."""
    notes = {"hami.io/vgpu-node": view.name, "hami.io/vgpu-time": str(int(NOW))}
    for key, inventory in view.inventories.items():
        part, most = random.choice((1, 2, 4, 4, 10)), random.random()
        held = [
            DeviceEntry(each.uuid, vendors[key].known_as, max(0, each.memory) // part, max(0, each.cores) // part)
            for each in inventory.devices
            if random.random() < most
        ]
        notes[vendors[key].keys.allocated] = encode_pod_devices([held])
    return Pod.from_object(pod(name, container("main"), annotations=notes, nodeName=view.name))


def hostile_pod(random: Random, name: str, cases: Sequence[Case], uuids: Sequence[str], wild: float) -> JSON:
    """A pod of one to four containers of all kinds."""
    notes: dict[str, str] = {}
    made: list[JSON] = []
    for index in range(random.choice((1, 1, 2, 3, 4))):
        case = random.choice(cases)
        notes |= preferences(random, case, uuids, wild)
        limits = amounts(random, case, wild) if random.random() < 0.9 else {}
        in_requests = random.random() < 0.1
        made.append(container(f"c{index}", requests=limits) if in_requests else container(f"c{index}", limits=limits))
    init = random.randrange(len(made))
    for each in made[:init]:
        if random.random() < 0.4:
            each["restartPolicy"] = "Always"
    return pod(name, *made[init:], init=made[:init], annotations=notes)


def admitted(manifest: JSON, state: ClusterCache, vendors: Vendors) -> Pod:
    """The pod as admission leaves it; as it is where admission refuses it, as it may be passed by."""
    draft = PodDraft(json.loads(json.dumps(manifest)))
    try:
        normalise(draft, vendors, state)
        checked_requests(draft.result(), vendors, state)
    except Denied:
        return Pod.from_object(manifest)
    return draft.result()


def budget_of(random: Random, incoming: Pod, vendors: Vendors) -> PodBudget | None:
    if random.random() < 0.5:
        return None
    keys = [key for key in vendors.quota_keys if random.random() < 0.6]
    return PodBudget(
        {key: random.choice((0, 1, 2, 100, 50_000, 10**6, 10**6, 10**9)) for key in keys}, incoming.kinds, vendors
    )


def place(random: Random, incoming: Pod, state: ClusterCache, vendors: Vendors) -> Pod | None:
    """All that is asked of the vendors about a pod that waits; the pod where it went, if a node takes it."""
    waiting_charge_of(incoming, state, vendors)
    try:
        request = read_pod_request(incoming, vendors, random.choice(POLICIES))
    except (BadRequest, ValueError):
        return None
    if request is None:
        return None
    views: list[NodeView] = list(state.views())
    budget = budget_of(random, incoming, vendors)
    scored = []
    failed: dict[str, Rejection] = {}
    for view in views:
        found = fit_and_score(view, request, vendors, budget, random.choice(("binpack", "spread")))
        if isinstance(found, Rejection):
            failed[view.name] = found
            assert str(found)
        else:
            scored.append(found[0])
        trace_fit(view, request, vendors, budget)
    assert len(evaluate(views, request, vendors, budget, "binpack").fits) == len(scored)
    hints(failed, request, views, vendors, state)
    remarks(request, views)
    list(unregistered(request, views, vendors))
    if not scored:
        return None
    best = ranked(scored, request, vendors, "binpack")[0]
    list(combinations(request, best))
    assert isinstance(best.fit, NodeFit)
    written = placement_annotations(incoming, best.fit, best.view, vendors, NOW)
    return replace(incoming, node_name=best.node, annotations={**incoming.annotations, **written})


def waiting_charge_of(incoming: Pod, state: ClusterCache, vendors: Vendors) -> None:
    with contextlib.suppress(BadRequest):
        price_pending(incoming, vendors, state.capacity)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.key)
@of_each_vendor
@given(random=st.randoms(use_true_random=True))
def test_no_node_and_no_pod_makes_a_rule_raise(case: Case, random: Random) -> None:
    others = [each for each in CASES if each.vendors is case.vendors]
    wild = random.choice((0.0, 0.1, 0.3, 0.8))
    state = ClusterCache(case.vendors)
    nodes: Mapping[str, Node] = {}
    for name in ("a", "b")[: random.choice((1, 2))]:
        kinds = [random.choice(case.nodes)]
        if random.random() < 0.3:
            kinds.append(random.choice(random.choice(others).nodes))
        found = hostile_node(random, name, kinds, wild)
        state.set_node(found, NOW)
        nodes = {**nodes, name: found}
    uuids = [each.uuid for view in state.views() for i in view.inventories.values() for each in i.devices]
    if random.random() < 0.6:
        for view in list(state.views()):
            state.set_pod(running_pod(random, f"running-{view.name}", view, case.vendors), NOW)
    for index in range(random.choice((1, 2, 4, 6))):
        cases = [case] if random.random() < 0.7 else [case, random.choice(others)]
        incoming = admitted(hostile_pod(random, f"p{index}", cases, uuids, wild), state, case.vendors)
        placed = place(random, incoming, state, case.vendors)
        if placed is None:
            # another scheduler may bind it without cards
            placed = replace(incoming, node_name="a")
        elif random.random() < 0.4:
            notes = {key: changed_text(random, text, 0.5) for key, text in placed.annotations.items()}
            placed = replace(placed, annotations=notes)
        charge_of(placed, case.vendors, state.capacity, NOW)
        state.set_pod(placed, NOW)
        if random.random() < 0.1:
            state.set_node(hostile_node(random, "a", [nodes["a"]], wild), NOW)
