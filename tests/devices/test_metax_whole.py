"""Metax-GPU: registration, the topology tables, Fit of whole cards, broken ones.

Source: docs/spec/metax.md#3, #6 to #8, #11, #13.
"""

from __future__ import annotations

import json

import pytest
from builders import container, read_node
from hypothesis import given
from hypothesis import strategies as st

from hami_webhook.devices.device_lister import NO_DEVICES
from hami_webhook.devices.model import FixedMemory, Request
from hami_webhook.devices.vendors.metax.whole import read_table
from hami_webhook.kube.draft import PodDraft
from hami_webhook.kube.objects import Node, Pod
from hami_webhook.scheduling.cluster_cache import ClusterCache

from .fit_env import CHART, NOW, FitEnv, configured, pod
from .metaxes import (
    CARD_POLICY,
    GPU,
    GPU_ALLOCATED,
    LOSSES,
    NODE_POLICY,
    cards_of,
    gpu_node,
    one,
    placed,
    pod_with_limits,
)

WHOLE = CHART["Metax-GPU"]
LOSS_TABLE = {"1": 150, "2": 80, "3": 390, "4": 80, "5": 150, "6": 0}
SCORE_TABLE = {"1": 0, "2": 110, "3": 330, "4": 660, "5": 700, "6": 850}


def test_capacity_makes_cards() -> None:
    inventory = WHOLE.inventory(gpu_node(2))
    assert inventory is not None
    assert [(d.uuid, d.index, d.slots, d.memory, d.cores, d.type, d.numa, d.healthy) for d in inventory.devices] == [
        ("n1-metax-0", 0, 1, 65536, 100, "Metax-GPU", 0, True),
        ("n1-metax-1", 1, 1, 65536, 100, "Metax-GPU", 0, True),
    ]


@pytest.mark.parametrize("count", ["0", "-1", "1500m", "x"])
def test_no_capacity_no_cards(count: str) -> None:
    assert WHOLE.inventory(read_node(capacity={GPU: count})) is None
    assert WHOLE.inventory(read_node()) is None


def test_cards_go_with_the_capacity() -> None:
    state = ClusterCache(CHART)
    for count, known in ((3, 3), (0, 0), (2, 2)):
        state.set_node(gpu_node(count), NOW)
        (view,) = state.views()
        assert len(getattr(view.inventories.get("Metax-GPU"), "devices", ())) == known


@pytest.mark.parametrize(
    ("text", "table"),
    [
        (None, {}),
        ("{}", {}),
        (json.dumps(LOSS_TABLE), LOSS_TABLE),
        ('{"1":-5}', {"1": -5}),
        ('{"1":1.5}', None),
        ('{"1":"150"}', None),
        ('{"1":true}', None),
        ('{"1":1e400}', None),
        ('{"1":99999999999999999999999}', None),
        ("[1]", None),
        ("null", None),
        ("{", None),
        ("", None),
    ],
)
def test_a_topology_table_is_a_json_object_of_integers(text: str | None, table: dict[str, int] | None) -> None:
    assert read_table(text) == table


def test_a_table_that_cannot_be_read_is_told_and_leaves_the_cards() -> None:
    inventory = WHOLE.inventory(gpu_node(2, losses="{", scores={"1": 5}))
    assert inventory is not None
    assert inventory.warnings == (f"{LOSSES} is ignored: it must be a JSON object of integers",)
    assert inventory.facts.scores == {"1": 5}


@pytest.mark.parametrize(
    ("policy", "count", "tables", "score"),
    [
        ("binpack", 1, True, 1850),
        ("binpack", 6, True, 2000),
        ("spread", 1, True, 2000),
        ("spread", 6, True, 1150),
        ("spread", 7, True, 2000),
        ("binpack", 7, True, 0),
        ("binpack", 1, False, 0),
        ("spread", 1, False, 2000),
        ("Binpack", 6, True, 0),
        ("", 6, True, 0),
        (None, 6, True, 2000),
    ],
)
def test_the_node_score(policy: str | None, count: int, tables: bool, score: float) -> None:
    env = FitEnv([gpu_node(7, losses=LOSS_TABLE, scores=SCORE_TABLE) if tables else gpu_node(7)])
    notes = {} if policy is None else {NODE_POLICY: policy}
    assert placed(env, pod_with_limits(notes=notes, gpu=count)).score == score


