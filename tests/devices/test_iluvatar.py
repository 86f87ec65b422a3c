"""Iluvatar, both families (docs/spec/iluvatar.md).

Which cards a pod gets is in `test_first_fit_vendors.py`, against a plain reading of section 7.
"""

from __future__ import annotations

from typing import Any

import pytest
from builders import container, read_node
from tables import in_one_test

from hami_webhook.admission.pods import normalise
from hami_webhook.config import ConfigError
from hami_webhook.device_config import load_device_config
from hami_webhook.devices.device_lister import NO_DEVICES
from hami_webhook.devices.model import FixedMemory, Request, ShareOfCard, WholeCard
from hami_webhook.kube.draft import PodDraft
from hami_webhook.kube.objects import Container, ContainerKind, Node

from .fit_env import CHART, JSON, NOW, Admitted, FitEnv, configured, pod

VGPU, VMEM, VCORE = "iluvatar.ai/BI-V150-vgpu", "iluvatar.ai/BI-V150.vMem", "iluvatar.ai/BI-V150.vCore"
OLD, OLD_MEM, OLD_CORE = "iluvatar.ai/vgpu", "iluvatar.ai/vcuda-memory", "iluvatar.ai/vcuda-core"
REGISTER = "hami.io/node-BI-V150-register"
ALLOCATED, TO_ALLOCATE = "hami.io/BI-V150-devices-allocated", "hami.io/BI-V150-devices-to-allocate"
OLD_SECTION = f"iluvatar: {{resourceCountName: {OLD}, resourceMemoryName: {OLD_MEM}, resourceCoreName: {OLD_CORE}}}"
BOTH = configured(
    f"iluvatars: [{{chipName: x, commonWord: BI-V150, resourceCountName: {VGPU}, resourceMemoryName: {VMEM}, "
    f"resourceCoreName: {VCORE}}}]\n{OLD_SECTION}"
)
A, B = "GPU-1111,100,32768,100,BI-V150,0,true:", "GPU-2222,100,32768,100,BI-V150,1,true:"
AMOUNTS = {"n": VGPU, "mem": VMEM, "core": VCORE}
OLD_AMOUNTS = {"n": OLD, "mem": OLD_MEM, "core": OLD_CORE}


def chip_node(cards: str = A + B, name: str = "ilu-1", **notes: str) -> Node:
    return read_node(name, capacity={VGPU: 200}, **{REGISTER: cards, **notes})


def old_node(core: object = 200, memory: object = 256, name: str = "old-1") -> Node:
    return read_node(name, capacity={OLD_CORE: core, OLD_MEM: memory})


def with_limits(name: str = "main", *, old: bool = False, requests: JSON | None = None, **amounts: object) -> JSON:
    """A container with limits (and requests) under the short names of AMOUNTS."""
    names = OLD_AMOUNTS if old else AMOUNTS
    limits: JSON = {names[key]: value for key, value in amounts.items()}
    return container(name, requests={names[key]: value for key, value in (requests or {}).items()}, **limits)


def env(*nodes: Node, **rest: Any) -> FitEnv:
    return FitEnv(nodes or [chip_node()], BOTH, **rest)


def where_it_goes(where: FitEnv, manifest: JSON) -> str:
    """The record that placement writes, or the refusal's text."""
    return where.outcome(manifest, "BI-V150")


def extracted(old: bool, limits: JSON, requests: JSON) -> Request | None:
    """What a container with these amounts asks."""
    vendor = BOTH["Iluvatar" if old else "BI-V150"]
    names = OLD_AMOUNTS if old else AMOUNTS
    written = [{names[key]: value for key, value in given.items()} for given in (limits, requests)]
    return vendor.request(Container("main", ContainerKind.APP, written[0], written[1]))


# 2: names and config


def test_the_chart_has_four_chips_and_not_the_old_family() -> None:
    assert [chip for chip in CHART if "iluvatar.ai" in CHART[chip].count_name] == [
        "BI-V100",
        "BI-V150",
        "MR-V100",
        "MR-V50",
    ]


def test_a_name_may_not_be_used_by_both_sections() -> None:
    text = f"iluvatars: [{{commonWord: BI-V150, resourceCountName: {OLD}}}]\n{OLD_SECTION}"
    with pytest.raises(ConfigError, match="can't be used by both sections"):
        load_device_config(text, "test")


def test_newer_gpu_managers_names_go_to_the_old_section() -> None:
    vendors = configured(
        f"iluvatar: {{resourceCountName: my.org/ilu, resourceMemoryName: {VMEM}, resourceCoreName: {VCORE}}}"
    )
    where = FitEnv([read_node("n1", capacity={VCORE: 100, VMEM: 128})], vendors=vendors)
    limits: JSON = {"my.org/ilu": 1, VMEM: 64}
    result = where.placed(pod(**limits))
    assert result.annotations["iluvatar.ai/predicate-gpu-idx-0"] == "0"


