"""What Koordinator writes and what we read of it: Device objects, device-allocated, requests.

Source: docs/spec/koordinator.md#3, #6 and #9.
"""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tables import in_one_test

from hami_webhook.devices.codecs import BadAnnotation
from hami_webhook.integrations.koordinator.allocation_annotation import KoordinatorShare, decode, encode, read_shares
from hami_webhook.integrations.koordinator.device_object import KoordinatorCard, Partition, Spot, read_cards
from hami_webhook.integrations.koordinator.request import Want, pod_total
from hami_webhook.kube.objects import Pod

from .koords import (
    A10,
    ALLOCATED,
    CORE,
    JSON,
    MEMORY,
    MIB,
    NPU,
    RATIO,
    Koords,
    a10s,
    box,
    card,
    device,
    named,
    pod_with_limits,
    share,
)

PAGE = (
    '{"gpu":[{"minor":1,"resources":{"koordinator.sh/gpu-core":"50","koordinator.sh/gpu-memory":"11520Mi",'
    '"koordinator.sh/gpu-memory-ratio":"50"},"id":"GPU-57047317-c2d0-b5bd-37b9-522cf6d24591"}]}'
)
SEED = (
    '{"gpu":[{"minor":1,"resources":{"koordinator.sh/gpu-core":"50","koordinator.sh/gpu-memory":"11520Mi",'
    '"koordinator.sh/gpu-memory-ratio":"50"}}]}'
)

# 9: the annotation


def test_9_the_pages_annotation_is_read_and_written() -> None:
    (found,) = decode(PAGE)
    assert found == KoordinatorShare(1, "GPU-57047317-c2d0-b5bd-37b9-522cf6d24591", 50, 11520 * MIB, 50)
    assert encode([found]) == PAGE


def test_9_the_seeds_has_no_id() -> None:
    (found,) = decode(SEED)
    assert found == KoordinatorShare(1, "", 50, 11520 * MIB, 50)
    assert encode([found]) == SEED


@pytest.mark.parametrize(
    ("written", "shares"),
    [
        ({}, ()),
        ({"gpu": None}, ()),
        ({"rdma": [{"minor": 3}], "fpga": "x"}, ()),
        ({"gpu": [share(0)], "rdma": []}, (KoordinatorShare(0),)),
        ({"gpu": [{"minor": 2, "extension": {"vfs": []}}]}, (KoordinatorShare(2),)),
        ({"gpu": [share(0, core=50, memory=1024, ratio=7)]}, (KoordinatorShare(0, "", 50, 1024, 7),)),
        ({"gpu": [share(0, memory="1500m")]}, (KoordinatorShare(0, "", None, 2),)),
        (
            {"gpu": [share(1, ratio="30"), share(0, ratio="30")]},
            (KoordinatorShare(1, ratio=30), KoordinatorShare(0, ratio=30)),
        ),
    ],
)
def test_9_what_can_be_read(written: JSON, shares: tuple[KoordinatorShare, ...]) -> None:
    assert decode(json.dumps(written)) == shares


@in_one_test(
    "text",
    [
        "",
        "[]",
        "null",
        '{"gpu": {}}',
        '{"gpu": [7]}',
        '{"gpu": [{"minor": "1"}]}',
        '{"gpu": [{"minor": true}]}',
        '{"gpu": [{"minor": 1, "id": 7}]}',
        '{"gpu": [{"minor": 1, "resources": []}]}',
        json.dumps({"gpu": [share(1, ratio="half")]}),
        json.dumps({"gpu": [share(1, memory="-1")]}),
        json.dumps({"gpu": [share(1), share(2, core=[])]}),
    ],
)
def test_9_what_can_not_be_read(text: str) -> None:
    with pytest.raises(BadAnnotation):
        decode(text)
    pod = Pod.from_object(pod_with_limits(notes={ALLOCATED: text}))
    for _ in range(2):  # also when it is asked for again
        with pytest.raises(BadAnnotation):
            read_shares(pod)


AMOUNTS = st.none() | st.integers(0, 2**62)


@given(
    st.lists(
        st.builds(KoordinatorShare, st.integers(0, 63), st.text(max_size=8), AMOUNTS, AMOUNTS, AMOUNTS),
        min_size=1,
        max_size=4,
    )
)
def test_9_what_is_written_is_read_back(shares: list[KoordinatorShare]) -> None:
    assert decode(encode(shares)) == tuple(shares)


# 3: the Device object


