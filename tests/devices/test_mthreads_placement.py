"""What Moore Threads containers ask, where they go, what is written and charged (page sections 6 to 10)."""

from itertools import combinations

import pytest
from builders import container

from hami_webhook.devices import reasons
from hami_webhook.devices.codecs import decode_pod_devices
from hami_webhook.devices.model import FixedMemory, Request, ShareOfCard, WholeCard
from hami_webhook.kube.objects import Container, ContainerKind

from .fit_env import NOW, Placed, placed_pod, pod
from .moore import (
    ALLOCATED,
    BINPACK,
    CORE,
    MEM,
    MUTEX,
    NAMES,
    VENDOR,
    VGPU,
    env,
    mt_node,
    placed,
    with_limits,
)

# 6: requests


@pytest.mark.parametrize(
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
def test_what_a_container_asks(limits, requests, expected):
    named = ({NAMES[key]: value for key, value in given.items()} for given in (limits, requests))
    assert VENDOR.request(Container("main", ContainerKind.APP, *named)) == expected


# 7: Fit

USE = "mthreads.ai/use-gpuuuid"
LABELS = [
    ({"n": 1, "mem": 2}, {"mthreads.ai/nouse-gpuuuid": "mt-1-mthreads-0"}, reasons.CARD_UUID_MISMATCH),
    ({"n": 1, "mem": 2}, {USE: "mt-1-mthreads-1"}, reasons.CARD_UUID_MISMATCH),
    ({"n": 1, "mem": 2}, MUTEX, reasons.EXCLUSIVE_DEVICE_ALLOCATE_CONFLICT),
    ({"n": 1, "mem": 96}, {}, reasons.CARD_INSUFFICIENT_MEMORY),
    ({"n": 1, "mem": 64, "core": 13}, {}, reasons.CARD_INSUFFICIENT_CORE),
    ({"n": 1, "mem": 2, "core": 250}, {}, reasons.CARD_INSUFFICIENT_CORE),
    ({"n": 1}, {}, reasons.CARD_INSUFFICIENT_MEMORY),
]


@pytest.mark.parametrize(("amounts", "notes", "label"), LABELS)
def test_every_label_alone(amounts, notes, label):
    """The only card has a pod of 2 units and 4 core groups."""
    where = env(mt_node(16, 96))
    assert isinstance(where.place(pod("first", with_limits(n=1, mem=2, core=4))), Placed)
    assert placed(where, pod("p", with_limits(**amounts), annotations=notes)) == f"1/1 {label}"


def test_a_hundred_slots_are_all():
    where = env(mt_node(16, 96))
    held = {ALLOCATED: "mt-1-mthreads-0,Mthreads,0,0:" * 100 + ";"}
    where.state.set_pod(placed_pod("u", with_limits(n=1), on="mt-1", **held), NOW)
    assert placed(where, pod("p", with_limits(n=1, mem=2))) == "1/1 CardTimeSlicingExhausted"


def test_a_whole_card_is_exclusive_even_where_memory_and_cores_are_free():
    where = env(mt_node(16, 192))
    held = {ALLOCATED: "mt-1-mthreads-0,Mthreads,0,0:;"}
    where.state.set_pod(placed_pod("u", with_limits(n=1), on="mt-1", **held), NOW)
    assert placed(where, pod("p", with_limits(n=1))) == "1/1 ExclusiveDeviceAllocateConflict"
    # all cores without being a whole card
    assert placed(where, pod("p", with_limits(n=1, mem=64, core=16))) == "mt-1-mthreads-0,Mthreads,32768,16:;"


def test_a_larger_card_is_given_whole_and_booked_whole():
    where = env(mt_node(16, 192))
    result = where.place(pod("p", with_limits(n=1)))
    assert result.annotations[ALLOCATED] == "mt-1-mthreads-0,Mthreads,98304,16:;"
    assert result.debits == {f"limits.{VGPU}": 1, f"limits.{MEM}": 192, f"limits.{CORE}": 16}
    assert placed(where, pod("q", with_limits(n=1, mem=2))) == "1/1 CardInsufficientMemory"


@pytest.mark.parametrize(
    ("notes", "answer"),
    [
        ({USE: "mt-1-mthreads-0"}, "mt-1-mthreads-0"),
        ({"mthreads.ai/nouse-gpuuuid": "mt-1-mthreads-1"}, "mt-1-mthreads-0"),
        ({USE: " "}, "mt-1-mthreads-1"),
        ({"mthreads.com/use-gpuuuid": "mt-1-mthreads-0"}, "mt-1-mthreads-1"),
        ({USE: "mt-1-mthreads-0", "mthreads.ai/nouse-gpuuuid": "mt-1-mthreads-0"}, "2/2 CardUuidMismatch"),
    ],
)
def test_lists_are_read_under_mthreads_ai(notes, answer):
    assert placed(env(), pod("p", with_limits(n=1, mem=2), annotations=notes)).startswith(answer)


def small(name, sidecar=False, mem=32):
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
def test_one_card_serves_the_pod(apps, inits, answer):
    found = placed(env(), pod("p", *apps, init=inits))
    cards = "".join(entry.uuid[-1] for row in decode_pod_devices(found) for entry in row) if ";" in found else found
    assert cards == answer


def test_init_and_app_containers_may_have_different_cards():
    where = env()
    for card, mem in ((1, 64), (0, 32)):
        taken = pod(f"t{card}", with_limits(n=1, mem=mem), annotations={USE: f"mt-1-mthreads-{card}"})
        assert isinstance(where.place(taken), Placed)
    text = placed(where, pod("p", small("a"), init=[small("i", mem=64)], annotations=BINPACK))
    assert text == "mt-1-mthreads-0,Mthreads,32768,4:;mt-1-mthreads-1,Mthreads,16384,4:;"


# 9: outputs


def test_what_placement_writes():
    where = env(mt_node(128, 768))
    result = where.place(pod("p", container("side"), with_limits("main", n=1, mem=32, core=8)))
    assert dict(result.annotations) == {
        "hami.io/vgpu-node": "mt-1",
        "hami.io/vgpu-time": "1767225600",
        ALLOCATED: ";mt-1-mthreads-7,Mthreads,16384,8:;",
        "mthreads.com/gpu-index": "7",
        "mthreads.com/predicate-node": "mt-1",
        "mthreads.com/predicate-time": "1767225600000000000",
    }


def test_the_index_is_the_last_containers_that_has_cards():
    where = env()
    init_only = where.place(pod("p", container("main"), init=[with_limits("i", n=2)]), keep=False)
    assert init_only.annotations["mthreads.com/gpu-index"] == "1,0"
    both = where.place(pod("p", with_limits(n=1, mem=2), container("side"), init=[with_limits("i", n=2)]), keep=False)
    assert both.annotations["mthreads.com/gpu-index"] == "1"


# 10: quota

HARD = {f"limits.{MEM}": 192, f"limits.{CORE}": 32}
PODS = {
    "a": pod("a", with_limits(n=1, mem=32, core=8)),
    "b": pod("b", with_limits(n=2)),
    "c": pod("c", with_limits(n=1)),
    "d": pod("d", with_limits(n=1, mem=64, core=9)),
}


def amounts(sums):
    return tuple(sums.get(key, 0) for key in HARD)


@pytest.mark.parametrize(("name", "waiting"), [("a", (32, 8)), ("b", (192, 32)), ("c", (96, 16)), ("d", (64, 9))])
def test_what_a_waiting_pod_is_charged(name, waiting):
    for capacity in ((32, 192), (32, 128), (0, 0)):
        assert amounts(env(mt_node(*capacity)).waiting(PODS[name])) == waiting


def test_the_pages_quota_table():
    where = env(mt_node(128, 768), hard=HARD)

    def refused_at_admission(name):
        return any(
            have + more > hard
            for have, more, hard in zip(
                amounts(where.charged()), amounts(where.waiting(PODS[name])), HARD.values(), strict=True
            )
        )

    assert not refused_at_admission("a")
    assert isinstance(where.place(PODS["a"]), Placed)
    assert amounts(where.charged()) == (32, 8)
    assert refused_at_admission("b")
    assert not refused_at_admission("c")
    assert isinstance(where.place(PODS["c"]), Placed)
    assert amounts(where.charged()) == (128, 24)
    assert refused_at_admission("d")
    assert placed(where, PODS["d"]) == "8/8 ResourceQuotaNotFit"
    where.remove("a")
    where.remove("c")
    assert not refused_at_admission("b")
    assert isinstance(where.place(PODS["b"]), Placed)
    assert amounts(where.charged()) == (192, 32)


def test_quota_is_asked_with_what_the_card_really_is():
    where = env(mt_node(16, 192), hard={f"limits.{MEM}": 191})
    assert amounts(where.waiting(PODS["c"])) == (96, 16)
    assert placed(where, PODS["c"]) == "1/1 ResourceQuotaNotFit"


def test_every_pair_of_legal_slices_is_admitted_with_its_units():
    for one, other in combinations((2, 4, 8, 16, 32, 64, 96), 2):
        waiting = env().waiting(
            pod("p", with_limits("a", n=1, mem=one, core=1), with_limits("b", n=1, mem=other, core=2))
        )
        assert waiting == {f"limits.{VGPU}": 2, f"limits.{MEM}": one + other, f"limits.{CORE}": 3}