@pytest.mark.parametrize(
    ("policy", "tables"),
    [
        ("binpack", {}),
        ("binpack", {"scores": SCORE_TABLE}),
        ("binpack", {"losses": {"2": 0}}),
        ("binpack", {"losses": "{"}),
        ("spread", {}),
        ("spread", {"losses": LOSS_TABLE}),
        ("spread", {"scores": {"2": 900}}),
        ("spread", {"scores": "{"}),
    ],
)
def test_a_node_without_its_table_or_entry_is_the_last_to_be_taken(policy: str, tables: dict[str, object]) -> None:
    """Issues 2566 and 2572: half a table made a node the best of all in one policy."""
    env = FitEnv([gpu_node(6, "bare", **tables), gpu_node(6, "full", losses={"1": 1999}, scores={"1": 1})])
    assert placed(env, pod_with_limits(notes={NODE_POLICY: policy}, gpu=1)).node == "full"


def test_cards_are_counted_once_over_all_containers() -> None:
    """Each container takes its own cards; an init container may use those of an app container."""
    env = FitEnv([gpu_node(6, losses=LOSS_TABLE)])
    found = placed(env, pod("p", one("a", gpu=1), one("b", gpu=2), init=[one("i", gpu=2)]))
    assert cards_of(found, GPU_ALLOCATED) == [
        ["n1-metax-5", "n1-metax-4"],
        ["n1-metax-5"],
        ["n1-metax-4", "n1-metax-3"],
    ]
    assert found.score == 2000 - LOSS_TABLE["3"]
    assert found.debits == {f"limits.{GPU}": 3}


def test_two_containers_with_whole_cards_fit() -> None:
    """HAMi wants the second container to take the first one's card, which is full."""
    found = placed(FitEnv([gpu_node(2)]), pod("p", one("a", gpu=1), one("b", gpu=1)))
    assert cards_of(found, GPU_ALLOCATED) == [["n1-metax-1"], ["n1-metax-0"]]
    refused = FitEnv([gpu_node(2)]).place(pod("p", one("a", gpu=1), one("b", gpu=2)))
    assert refused == {"n1": "1/2 AllocatedCardsInsufficientRequest, 1/2 CardTimeSlicingExhausted"}


def test_a_whole_card_is_never_shared_whatever_the_policy() -> None:
    for policy in ("binpack", "spread", "mutex", "topology-aware"):
        env = FitEnv([gpu_node(1)])
        placed(env, pod_with_limits("a", {CARD_POLICY: policy}, gpu=1))
        assert env.place(pod_with_limits("b", {CARD_POLICY: policy}, gpu=1)) == {"n1": "1/1 CardTimeSlicingExhausted"}


def test_uuid_lists_have_no_effect_as_the_ids_are_not_hardware() -> None:
    notes = {"metax-tech.com/use-gpuuuid": "x", "metax-tech.com/nouse-gpuuuid": "n1-metax-0"}
    placed(FitEnv([gpu_node(1)]), pod_with_limits(notes=notes, gpu=1))