def test_3_a_card_as_koordlet_writes_it() -> None:
    entry = {
        "type": "gpu",
        "id": "GPU-57047317-c2d0-b5bd-37b9-522cf6d24591",
        "minor": 0,
        "health": True,
        "labels": {"tier": "a"},
        "resources": {CORE: "100", MEMORY: "23040Mi", RATIO: "100"},
        "topology": {"socketID": -1, "nodeID": 0, "pcieID": "pci0000:00", "busID": "0000:00:07.0"},
        "conditions": [{"type": "Healthy", "status": "True"}],
    }
    found = read_cards(device("n1", [entry], labels={"a": "b"}))
    spot = Spot(0, "pci0000:00")
    assert found.cards == (KoordinatorCard(0, str(entry["id"]), True, {"tier": "a"}, 100, A10, 100, spot),)
    assert (found.labels, found.table, found.least, found.largest) == ({"a": "b"}, None, A10, A10)


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"type": "rdma", "minor": 0}, ()),
        ({"type": "gpu", "minor": "0"}, ()),
        ({"type": "gpu", "minor": 3}, (KoordinatorCard(3, healthy=False),)),
        ({"type": "gpu", "minor": 3, "health": "true"}, (KoordinatorCard(3, healthy=False),)),
        (
            {"type": "gpu", "minor": 3, "health": True, "resources": {CORE: "x", RATIO: "-1", MEMORY: None}},
            (KoordinatorCard(3),),
        ),
        (
            {"type": "gpu", "minor": 3, "health": True, "resources": [], "labels": [], "topology": []},
            (KoordinatorCard(3),),
        ),
        ({"type": "gpu", "minor": 3, "health": True, "topology": {"nodeID": "x"}}, (KoordinatorCard(3),)),
        ({"type": "gpu", "minor": 3, "health": True, "topology": {}}, (KoordinatorCard(3, spot=Spot(0, "")),)),
    ],
)
def test_3_what_is_missing_or_mistyped(entry: JSON, expected: tuple[KoordinatorCard, ...]) -> None:
    assert read_cards(device("n1", [entry])).cards == expected


def test_3_cards_come_by_minor_and_the_last_of_a_minor_counts() -> None:
    found = read_cards(device("n1", [card(2), card(0), {**card(2), "id": "again"}]))
    assert [(each.minor, each.id) for each in found.cards] == [(0, "GPU-0"), (2, "again")]


@pytest.mark.parametrize("written", [{}, {"spec": None}, {"spec": {"devices": None}}])
def test_3_a_device_without_cards(written: JSON) -> None:
    assert read_cards(written).cards == ()


@pytest.mark.parametrize(
    ("text", "table"),
    [
        (
            '{"2":[{"minors":[0,1],"gpuLinkType":"NVLink","ringBusBandwidth":"400Gi","allocationScore":1}]}',
            {2: (Partition((0, 1), 1, 400 * 2**30),)},
        ),
        ('{"1":[{"minors":[3]}],"4":null}', {1: (Partition((3,), 0),), 4: ()}),
        ("", None),
        ('{"two":[]}', None),
        ('{"2":[{}]}', None),
        ('{"2":[{"minors":[0,1],"allocationScore":"1"}]}', None),
    ],
)
def test_3_the_partition_table(text: str, table: object) -> None:
    obj = device("n1", [])
    obj["metadata"]["annotations"] = {"scheduling.koordinator.sh/gpu-partitions": text}
    assert read_cards(obj).table == table


def test_3_each_version_of_a_device_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def counted(obj: JSON) -> object:
        read.append(obj["metadata"]["name"])
        return read_cards(obj)

    monkeypatch.setattr("hami_webhook.integrations.koordinator.read_cards", counted)
    koords = a10s().node("n2", card(0))
    for _ in range(3):
        koords.waiting(pod_with_limits(ratio=50))
        koords.predict(pod_with_limits(ratio=50))
    assert sorted(read) == ["n1", "n2"]
    koords.state.set_device("n1", device("n1", [card(5, "1Gi")]))
    assert koords.waiting(pod_with_limits(ratio=50))["memory"] == 2**29
    assert read[2:] == ["n1"]


# 6: the request

EACH = [
    ([{"shared": 2, "core": 100, "memory": "8Gi"}], [], Want(2, 50, None, 4 * 2**30), True),
    ([{"ratio": 50}], [], Want(1, None, 50), True),
    ([{"gpu": 300}], [], Want(3, 100, 100), False),
    ([{"memory": "23040Mi"}], [], Want(1, None, None, A10), True),
    ([{"shared": 3, "memory": 10}], [], Want(3, None, None, 3), True),
    ([{"ratio": 10}, {}, {"ratio": 10}], [{"ratio": 40}], Want(2, None, 20), True),
    ([{"shared": 1, "memory": "8Gi", **NPU}], [], Want(1, None, None, 8 * 2**30), True),
    ([{"ratio": 200, "huawei.com/npu-core": 200}], [], Want(2, None, 100), False),
    ([{}], [{"ratio": 200}], Want(2, None, 100), False),
]


@pytest.mark.parametrize(("containers", "init", "want", "fractional"), EACH)
def test_6_the_request_of_a_pod(containers: list[JSON], init: list[JSON], want: Want, fractional: bool) -> None:
    made = [box(f"c{index}", **amounts) for index, amounts in enumerate(containers)]
    pod = a10s().admit(pod_with_limits("p", *made, init=[box("i", **amounts) for amounts in init])).pod
    found = Want.of(pod_total(pod.containers))
    assert found == want
    assert found is not None
    assert found.fractional is fractional


def test_6_a_value_is_taken_from_requests_first() -> None:
    made = pod_with_limits(
        "p", {**box(ratio=50), "resources": {"limits": named(ratio="50"), "requests": named(ratio="40")}}
    )
    assert Want.of(pod_total(Pod.from_object(made).containers)) == Want(1, None, 40)


def test_6_a_sidecar_counts_beside_the_apps() -> None:
    made = pod_with_limits("p", box("app", ratio=10), init=[box("side", sidecar=True, shared=1, ratio=30)])
    assert Want.of(pod_total(Koords().admit(made).pod.containers)) == Want(2, None, 20)
