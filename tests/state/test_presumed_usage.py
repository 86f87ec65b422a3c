"""Cards of bound pods that don't say which they have, as they have no placement that can be read (core.md#10.5)."""

from __future__ import annotations

import json
from itertools import permutations
from typing import Any

import pytest
from builders import bound_pod, card, container, node, pod
from devices.fit_env import configured
from hypothesis import given
from hypothesis import strategies as st
from scheduling.placer_env import NOW, VENDORS, request_of, view_of

from hami_webhook.cluster.api import JSON
from hami_webhook.devices.pod_fit import NodeFit, fit_pod
from hami_webhook.devices.reasons import Rejection
from hami_webhook.devices.registry import Vendors
from hami_webhook.kube.objects import Node, Pod
from hami_webhook.state.cluster_cache import ClusterCache
from hami_webhook.state.node_snapshot import NodeSnapshot

GPU = "nvidia.com/gpu"


def foreign(name: str = "foreign", *containers: JSON, phase: str = "Running", **fields: Any) -> JSON:
    """A pod that another scheduler bound to node n, without a word about cards."""
    return pod(name, *containers, nodeName="n", schedulerName="default-scheduler", status={"phase": phase}, **fields)


def state_of(*objects: JSON, vendors: Vendors = VENDORS) -> ClusterCache:
    state = ClusterCache(vendors)
    for obj in objects:
        tell(state, obj)
    return state


def tell(state: ClusterCache, obj: JSON) -> None:
    if "spec" in obj:
        state.set_pod(Pod.from_object({**obj, "metadata": {"uid": obj["metadata"]["name"], **obj["metadata"]}}), NOW)
    else:
        state.set_node(Node.from_object(obj), NOW)


def holders(state: ClusterCache) -> dict[str, list[str]]:
    """Who is on which card."""
    usage = sorted(view_of(state).usage.items())
    return {uuid: [holder.pod.name for holder in used.holders] for (_, uuid), used in usage}


def fits(state: ClusterCache, asking: JSON) -> bool:
    found = fit_pod(view_of(state), request_of(asking), VENDORS, None)
    assert isinstance(found, NodeFit | Rejection)
    return isinstance(found, NodeFit)


def asking(**amounts: object) -> JSON:
    return pod("new", container(limits={name: str(amount) for name, amount in amounts.items()}))


# every vendor


def listed(annotation: str, *, count: int = 1, **fields: Any) -> JSON:
    """A node with four cards that its plugin lists."""
    cards = [
        {"id": f"C{i}", "index": i, "count": count, "devmem": 32768, "devcore": 100, "type": "T", "health": True}
        for i in range(4)
    ]
    return {annotation: json.dumps([{**each, **fields} for each in cards])}


def sgpus() -> JSON:
    cards = [
        {
            "uuid": f"C{i}",
            "index": i,
            "totaldevcount": 16,
            "totalvram": 65536,
            "numa": 0,
            "totalcompute": 100,
            "healthy": True,
        }
        for i in range(4)
    ]
    return {"metax-tech.com/node-gpu-devices": json.dumps(cards)}