def test_broken_cards_are_not_given() -> None:
    """Which of the cards are broken isn't known; as many as are allocatable may be in use at once."""
    env = FitEnv(
        [Node.from_object({"metadata": {"name": "n1"}, "status": {"capacity": {GPU: "4"}, "allocatable": {GPU: "2"}}})]
    )
    assert env.place(pod_with_limits("three", gpu=3)) == {
        "n1": "2/4 AllocatedCardsInsufficientRequest, 2/4 CardNotHealth"
    }
    placed(env, pod_with_limits("a", gpu=1))
    assert env.place(pod_with_limits("two", gpu=2)) == {
        "n1": "1/4 AllocatedCardsInsufficientRequest, 1/4 CardTimeSlicingExhausted, 2/4 CardNotHealth"
    }
    assert isinstance(env.place(pod("xy", one("x", gpu=1), one("y", gpu=1))), dict)
    placed(env, pod_with_limits("b", gpu=1))
    assert env.place(pod_with_limits("c", gpu=1)) == {"n1": "2/4 CardNotHealth, 2/4 CardTimeSlicingExhausted"}


def test_capacity_without_allocatable_is_all_usable() -> None:
    bare = Node.from_object({"metadata": {"name": "n1"}, "status": {"capacity": {GPU: "2"}}})
    placed(FitEnv([bare]), pod_with_limits(gpu=2))


# admission and extraction


def test_admission_changes_nothing() -> None:
    env = FitEnv([])
    manifest = pod_with_limits(gpu=2)
    assert env.admit(manifest).pod == manifest
    draft = PodDraft(manifest)
    assert WHOLE.admit(draft.containers[0], draft, NO_DEVICES) is True
    zero = PodDraft(pod_with_limits(gpu=0))
    assert WHOLE.admit(zero.containers[0], zero, NO_DEVICES) is False


@pytest.mark.parametrize(
    ("limits", "requests", "count"), [("2", None, 2), (None, "3", 3), ("2", "3", 2), ("2k", None, 2000)]
)
def test_the_count_is_read_from_limits_else_from_requests(limits: str | None, requests: str | None, count: int) -> None:
    made = container(requests={GPU: requests} if requests else None, **({GPU: limits} if limits else {}))
    (item,) = Pod.from_object(pod("p", made)).containers
    assert WHOLE.request(item) == Request(count, FixedMemory(65536), 100)


def test_no_lock_no_lists_no_handshake() -> None:
    assert WHOLE.lock is None
    assert (WHOLE.keys.use_uuid, WHOLE.keys.nouse_uuid, WHOLE.registration.handshake) == ((), (), "")
    assert [key.name for key in WHOLE.quota_keys()] == [f"limits.{GPU}"]


def test_an_empty_name_switches_a_half_off() -> None:
    assert list(configured("metax: {resourceVCountName: a.b/s}")) == ["Metax-SGPU"]
    assert list(configured("metax: {resourceCountName: a.b/g}")) == ["Metax-GPU"]
    assert (
        list(configured("metax: {resourceCountName: '', resourceVCoreName: a.b/c, resourceVMemoryName: a.b/m}")) == []
    )


@given(
    st.integers(1, 6), st.integers(0, 6), st.lists(st.tuples(st.booleans(), st.integers(0, 3)), min_size=1, max_size=8)
)
def test_no_card_is_given_twice_nor_more_cards_than_are_whole(
    cards: int, usable: int, pods: list[tuple[bool, int]]
) -> None:
    status = {"capacity": {GPU: str(cards)}, "allocatable": {GPU: str(min(usable, cards))}}
    env = FitEnv([Node.from_object({"metadata": {"name": "n1"}, "status": status})])
    taken: set[str] = set()
    for number, (twice, count) in enumerate(pods):
        containers = [one("a", gpu=count), one("b", gpu=1)][: 1 + twice]
        manifest = pod(f"p{number}", *containers)
        wanted = count + twice
        if wanted == 0:
            continue
        found = env.place(manifest)
        room = min(usable, cards) - len(taken)
        assert isinstance(found, dict) is (wanted > room)
        if not isinstance(found, dict):
            given = [uuid for row in cards_of(found, GPU_ALLOCATED) for uuid in row]
            assert len(set(given)) == len(given) == wanted
            assert taken.isdisjoint(given)
            taken |= set(given)
