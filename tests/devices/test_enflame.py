"""Enflame's config, node side and admission, rule by rule (page sections 2 to 5)."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
from builders import container, read_node
from tables import in_one_test

from .enflame import (
    ALLOCATED,
    WHOLE,
    R,
    T,
    both_node,
    drs_capacity,
    drs_card,
    drs_node,
    share,
    shared_node,
    slices,
    went,
)
from .fit_env import CHART, JSON, NOW, FitEnv, configured, pod, registered

CAPACITY = "enflame.com/gcu-drs-capacity"
ENFLAME = ("Enflame", "Enflame-DRS", "GCU")


# 2: names and config


@pytest.mark.parametrize(
    "config",
    [
        "enflame: {}",
        "enflame: {resourceNameVGCU: enflame.com/vgcu, resourceNameVGCUPercentage: enflame.com/vgcu-percentage}",
        "enflame: {resourceNameDRSGCU: enflame.com/drs-gcu, resourceNameGCUMemory: enflame.com/gcu-memory}",
    ],
)
def test_missing_names_take_their_defaults(config: str) -> None:
    vendors = configured(config)
    assert tuple(vendors) == ENFLAME
    assert vendors.resource_names == {R.GCU, R.VGCU, R.PERCENT, R.SLICES, R.MEMORY, R.CORE, R.SHARED_GCU}


def test_names_are_configurable() -> None:
    vendors = configured("enflame: {resourceNameDRSGCU: a.b/slices, resourceNameVGCU: a.b/cards}")
    env = FitEnv([drs_node(), shared_node()], vendors)
    assert went(env, pod(**{"a.b/slices": 3})) == "node-a-enflame-drs-0,Enflame,20480,50:;"
    assert went(env, pod("q", **{"a.b/cards": 1, R.PERCENT: 20})) == "node1-enflame-1,Enflame,25,0:;"
    assert env.admit(pod(**{"a.b/slices": 0})).message == "a.b/slices must be greater than 0"


def test_without_drs_its_other_names_mean_nothing_beside_vgcu() -> None:
    vendors = configured("enflame: {resourceNameDRSGCU: ''}")
    assert went(FitEnv([shared_node()], vendors), pod(**{R.VGCU: 1, R.MEMORY: 5})) == "node1-enflame-1,Enflame,100,0:;"


# 3: node side


def cards(key: str, of: Any) -> list[tuple[object, ...]] | None:
    inventory = CHART[key].inventory(of)
    if inventory is None:
        return None
    return [(d.uuid, d.index, d.slots, d.memory, d.cores, d.numa, d.type, d.healthy) for d in inventory.devices]


@pytest.mark.parametrize(
    ("count", "shared", "f"), [(2, 12, 6), (2, 13, 6), (1, 1, 1), (0, 6, None), (2, 0, None), (2, 1, None)]
)
def test_slices_of_a_shared_card(count: int, shared: int, f: int | None) -> None:
    inventory = CHART["Enflame"].inventory(read_node("n", capacity={R.COUNT: count, R.SHARED_GCU: shared}))
    assert (inventory and (inventory.facts, len(inventory.devices))) == ((f, count) if f else None)


@in_one_test(
    ("health", "healthy"),
    [
        (None, [True, True]),
        ('{"0":6,"1":6}', [True, True]),
        ('{"0":6}', [True, False]),
        ('{"0":0,"1":6}', [False, True]),
        ('{"0":"0","1":"6"}', [False, True]),
        ('{"0":6,"2":6}', [True, True]),
        ('{"0":6,"-1":6}', [True, True]),
        ('{"0":6,"x":6}', [True, True]),
        ("broken", [True, True]),
        ("null", [True, True]),
    ],
)
def test_health_of_shared_cards(health: str | None, healthy: list[bool]) -> None:
    inventory = registered(CHART["Enflame"], shared_node("n", 2, 6, health))
    assert [device.healthy for device in inventory.devices] == healthy


def drs(text: str) -> Any:
    return read_node("n", **{CAPACITY: text})


def test_drs_cards_are_sorted_by_index() -> None:
    text = drs_capacity(drs_card(1, "7", "4"), drs_card(0, "", 6))
    assert cards("Enflame-DRS", drs(text)) == [
        ("n-enflame-drs-0", 0, 6, 40960, 100, 0, "Enflame", True),
        ("n-enflame-drs-1", 1, 4, 40960, 100, 0, "Enflame", True),
    ]
    inventory = CHART["Enflame-DRS"].inventory(drs(text))
    assert inventory is not None
    assert [device.extra.minor for device in inventory.devices] == ["0", "7"]


@pytest.mark.parametrize(
    ("indices", "uuids"),
    [
        (["x", "y"], ["n-enflame-drs-0", "n-enflame-drs-1"]),
        ([None, 5], ["n-enflame-drs-0", "n-enflame-drs-5"]),
        ([" 3 ", ""], ["n-enflame-drs-1", "n-enflame-drs-3"]),
    ],
)
def test_an_index_that_is_no_number_is_the_position(indices: list[object], uuids: list[str]) -> None:
    devices = [{"index": index, "capacity": 6} for index in indices]
    found = cards("Enflame-DRS", drs(json.dumps({"Devices": devices, "PROFILES": T, "more": 1})))
    assert [card[0] for card in found or ()] == uuids


NO_PROFILE = "no profile such as 1g.6gb is in it"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not valid JSON: Input is a zero-length, empty document: line 1 column 1 (char 0)"),
        ("null", NO_PROFILE),
        ("{}", NO_PROFILE),
        (json.dumps({"devices": 3, "profiles": T}), "devices must be an array and profiles an object"),
        (json.dumps({"devices": [3], "profiles": T}), "device 0 must be a JSON object"),
        (json.dumps({"devices": [], "profiles": []}), NO_PROFILE),
        *(
            (drs_capacity({"index": "0", "capacity": slices}), "device 0: capacity must be a number of slices above 0")
            for slices in (0, -1, "0", "-1", "six", "", None)
        ),
        *(
            (
                drs_capacity({"index": "0", "capacity": slices}),
                f"device 0: capacity must be a text or a whole number, not {slices}",
            )
            for slices in (1.5, True)
        ),
        (drs_capacity(drs_card(0), {"index": "1"}), "device 1: capacity must be a number of slices above 0"),
        (drs_capacity(drs_card(0), drs_card(0)), "two devices have the same index"),
        (drs_capacity(drs_card(0), profiles={}), NO_PROFILE),
        (drs_capacity(drs_card(0), profiles={"big": "0", "0g.6gb": "1", "1g": "2", "1g.6": "3"}), NO_PROFILE),
        (drs_capacity(drs_card(0), profiles={"1g.6gb": None}), "profile 1g.6gb: the id must be a text, not None"),
        (drs_capacity({"index": [], "capacity": 6}), "device 0: index must be a text or a whole number, not []"),
    ],
)
def test_an_unreadable_drs_annotation_means_no_drs_cards_and_is_told_of(text: str, why: str) -> None:
    env = FitEnv([drs_node()])
    env.state.set_node(read_node("node-a", **{CAPACITY: text}), NOW)
    assert went(env, slices(1)) == "NodeInsufficientDevice"
    (problem,) = env.state.problems()
    assert (problem.name, problem.text) == ("node-a", f"{CAPACITY}: {why}")
    assert (
        went(FitEnv([shared_node(), read_node("x", **{CAPACITY: text})]), share(25)) == "node1-enflame-1,Enflame,25,0:;"
    )


def test_attack_a_capacity_of_a_million_cards_takes_no_memory() -> None:
    """It is refused before anything is made for each card."""
    env = FitEnv([shared_node()])
    hostile = shared_node("x", 1_000_000)
    tracemalloc.start()
    try:
        env.state.set_node(hostile, NOW)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000
    (problem,) = env.state.problems()
    assert problem.text == "status.capacity makes 1000000 Enflame devices of 100 MiB, which can't be"
    assert went(env, share(25)) == "node1-enflame-1,Enflame,25,0:;"


@pytest.mark.parametrize(
    ("profiles", "slices_", "memory", "shape"),
    [
        (T, 6, 40960, ((1, 6), (3, 20), (6, 40))),
        ({"6G.40GB": "2", " 1 g . 6 gb ": "0", "x": "3"}, 6, 40960, ((1, 6), (6, 40))),
        ({"2g.20gb": "0", "2g.10gb": 1, "1g.30gb": "2"}, 2, 30720, ((1, 30), (2, 10), (2, 20))),
        ({"4g.0gb": "0"}, 4, 4096, ((4, 0),)),
    ],
)
def test_the_table_of_profiles(profiles: dict[str, object], slices_: int, memory: int, shape: object) -> None:
    inventory = CHART["Enflame-DRS"].inventory(drs(drs_capacity(drs_card(0), profiles=profiles)))
    assert inventory is not None
    assert (inventory.facts.slices, inventory.facts.shape) == (slices_, shape)
    assert inventory.devices[0].memory == memory


def test_only_cards_of_the_wanted_form_are_counted() -> None:
    env = FitEnv([both_node("n", 2, 6, drs_card(5, "9"), **{R.GCU: 3})])
    env.place(slices(6, "full"))
    assert went(env, slices(1)) == "1/1 CardTimeSlicingExhausted"
    assert went(env, share(100, count=3)) == "NodeInsufficientDevice"
    assert went(env, pod(**{R.GCU: 4}), WHOLE) == "NodeInsufficientDevice"
    assert went(env, pod("all", **{R.GCU: 3}), WHOLE).count("GCU,100,100") == 3


# 4 and 5: admission

MEMORY_MUST = (
    "in container main: must be an integer number of MiB, or of bytes with a binary suffix between 0 and "
    "2251799812636672"
)
NOT_BOTH = (
    f"{R.VGCU} 1 in container main can't be in one pod with {R.SLICES} in container main: a pod's slices are all "
    "shared or all DRS; use two pods"
)


@in_one_test(
    ("amounts", "message"),
    [
        ({R.SLICES: 0}, f"{R.SLICES} must be greater than 0"),
        ({R.MEMORY: 0}, f"{R.MEMORY} must be greater than 0"),
        ({R.MEMORY: "-1Gi"}, f"{R.MEMORY} must be greater than 0"),
        ({R.MEMORY: "x"}, f"invalid {R.MEMORY} value x {MEMORY_MUST}"),
        ({R.MEMORY: 9 * 10**18}, f"invalid {R.MEMORY} value 9000000000000000000 {MEMORY_MUST}"),
        ({R.CORE: 0}, f"{R.CORE} must be in range (0,100]"),
        ({R.CORE: 101}, f"{R.CORE} must be in range (0,100]"),  # example 6
        (
            {R.MEMORY: 20, R.CORE: "1500m"},
            f"invalid {R.CORE} value 1500m in container main: must be an integer between 0 and 2147483647",
        ),
        ({R.SLICES: 1, R.VGCU: 1}, NOT_BOTH),
        ({R.MEMORY: 20, R.VGCU: 1}, NOT_BOTH),
        (
            {R.SHARED_GCU: 3},
            f"container main: {R.SHARED_GCU} is written at admission for {R.VGCU} and {R.PERCENT}; ask by those",
        ),
    ],
)
def test_what_is_denied(amounts: dict[str, object], message: str) -> None:
    env = FitEnv([drs_node(), shared_node()])
    assert env.admit(pod(**amounts)).message == message
    assert env.admit(pod("p", container(requests=amounts))).message == message


def test_a_pod_is_shared_or_drs() -> None:
    both = pod("p", container("a", **{R.VGCU: 1, R.PERCENT: 25}), container("b", **{R.SLICES: 1}))
    env = FitEnv([both_node("n", 2)])
    assert "can't be in one pod" in env.admit(both).message
    assert went(env, both, admit=False) == "1/2 ModeNotFit"


def test_whole_cards_stand_apart() -> None:
    env = FitEnv([drs_node(capacity={R.GCU: 1})])
    placed = env.placed(pod(**{R.GCU: 1, R.SLICES: 1}))
    assert placed.annotations[WHOLE] == "node-a-GCU-0,GCU,100,100:;"
    assert placed.annotations[ALLOCATED] == "node-a-enflame-drs-0,Enflame,6144,17:;"


@pytest.mark.parametrize(
    ("limits", "requests", "after"),
    [
        ({R.SLICES: 3}, {}, {R.SLICES: "3"}),
        ({}, {R.SLICES: 3}, {R.SLICES: "3"}),
        ({R.SLICES: 3, R.MEMORY: 1, R.CORE: 500}, {}, {R.SLICES: "3"}),
        ({R.MEMORY: "6Gi"}, {R.CORE: 10}, {R.MEMORY: "6Gi", R.CORE: "10", R.SLICES: "1"}),
    ],
)
def test_drs_amounts_end_up_in_limits_and_requests(
    limits: dict[str, object], requests: dict[str, object], after: dict[str, str]
) -> None:
    admitted = FitEnv([drs_node()]).admit(pod("p", container(requests=requests, **limits)))
    assert admitted.limits() == {key: str(value) for key, value in limits.items()} | after
    assert admitted.requests() == {key: str(value) for key, value in requests.items()} | after


@pytest.mark.parametrize("incoming", [share(None), slices(1)])
def test_slices_in_an_init_container_are_warned_of(incoming: JSON) -> None:
    (app,) = incoming["spec"]["containers"]
    for init in (app, app | {"restartPolicy": "Always"}):
        warnings = FitEnv([drs_node(), shared_node()]).admit(pod("p", container("app"), init=[init])).warnings
        assert ["the device plugin serves app containers only" in text for text in warnings] == [True]


@pytest.mark.parametrize(
    ("nodes", "size"),
    [
        ([], 6),
        ([shared_node("a", 2, 4), shared_node("b", 3, 8)], 8),
        ([shared_node("a", 2, 4), shared_node("b", 2, 8)], 4),
        ([shared_node("a", 2, 8), shared_node("b", 1, 4), shared_node("c", 1, 4)], 4),
    ],
)
def test_the_slices_of_most_cards_count(nodes: list[Any], size: int) -> None:
    assert FitEnv(nodes).admit(share(100)).limits()[R.SHARED_GCU] == str(size)


OTHER = drs_node("node-b", profiles={"1g.6gb": "0", "4g.24gb": "1", "8g.48gb": "2"})


@pytest.mark.parametrize("nodes", [[], [drs_node(), OTHER]])
def test_where_tables_differ_or_none_is_known_the_profile_waits_for_the_node(nodes: list[Any]) -> None:
    env = FitEnv(nodes)
    need, by_slices = env.admit(pod(**{R.MEMORY: 6144, R.CORE: 40})), env.admit(slices(3))
    assert need.limits() == need.requests() == {R.MEMORY: "6144", R.CORE: "40"}
    assert by_slices.limits() == by_slices.requests() == {R.SLICES: "3"}
    for admitted in (need, by_slices):
        assert ["the profile isn't known yet" in warning for warning in admitted.warnings] == [True]


def test_where_the_tables_are_the_same_the_ids_may_differ() -> None:
    same = drs_node("node-b", profiles={"6g.40gb": "9", "3G.20gb": "8", "1g.6gb": "7"})
    assert FitEnv([drs_node(), same]).admit(pod(**{R.CORE: 40})).limits() == {R.CORE: "40", R.SLICES: "3"}


def test_a_pod_of_differing_tables_is_placed_by_its_nodes_table() -> None:
    wanting = pod(**{R.CORE: 40}, annotations={"enflame.com/nouse-gpuuuid": "node-a-enflame-drs-0"})
    placed = FitEnv([drs_node(), OTHER]).placed(wanting)
    assert placed.annotations[ALLOCATED] == "node-b-enflame-drs-0,Enflame,24576,50:;"
    assert placed.debits["limits.enflame.com/drs-gcu"] in (3, 4)
