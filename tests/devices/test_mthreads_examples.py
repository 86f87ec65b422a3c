"""The worked examples of docs/spec/mthreads.md#14, each under its own number; Fit, outputs and quota (7, 9, 10)."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from builders import container

from hami_webhook.devices.codecs import decode_pod_devices

from .fit_env import JSON, NOW, Placed, placed_pod, pod
from .moore import ALLOCATED, BINPACK, CORE, LIST, MEM, REQUESTED, VGPU, env, mt_node, placed, short, with_limits


def debits(result: Placed) -> list[int]:
    return [result.debits.get(f"limits.{name}", 0) for name in (VGPU, MEM, CORE)]


def slice_of(memory: int, cores: int, name: str = "p", notes: Mapping[str, str] | None = None) -> JSON:
    return pod(name, with_limits(n=1, mem=memory, core=cores), annotations=notes)


def test_1_a_slice() -> None:
    where = env()
    admitted = where.admit(slice_of(32, 8))
    assert short(admitted.limits()) == {"n": "1", "mem": "32", "core": "8"}
    result = where.placed(admitted.patched)
    assert result.annotations[ALLOCATED] == "mt-1-mthreads-1,Mthreads,16384,8:;"
    assert result.annotations["mthreads.com/gpu-index"] == "1"
    assert debits(result) == [1, 32, 8]


@pytest.mark.parametrize("written", [{}, {"core": 1}])
def test_2_a_whole_card(written: JSON) -> None:
    where = env()
    admitted = where.admit(pod("p", with_limits(n=1, **written)))
    assert short(admitted.limits()) == {"n": "1", "mem": "96", "core": "16"}
    assert placed(where, admitted.patched) == "mt-1-mthreads-1,Mthreads,49152,16:;"


def test_3_two_whole_cards() -> None:
    where = env()
    admitted = where.admit(pod("p", with_limits(n=2, mem=2, core=1)))
    assert short(admitted.limits()) == {"n": "2", "mem": "192", "core": "32"}
    assert admitted.patched["metadata"]["annotations"][REQUESTED] == "2"
    result = where.placed(admitted.patched)
    assert result.annotations[ALLOCATED] == "mt-1-mthreads-1,Mthreads,49152,16:mt-1-mthreads-0,Mthreads,49152,16:;"
    assert result.annotations["mthreads.com/gpu-index"] == "1,0"
    assert debits(result) == [2, 192, 32]


def test_4_what_sgpu_cannot_cut_is_refused_with_what_it_can() -> None:
    for units in (3, 1):
        assert env().admit(pod("p", with_limits(n=1, mem=units))).message == LIST
    assert "[2, 4, 8, 16, 32, 64, 96]" in env().admit(pod("p", with_limits(n=1, mem="32Gi"))).message
    assert env().admit(pod("p", with_limits(n=0))).message == f"{VGPU} must be greater than 0"


def test_5_containers_share_the_first_ones_card_or_the_node_fails() -> None:
    def two(memory: int) -> JSON:
        return pod("p", *(with_limits(name, n=1, mem=memory, core=8) for name in "ab"))

    assert placed(env(), two(32)) == "mt-1-mthreads-1,Mthreads,16384,8:;" * 2
    assert placed(env(), two(64)) == "1/2 CardInsufficientMemory, 1/2 CardNotFoundCustomFilterRule"


@pytest.mark.parametrize(("notes", "card"), [({}, 0), (BINPACK, 1)])
def test_6_spread_and_binpack(notes: dict[str, str], card: int) -> None:
    where = env()
    assert placed(where, slice_of(32, 8, "first")) == "mt-1-mthreads-1,Mthreads,16384,8:;"
    assert placed(where, slice_of(16, 4, notes=notes)) == f"mt-1-mthreads-{card},Mthreads,8192,4:;"


@pytest.mark.parametrize(
    ("taken", "asked", "label"),
    [
        (12, {"mem": 2, "core": 8}, "CardInsufficientCore"),
        (16, {"mem": 2}, "CardComputeUnitsExhausted"),
        (12, {}, "CardInsufficientMemory"),
    ],
)
def test_7_one_card_in_use(taken: int, asked: JSON, label: str) -> None:
    where = env(mt_node(16, 96))
    assert placed(where, slice_of(2, taken, "first")) == f"mt-1-mthreads-0,Mthreads,1024,{taken}:;"
    assert placed(where, pod("p", with_limits(n=1, **asked))) == f"1/1 {label}"


def test_8_three_cards_of_two() -> None:
    where = env()
    admitted = where.admit(pod("p", with_limits(n=3)))
    assert short(admitted.limits()) == {"n": "3", "mem": "288", "core": "48"}
    assert placed(where, admitted.patched) == "NodeInsufficientDevice"


def test_9_a_smaller_card_is_given_whole() -> None:
    where = env(mt_node(32, 128))
    admitted = where.admit(pod("p", with_limits(n=1)))
    assert short(admitted.limits()) == {"n": "1", "mem": "96", "core": "16"}
    result = where.placed(admitted.patched)
    assert result.annotations[ALLOCATED] == "mt-1-mthreads-1,Mthreads,32768,16:;"
    assert debits(result) == [1, 64, 16]


# 7: Fit


def test_a_whole_card_is_exclusive_even_where_memory_and_cores_are_free() -> None:
    where = env(mt_node(16, 192))
    held = {ALLOCATED: "mt-1-mthreads-0,Mthreads,0,0:;"}
    where.state.set_pod(placed_pod("u", with_limits(n=1), on="mt-1", **held), NOW)
    assert placed(where, pod("p", with_limits(n=1))) == "1/1 ExclusiveDeviceAllocateConflict"
    # all cores without being a whole card
    assert placed(where, pod("p", with_limits(n=1, mem=64, core=16))) == "mt-1-mthreads-0,Mthreads,32768,16:;"


def test_a_larger_card_is_given_whole_and_booked_whole() -> None:
    where = env(mt_node(16, 192))
    result = where.placed(pod("p", with_limits(n=1)))
    assert result.annotations[ALLOCATED] == "mt-1-mthreads-0,Mthreads,98304,16:;"
    assert result.debits == {f"limits.{VGPU}": 1, f"limits.{MEM}": 192, f"limits.{CORE}": 16}
    assert placed(where, pod("q", with_limits(n=1, mem=2))) == "1/1 CardInsufficientMemory"


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

HARD = {f"limits.{MEM}": 192, f"limits.{CORE}": 32}
PODS = {
    "a": pod("a", with_limits(n=1, mem=32, core=8)),
    "b": pod("b", with_limits(n=2)),
    "c": pod("c", with_limits(n=1)),
    "d": pod("d", with_limits(n=1, mem=64, core=9)),
}


def amounts(sums: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(sums.get(key, 0) for key in HARD)


def test_the_pages_quota_table() -> None:
    where = env(mt_node(128, 768), hard=HARD)
    waiting = {"a": (32, 8), "b": (192, 32), "c": (96, 16), "d": (64, 9)}
    assert {name: amounts(where.waiting(each)) for name, each in PODS.items()} == waiting
    where.placed(PODS["a"])
    where.placed(PODS["c"])
    assert amounts(where.charged()) == (128, 24)
    assert placed(where, PODS["d"]) == "8/8 ResourceQuotaNotFit"
    where.remove("a")
    where.remove("c")
    where.placed(PODS["b"])
    assert amounts(where.charged()) == (192, 32)


def test_quota_is_asked_with_what_the_card_really_is() -> None:
    where = env(mt_node(16, 192), hard={f"limits.{MEM}": 191})
    assert amounts(where.waiting(PODS["c"])) == (96, 16)
    assert placed(where, PODS["c"]) == "1/1 ResourceQuotaNotFit"
