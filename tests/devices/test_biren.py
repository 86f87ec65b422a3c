"""Birentech GPUs: part B of docs/spec/amd-biren-vastai.md."""

from __future__ import annotations

import json
from typing import Any

import pytest
from builders import container, read_node
from hypothesis import given
from hypothesis import strategies as st

from hami_webhook.admission.pods import normalise
from hami_webhook.devices.codecs import decode_pod_devices
from hami_webhook.kube.draft import PodDraft
from hami_webhook.kube.objects import Node, Pod

from .fit_env import CHART, FitEnv, Placed, pod

COUNT = "birentech.com/gpu"
REGISTER = "hami.io/node-biren-register"
ALLOCATED = "hami.io/Biren-devices-allocated"
BIREN = CHART["Biren"]


def biren(*ids: str, **fields: Any) -> Node:
    """Node n1 with these devices; fields that are given are every device's."""
    cards = [
        {"id": uuid, "index": at, "count": 1, "devmem": 65024, "type": "Biren", "health": True, **fields}
        for at, uuid in enumerate(ids)
    ]
    return read_node("n1", capacity={COUNT: 4}, **{REGISTER: json.dumps(cards)})


def with_limits(count: int, name: str = "p", **annotations: str) -> dict[str, Any]:
    return pod(name, annotations=annotations, **{COUNT: count})


def record(env: FitEnv, manifest: dict[str, Any]) -> str:
    return env.outcome(manifest, "Biren")


def test_example_1_the_last_registered_of_two_idle_devices() -> None:
    assert record(FitEnv([biren("GPU-a1", "GPU-a2")]), with_limits(1)) == "GPU-a2,Biren,0,0:;"


def test_example_2_one_of_two_is_in_use() -> None:
    env = FitEnv([biren("GPU-a1", "GPU-a2")])
    env.place(with_limits(1, "first"))
    assert record(env, with_limits(2)) == "1/2 AllocatedCardsInsufficientRequest, 1/2 CardTimeSlicingExhausted"


def test_example_3_a_uuid_list() -> None:
    wanted = with_limits(1, **{"birentech.com/use-gpuuuid": "GPU-a1"})
    assert record(FitEnv([biren("GPU-a1", "GPU-a2")]), wanted) == "GPU-a1,Biren,0,0:;"


def test_example_4_more_than_the_node_has() -> None:
    assert record(FitEnv([biren("GPU-a1", "GPU-a2")]), with_limits(3)) == "NodeInsufficientDevice"


def test_example_5_two_of_three_when_the_last_is_in_use() -> None:
    env = FitEnv([biren("GPU-a1", "GPU-a2", "GPU-a3")])
    env.place(with_limits(1, "first"))
    assert record(env, with_limits(2)) == "GPU-a2,Biren,0,0:GPU-a1,Biren,0,0:;"


# B2


def test_a_card_as_registered() -> None:
    """The literal sample: the first card has no index, other keys are ignored, compute is 100."""
    text = (
        '[{"id":"GPU-a1","count":1,"devmem":65024,"type":"Biren","health":true,"devicepairscore":{"x":1}},'
        '{"id":"GPU-a2","index":1,"count":1,"devmem":65024,"type":"Biren166M","health":true,"devcore":7}]'
    )
    inventory = BIREN.inventory(read_node(**{REGISTER: text}))
    assert inventory is not None
    assert [(d.vendor, d.uuid, d.index, d.slots, d.memory, d.cores, d.type) for d in inventory.devices] == [
        ("Biren", "GPU-a1", 0, 1, 65024, 100, "Biren"),
        ("Biren", "GPU-a2", 1, 1, 65024, 100, "Biren166M"),
    ]


def test_partitions_share_their_cards_index() -> None:
    env = FitEnv([biren("svi-0", "svi-1", "svi-2", index=3)])
    assert [record(env, with_limits(1, name)) for name in "abc"] == [f"svi-{i},Biren,0,0:;" for i in (2, 1, 0)]


# B3


@pytest.mark.parametrize(("limits", "ours"), [({COUNT: 1}, True), ({COUNT: 0}, True), ({"cpu": 1}, False)])
def test_a_count_in_limits_makes_the_pod_ours(limits: dict[str, Any], ours: bool) -> None:
    env = FitEnv([])
    found = normalise(PodDraft(pod(**limits)), env.vendors, env.state)
    assert [vendor.key for vendor in found] == ["Biren"] * ours


def test_admission_changes_nothing() -> None:
    manifest = with_limits(2)
    assert FitEnv([]).admit(manifest).pod == manifest


@pytest.mark.parametrize(
    ("limits", "requests", "count"), [({COUNT: 2}, {COUNT: 1}, 2), ({}, {COUNT: 1}, 1), ({COUNT: 0}, {}, None)]
)
def test_a_request_is_the_count_alone(limits: Any, requests: Any, count: int | None) -> None:
    item = Pod.from_object(pod("p", container(requests=requests, **limits))).containers[0]
    found = BIREN.request(item)
    assert (None if found is None else (found.count, found.memory.on(65024), found.cores)) == (
        None if count is None else (count, 0, 0)
    )