# 5: admission


def env_of(admitted: Admitted) -> list[JSON]:
    found: list[JSON] = admitted.patched["spec"]["containers"][0].get("env", [])
    return found


@pytest.mark.parametrize(
    ("old", "limits", "requests", "after", "requested"),
    [
        (False, {"n": 2}, {}, {"n": "2", "core": "200"}, {}),
        (False, {"n": 2, "core": 30}, {"core": 30}, {"n": "2", "core": "200"}, {"core": "200"}),
        (False, {"n": 3, "mem": 8, "core": 300}, {"core": 300}, {"n": "3", "mem": "8", "core": "300"}, {"core": "300"}),
        (False, {"n": 1, "core": 250}, {}, {"n": "1", "core": "250"}, {}),
        (False, {"n": 0, "core": 5}, {}, {"n": "0", "core": "5"}, {}),
        (False, {"mem": 8, "core": 5}, {}, {"mem": "8", "core": "5"}, {}),
        (True, {"n": 2, "core": 1}, {"n": 2, "core": 1}, {"n": "2", "core": "200"}, {"n": "2", "core": "200"}),
    ],
)
def test_several_cards_get_all_their_cores(
    old: bool, limits: JSON, requests: JSON, after: JSON, requested: JSON
) -> None:
    names = OLD_AMOUNTS if old else AMOUNTS
    admitted = env().admit(pod("p", with_limits(old=old, requests=requests, **limits)))
    assert admitted.limits() == {names[key]: value for key, value in after.items()}
    assert admitted.requests() == {names[key]: value for key, value in requested.items()}


@pytest.mark.parametrize(
    ("old", "limits", "given", "after"),
    [
        (False, {"n": 1}, None, [{"name": "SOL_CONTINER_NAME", "value": "main"}]),
        (False, {"n": 0}, None, [{"name": "SOL_CONTINER_NAME", "value": "main"}]),
        (False, {"n": 1}, [{"name": "X"}], [{"name": "X"}, {"name": "SOL_CONTINER_NAME", "value": "main"}]),
        (
            False,
            {"n": 1},
            [{"name": "SOL_CONTINER_NAME", "value": "mine"}],
            [{"name": "SOL_CONTINER_NAME", "value": "mine"}],
        ),
        (False, {"mem": 8}, None, []),
        (True, {"n": 1}, None, []),
    ],
)
def test_the_runtime_is_told_the_containers_name(
    old: bool, limits: JSON, given: list[JSON] | None, after: list[JSON]
) -> None:
    incoming = with_limits(old=old, **limits)
    if given is not None:
        incoming["env"] = given
    assert env_of(env().admit(pod("p", incoming))) == after


def test_init_containers_are_told_theirs_and_a_nameless_one_nothing() -> None:
    nameless = with_limits("", n=1)
    admitted = env().admit(pod("p", nameless, init=[with_limits("prep", n=1)]))
    assert env_of(admitted) == []
    assert admitted.patched["spec"]["initContainers"][0]["env"] == [{"name": "SOL_CONTINER_NAME", "value": "prep"}]


@pytest.mark.parametrize(("limits", "asked"), [({"n": 1}, True), ({"n": 0}, True), ({"mem": 8}, False), ({}, False)])
def test_a_count_in_limits_asks_even_where_it_is_0(limits: JSON, asked: bool) -> None:
    requests: JSON
    for requests in ({}, {"n": 1}):
        draft = PodDraft(pod("p", with_limits(requests=requests, **limits)))
        assert bool(normalise(draft, BOTH, NO_DEVICES)) is asked


SEVERAL = "several cards are given whole"
WARNINGS = [
    ({"n": 1, "mem": 64, "core": 50}, []),
    ({"n": 1}, []),
    ({"n": 2}, []),
    ({"n": 2, "core": 200}, []),
    ({"n": 2, "mem": 8}, [f"{{mem}} is only the least each card must have: {SEVERAL}"]),
    ({"n": 2, "core": 30}, [f"{{core}} 30 is ignored: {SEVERAL}"]),
    ({"n": 1, "core": 101}, ["{core} 101 counts as 100, all of a card"]),
    ({"n": 1, "mem": 8}, ["no compute of the shared card is reserved without {core}"]),
    ({"n": 0, "mem": 8}, []),
]


@in_one_test("old", [False, True])
@in_one_test(("limits", "reported"), WARNINGS)
def test_what_is_hardly_meant_is_told_once(old: bool, limits: JSON, reported: list[str]) -> None:
    names = OLD_AMOUNTS if old else AMOUNTS
    first = env().admit(pod("p", with_limits(old=old, **limits)))
    assert list(first.warnings) == ["container main: " + text.format_map(names) for text in reported]