COUNTED: dict[str, tuple[JSON, JSON, str, int]] = {
    # annotations of a node of four cards, what it offers, the resource, and how many of it four cards are
    "NVIDIA": (listed("hami.io/node-nvidia-register", count=10), {GPU: 40}, GPU, 4),
    "Metax-GPU": ({}, {"metax-tech.com/gpu": 4}, "metax-tech.com/gpu", 4),
    "Metax-SGPU": (sgpus(), {"metax-tech.com/sgpu": 64}, "metax-tech.com/sgpu", 4),
    "kunlun": ({}, {"kunlunxin.com/xpu": 4}, "kunlunxin.com/xpu", 4),
    "Enflame": ({}, {"enflame.com/gcu-count": 4, "enflame.com/shared-gcu": 24}, "enflame.com/shared-gcu", 24),
    "AWSNeuron": (
        {},
        {"aws.amazon.com/neuron": 4, "aws.amazon.com/neuroncore": 8},
        "aws.amazon.com/neuron",
        4,
    ),
    "AWSNeuron cores": (
        {},
        {"aws.amazon.com/neuron": 4, "aws.amazon.com/neuroncore": 8},
        "aws.amazon.com/neuroncore",
        8,
    ),
    "Biren": (listed("hami.io/node-biren-register"), {"birentech.com/gpu": 4}, "birentech.com/gpu", 4),
    "Vastai": (listed("hami.io/node-va-register"), {"vastaitech.com/va": 4}, "vastaitech.com/va", 4),
    "Ascend910B4": (
        listed("hami.io/node-register-Ascend910B4", count=4),
        {"huawei.com/Ascend910B4": 16},
        "huawei.com/Ascend910B4",
        4,
    ),
    "MLU": (
        {},
        {"cambricon.com/vmlu": 40, "cambricon.com/mlu.smlu.vmemory": 400, "cambricon.com/mlu.smlu.vcore": 400},
        "cambricon.com/vmlu",
        4,
    ),
    "DCU": (listed("hami.io/node-dcu-register", count=4), {"hygon.com/dcunum": 16}, "hygon.com/dcunum", 4),
}


@pytest.mark.parametrize("vendor", COUNTED)
def test_cards_of_every_vendor_that_a_pod_of_another_scheduler_holds_are_taken(vendor: str) -> None:
    annotations, offered, resource, whole = COUNTED[vendor]
    state = state_of(node("n", capacity=offered, labels={"node.kubernetes.io/instance-type": "inf2"}, **annotations))
    assert vendor == "Enflame" or fits(state, asking(**{resource: 1}))  # whose pods ask by another name
    tell(state, foreign("foreign", container(limits={resource: str(whole)})))
    view = view_of(state)
    cards = [device for inventory in view.inventories.values() for device in inventory.devices]
    assert len(cards) == 4
    assert all([each.pod.name for each in view.used(d.vendor, d.uuid).holders] for d in cards)
    if vendor != "Enflame":
        assert not fits(state, asking(**{resource: 1}))
    tell(state, foreign("foreign", container(limits={resource: str(whole)}), phase="Succeeded"))
    assert view_of(state).usage == {}
    assert vendor == "Enflame" or fits(state, asking(**{resource: 1}))


