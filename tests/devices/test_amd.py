"""AMD GPUs: part A of docs/spec/amd-biren-vastai.md."""

from __future__ import annotations

import json
from typing import Any

import pytest
from builders import container, read_node

from hami_webhook.admission.pods import normalise
from hami_webhook.devices.model import BadRequest
from hami_webhook.kube.draft import PodDraft
from hami_webhook.kube.objects import Node, Pod
from hami_webhook.quota.pricing import charge_of

from .fit_env import CHART, JSON, NOW, FitEnv, configured, placed_pod, pod

COUNT, MEM, CORES = "amd.com/gpu", "amd.com/gpumem", "amd.com/gpucores"
PERCENT = "amd.com/gpumem-percentage"
REGISTER = "hami.io/node-amd-register"
ALLOCATED = "hami.io/amd-devices-allocated"
MODEL = "AMD Instinct MI300X VF"
NAMES = "amd: {resourceCountName: amd.com/gpu, resourceMemoryName: amd.com/gpumem, resourceCoreName: amd.com/gpucores"
WITH_PERCENTAGE = configured(f"{NAMES}, resourceMemoryPercentageName: {PERCENT}}}")
AMD = CHART["AMD"]


def amd(*ids: str, name: str = "amd-1", capacity: int = 20, **fields: Any) -> Node:
    """A node of MI300X cards; fields that are given are every card's."""
    mi300x = {"count": 10, "devmem": 196288, "devcore": 304, "type": MODEL, "health": True, **fields}
    cards = [{"id": uuid, "index": at, **mi300x} for at, uuid in enumerate(ids)]
    return read_node(name, capacity={COUNT: capacity}, **{REGISTER: json.dumps(cards)})


BOTH = amd("G0", "G1")


def limits(gpu: object = 1, mem: object = None, cores: object = None, percent: object = None) -> JSON:
    named = {COUNT: gpu, MEM: mem, CORES: cores, PERCENT: percent}
    return {key: value for key, value in named.items() if value is not None}


def with_limits(gpu: object = 1, mem: object = None, cores: object = None, name: str = "p", **notes: str) -> JSON:
    return pod(name, annotations=notes, **limits(gpu, mem, cores))


def record(env: FitEnv, manifest: JSON) -> str:
    return env.outcome(manifest, "AMD")


# A2, A3


@pytest.mark.parametrize(
    ("text", "names", "keys"),
    [
        (NAMES + "}", (COUNT, MEM, CORES), (COUNT, MEM, CORES)),
        ("amd: {resourceCountName: amd.com/gpu}", (COUNT,), (COUNT,)),
        (f"{NAMES}, resourceMemoryPercentageName: {PERCENT}}}", (COUNT, MEM, CORES, PERCENT), (COUNT, MEM, CORES)),
    ],
)
def test_configured_names(text: str, names: tuple[str, ...], keys: tuple[str, ...]) -> None:
    vendors = configured(text)
    assert vendors["AMD"].resource_names == names
    assert list(vendors.quota_keys) == [f"limits.{key}" for key in keys]


def test_without_the_two_other_names_cards_are_whole() -> None:
    env = FitEnv([BOTH], configured("amd: {resourceCountName: amd.com/gpu}"))
    assert record(env, with_limits(1, 1, 1)) == f"G1,{MODEL},196288,304:;"


def test_health_follows_the_capacity() -> None:
    for capacity in ({}, {COUNT: 0}, {COUNT: "x"}):
        assert not AMD.health(read_node(capacity=capacity), NOW).healthy
    assert AMD.health(read_node(capacity={COUNT: 1}), NOW).healthy
    assert record(FitEnv([amd("G0", capacity=0)]), with_limits()) == "node unregistered"


# A4


def test_a_list_of_commas_leaves_no_card_for_the_waiting_charge_to_go_by() -> None:
    env = FitEnv([BOTH])
    assert env.waiting(with_limits(**{"amd.com/use-gputype": "MI3"}))[f"limits.{MEM}"] == 196288
    assert env.waiting(with_limits(**{"amd.com/use-gputype": ","}))[f"limits.{MEM}"] == 1


# A5