@pytest.mark.parametrize(
    ("fields", "annotations", "answer"),
    [
        ({"health": False}, {}, "2/2 CardNotHealth"),
        ({}, {"birentech.com/nouse-gpuuuid": "a, b"}, "2/2 CardUuidMismatch"),
        ({"health": False}, {"birentech.com/nouse-gpuuuid": "a, b"}, "2/2 CardNotHealth"),
        ({"count": 0}, {}, "2/2 CardTimeSlicingExhausted"),
        ({"count": 0}, {"birentech.com/use-gpuuuid": "c"}, "2/2 CardUuidMismatch"),
        ({"devmem": 0, "count": 9}, {}, "b,Biren,0,0:;"),
        ({}, {"birentech.com/use-biren": "nothing", "birentech.com/nouse-biren": "Biren"}, "b,Biren,0,0:;"),
    ],
)
def test_the_first_failure_counts(fields: Any, annotations: dict[str, str], answer: str) -> None:
    assert record(FitEnv([biren("a", "b", **fields)]), with_limits(1, **annotations)) == answer


def test_mutex_wants_an_unused_device() -> None:
    env = FitEnv([biren("a", "b", count=2)])
    env.place(with_limits(1, "first"))
    mutex = {"hami.io/gpu-scheduler-policy": "mutex"}
    assert record(env, with_limits(2, **mutex)) == (
        "1/2 AllocatedCardsInsufficientRequest, 1/2 ExclusiveDeviceAllocateConflict"
    )
    assert record(env, with_limits(1, **mutex)) == "a,Biren,0,0:;"


# B4


def test_usage_and_debits_are_slots() -> None:
    env = FitEnv([biren("a", "b", count=3)], hard={f"limits.{COUNT}": 3})
    placed = env.place(with_limits(2, "first"))
    assert isinstance(placed, Placed)
    assert placed.debits == {f"limits.{COUNT}": 2} == env.waiting(with_limits(2))
    assert env.used("Biren", "b") == (1, 0, 0)
    assert record(env, with_limits(2)) == "1/2 AllocatedCardsInsufficientRequest, 1/2 ResourceQuotaNotFit"
    assert record(env, with_limits(1)) == "b,Biren,0,0:;"


def test_two_vendors_in_one_pod() -> None:
    vastai = '[{"id":"7-0","count":1,"devmem":32768,"type":"Vastai","health":true}]'
    on = biren("card-0")
    both = read_node("n1", capacity={COUNT: 1}, **{**on.annotations, "hami.io/node-va-register": vastai})
    containers = container("a", **{COUNT: 1}), container("b", **{"vastaitech.com/va": 1})
    placed = FitEnv([both]).place(pod("p", *containers))
    assert isinstance(placed, Placed)
    assert placed.annotations[ALLOCATED] == "card-0,Biren,0,0:;;"
    assert placed.annotations["hami.io/Vastai-devices-allocated"] == ";7-0,Vastai,0,0:;"
    assert placed.debits == {f"limits.{COUNT}": 1, "limits.vastaitech.com/va": 1}


def test_a_model_leaves_empty_slots_where_they_are() -> None:
    env = FitEnv([biren("a", type="Biren166M")])
    assert record(env, pod("p", container("side"), container("main", **{COUNT: 1}))) == ";a,Biren,0,0:;"


ids = st.text("abc-019", min_size=1)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.integers(0, 2)), min_size=1, max_size=5),
    st.lists(st.integers(1, 3), min_size=1, max_size=6),
    st.sampled_from(["binpack", "spread", "mutex", "numa"]),
    st.none() | st.integers(0, 6),
)
def test_fit_never_gives_a_slot_twice(cards: Any, counts: list[int], policy: str, hard: int | None) -> None:
    records = [
        {"id": f"g{i}", "index": 0, "count": slots, "devmem": 9, "type": "Biren", "health": healthy, "numa": numa}
        for i, (slots, healthy, numa) in enumerate(cards)
    ]
    limits = {} if hard is None else {f"limits.{COUNT}": hard}
    env = FitEnv([read_node("n1", **{REGISTER: json.dumps(records)})], hard=limits)
    total = 0
    for number, count in enumerate(counts):
        before = {record["id"]: env.used("Biren", record["id"])[0] for record in records}
        placed = env.place(with_limits(count, f"p{number}", **{"hami.io/gpu-scheduler-policy": policy}))
        free = [r["id"] for r in records if r["health"] and before[r["id"]] < r["count"]]
        if policy == "mutex":
            free = [uuid for uuid in free if not before[uuid]]
        fits = len(free) >= count and (hard is None or total + count <= hard)
        assert isinstance(placed, Placed) == fits
        if isinstance(placed, Placed):
            total += count
            taken = [e.uuid for row in decode_pod_devices(placed.annotations[ALLOCATED]) for e in row]
            assert len(set(taken)) == count
            assert set(taken) <= set(free)
    for r in records:
        assert env.used("Biren", r["id"])[0] <= r["count"]
