"""Moore Threads: nodes, admission and requests (docs/spec/mthreads.md#3, #5 and #6)."""

from __future__ import annotations

import pytest
from tables import in_one_test

from hami_webhook.devices.model import FixedMemory, Request, ShareOfCard, WholeCard
from hami_webhook.kube.objects import Container, ContainerKind

from .fit_env import JSON, FitEnv, Placed, configured, pod
from .moore import CORE, LIST, MEM, NAMES, REQUESTED, VENDOR, VGPU, admitted, env, mt_node, placed, short, with_limits

# 3: nodes


@pytest.mark.parametrize(("core", "memory", "count", "each"), [(128, 768, 8, 49152), (17, 5, 2, 2409)])
def test_a_card_has_sixteen_core_groups_and_its_share_of_the_memory(
    core: int, memory: int, count: int, each: int
) -> None:
    found = VENDOR.inventory(mt_node(core, memory))
    assert found is not None
    assert [(d.uuid, d.index) for d in found.devices] == [(f"mt-1-mthreads-{i}", i) for i in range(count)]
    assert {(d.slots, d.memory, d.cores, d.type, d.numa, d.healthy) for d in found.devices} == {
        (100, each, 16, "Mthreads", 0, True)
    }


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


@in_one_test(("limits", "requests", "after", "requested"), ADMISSION)
def test_whole_cards_are_written_as_what_they_have(limits: JSON, requests: JSON, after: JSON, requested: JSON) -> None:
    found = admitted(pod("p", with_limits(requests=requests, **limits)))
    assert (short(found.limits()), short(found.requests())) == (after, requested)