def test_nothing_in_the_container_is_changed() -> None:
    for manifest in (with_limits(), with_limits(2, 5), with_limits(1, 5, 1)):
        admitted = FitEnv([]).admit(manifest)
        assert (admitted.pod, admitted.warnings) == (manifest, [])


@pytest.mark.parametrize(
    ("written", "resource"),
    [
        (limits(None, 5), MEM),
        (limits(0, 5), MEM),
        (limits(None, None, 5), CORES),
        (limits(None, None, 101), CORES),
        (limits(None, None, None, 5), PERCENT),
    ],
)
def test_without_a_count_the_pod_is_ours_and_gets_no_card(written: JSON, resource: str) -> None:
    env = FitEnv([BOTH], WITH_PERCENTAGE)
    manifest = pod("p", container("c", **written))
    draft = PodDraft(manifest)
    assert [vendor.key for vendor in normalise(draft, env.vendors, env.state)] == ["AMD"]
    admitted = env.admit(manifest)
    assert admitted.warnings == [f"container c: {resource} without amd.com/gpu gives no card"]
    assert AMD.request(Pod.from_object(manifest).containers[0]) is None
    assert env.waiting(manifest) == {}


# A6


@pytest.mark.parametrize(
    ("written", "asked"),
    [
        (limits(), (1, 196288, 100)),
        (limits(3, 5), (3, 5, 100)),
        (limits(1, 0, 33), (1, 196288, 33)),
        (limits(1, "2k", 1), (1, 2000, 1)),
        (limits(0, 5), None),
        (limits(None, 5), None),
        (limits(1, None, None, 50), (1, 98144, 100)),
        (limits(1, 7, None, 33), (1, 7, 100)),
        (limits(1, 0, None, 33), (1, 64775, 100)),
    ],
)
def test_requests(written: JSON, asked: tuple[int, int, int] | None) -> None:
    found = WITH_PERCENTAGE["AMD"].request(Pod.from_object(pod("p", container(**written))).containers[0])
    assert (found and (found.count, found.memory.on(196288), found.cores)) == asked


@pytest.mark.parametrize("percent", [0, 101, "1.5"])
def test_a_memory_percentage_out_of_bounds_is_refused(percent: object) -> None:
    manifest = pod("p", container("c", **limits(1, None, None, percent)))
    assert FitEnv([], WITH_PERCENTAGE).admit(manifest).message == (
        f"invalid {PERCENT} value {percent} in container c: must be an integer between 1 and 100"
    )
    assert FitEnv([]).admit(manifest).pod == manifest


def test_a_percentage_beside_an_amount_is_pointless() -> None:
    admitted = FitEnv([], WITH_PERCENTAGE).admit(pod("p", container("c", **limits(1, 5, None, 5))))
    assert admitted.warnings == [f"container c: {PERCENT} is ignored, because {MEM} is given too"]


# A11


@pytest.mark.parametrize("cores", [0, 101, "12.5", "x", "-1"])
def test_example_3_a_percentage_out_of_bounds_is_refused(cores: object) -> None:
    message = "amd.com/gpucores must be an integer percentage between 1 and 100"
    assert FitEnv([]).admit(with_limits(1, None, cores)).message == message
    incoming = Pod.from_object(with_limits(1, None, cores)).containers[0]
    with pytest.raises(BadRequest, match=message):
        AMD.request(incoming)


# A7


@pytest.mark.parametrize(
    ("percent", "total", "units"),
    [(25, 304, 76), (33, 304, 100), (67, 304, 203), (1, 304, 3), (100, 304, 304), (1, 64, 1), (33, 100, 33)],
)
def test_compute_units(percent: int, total: int, units: int) -> None:
    assert record(FitEnv([amd("G", devcore=total)]), with_limits(1, 5, percent)) == f"G,{MODEL},5,{units}:;"


def test_no_exclusiveness_beyond_the_units() -> None:
    env = FitEnv([amd("G0")])
    assert record(env, with_limits(1, 5, 100, "first")) == f"G0,{MODEL},5,304:;"
    assert record(env, with_limits(1, 5, 1)) == "1/1 CardInsufficientCore"
    assert record(env, with_limits(2)) == "NodeInsufficientDevice"


# A8


