"""Iluvatar's names, nodes, admission and requests, both families (docs/spec/iluvatar.md#2 to #6)."""

from __future__ import annotations

import pytest
from builders import read_node
from tables import in_one_test

from hami_webhook.admission.pods import normalise
from hami_webhook.config import ConfigError
from hami_webhook.device_config import load_device_config
from hami_webhook.devices.device_lister import NO_DEVICES
from hami_webhook.devices.model import FixedMemory, Request, ShareOfCard, WholeCard
from hami_webhook.kube.draft import PodDraft

from .fit_env import CHART, JSON, Admitted, FitEnv, configured, pod
from .iluvatars import (
    AMOUNTS,
    BOTH,
    OLD,
    OLD_AMOUNTS,
    OLD_CORE,
    OLD_MEM,
    OLD_SECTION,
    VCORE,
    VMEM,
    chip_node,
    env,
    extracted,
    with_limits,
)

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


# 3: nodes


@pytest.mark.parametrize(
    ("text", "cards"),
    [
        (
            "GPU-bad5,100,32768,100,BI-V150,0,true:GPU-7c1d,100,32768,100,BI-V150,1,true:",
            [("GPU-bad5", 0, 100, 32768, 100, 0, True), ("GPU-7c1d", 1, 100, 32768, 100, 1, True)],
        ),
        ("GPU-5f0e,10,8192,100,MR-V100,0,true,0,hami-core:", [("GPU-5f0e", 0, 10, 8192, 100, 0, True)]),
        (
            "a,10,8192,100,x,0,true,3,hami-core:b,10,8192,100,x,0,false:",
            [("a", 3, 10, 8192, 100, 0, True), ("b", 1, 10, 8192, 100, 0, False)],
        ),
        (
            '[{"id":"a","index":4,"count":2,"devmem":5,"devcore":100,"type":"BI-V150S","health":true}]',
            [("a", 4, 2, 5, 100, 0, True)],
        ),
    ],
)
def test_a_chips_register_annotation_is_read_whatever_the_type_says(text: str, cards: list[tuple[object, ...]]) -> None:
    found = BOTH["BI-V150"].inventory(chip_node(text))
    assert found is not None
    assert [(d.uuid, d.index, d.slots, d.memory, d.cores, d.numa, d.healthy) for d in found.devices] == cards
    assert {d.vendor for d in found.devices} == {"BI-V150"}


def test_a_card_of_the_old_family_has_a_hundred_cores_and_its_share_of_the_memory() -> None:
    found = BOTH["Iluvatar"].inventory(read_node("g7", capacity={OLD_CORE: 250, OLD_MEM: 257}))
    assert found is not None
    assert [(d.uuid, d.index) for d in found.devices] == [(f"g7-iluvatar-{i}", i) for i in range(3)]
    assert {(d.slots, d.memory, d.cores, d.type, d.numa, d.healthy) for d in found.devices} == {
        (100, 26316, 100, "Iluvatar", 0, True)
    }


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
