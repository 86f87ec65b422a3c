"""Iluvatar's names, nodes and admission, both families (docs/spec/iluvatar.md#2 to #5)."""

import pytest
from builders import read_node

from hami_webhook.admission.pods import normalise
from hami_webhook.config import ConfigError
from hami_webhook.device_config import load_device_config
from hami_webhook.devices.device_lister import NO_DEVICES
from hami_webhook.devices.lock_annotations import COMMON_LOCK
from hami_webhook.kube.draft import PodDraft

from .fit_env import CHART, NOW, FitEnv, Placed, configured, pod
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
    A,
    chip_node,
    env,
    old_node,
    with_limits,
)

# 2: names and config


@pytest.mark.parametrize("chip", ["MR-V100", "MR-V50", "BI-V150", "BI-V100"])
def test_the_charts_four_chips_are_backends_with_keys_of_their_common_words(chip):
    vendor = CHART[chip]
    assert vendor.resource_names == (
        f"iluvatar.ai/{chip}-vgpu",
        f"iluvatar.ai/{chip}.vMem",
        f"iluvatar.ai/{chip}.vCore",
    )
    assert (vendor.registration.annotation, vendor.registration.handshake) == (
        f"hami.io/node-{chip}-register",
        f"hami.io/node-handshake-{chip}",
    )
    keys = vendor.keys
    assert keys.owned == (f"hami.io/{chip}-devices-allocated", f"hami.io/{chip}-devices-to-allocate")
    assert (keys.use_uuid, keys.nouse_uuid) == ((f"hami.io/use-{chip}-uuid",), (f"hami.io/no-use-{chip}-uuid",))
    assert vendor.lock is COMMON_LOCK


def test_the_chart_has_no_old_family_and_its_section_alone_makes_one():
    assert "Iluvatar" not in CHART
    assert list(configured(OLD_SECTION)) == ["Iluvatar"]
    vendor = BOTH["Iluvatar"]
    assert vendor.resource_names == (OLD, OLD_MEM, OLD_CORE)
    assert set(vendor.keys.owned) == {
        "hami.io/iluvatar-vgpu-devices-to-allocate",
        "hami.io/iluvatar-vgpu-devices-allocated",
        "iluvatar.ai/gpu-assigned",
        "iluvatar.ai/predicate-time",
    }
    assert (vendor.keys.use_uuid, vendor.keys.nouse_uuid) == (
        ("iluvatar.ai/use-gpuuuid",),
        ("iluvatar.ai/nouse-gpuuuid",),
    )
    assert vendor.lock is None


def test_a_backend_whose_count_has_no_name_is_absent():
    only_memory = f"resourceMemoryName: {VMEM}, resourceCoreName: {VCORE}"
    assert not configured(f"iluvatars: [{{commonWord: BI-V150, {only_memory}}}]")
    assert not configured(f"iluvatar: {{{only_memory}}}")


def test_a_name_may_not_be_used_by_both_sections():
    text = f"iluvatars: [{{commonWord: BI-V150, resourceCountName: {OLD}}}]\n{OLD_SECTION}"
    with pytest.raises(ConfigError, match="can't be used by both sections"):
        load_device_config(text, "test")


def test_newer_gpu_managers_names_go_to_the_old_section():
    vendors = configured(
        f"iluvatar: {{resourceCountName: my.org/ilu, resourceMemoryName: {VMEM}, resourceCoreName: {VCORE}}}"
    )
    where = FitEnv([read_node("n1", capacity={VCORE: 100, VMEM: 128})], vendors=vendors)
    result = where.place(pod(**{"my.org/ilu": 1, VMEM: 64}))
    assert isinstance(result, Placed)
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
        (":", None),
        ("[]", None),
    ],
)
def test_a_chips_register_annotation_is_read_whatever_the_type_says(text, cards):
    found = BOTH["BI-V150"].inventory(chip_node(text))
    read = found and [(d.uuid, d.index, d.slots, d.memory, d.cores, d.numa, d.healthy) for d in found.devices]
    assert read == cards
    assert not found or {d.vendor for d in found.devices} == {"BI-V150"}