@pytest.mark.parametrize("vendor", COUNTED)
def test_one_card_fewer_leaves_one(vendor: str) -> None:
    annotations, offered, resource, whole = COUNTED[vendor]
    state = state_of(node("n", capacity=offered, labels={"node.kubernetes.io/instance-type": "inf2"}, **annotations))
    tell(state, foreign("foreign", container(limits={resource: str(whole * 3 // 4)})))
    view = view_of(state)
    free = [
        d.index for each in view.inventories.values() for d in each.devices if not view.used(d.vendor, d.uuid).slots
    ]
    assert free == [0]


# which cards


FOUR = [card(f"C{i}") for i in range(4)]


def test_cards_where_nobody_is_are_presumed_first_the_last_ones_before() -> None:
    ours = bound_pod("ours", "n", "C3,NVIDIA,1000,0:;")
    state = state_of(node("n", *FOUR), ours, foreign(gpu=2))
    assert holders(state) == {"C1": ["foreign"], "C2": ["foreign"], "C3": ["ours"]}


def test_a_card_is_not_counted_twice_unless_there_are_too_few() -> None:
    """Of the last one only the rest is taken: nothing is counted beyond what a card has."""
    ours = [bound_pod(f"p{i}", "n", f"C{i},NVIDIA,{1000 * (i + 1)},0:;") for i in range(4)]
    state = state_of(node("n", *FOUR), *ours, foreign(gpu=1))
    assert holders(state)["C3"] == ["p3", "foreign"]
    used = view_of(state).used("NVIDIA", "C3")
    assert (used.slots, used.memory, used.cores) == (10, 40960, 100)
    assert fits(state, pod("new", gpu=1, mem=30000))
    assert not fits(state, pod("new", gpu=4, mem=100))


def test_what_a_pod_names_beyond_what_kubelet_counts_makes_it_no_smaller() -> None:
    state = state_of(node("n", card("C0"), capacity={GPU: 10}), foreign(gpu=1, mem=100))
    assert not fits(state, pod("new", gpu=1, mem=100))


def test_a_pod_that_nobody_keeps_to_the_default_memory_holds_whole_cards() -> None:
    """Unless kubelet counts what it names."""
    vendors = configured(
        "nvidia: {resourceCountName: nvidia.com/gpu, resourceMemoryName: nvidia.com/gpumem, "
        "resourceMemoryPercentageName: nvidia.com/gpumem-percentage, defaultMemory: 4000}"
    )
    offered = {GPU: 10, "nvidia.com/gpumem": 40960, "nvidia.com/gpumem-percentage": 100}
    for named, held in (({}, 40960), ({"mem": 1000}, 1000), ({"percent": 50}, 20480)):
        state = state_of(
            node("n", card("C0"), capacity=offered), foreign("foreign", container(gpu=1, **named)), vendors=vendors
        )
        assert view_of(state).used("NVIDIA", "C0").memory == held


def test_slices_that_kubelet_counts_are_that_share_of_cards() -> None:
    offered = {"enflame.com/gcu-count": 1, "enflame.com/shared-gcu": 4}
    slices = foreign("foreign", container(limits={"enflame.com/shared-gcu": "3"}))
    used = view_of(state_of(node("n", capacity=offered), slices)).used("Enflame", "n-enflame-0")
    assert (used.slots, used.memory, used.cores) == (3, 75, 0)


def test_an_unhealthy_card_is_presumed_last() -> None:
    state = state_of(node("n", *FOUR, unhealthy={"C3": ["lost"]}), foreign(gpu=1))
    assert holders(state) == {"C2": ["foreign"]}


# who counts


ORDINARY: dict[str, JSON] = {
    "no cards": foreign("foreign", container(cpu="1")),
    "a placement of ours": bound_pod("foreign", "n", "C0,NVIDIA,1000,0:;", container(gpu=1)),
    "another node": {**foreign(gpu=1), "spec": {**foreign(gpu=1)["spec"], "nodeName": "m"}},
    "it is over": foreign(phase="Failed", gpu=1),
    "it waits": pod("foreign", gpu=1),
    "of the mixed strategy": foreign("foreign", container(limits={"nvidia.com/mig-1g.5gb": "1"})),
    "none": foreign(gpu=0),
    "Volcano's": foreign("foreign", container(limits={"volcano.sh/vgpu-number": "1"})),
    "a claim holds it": {
        **foreign(gpu=1),
        "status": {"phase": "Running", "extendedResourceClaimStatus": {"resourceClaimName": "foreign-1"}},
    },
}


@pytest.mark.parametrize("raw", ORDINARY.values(), ids=ORDINARY)
def test_pods_that_hold_none_or_say_which_are_presumed_nowhere(raw: JSON) -> None:
    """The ordinary day: nothing is taken besides what pods say."""
    state = state_of(node("n", *FOUR), raw)
    assert holders(state) == (
        {"C0": ["foreign"]} if "hami.io/vgpu-node" in raw["metadata"].get("annotations", {}) else {}
    )
    assert view_of(state).unplaced == ()


def test_an_allocation_that_does_not_count_as_a_placement_is_none() -> None:
    written = {"hami.io/vgpu-devices-allocated": "C0,NVIDIA,1000,0:;"}
    assert holders(state_of(node("n", *FOUR), foreign(gpu=1, annotations=written))) == {"C3": ["foreign"]}


SPOILT = ("C0,NVIDIA:;", "C0,NVIDIA,x,0:;", "C0,NVIDIA,-1,0:;", "x", "", ";")


def spoilt(text: str, name: str = "spoilt", **asked: Any) -> JSON:
    """A pod that we placed, with this in place of its allocation."""
    return bound_pod(name, "n", text, container(**asked))


@pytest.mark.parametrize("text", SPOILT)
def test_a_placement_that_cannot_be_read_holds_what_the_pod_asked_for(text: str) -> None:
    """Nobody gets his cards for nothing by it, and nobody's else are taken: the rest of the card is given out."""
    state = state_of(node("n", *FOUR), spoilt(text, gpu=2, mem=40000, cores=30))
    assert holders(state) == {"C2": ["spoilt"], "C3": ["spoilt"]}
    for uuid in ("C2", "C3"):
        used = view_of(state).used("NVIDIA", uuid)
        assert (used.slots, used.memory, used.cores) == (1, 40000, 30)
    assert fits(state, pod("new", gpu=4, mem=900, cores=70))
    assert fits(state, pod("new", gpu=2, mem=40000))
    assert not fits(state, pod("new", gpu=3, mem=1000))
    tell(state, bound_pod("spoilt", "n", "C0,NVIDIA,100,0:;", container(gpu=1, mem=100)))
    assert holders(state) == {"C0": ["spoilt"]}


def test_tenants_who_spoil_placements_block_no_more_than_the_node_offers() -> None:
    """Who would be refused by kubelet holds nothing; all others' cards stay as they said."""
    huge = spoilt("x", "huge", gpu=41, mem=1)
    ours = bound_pod("ours", "n", "C3,NVIDIA,40000,100:;", container(gpu=1, mem=40000))
    state = state_of(node("n", *FOUR), huge, ours, *[spoilt("x", f"s{i}", gpu=1, mem=1000) for i in range(9)])
    assert holders(state)["C3"] == ["ours"]
    assert sum(len(names) for names in holders(state).values()) == 10
    assert view_of(state).used("NVIDIA", "C3").memory == 40000
    assert fits(state, pod("new", gpu=3, mem=30000))


@given(st.lists(st.tuples(st.sampled_from(SPOILT), st.integers(1, 3), st.integers(1, 40960)), max_size=6))
def test_what_cannot_be_read_takes_what_was_asked_for_or_what_is_left(pods: list[tuple[str, int, int]]) -> None:
    """No card is overfull, and a node holds no more than its pods asked for, unless they fit on it no more."""
    raw = [spoilt(text, f"s{i}", gpu=gpu, mem=mem) for i, (text, gpu, mem) in enumerate(pods)]
    usage = view_of(state_of(node("n", *FOUR), *raw)).usage.values()
    asked = sum(gpu * mem for _, gpu, mem in pods)
    held = sum(used.memory for used in usage)
    assert all(used.memory <= 40960 and used.slots <= 10 for used in usage)
    assert held <= asked
    assert held == asked or asked > 2 * 40960  # what is placed first may be in the way of what comes later


INIT = container("init", gpu=3)
CONTAINERS: list[tuple[JSON, int]] = [
    (foreign("foreign", container("a", gpu=1), container("b", gpu=2)), 3),
    (foreign("foreign", container("a", gpu=1), init=[INIT]), 3),
    (foreign("foreign", container("a", gpu=1), init=[container("s", gpu=1, sidecar=True), container("i", gpu=2)]), 3),
    (foreign("foreign", container("a", gpu=1), init=[container("i", gpu=1), container("s", gpu=1, sidecar=True)]), 2),
    (foreign("foreign", container(requests={GPU: "2"})), 2),
    (
        {
            **foreign("foreign", container("a", gpu=1), init=[INIT]),
            "status": {
                "phase": "Running",
                "initContainerStatuses": [{"name": "init", "state": {"terminated": {"exitCode": 0}}}],
            },
        },
        1,
    ),
    ({**foreign(gpu=2), "metadata": {"name": "foreign", "deletionTimestamp": "2026-01-01T00:00:00Z"}}, 2),
]


@pytest.mark.parametrize(("raw", "cards"), CONTAINERS)
def test_containers_hold_what_runs_at_once(raw: JSON, cards: int) -> None:
    assert len(holders(state_of(node("n", *FOUR), raw))) == cards


# attacks


def test_a_pod_that_kubelet_would_refuse_takes_nothing() -> None:
    """A tenant who sets spec.nodeName blocks no more than the node offers, and whoever runs comes first."""
    huge = foreign("huge", container(limits={GPU: str(10**12)}), phase="Pending")
    late = foreign("late", container(limits={GPU: "39"}), phase="Pending")
    state = state_of(node("n", *FOUR), huge, late, foreign("runs", gpu=2))
    assert [each.name for each in view_of(state).unplaced] == ["runs"]
    assert holders(state) == {"C2": ["runs"], "C3": ["runs"]}


def test_numbers_that_mean_harm_take_the_node_and_no_time() -> None:
    many = node("n", *[card(f"C{i}", count=2**31 - 1) for i in range(256)], capacity={GPU: 2**40})
    state = state_of(many, *[foreign(f"f{i}", container(limits={GPU: str(2**31 - 1)})) for i in range(20)])
    assert not fits(state, pod("new", gpu=1, mem=1))
    assert sum(len(used.holders) for used in view_of(state).usage.values()) <= 2000


def test_a_request_that_cannot_be_meant_harms_nobody() -> None:
    state = state_of(node("n", *FOUR), foreign("odd", container(limits={GPU: "many"})), foreign("f", gpu=1))
    assert holders(state) == {"C3": ["f"]}


# changes


def test_the_node_changes_when_such_a_pod_comes_or_goes_and_not_for_a_new_version_of_it() -> None:
    state = state_of(node("n", *FOUR))
    before = view_of(state)
    tell(state, foreign(gpu=1))
    after = view_of(state)
    assert after.generation > before.generation
    raw = foreign(gpu=1)
    tell(state, {**raw, "metadata": {**raw["metadata"], "resourceVersion": "7"}})
    assert view_of(state) is after
    state.remove_pod("foreign")
    assert view_of(state).generation > after.generation
    assert view_of(state).usage == {}


def test_a_pod_on_a_node_that_comes_later_counts_there() -> None:
    state = state_of(foreign(gpu=1))
    assert list(state.views()) == []
    tell(state, node("n", *FOUR))
    assert holders(state) == {"C3": ["foreign"]}
    state.remove_node("n")
    tell(state, node("n", *FOUR))
    assert holders(state) == {"C3": ["foreign"]}


def test_it_is_presumed_elsewhere_once_victims_are_gone() -> None:
    """Whoever is evicted leaves a card on which it may be; it is no victim itself."""
    ours = [bound_pod(f"p{i}", "n", f"C{i},NVIDIA,{1000 * (i + 1)},0:;", container(gpu=1)) for i in range(2)]
    state = state_of(node("n", *FOUR[:2]), *ours, foreign(gpu=1))
    snapshot = NodeSnapshot(view_of(state), state.allocations("n"), {})
    left = snapshot.without(("p0",), VENDORS)
    assert [holder.pod.name for holder in left.used("NVIDIA", "C0").holders] == ["foreign"]
    assert [holder.pod.name for holder in left.used("NVIDIA", "C1").holders] == ["p1"]
    assert {each.pod.name for each in state.allocations("n")} == {"p0", "p1"}


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 40960)), max_size=4, unique_by=lambda each: each[0]),
    st.lists(st.integers(1, 4), max_size=3),
)
def test_any_order_of_events_presumes_the_same_and_no_card_is_overfull(
    ours: list[tuple[int, int]], counts: list[int]
) -> None:
    objects = [
        *[bound_pod(f"p{i}", "n", f"C{i},NVIDIA,{memory},0:;") for i, memory in ours],
        *[foreign(f"f{i}", gpu=count) for i, count in enumerate(counts)],
    ]
    seen = []
    for order in list(permutations([node("n", *FOUR), *objects]))[:24]:
        usage = view_of(state_of(*order)).usage
        seen.append({uuid: (u.slots, u.memory, u.cores) for (_, uuid), u in usage.items()})
        assert all(used.memory <= 40960 and used.slots <= 10 for used in usage.values())
    assert all(each == seen[0] for each in seen)
    free = 4 - len(ours)
    assert len(seen[0]) == len(ours) + min(free, sum(counts))
