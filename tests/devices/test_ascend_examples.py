"""The worked examples of docs/spec/ascend.md (section 14) under their own numbers, and its quota (section 10)."""

from __future__ import annotations

import json

import pytest
from builders import container

from hami_webhook.kube.objects import Pod
from hami_webhook.quota.pricing import waiting_charge

from .npus import B3, SOFT, C, P, chips, node, npus, with_limits
from .yard import CHART, Placed, Yard, pod

COUNT, MEMORY, CORE = (f"limits.huawei.com/{B3}{end}" for end in ("", "-memory", "-core"))


def placed(yard: Yard, *args, name="p", **limits) -> Placed:
    result = yard.place(pod(name, *args, **limits))
    assert isinstance(result, Placed), result
    return result


def chosen(result, word=B3) -> str:
    """The NPUs in the order chosen, or the refusals."""
    if isinstance(result, dict):
        return ", ".join(result.values())
    return " ".join(entry["UUID"] for entry in json.loads(result.annotations[f"huawei.com/{word}"]))


def test_1_a_slice():
    yard = Yard([node(1)])
    admitted = yard.admit(pod(**with_limits(1, 10000)))
    assert admitted.limits() == with_limits("1", "16384")
    assert admitted.requests() == {f"huawei.com/{B3}-memory": "16384"}
    result = placed(yard, **with_limits(1, 10000))
    written = "NPU-0,Ascend910B3,16384,0:;"
    assert result.annotations == {
        "hami.io/vgpu-node": "n1",
        "hami.io/vgpu-time": "1767225600",
        "predicate-time": "1767225600",
        "hami.io/Ascend910B3-devices-to-allocate": written,
        "hami.io/Ascend910B3-devices-allocated": written,
        "huawei.com/Ascend910B3": '[{"UUID":"NPU-0","temp":"vir05_1c_16g","memory":16384}]',
    }
    assert result.debits == {COUNT: 1, MEMORY: 16384}


def test_2_too_big_for_a_template():
    yard = Yard([node(1)])
    assert yard.admit(pod(**with_limits(1, 40000))).limits() == with_limits("1", "65536")
    result = placed(yard, **with_limits(1, 40000))
    assert result.annotations["huawei.com/Ascend910B3"] == '[{"UUID":"NPU-0","memory":65536}]'
    refused = yard.admit(pod(**with_limits(1, 65537)))
    assert refused.message.startswith("huawei.com/Ascend910B3-memory 65537 is invalid")
    assert "container main" in refused.message
    assert "65536" in refused.message
    assert "16Gi" in refused.message


def test_3_310p():
    yard = Yard([node(3, P)])
    assert yard.admit(pod(**with_limits(1, 13000, word=P))).limits() == with_limits("1", "21527", word=P)
    two = placed(yard, **with_limits(2, 20000, word=P))
    assert (
        two.annotations["hami.io/Ascend310P-devices-allocated"] == "NPU-2,Ascend310P,21527,0:NPU-1,Ascend310P,21527,0:;"
    )
    assert (
        two.annotations["huawei.com/Ascend310P"] == '[{"UUID":"NPU-2","memory":21527},{"UUID":"NPU-1","memory":21527}]'
    )
    assert yard.admit(pod(**with_limits(1, 24576, word=P))).limits() == with_limits("1", "21527", word=P)
    assert "huawei.com/Ascend310P-memory 24577 is invalid" in yard.admit(pod(**with_limits(1, 24577, word=P))).message


def test_4_two_slices():
    yard = Yard([node(2, soft=True)])
    refused = yard.admit(pod(**with_limits(2, 16384)))
    assert "vNPU not supported for multiple devices" in refused.message
    assert "container main" in refused.message
    result = placed(yard, annotations=SOFT, **with_limits(2, 16384))
    assert result.annotations["hami.io/Ascend910B3-devices-allocated"] == (
        "NPU-1,Ascend910B3,16384,0:NPU-0,Ascend910B3,16384,0:;"
    )
    assert result.annotations["huawei.com/Ascend910B3"] == (
        '[{"UUID":"NPU-1","memory":16384},{"UUID":"NPU-0","memory":16384}]'
    )


def test_5_soft_mode():
    cards = npus(1, devcore=100)
    yard = Yard([node(cards, soft=True)])
    placed(yard, name="first", annotations=SOFT, **with_limits(1, 20000, 70))
    more = pod("more", annotations=SOFT, **with_limits(1, 28672, 40))
    assert yard.place(more) == {"n1": "1/1 CardInsufficientCore"}
    result = placed(yard, name="less", annotations=SOFT, **with_limits(1, 28672, 30))
    assert result.annotations["huawei.com/Ascend910B3"] == '[{"UUID":"NPU-0","memory":28672,"core":30}]'
    assert result.annotations["hami.io/Ascend910B3-devices-allocated"] == "NPU-0,Ascend910B3,28672,30:;"
    assert result.debits == {COUNT: 1, MEMORY: 28672, CORE: 30}
    says_no = Yard([node(cards, soft=False)], chips(soft=True))
    assert says_no.place(pod(annotations=SOFT, **with_limits(1, 28672, 30))) == {"n1": "1/1 ModeNotFit"}
    says_nothing = Yard([node(cards)], chips(soft=True))
    assert isinstance(says_nothing.place(pod(annotations=SOFT, **with_limits(1, 28672, 30))), Placed)


