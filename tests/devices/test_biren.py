"""Birentech GPUs: part B of docs/spec/amd-biren-vastai.md."""

from __future__ import annotations

import json
from typing import Any

import pytest
from builders import container, read_node

from hami_webhook.admission.pods import normalise
from hami_webhook.kube.draft import PodDraft
from hami_webhook.kube.objects import Node, Pod

from .fit_env import CHART, JSON, FitEnv, pod

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


def with_limits(count: int, name: str = "p", **annotations: str) -> JSON:
    return pod(name, annotations=annotations, **{COUNT: count})


def record(env: FitEnv, manifest: JSON) -> str:
    return env.outcome(manifest, "Biren")


@pytest.mark.parametrize(
    ("on", "used", "incoming", "answer"),
    [
        pytest.param(
            biren("a1", "a2", "a3"), 1, with_limits(2), "a2,Biren,0,0:a1,Biren,0,0:;", id="example 5"
        ),
        pytest.param(biren("a", devmem=0), 0, with_limits(1), "a,Biren,0,0:;", id="memory isn't counted"),
        pytest.param(
            biren("a"), 0, with_limits(1, **{"birentech.com/use-biren": "x", "birentech.com/nouse-biren": "Biren"}),
            "a,Biren,0,0:;", id="there are no lists of types",
        ),
        pytest.param(
            biren("a", type="Biren166M"), 0, pod("p", container("side"), container("main", **{COUNT: 1})),
            ";a,Biren,0,0:;", id="the model isn't written",
        ),
        pytest.param(
            biren("a", "b", count=2), 1, with_limits(2, **{"hami.io/gpu-scheduler-policy": "mutex"}),
            "1/2 AllocatedCardsInsufficientRequest, 1/2 ExclusiveDeviceAllocateConflict", id="mutex",
        ),
    ],
)  # fmt: skip
def test_which_devices_a_pod_gets(on: Node, used: int, incoming: JSON, answer: str) -> None:
    env = FitEnv([on])
    for number in range(used):
        env.place(with_limits(1, f"used-{number}"))
    assert record(env, incoming) == answer


# B2


def test_partitions_share_their_cards_index() -> None:
    env = FitEnv([biren("svi-0", "svi-1", "svi-2", index=3)])
    assert [record(env, with_limits(1, name)) for name in "abc"] == [f"svi-{i},Biren,0,0:;" for i in (2, 1, 0)]


# B3


@pytest.mark.parametrize(("limits", "ours"), [({COUNT: 1}, True), ({COUNT: 0}, True), ({"cpu": 1}, False)])
def test_a_count_in_limits_makes_the_pod_ours_and_changes_nothing(limits: JSON, ours: bool) -> None:
    env = FitEnv([])
    found = normalise(PodDraft(pod(**limits)), env.vendors, env.state)
    assert [vendor.key for vendor in found] == ["Biren"] * ours
    assert env.admit(pod(**limits)).pod == pod(**limits)


@pytest.mark.parametrize(
    ("limits", "requests", "count"), [({COUNT: 2}, {COUNT: 1}, 2), ({}, {COUNT: 1}, 1), ({COUNT: 0}, {}, None)]
)
def test_a_request_is_the_count_alone(limits: JSON, requests: JSON, count: int | None) -> None:
    found = BIREN.request(Pod.from_object(pod("p", container(requests=requests, **limits))).containers[0])
    assert (found and (found.count, found.memory.on(65024), found.cores)) == (count and (count, 0, 0))


# B4


def test_two_vendors_in_one_pod() -> None:
    vastai = '[{"id":"7-0","count":1,"devmem":32768,"type":"Vastai","health":true}]'
    both = read_node(**{**biren("card-0").annotations, "hami.io/node-va-register": vastai})
    placed = FitEnv([both]).placed(pod("p", container("a", **{COUNT: 1}), container("b", **{"vastaitech.com/va": 1})))
    assert placed.annotations[ALLOCATED] == "card-0,Biren,0,0:;;"
    assert placed.annotations["hami.io/Vastai-devices-allocated"] == ";7-0,Vastai,0,0:;"
    assert placed.debits == {f"limits.{COUNT}": 1, "limits.vastaitech.com/va": 1}