def test_gpu_manager_knows_no_init_containers() -> None:
    reported = env().admit(pod("p", with_limits(old=True, n=1), init=[with_limits("prep", old=True, n=1)])).warnings
    assert [("container prep" in text, "gpu-manager" in text) for text in reported] == [(True, True)]
    assert env().admit(pod("p", with_limits(n=1), init=[with_limits("prep", n=1)])).warnings == []


# 6: requests


@in_one_test("old", [False, True])
@in_one_test(
    ("limits", "requests", "expected"),
    [
        ({"n": 1, "mem": 64, "core": 50}, {}, Request(1, FixedMemory(16384), 50)),
        ({"n": 1}, {}, Request(1, ShareOfCard(100), 0)),
        ({"n": 1, "mem": 0}, {}, Request(1, ShareOfCard(100), 0)),
        ({"n": 1, "core": 250}, {}, Request(1, ShareOfCard(100), 100)),
        ({}, {"n": 1, "mem": 4, "core": 5}, Request(1, FixedMemory(1024), 5)),
        ({"n": 1, "mem": 8}, {"n": 3, "mem": 4, "core": 5}, Request(1, FixedMemory(2048), 5)),
        ({"n": 2}, {}, Request(2, WholeCard(), 100)),
        ({"n": 2, "mem": 64, "core": 200}, {}, Request(2, WholeCard(16384), 100)),
        ({"n": 0, "mem": 64}, {}, None),
        ({"mem": 64, "core": 5}, {}, None),
    ],
)
def test_what_a_container_asks(old: bool, limits: JSON, requests: JSON, expected: Request | None) -> None:
    assert extracted(old, limits, requests) == expected


# 7: Fit


def test_1_half_a_card() -> None:
    placed = env().placed(pod("p", with_limits(n=1, mem=64, core=50)))
    assert placed.annotations[ALLOCATED] == placed.annotations[TO_ALLOCATE] == "GPU-2222,BI-V150,16384,50:;"
    assert placed.debits == {f"limits.{VGPU}": 1, f"limits.{VMEM}": 64, f"limits.{VCORE}": 50}


def test_a_card_without_cores_serves_pods_that_ask_for_none() -> None:
    where = env(chip_node("a,9,4096,0,x,0,true:"))
    for name in ("p", "q"):
        assert where_it_goes(where, pod(name, with_limits(n=1, mem=1))) == "a,BI-V150,256,0:;"


def test_the_families_never_see_each_others_cards() -> None:
    where = env(chip_node(), old_node())
    assert where_it_goes(where, pod("new", with_limits(n=1, mem=1))).startswith("GPU-")
    assert where.place(pod("p", with_limits(old=True, n=3))) == {
        "ilu-1": "NodeInsufficientDevice",
        "old-1": "NodeInsufficientDevice",
    }
    found = where.place(pod("p", with_limits("x", n=1), with_limits("y", old=True, n=1)))
    assert found == {"ilu-1": "NodeInsufficientDevice", "old-1": "NodeInsufficientDevice"}


# 9: outputs


def test_10_gpu_manager_is_told_the_indices_of_several_cards() -> None:
    placed = env(old_node()).placed(pod("p", with_limits(old=True, n=2)))
    assert placed.annotations["iluvatar.ai/predicate-gpu-idx-0"] == "1,0"


def test_old_placement_tells_gpu_manager_the_index_of_every_app_container() -> None:
    apps = [with_limits("a", old=True, n=1, mem=64, core=50), container("b"), with_limits("c", old=True, n=1, mem=96)]
    result = env(old_node()).placed(pod("p", *apps, init=[with_limits("prep", old=True, n=1, mem=32)]))
    text = "old-1-iluvatar-1,Iluvatar,8192,0:;old-1-iluvatar-1,Iluvatar,16384,50:;;old-1-iluvatar-0,Iluvatar,24576,0:;"
    assert dict(result.annotations) == {
        "hami.io/vgpu-node": "old-1",
        "hami.io/vgpu-time": str(int(NOW)),
        "hami.io/iluvatar-vgpu-devices-allocated": text,
        "hami.io/iluvatar-vgpu-devices-to-allocate": text,
        "iluvatar.ai/gpu-assigned": "false",
        "iluvatar.ai/predicate-time": f"{NOW:.0f}000000000",
        "iluvatar.ai/predicate-gpu-idx-0": "1",
        "iluvatar.ai/predicate-gpu-idx-2": "0",
    }
    assert result.debits == {f"limits.{OLD}": 2, f"limits.{OLD_MEM}": 160, f"limits.{OLD_CORE}": 50}