@in_one_test(
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
def test_hamis_own_refusals(limits: JSON, requests: JSON, message: str) -> None:
    assert admitted(pod("p", with_limits(requests=requests, **limits))).message == message


@pytest.mark.parametrize(
    ("counts", "given", "after"),
    [
        ((2,), None, "2"),
        ((2,), "9", "2"),
        ((3,), "3", "3"),
        ((1,), "2", None),
        ((1,), None, None),
    ],
)
def test_the_number_of_cards_is_told_by_admission_alone(
    counts: tuple[int, ...], given: str | None, after: str | None
) -> None:
    notes = {} if given is None else {REQUESTED: given}
    found = admitted(pod("p", *(with_limits(f"c{i}", n=n) for i, n in enumerate(counts)), annotations=notes))
    assert found.patched["metadata"].get("annotations", {}).get(REQUESTED) == after


def test_a_pod_of_others_keeps_the_annotation() -> None:
    manifest = pod("p", with_limits(mem=4), annotations={REQUESTED: "2"})
    assert admitted(manifest).pod == manifest


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
def test_what_is_hardly_meant_is_told(limits: JSON, requests: JSON, reported: list[str]) -> None:
    first = admitted(pod("p", with_limits(requests=requests, **limits)))
    assert list(first.warnings) == [f"container main: {text}" for text in reported]
    assert admitted(first.patched).warnings == [f"container main: {text}" for text in reported if "reserved" in text]


@in_one_test(
    ("apps", "inits", "never"),
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
def test_a_pod_that_can_never_be_placed_is_refused(
    apps: tuple[int, ...], inits: tuple[int | str, ...], never: bool
) -> None:
    """Counts by container; a text is a sidecar's."""

    def made(kind: str, counts: tuple[int | str, ...]) -> list[JSON]:
        amounts: dict[int, JSON] = {0: {}, 1: {"n": 1, "mem": 4}}
        return [
            with_limits(f"{kind}{i}", sidecar=isinstance(n, str), **amounts.get(int(n), {"n": n}))
            for i, n in enumerate(counts)
        ]

    manifest = pod("p", *made("a", apps), init=made("i", inits))
    where = env(mt_node(160, 960))
    assert ("must be the only one to ask" in where.admit(manifest).message) is never
    if not never:
        assert isinstance(where.place(manifest), Placed)


def test_more_core_groups_than_a_card_has_are_refused() -> None:
    assert admitted(pod("p", with_limits(n=1, mem=32, core=16))).message == ""
    assert "more than the 16 core groups of a card" in admitted(pod("p", with_limits(n=1, mem=32, core=17))).message


# 6: requests


@in_one_test(
    ("limits", "requests", "expected"),
    [
        ({"n": 1, "mem": 32, "core": 8}, {}, Request(1, FixedMemory(16384), 8)),
        ({"n": 1, "mem": 96, "core": 16}, {}, Request(1, WholeCard(stated=49152), 16)),
        ({"n": 1, "mem": 96, "core": 15}, {}, Request(1, FixedMemory(49152), 15)),
        ({"n": 1, "mem": 64, "core": 16}, {}, Request(1, FixedMemory(32768), 16)),
        ({"n": 1, "mem": 32}, {}, Request(1, FixedMemory(16384), 0)),
        ({"n": 1, "mem": 2, "core": 250}, {}, Request(1, FixedMemory(1024), 100)),
        ({"n": 1}, {}, Request(1, ShareOfCard(100), 0)),
        ({"n": 1, "mem": 0, "core": 3}, {}, Request(1, ShareOfCard(100), 3)),
        ({"n": 2, "mem": 192, "core": 32}, {}, Request(2, WholeCard(stated=49152), 16)),
        ({"n": 2}, {}, Request(2, WholeCard(), 16)),
        ({"n": 2, "mem": 3}, {}, Request(2, WholeCard(stated=768), 16)),
        ({}, {"n": 1, "mem": 4, "core": 2}, Request(1, FixedMemory(2048), 2)),
        ({"n": 0, "mem": 4}, {}, None),
        ({"mem": 4, "core": 2}, {}, None),
    ],
)
def test_what_a_container_asks(limits: JSON, requests: JSON, expected: Request | None) -> None:
    named = [{NAMES[key]: value for key, value in given.items()} for given in (limits, requests)]
    assert VENDOR.request(Container("main", ContainerKind.APP, named[0], named[1])) == expected


# 2: the memory of a card

NAMED = "mthreads: {resourceCountName: mthreads.com/vgpu, resourceMemoryName: mthreads.com/sgpu-memory, "
NAMED += "resourceCoreName: mthreads.com/sgpu-core"
S4000, S5000 = [2, 4, 8, 16, 32, 64, 96], [2, 4, 8, 16, 32, 64, 128, 160]


def of_cards(per_card: object) -> FitEnv:
    return FitEnv([mt_node(32, 320)], configured(f"{NAMED}, memoryPerCard: {per_card}}}"))


@in_one_test(
    ("per_card", "slices", "whole"),
    [
        ("[]", S4000, 96),
        ("[96]", S4000, 96),
        ("[160]", S5000, 160),
        ("160", S5000, 160),
        ("[160, 96]", sorted({*S4000, *S5000}), 96),
        ("[128]", [2, 4, 8, 16, 32, 64, 128], 128),
    ],
)
def test_slices_and_whole_cards_follow_from_the_memory_of_a_card(per_card: str, slices: list[int], whole: int) -> None:
    where = of_cards(per_card)
    refused = f"sGPU memory request value is invalid, valid values are {slices}"
    assert {where.admit(pod("p", with_limits(n=1, mem=units, core=1))).message for units in slices} == {""}
    assert where.admit(pod("p", with_limits(n=1, mem=slices[-1] + 2))).message == refused
    assert short(where.admit(pod("p", with_limits(n=2))).limits()) == {"n": "2", "mem": str(2 * whole), "core": "32"}


def test_a_card_of_80_gib_is_given_whole_and_in_slices_of_64() -> None:
    where = of_cards("[160]")
    assert placed(where, pod("whole", with_limits(n=1))) == "mt-1-mthreads-1,Mthreads,81920,16:;"
    assert placed(where, pod("slice", with_limits(n=1, mem=128, core=8))) == "mt-1-mthreads-0,Mthreads,65536,8:;"
    assert "CardInsufficientMemory" in placed(where, pod("more", with_limits(n=1, mem=64, core=8)))