def test_a_card_of_another_type_serves_and_other_chips_cards_dont():
    where = FitEnv([read_node("n", **{"hami.io/node-BI-V150-register": A.replace("BI-V150", "odd")})])
    assert isinstance(where.place(pod("p", with_limits(n=1))), Placed)
    assert where.place(pod(**{"iluvatar.ai/BI-V100-vgpu": 1})) == {"n": "NodeInsufficientDevice"}


@pytest.mark.parametrize(
    ("core", "memory", "count", "each"),
    [
        (1600, 2048, 16, 32768),
        ("1600", "2048", 16, 32768),
        (200, 256, 2, 32768),
        (250, 257, 3, 26316),
        (1, 1, 1, 25600),
        (100, None, 1, 0),
        ("1500m", 256, 0, 0),
        (0, 256, 0, 0),
        (None, 256, 0, 0),
    ],
)
def test_old_devices_come_from_capacity(core, memory, count, each):
    capacity = {key: value for key, value in ((OLD_CORE, core), (OLD_MEM, memory)) if value is not None}
    found = BOTH["Iluvatar"].inventory(read_node("g7", capacity=capacity))
    devices = found.devices if found else ()
    assert [d.uuid for d in devices] == [f"g7-iluvatar-{i}" for i in range(count)]
    assert [d.index for d in devices] == list(range(count))
    for d in devices:
        assert (d.slots, d.memory, d.cores, d.type, d.numa, d.healthy) == (100, each, 100, "Iluvatar", 0, True)


def test_old_devices_are_gone_with_the_capacity():
    where = env(old_node())
    where.state.set_node(old_node(core=0), NOW)
    assert where.place(pod("p", with_limits(old=True, n=1))) == {"old-1": "node unregistered"}


# 5: admission


@pytest.mark.parametrize(("amounts", "memory"), [({"mem": 8388607}, 8388607), ({"mem": 0}, 0), ({"core": 0}, None)])
def test_the_largest_and_smallest_amounts_are_let_in(amounts, memory):
    admitted = env().admit(pod("p", with_limits(n=1, **amounts)))
    assert admitted.message == ""
    assert admitted.limits().get(VMEM) == (None if memory is None else str(memory))


def env_of(admitted, index=0):
    assert admitted.pod is not None, admitted.message
    return admitted.pod["spec"]["containers"][index].get("env", [])


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
def test_several_cards_get_all_their_cores(old, limits, requests, after, requested):
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
def test_the_runtime_is_told_the_containers_name(old, limits, given, after):
    incoming = with_limits(old=old, **limits)
    if given is not None:
        incoming["env"] = given
    assert env_of(env().admit(pod("p", incoming))) == after


def test_init_containers_are_told_theirs_and_a_nameless_one_nothing():
    nameless = with_limits("", n=1)
    admitted = env().admit(pod("p", nameless, init=[with_limits("prep", n=1)]))
    assert env_of(admitted) == []
    assert admitted.pod["spec"]["initContainers"][0]["env"] == [{"name": "SOL_CONTINER_NAME", "value": "prep"}]


@pytest.mark.parametrize(("limits", "asked"), [({"n": 1}, True), ({"n": 0}, True), ({"mem": 8}, False), ({}, False)])
def test_a_count_in_limits_asks_even_where_it_is_0(limits, asked):
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


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize(("limits", "reported"), WARNINGS)
def test_what_is_hardly_meant_is_told_once(old, limits, reported):
    names = OLD_AMOUNTS if old else AMOUNTS
    first = env().admit(pod("p", with_limits(old=old, **limits)))
    assert list(first.warnings) == ["container main: " + text.format_map(names) for text in reported]


def test_gpu_manager_knows_no_init_containers():
    reported = env().admit(pod("p", with_limits(old=True, n=1), init=[with_limits("prep", old=True, n=1)])).warnings
    assert [("container prep" in text, "gpu-manager" in text) for text in reported] == [(True, True)]
    assert env().admit(pod("p", with_limits(n=1), init=[with_limits("prep", n=1)])).warnings == []
