"""What Iluvatar containers ask, where they go, what is written and charged (docs/spec/iluvatar.md#6 to #10)."""

import pytest
from builders import container, read_node

from hami_webhook.devices import reasons
from hami_webhook.devices.codecs import decode_pod_devices
from hami_webhook.devices.model import FixedMemory, Request, ShareOfCard, WholeCard

from .fit_env import Placed, pod
from .iluvatars import (
    ALLOCATED,
    AMOUNTS,
    BOTH,
    OLD,
    OLD_AMOUNTS,
    OLD_CORE,
    OLD_MEM,
    TO_ALLOCATE,
    VCORE,
    VMEM,
    A,
    B,
    chip_node,
    env,
    extracted,
    old_node,
    placed,
    with_limits,
)

# 6: requests


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize(
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
def test_what_a_container_asks(old, limits, requests, expected):
    assert extracted(old, limits, requests) == expected


# 7: Fit

LABELS = [
    ("GPU-2222,100,32768,100,BI-V150,1,false:", {"n": 1}, {}, reasons.CARD_NOT_HEALTH),
    (B, {"n": 1}, {"hami.io/no-use-BI-V150-uuid": "GPU-2222"}, reasons.CARD_UUID_MISMATCH),
    (B, {"n": 1}, {"hami.io/use-BI-V150-uuid": "GPU-1111"}, reasons.CARD_UUID_MISMATCH),
    (B.replace("100,32768", "1,32768"), {"n": 1, "mem": 1}, {}, reasons.CARD_TIME_SLICING_EXHAUSTED),
    (B, {"n": 1, "mem": 1}, {"hami.io/gpu-scheduler-policy": "mutex"}, reasons.EXCLUSIVE_DEVICE_ALLOCATE_CONFLICT),
    (B, {"n": 1, "mem": 113}, {}, reasons.CARD_INSUFFICIENT_MEMORY),
    (B, {"n": 1}, {}, reasons.CARD_INSUFFICIENT_MEMORY),
    (B, {"n": 1, "mem": 112, "core": 71}, {}, reasons.CARD_INSUFFICIENT_CORE),
]


@pytest.mark.parametrize(("card", "amounts", "notes", "label"), LABELS)
def test_every_label_alone(card, amounts, notes, label):
    """The card has a pod of 16 units and 30 percent."""
    where = env(chip_node(card))
    if ",false" not in card:
        assert isinstance(where.place(pod("first", with_limits(n=1, mem=16, core=30))), Placed)
    assert placed(where, pod("p", with_limits(**amounts), annotations=notes)) == f"1/1 {label}"


@pytest.mark.parametrize(
    ("notes", "answer"),
    [
        ({"hami.io/use-BI-V150-uuid": "GPU-1111"}, "GPU-1111"),
        ({"hami.io/no-use-BI-V150-uuid": "GPU-2222"}, "GPU-1111"),
        ({"hami.io/use-BI-V150-uuid": " "}, "GPU-2222"),
        ({"hami.io/use-MR-V100-uuid": "GPU-1111", "iluvatar.ai/use-gpuuuid": "GPU-1111"}, "GPU-2222"),
        ({"hami.io/nouse-BI-V150-uuid": "GPU-2222"}, "GPU-2222"),
    ],
)
def test_lists_choose_among_the_chips_own_cards(notes, answer):
    assert placed(env(), pod("p", with_limits(n=1), annotations=notes)).startswith(answer)


@pytest.mark.parametrize(
    ("notes", "answer"),
    [
        ({"iluvatar.ai/use-gpuuuid": "old-1-iluvatar-0"}, "old-1-iluvatar-0"),
        ({"iluvatar.ai/nouse-gpuuuid": "old-1-iluvatar-1"}, "old-1-iluvatar-0"),
        (
            {"iluvatar.ai/use-gpuuuid": "old-1-iluvatar-0", "iluvatar.ai/nouse-gpuuuid": "old-1-iluvatar-0"},
            "2/2 CardUuidMismatch",
        ),
        ({"hami.io/use-Iluvatar-uuid": "old-1-iluvatar-0"}, "old-1-iluvatar-1"),
    ],
)
def test_the_old_familys_lists(notes, answer):
    text = placed(
        env(old_node()),
        pod("p", with_limits(old=True, n=1), annotations=notes),
        "hami.io/iluvatar-vgpu-devices-allocated",
    )
    assert text.startswith(answer)


@pytest.mark.parametrize(
    ("limits", "answer"),
    [
        ({"n": 2, "mem": 64}, "GPU-2222,BI-V150,32768,100:GPU-3333,BI-V150,16384,100:;"),
        ({"n": 2, "mem": 65}, "GPU-2222,BI-V150,32768,100:GPU-1111,BI-V150,32768,100:;"),
        ({"n": 3, "mem": 65}, "1/3 CardInsufficientMemory, 2/3 AllocatedCardsInsufficientRequest"),
        ({"n": 4}, "NodeInsufficientDevice"),
    ],
)
def test_several_whole_cards_have_at_least_the_memory_written(limits, answer):
    assert (
        placed(env(chip_node(A + B + "GPU-3333,100,16384,100,BI-V150,0,true:")), pod("p", with_limits(**limits)))
        == answer
    )


def test_containers_of_a_pod_are_independent():
    assert placed(env(), pod("p", with_limits("a", n=1, mem=64), with_limits("b", n=1, mem=96))) == (
        "GPU-2222,BI-V150,16384,0:;GPU-1111,BI-V150,24576,0:;"
    )


def test_a_card_without_cores_serves_pods_that_ask_for_none():
    where = env(chip_node("a,9,4096,0,x,0,true:"))
    for name in ("p", "q"):
        assert placed(where, pod(name, with_limits(n=1, mem=1))) == "a,BI-V150,256,0:;"


def test_the_families_never_see_each_others_cards():
    where = env(chip_node(), old_node())
    assert placed(where, pod("new", with_limits(n=1, mem=1))).startswith("GPU-")
    assert where.place(pod("p", with_limits(old=True, n=3))) == {
        "ilu-1": "NodeInsufficientDevice",
        "old-1": "NodeInsufficientDevice",
    }
    both = where.place(pod("p", with_limits("x", n=1), with_limits("y", old=True, n=1)))
    assert both == {"ilu-1": "NodeInsufficientDevice", "old-1": "NodeInsufficientDevice"}


# 9: outputs


def test_per_chip_placement_writes_the_same_value_twice():
    result = env().place(pod("p", with_limits(n=1, mem=64, core=50)))
    assert dict(result.annotations) == {
        "hami.io/vgpu-node": "ilu-1",
        "hami.io/vgpu-time": "1767225600",
        ALLOCATED: "GPU-2222,BI-V150,16384,50:;",
        TO_ALLOCATE: "GPU-2222,BI-V150,16384,50:;",
    }


def test_old_placement_tells_gpu_manager_the_index_of_every_app_container():
    apps = [with_limits("a", old=True, n=1, mem=64, core=50), container("b"), with_limits("c", old=True, n=1, mem=96)]
    result = env(old_node()).place(pod("p", *apps, init=[with_limits("prep", old=True, n=1, mem=32)]))
    text = "old-1-iluvatar-1,Iluvatar,8192,0:;old-1-iluvatar-1,Iluvatar,16384,50:;;old-1-iluvatar-0,Iluvatar,24576,0:;"
    assert dict(result.annotations) == {
        "hami.io/vgpu-node": "old-1",
        "hami.io/vgpu-time": "1767225600",
        "hami.io/iluvatar-vgpu-devices-allocated": text,
        "hami.io/iluvatar-vgpu-devices-to-allocate": text,
        "iluvatar.ai/gpu-assigned": "false",
        "iluvatar.ai/predicate-time": "1767225600000000000",
        "iluvatar.ai/predicate-gpu-idx-0": "1",
        "iluvatar.ai/predicate-gpu-idx-2": "0",
    }
    assert [len(row) for row in decode_pod_devices(text)] == [1, 1, 0, 1]
    assert result.debits == {f"limits.{OLD}": 2, f"limits.{OLD_MEM}": 160, f"limits.{OLD_CORE}": 50}


# 10: quota

KEYS = [f"limits.{name}" for name in (VMEM, VCORE)]
FOUR = "".join(A.replace("1111", str(i)) for i in range(4))


def amounts(sums):
    return tuple(sums.get(key, 0) for key in KEYS)


def test_the_quota_keys():
    for key, names in (("BI-V150", AMOUNTS), ("Iluvatar", OLD_AMOUNTS)):
        assert [(q.name, q.factor) for q in BOTH[key].quota_keys()] == [
            (f"limits.{names['n']}", 1),
            (f"limits.{names['mem']}", 256),
            (f"limits.{names['core']}", 1),
        ]


@pytest.mark.parametrize(
    ("limits", "waiting"),
    [
        ({"n": 1, "mem": 64, "core": 50}, (64, 50)),
        ({"n": 1, "mem": 64, "core": 150}, (64, 100)),
        # quota.md 5 outranks the page's "0": undeclared memory is charged its floor, the smallest card's
        ({"n": 1}, (128, 0)),
        ({"n": 2}, (256, 200)),
        ({"n": 2, "mem": 64}, (128, 200)),
    ],
)
def test_what_a_waiting_pod_is_charged(limits, waiting):
    assert amounts(env(chip_node(FOUR)).waiting(pod("p", with_limits(**limits)))) == waiting


def test_a_waiting_pod_is_charged_a_unit_a_device_where_no_card_is_known():
    assert amounts(env(read_node("none")).waiting(pod("p", with_limits(n=2)))) == (2, 200)


def test_the_pages_quota_table():
    a, b, c = (
        pod("a", with_limits(n=1, mem=64, core=50)),
        pod("b", with_limits(n=1)),
        pod("c", with_limits(n=2)),
    )
    where = env(chip_node(FOUR), hard=dict(zip(KEYS, (256, 250), strict=True)))
    assert isinstance(where.place(a), Placed)
    assert amounts(where.charged()) == (64, 50)
    assert isinstance(where.place(b), Placed)
    assert amounts(where.charged()) == (192, 50)
    assert placed(where, c) == "4/4 ResourceQuotaNotFit"
    where.remove("b")
    assert placed(where, c) == "1/4 AllocatedCardsInsufficientRequest, 3/4 ResourceQuotaNotFit"
    where.remove("a")
    assert isinstance(where.place(c), Placed)
    assert amounts(where.charged()) == (256, 200)


def test_cores_are_counted_once_for_every_card():
    where = env(chip_node(FOUR), hard={KEYS[1]: 299})
    assert isinstance(where.place(pod("p", with_limits(n=2)), keep=False), Placed)
    assert placed(where, pod("p", with_limits(n=3))) == "2/4 AllocatedCardsInsufficientRequest, 2/4 ResourceQuotaNotFit"