@pytest.mark.parametrize(
    ("model", "word"),
    [
        (MODEL, MODEL),
        ("amd radeon", "amd radeon"),
        ("Instinct MI300X", "AMD"),
        ("AMD, MI300X", "AMD"),
        ("AMD:MI300X", "AMD"),
        ("AMD;MI300X", "AMD"),
    ],
)
def test_the_second_field_is_the_product_name(model: str, word: str) -> None:
    env = FitEnv([amd("G0", type=model)])
    assert record(env, with_limits(1, 5, 25, "a")) == f"G0,{word},5,76:;"
    assert env.used("AMD", "G0", "amd-1") == (1, 5, 76)


def test_the_second_field_is_not_read() -> None:
    found = AMD.decode(placed_pod(**{ALLOCATED: "G0,whatever,5,76:;"}))
    assert found is not None
    assert [(entry.uuid, entry.memory, entry.cores) for row in found for entry in row] == [("G0", 5, 76)]


# A9


@pytest.mark.parametrize(
    ("asked", "on", "debits"),
    [
        (limits(1, 49152, 25), BOTH, (1, 49152, 25)),
        (limits(2), BOTH, (2, 392576, 200)),
        (limits(1, None, 33), amd("G0", devcore=100), (1, 196288, 33)),
        (limits(1, 5, 1), amd("G0", devcore=64), (1, 5, 1)),
    ],
)
def test_debits(asked: JSON, on: Node, debits: tuple[int, int, int]) -> None:
    """What is placed; and since every card here is alike, what waits is charged the same."""
    env = FitEnv([on])
    expected = dict(zip((f"limits.{COUNT}", f"limits.{MEM}", f"limits.{CORES}"), debits, strict=True))
    assert env.waiting(pod(**asked)) == expected
    placed = env.placed(pod(**asked))
    assert placed.debits == expected


def test_quotas_count_percent_where_cards_count_units() -> None:
    env = FitEnv([BOTH], hard={f"limits.{CORES}": 150})
    env.place(with_limits(1, None, None, "whole"))
    assert record(env, with_limits(1, 5, 51, "much")) == "2/2 ResourceQuotaNotFit"
    assert record(env, with_limits(1, 5, 25, "quarter")) == f"G0,{MODEL},5,76:;"
    assert record(env, with_limits(1, 5, 25, "another")) == f"G0,{MODEL},5,76:;"
    assert record(env, with_limits(1, 5, 1, "no more")) == "2/2 ResourceQuotaNotFit"


SIDE = container("side")
HALF, QUARTER = container("half", **limits(1, 5, 50)), container("quarter", **limits(1, 5, 25))


@pytest.mark.parametrize(
    ("text", "containers", "cores"),
    [
        ("G0,AMD,5,76:;", (HALF, QUARTER), 50),
        (";G0,AMD,5,76:;", (HALF, QUARTER), 25),
        ("G0,AMD,5,76:;G1,AMD,5,3:;;", (HALF, QUARTER), 100),
        ("G0,AMD,5,76:;", (SIDE, QUARTER), 25),
        ("G0,AMD,5,76:;", (SIDE,), 100),
    ],
)
def test_entries_are_charged_what_their_container_asks_or_the_most_one_of_the_pods_does(
    text: str, containers: tuple[JSON, ...], cores: int
) -> None:
    """HAMi 2.10 loses the slots of containers without cards, so an entry's own container may not be known."""
    bound = placed_pod("u", *containers, **{ALLOCATED: text})
    assert charge_of(bound, CHART, FitEnv([BOTH]).state.capacity, NOW).amounts[f"limits.{CORES}"] == cores


def test_init_containers_and_sidecars_are_peaks_in_both_units() -> None:
    env = FitEnv([amd("G0")])
    incoming = pod(
        "p",
        container("app", **limits(1, 10, 10)),
        init=[container("init", **limits(1, 5, 90)), container("side", sidecar=True, **limits(1, 7, 20))],
    )
    placed = env.placed(incoming)
    assert placed.annotations[ALLOCATED] == f"G0,{MODEL},5,273:;G0,{MODEL},7,60:;G0,{MODEL},10,30:;"
    assert placed.debits == {f"limits.{COUNT}": 2, f"limits.{MEM}": 17, f"limits.{CORES}": 90}
    assert env.used("AMD", "G0", "amd-1") == (2, 17, 273)
