"""Moore Threads: names, nodes and admission (docs/spec/mthreads.md#2 to #5)."""

import pytest
from builders import read_node

from hami_webhook.devices.model import RegistrationError

from .fit_env import NOW, FitEnv, Placed, configured, pod
from .moore import (
    ALLOCATED,
    CORE,
    LIST,
    MEM,
    REQUESTED,
    VENDOR,
    VGPU,
    admitted,
    env,
    mt_node,
    placed,
    short,
    with_limits,
)

# 2: names and config


def test_names_keys_and_units():
    assert VENDOR.resource_names == (VGPU, MEM, CORE)
    assert VENDOR.lock is None
    assert VENDOR.keys.owned == (
        ALLOCATED,
        "mthreads.com/gpu-index",
        "mthreads.com/predicate-node",
        "mthreads.com/predicate-time",
    )
    assert (VENDOR.keys.use_uuid, VENDOR.keys.nouse_uuid) == (
        ("mthreads.ai/use-gpuuuid",),
        ("mthreads.ai/nouse-gpuuuid",),
    )
    assert [(q.name, q.factor) for q in VENDOR.quota_keys()] == [
        (f"limits.{VGPU}", 1),
        (f"limits.{MEM}", 512),
        (f"limits.{CORE}", 1),
    ]


def test_a_section_whose_count_has_no_name_makes_no_backend():
    assert not configured(f"mthreads: {{resourceMemoryName: {MEM}, resourceCoreName: {CORE}}}")


def test_configured_names_count():
    vendors = configured("mthreads: {resourceCountName: a.b/n, resourceMemoryName: a.b/m, resourceCoreName: a.b/c}")
    where = FitEnv([read_node("n1", capacity={"a.b/c": 16, "a.b/m": 96})], vendors)
    assert where.admit(pod(**{"a.b/n": 0})).message == "a.b/n must be greater than 0"
    assert where.admit(pod(**{"a.b/n": 1})).limits() == {"a.b/n": "1", "a.b/m": "96", "a.b/c": "16"}


# 3: nodes


@pytest.mark.parametrize(
    ("core", "memory", "count", "each"),
    [
        *((core, "768", 8, 49152) for core in (128, "128")),
        (1, 1, 1, 8192),
        (17, 5, 2, 2409),
        (32, 128, 2, 32768),
        (16, None, 1, 0),
        *((core, 768, 0, 0) for core in (0, None, "1500m")),
    ],
)
def test_devices_come_from_capacity(core, memory, count, each):
    capacity = {key: value for key, value in ((CORE, core), (MEM, memory)) if value is not None}
    found = VENDOR.inventory(read_node("mt-1", capacity=capacity))
    devices = found.devices if found else ()
    assert [(d.uuid, d.index) for d in devices] == [(f"mt-1-mthreads-{i}", i) for i in range(count)]
    for d in devices:
        assert (d.slots, d.memory, d.cores, d.type, d.numa, d.healthy) == (100, each, 16, "Mthreads", 0, True)


def test_a_capacity_no_node_can_have_is_refused():
    with pytest.raises(RegistrationError):
        VENDOR.inventory(mt_node(core=10**18))


def test_devices_are_gone_with_the_capacity():
    where = env()
    where.state.set_node(mt_node(core=0), NOW)
    assert placed(where, pod("p", with_limits(n=1))) == "node unregistered"


# 5: admission

WHOLE = {"mem": "96", "core": "16"}
ADMISSION = [  # rules 3 to 6: limits, requests; limits and requests after
    ({"n": 1, "mem": 32, "core": 8}, {}, {"n": "1", "mem": "32", "core": "8"}, {}),
    ({"n": 1, "mem": 32}, {}, {"n": "1", "mem": "32"}, {}),
    ({"n": 1, "mem": 96}, {}, {"n": "1", "mem": "96"}, {}),
    ({"n": 1}, {}, {"n": "1", **WHOLE}, {}),
    ({"n": 1}, {"n": 1}, {"n": "1", **WHOLE}, {"n": "1"}),
    ({"n": 1, "core": 1}, {"n": 1, "core": 1}, {"n": "1", **WHOLE}, {"n": "1", "core": "16"}),
    ({"n": 1}, {"mem": 32}, {"n": "1", **WHOLE}, {"mem": "96"}),
    ({"n": 2}, {}, {"n": "2", "mem": "192", "core": "32"}, {}),
    ({"n": 3, "mem": 3, "core": 1}, {"mem": 3}, {"n": "3", "mem": "288", "core": "48"}, {"mem": "288"}),
    ({}, {"n": 1}, {"n": "1", **WHOLE}, {"n": "1"}),
    ({"mem": 4}, {"n": 1}, {"n": "1", "mem": "4"}, {"n": "1"}),
    ({}, {"n": 2}, {"n": "2", "mem": "192", "core": "32"}, {"n": "2"}),
    ({"mem": 3, "core": 5}, {}, {"mem": "3", "core": "5"}, {}),
]


