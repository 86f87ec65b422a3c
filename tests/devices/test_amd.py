"""AMD GPUs, nodes and pods: docs/spec/amd-biren-vastai.md#A2 to #A6."""

from __future__ import annotations

import pytest
from builders import container, read_node

from hami_webhook.admission.pods import normalise
from hami_webhook.devices.model import Device
from hami_webhook.kube.draft import PodDraft
from hami_webhook.kube.objects import Pod

from .amd_cards import (
    AMD,
    BOTH,
    CORES,
    COUNT,
    MEM,
    MODEL,
    NAMES,
    PERCENT,
    REGISTER,
    WITH_PERCENTAGE,
    amd,
    limits,
    record,
    with_limits,
)
from .fit_env import JSON, NOW, FitEnv, configured, pod

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


def test_a_card_as_registered() -> None:
    """The literal sample of A3."""
    text = (
        '[{"id":"8eff74b5-0000-1000-801b-b56457addd1b","index":0,"count":10,"devmem":196288,"devcore":304,'
        '"type":"AMD Instinct MI300X VF","numa":0,"health":true,"devicevendor":"amd",'
        '"custominfo":{"pciBDF":"0000:83:00.0"}}]'
    )
    inventory = AMD.inventory(read_node(**{REGISTER: text}))
    assert inventory is not None
    uuid = "8eff74b5-0000-1000-801b-b56457addd1b"
    assert inventory.devices == (Device("AMD", uuid, 0, slots=10, memory=196288, cores=304, type=MODEL),)


def test_health_follows_the_capacity() -> None:
    for capacity in ({}, {COUNT: 0}, {COUNT: "x"}):
        assert not AMD.health(read_node(capacity=capacity), NOW).healthy
    assert AMD.health(read_node(capacity={COUNT: 1}), NOW).healthy
    assert record(FitEnv([amd("G0", capacity=0)]), with_limits()) == "node unregistered"


# A4


@pytest.mark.parametrize(
    ("notes", "answer"),
    [
        ({"amd.com/use-gputype": "mi300x, MI250"}, f"G1,{MODEL},5,3:;"),
        ({"amd.com/nouse-gputype": "instinct"}, "2/2 CardTypeMismatch"),
        ({"amd.com/use-gpu-uuid": "G0"}, f"G0,{MODEL},5,3:;"),
        ({"amd.com/nouse-gpu-uuid": "G1"}, f"G0,{MODEL},5,3:;"),
        ({"amd.com/use-gpuuuid": "G0"}, f"G1,{MODEL},5,3:;"),  # no key of AMD's
    ],
)
def test_lists(notes: dict[str, str], answer: str) -> None:
    assert record(FitEnv([BOTH]), with_limits(1, 5, 1, **notes)) == answer


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
        (limits(None, None, 5), CORES),
        (limits(None, None, 101), CORES),
        (limits(0, 5), MEM),
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


def test_what_only_requests_name_asks_for_nothing() -> None:
    env = FitEnv([BOTH])
    manifest = pod("p", container("c", requests=limits(1, 5, 5)))
    assert normalise(PodDraft(manifest), env.vendors, env.state) == ()
    assert AMD.request(Pod.from_object(manifest).containers[0]) is None


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
        (limits(1, None, None, 33), (1, 64775, 100)),
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