def test_6_cores_without_soft_mode():
    refused = Yard([node(1)]).admit(pod(**with_limits(1, core=20)))
    assert refused.message.startswith("huawei.com/Ascend910B3-core is only supported in hami-core (soft split) mode")
    assert "container main" in refused.message
    assert "huawei.com/vnpu-mode: hami-core" in refused.message


def test_7_super_pod():
    yard = Yard([node(4, C)])
    # the slice goes where the walk begins, so one list puts it on index 1
    busy = {"hami.io/use-Ascend910C-uuid": "NPU-1"}
    hand_made = pod("busy", annotations=busy, **with_limits(1, 16384, word=C))
    assert isinstance(yard.place(hand_made, admit=False), Placed)
    wish = pod(**with_limits(1, word=C))
    admitted = yard.admit(wish)
    assert admitted.limits() == with_limits("2", "65536", word=C)
    assert chosen(yard.place(wish, keep=False), C) == "NPU-3 NPU-2"
    four = yard.place(pod(**with_limits(4, word=C)))
    assert four == {"n1": "1/4 CardInsufficientMemory, 2/4 AllocatedCardsInsufficientRequest"}
    refused = yard.admit(pod(**with_limits(3, word=C)))
    assert refused.message.startswith("Ascend910C device request must be 1 or 2*n, got 3")
    assert "container main" in refused.message


def test_8_hccs_groups():
    yard = Yard([node(npus(6, groups=[0, 0, 1, 1, 1, 1]))])
    two = yard.place(pod(**with_limits(2)), keep=False)
    assert chosen(two) == "NPU-5 NPU-4"
    five = yard.place(pod(**with_limits(5)), keep=False)
    assert chosen(five) == "NPU-5 NPU-4 NPU-3 NPU-2 NPU-1"
    assert (two.score, five.score) == (10 * 2 / 2, pytest.approx(10 * 4 / 5))


def test_9_two_containers_one_card():
    yard = Yard([node(1)])
    result = placed(yard, container("a", **with_limits(1, 16384)), container("b", **with_limits(1, 16384)))
    one = "NPU-0,Ascend910B3,16384,0:;"
    assert result.annotations["hami.io/Ascend910B3-devices-allocated"] == one + one
    usage = yard.state.view("n1").used(B3, "NPU-0")
    assert (usage.slots, usage.memory) == (2, 32768)
    assert result.debits == {COUNT: 2, MEMORY: 32768}
    yard.remove("p")
    only_b = placed(yard, container("a"), container("b", **with_limits(1, 16384)))
    assert only_b.annotations["hami.io/Ascend910B3-devices-allocated"] == ";" + one
    assert len(json.loads(only_b.annotations["huawei.com/Ascend910B3"])) == 1


def test_10_uuid_lists():
    yard = Yard([node(2)])
    use, no_use = "hami.io/use-Ascend910B3-uuid", "hami.io/no-use-Ascend910B3-uuid"

    def under(**annotations):
        return chosen(yard.place(pod(annotations=annotations, **with_limits(1)), keep=False))

    assert under(**{use: "NPU-0, NPU-9"}) == "NPU-0"
    assert under(**{use: "NPU-9"}) == "2/2 CardUuidMismatch"
    assert under(**{use: " "}) == "NPU-1"
    assert under(**{no_use: " NPU-1"}) == "NPU-0"
    assert under(**{use: "NPU-1", no_use: "NPU-1"}) == "2/2 CardUuidMismatch"
    assert under(**{"hami.io/use-ascend910b3-uuid": "NPU-0"}) == "NPU-1", "the word keeps its case"


# quota (10)


def charge(yard: Yard, manifest) -> dict[str, int]:
    """What a pod is charged while it waits."""
    return dict(waiting_charge(Pod.from_object(yard.admit(manifest).pod), CHART, yard.state).amounts)


def test_the_quota_example_charges_what_admission_wrote():
    yard = Yard([node(2, soft=True)])
    a, b, c = pod(**with_limits(1, 10000)), pod(**with_limits(1)), pod(**with_limits(2))
    d = pod(annotations=SOFT, **with_limits(2, 8000, 20))
    assert charge(yard, a) == {COUNT: 1, MEMORY: 16384}
    assert charge(yard, b) == {COUNT: 1, MEMORY: 65536}
    assert charge(yard, c) == {COUNT: 2, MEMORY: 131072}
    assert charge(yard, d) == {COUNT: 2, MEMORY: 16000, CORE: 40}
    assert yard.place(d).debits == {COUNT: 2, MEMORY: 16000, CORE: 40}
    assert charge(Yard([]), pod(**with_limits(1, word=P))) == {
        "limits.huawei.com/Ascend310P": 1,
        "limits.huawei.com/Ascend310P-memory": 21527,
    }


def test_a_pod_that_admission_did_not_see_is_charged_what_the_driver_carves():
    yard = Yard([node(1, P)])

    def unseen(**limits):
        return dict(waiting_charge(Pod.from_object(pod(**limits)), CHART, yard.state).amounts)

    key = "limits.huawei.com/Ascend310P-memory"
    assert unseen(**with_limits(1, 5000, word=P))[key] == 6144
    assert unseen(**with_limits(1, 13000, word=P))[key] == 21527
    assert unseen(**with_limits(1, 30000, word=P))[key] == 30000
    assert unseen(**with_limits(1, word=P))[key] == 21527, "the floor: the smallest card"
    whole = yard.place(pod(**with_limits(1, word=P)), admit=False)
    assert whole.debits[key] == 21527
    assert whole.annotations["huawei.com/Ascend310P"] == '[{"UUID":"NPU-0","memory":21527}]'