@pytest.mark.parametrize(("limits", "requests", "after", "requested"), ADMISSION)
def test_whole_cards_are_written_as_what_they_have(limits, requests, after, requested):
    found = admitted(pod("p", with_limits(requests=requests, **limits)))
    assert (short(found.limits()), short(found.requests())) == (after, requested)


def test_init_containers_are_admitted_too():
    found = admitted(pod("p", with_limits(), init=[with_limits("prep", n=1)]))
    assert short(found.pod["spec"]["initContainers"][0]["resources"]["limits"]) == {"n": "1", **WHOLE}


@pytest.mark.parametrize(
    ("limits", "requests", "message"),
    [
        ({"n": 0}, {}, f"{VGPU} must be greater than 0"),
        ({"n": -1}, {}, f"{VGPU} must be greater than 0"),
        ({}, {"n": 0}, f"{VGPU} must be greater than 0"),
        ({"n": 0, "mem": "32Gi"}, {}, f"{VGPU} must be greater than 0"),
        *(({"n": 1, "mem": units}, {}, LIST) for units in (0, 1, 3, 95, 97, 128)),
        ({"mem": 3}, {"n": 1}, LIST),
    ],
)
def test_hamis_own_refusals(limits, requests, message):
    assert admitted(pod("p", with_limits(requests=requests, **limits))).message == message


def test_amounts_without_a_count_are_checked_but_not_asked():
    assert "invalid" in admitted(pod("p", with_limits(mem=-1))).message
    assert admitted(pod("p", with_limits(mem=3))).message == ""


@pytest.mark.parametrize(
    ("counts", "given", "after"),
    [
        ((2,), None, "2"),
        ((2,), "9", "2"),
        ((3,), "3", "3"),
        ((1,), "2", None),
        ((1,), None, None),
        ((1, 3), None, "3"),
        ((2, 1), "7", "2"),
        ((2, 3), None, "3"),
    ],
)
def test_the_number_of_cards_is_told_by_admission_alone(counts, given, after):
    notes = {} if given is None else {REQUESTED: given}
    found = admitted(pod("p", *(with_limits(f"c{i}", n=n) for i, n in enumerate(counts)), annotations=notes))
    assert found.pod["metadata"].get("annotations", {}).get(REQUESTED) == after


def test_a_pod_of_others_keeps_the_annotation():
    found = admitted(pod("p", with_limits(mem=4), annotations={REQUESTED: "2"}))
    assert found.pod["metadata"]["annotations"] == {REQUESTED: "2"}


SEVERAL, ALONE = "several cards are given whole", f"without a limit of {MEM} the card is given whole"


@pytest.mark.parametrize(
    ("limits", "requests", "reported"),
    [
        ({"n": 1, "mem": 32, "core": 8}, {}, []),
        ({"n": 1}, {}, []),
        ({"n": 2}, {}, []),
        ({"n": 2, "mem": 192, "core": 32}, {}, []),
        ({"n": 2, "mem": 2, "core": 1}, {}, [f"{MEM} 2 is ignored: {SEVERAL}", f"{CORE} 1 is ignored: {SEVERAL}"]),
        ({"n": 1, "core": 1}, {}, [f"{CORE} 1 is ignored: {ALONE}"]),
        ({"n": 1}, {"mem": 32}, [f"{MEM} 32 is ignored: {ALONE}"]),
        ({"n": 1, "mem": 32}, {}, [f"no compute is reserved without {CORE}"]),
    ],
)
def test_what_is_hardly_meant_is_told(limits, requests, reported):
    first = admitted(pod("p", with_limits(requests=requests, **limits)))
    assert list(first.warnings) == [f"container main: {text}" for text in reported]
    assert admitted(first.pod).warnings == [f"container main: {text}" for text in reported if "reserved" in text]


NEVER = "no node will fit"


@pytest.mark.parametrize(
    ("apps", "inits", "warned"),
    [
        ((2,), (), False),
        ((2, 0), (), False),
        ((1, 1), (), False),
        ((2, 1), (), True),
        ((1, 2), (), True),
        ((2,), (1,), False),
        ((2,), (3,), False),
        ((1,), (2, 1), True),
        ((1,), ("1",), False),
        ((2,), ("1",), True),
        ((1,), ("1", 2), True),
    ],
)
def test_a_pod_that_can_never_be_placed_is_told_so_and_never_is(apps, inits, warned):
    """Counts by container; a text is a sidecar's."""

    def made(kind, counts):
        return [
            with_limits(
                f"{kind}{i}", sidecar=isinstance(n, str), **({"n": n} if n == 0 or int(n) > 1 else {"n": n, "mem": 4})
            )
            if int(n)
            else with_limits(f"{kind}{i}")
            for i, n in enumerate(counts)
        ]

    manifest = pod("p", *made("a", apps), init=made("i", inits))
    where = env(mt_node(160, 960))
    assert any(NEVER in text for text in where.admit(manifest).warnings) is warned
    assert isinstance(where.place(manifest), Placed) is not warned
