"""Moore Threads (docs/spec/mthreads.md).

Which card a container gets is in `test_first_fit_vendors.py`, against a plain reading of section 7.
"""

from __future__ import annotations

from typing import Any

import pytest
from builders import container, read_node
from tables import in_one_test

from hami_webhook.devices.codecs import decode_pod_devices
from hami_webhook.devices.model import FixedMemory, Request, ShareOfCard, WholeCard
from hami_webhook.kube.objects import Container, ContainerKind, Node

from .fit_env import CHART, JSON, NOW, Admitted, FitEnv, Placed, configured, placed_pod, pod

VGPU, MEM, CORE = "mthreads.com/vgpu", "mthreads.com/sgpu-memory", "mthreads.com/sgpu-core"
NAMES = {"n": VGPU, "mem": MEM, "core": CORE}
ALLOCATED, REQUESTED = "hami.io/mthreads-vgpu-devices-allocated", "mthreads.com/request-gpu-num"
VENDOR = CHART["Mthreads"]
LIST = "sGPU memory request value is invalid, valid values are [2, 4, 8, 16, 32, 64, 96]"
BINPACK = {"hami.io/gpu-scheduler-policy": "binpack"}


def mt_node(core: object = 32, memory: object = 192, name: str = "mt-1") -> Node:
    return read_node(name, capacity={VGPU: 800, CORE: core, MEM: memory})


def with_limits(name: str = "main", *, requests: JSON | None = None, sidecar: bool = False, **limits: object) -> JSON:
    """A container with limits (and requests) under the short names of NAMES."""
    asked = {NAMES[key]: value for key, value in (requests or {}).items()}
    return container(name, requests=asked, sidecar=sidecar, **{NAMES[key]: value for key, value in limits.items()})


def env(*nodes: Node, **rest: Any) -> FitEnv:
    return FitEnv(nodes or [mt_node()], **rest)


def placed(where: FitEnv, manifest: JSON) -> str:
    """The record that placement writes, or the refusal's text."""
    return where.outcome(manifest, "Mthreads")


def admitted(manifest: JSON) -> Admitted:
    return env().admit(manifest)


def short(amounts: JSON) -> JSON:
    """Amounts under the short names."""
    return {key: amounts[name] for key, name in NAMES.items() if name in amounts}


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


# 7 and 14: whole cards


@pytest.mark.parametrize(
    ("node", "count", "record", "index", "debits"),
    [
        pytest.param(
            mt_node(), 2, "mt-1-mthreads-1,Mthreads,49152,16:mt-1-mthreads-0,Mthreads,49152,16:;", "1,0", [2, 192, 32],
            id="3 two of them",
        ),
        pytest.param(
            mt_node(32, 128), 1, "mt-1-mthreads-1,Mthreads,32768,16:;", "1", [1, 64, 16], id="9 a smaller one"
        ),
        pytest.param(mt_node(16, 192), 1, "mt-1-mthreads-0,Mthreads,98304,16:;", "0", [1, 192, 16], id="a larger one"),
    ],
)  # fmt: skip
def test_a_whole_card_is_booked_as_what_it_is(
    node: Node, count: int, record: str, index: str, debits: list[int]
) -> None:
    result = env(node).placed(pod("p", with_limits(n=count)))
    assert (result.annotations[ALLOCATED], result.annotations["mthreads.com/gpu-index"]) == (record, index)
    assert [result.debits[f"limits.{name}"] for name in (VGPU, MEM, CORE)] == debits


def test_a_whole_card_is_exclusive_even_where_memory_and_cores_are_free() -> None:
    where = env(mt_node(16, 192))
    held = {ALLOCATED: "mt-1-mthreads-0,Mthreads,0,0:;"}
    where.state.set_pod(placed_pod("u", with_limits(n=1), on="mt-1", **held), NOW)
    assert placed(where, pod("p", with_limits(n=1))) == "1/1 ExclusiveDeviceAllocateConflict"
    # all cores without being a whole card
    assert placed(where, pod("p", with_limits(n=1, mem=64, core=16))) == "mt-1-mthreads-0,Mthreads,32768,16:;"


def small(name: str, sidecar: bool = False, mem: int = 32) -> JSON:
    return with_limits(name, sidecar=sidecar, n=1, mem=mem, core=4)


@pytest.mark.parametrize(
    ("apps", "inits", "answer"),
    [
        # an init container is over when apps run, so it isn't compared with them
        ([small("a", mem=64)], [small("i", mem=64)], "11"),
        ([small("a"), small("b")], [small("i"), small("j")], "1111"),
        ([small("a", mem=64), small("b", mem=64)], [], "1/2 CardInsufficientMemory, 1/2 CardNotFoundCustomFilterRule"),
        # a sidecar runs beside both
        (
            [small("a", mem=64)],
            [small("s", sidecar=True, mem=64)],
            "1/2 CardInsufficientMemory, 1/2 CardNotFoundCustomFilterRule",
        ),
        ([small("a")], [small("s", sidecar=True), small("i")], "111"),
    ],
)
def test_one_card_serves_the_pod(apps: list[JSON], inits: list[JSON], answer: str) -> None:
    found = placed(env(), pod("p", *apps, init=inits))
    cards = "".join(entry.uuid[-1] for row in decode_pod_devices(found) for entry in row) if ";" in found else found
    assert cards == answer


def test_init_and_app_containers_may_have_different_cards() -> None:
    where = env()
    for card, mem in ((1, 64), (0, 32)):
        taken = pod(
            f"t{card}", with_limits(n=1, mem=mem), annotations={"mthreads.ai/use-gpuuuid": f"mt-1-mthreads-{card}"}
        )
        where.placed(taken)
    text = placed(where, pod("p", small("a"), init=[small("i", mem=64)], annotations=BINPACK))
    assert text == "mt-1-mthreads-0,Mthreads,32768,4:;mt-1-mthreads-1,Mthreads,16384,4:;"


# 9: outputs


def test_what_placement_writes() -> None:
    where = env(mt_node(128, 768))
    result = where.placed(pod("p", container("side"), with_limits("main", n=1, mem=32, core=8)))
    assert dict(result.annotations) == {
        "hami.io/vgpu-node": "mt-1",
        "hami.io/vgpu-time": "1767225600",
        ALLOCATED: ";mt-1-mthreads-7,Mthreads,16384,8:;",
        "mthreads.com/gpu-index": "7",
        "mthreads.com/predicate-node": "mt-1",
        "mthreads.com/predicate-time": "1767225600000000000",
    }


def test_the_index_is_the_last_containers_that_has_cards() -> None:
    where = env()
    init_only = where.placed(pod("p", container("main"), init=[with_limits("i", n=2)]), keep=False)
    assert init_only.annotations["mthreads.com/gpu-index"] == "1,0"
    both = where.placed(pod("p", with_limits(n=1, mem=2), container("side"), init=[with_limits("i", n=2)]), keep=False)
    assert both.annotations["mthreads.com/gpu-index"] == "1"


# 10: quota


@pytest.mark.parametrize(
    ("limits", "amounts"),
    [
        ({"n": 1, "mem": 32, "core": 8}, (1, 32, 8)),
        ({"n": 2}, (2, 192, 32)),
        ({"n": 1}, (1, 96, 16)),
        ({"n": 1, "mem": 64, "core": 9}, (1, 64, 9)),
    ],
)
def test_what_a_pod_is_charged_while_it_waits(limits: JSON, amounts: tuple[int, ...]) -> None:
    waiting = env(mt_node(128, 768)).waiting(pod("p", with_limits(**limits)))
    assert tuple(waiting[f"limits.{name}"] for name in (VGPU, MEM, CORE)) == amounts


def test_quota_is_asked_with_what_the_card_really_is() -> None:
    where = env(mt_node(16, 192), hard={f"limits.{MEM}": 191})
    assert placed(where, pod("p", with_limits(n=1))) == "1/1 ResourceQuotaNotFit"
