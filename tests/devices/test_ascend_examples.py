"""The worked examples of docs/spec/ascend.md (section 14) under their own numbers, and its quota (section 10)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from builders import container

from hami_webhook.kube.objects import Pod
from hami_webhook.quota.pricing import price_pending

from .fit_env import CHART, JSON, FitEnv, Placed, pod
from .npus import B3, SOFT, C, P, chips, node, npus, with_limits

COUNT, MEMORY, CORE = (f"limits.huawei.com/{B3}{end}" for end in ("", "-memory", "-core"))


def placed(env: FitEnv, *containers: JSON, name: str = "p", notes: JSON | None = None, **limits: object) -> Placed:
    return env.placed(pod(name, *containers, annotations=notes, **limits))


def chosen(result: Placed | dict[str, str], word: str = B3) -> str:
    """The NPUs in the order chosen, or the refusals."""
    if isinstance(result, dict):
        return ", ".join(result.values())
    return " ".join(entry["UUID"] for entry in json.loads(result.annotations[f"huawei.com/{word}"]))


def test_1_a_slice() -> None:
    env = FitEnv([node(1)])
    admitted = env.admit(pod(**with_limits(1, 10000)))
    assert admitted.limits() == with_limits("1", "16384")
    assert admitted.requests() == {f"huawei.com/{B3}-memory": "16384"}
    result = placed(env, **with_limits(1, 10000))
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


def test_2_too_big_for_a_template() -> None:
    env = FitEnv([node(1)])
    assert env.admit(pod(**with_limits(1, 40000))).limits() == with_limits("1", "65536")
    result = placed(env, **with_limits(1, 40000))
    assert result.annotations["huawei.com/Ascend910B3"] == '[{"UUID":"NPU-0","memory":65536}]'
    refused = env.admit(pod(**with_limits(1, 65537)))
    assert refused.message.startswith("huawei.com/Ascend910B3-memory 65537 is invalid")
    assert "container main" in refused.message
    assert "65536" in refused.message
    assert "16Gi" in refused.message


def test_3_310p() -> None:
    env = FitEnv([node(3, P)])
    assert env.admit(pod(**with_limits(1, 13000, word=P))).limits() == with_limits("1", "21527", word=P)
    two = placed(env, **with_limits(2, 20000, word=P))
    assert (
        two.annotations["hami.io/Ascend310P-devices-allocated"] == "NPU-2,Ascend310P,21527,0:NPU-1,Ascend310P,21527,0:;"
    )
    assert (
        two.annotations["huawei.com/Ascend310P"] == '[{"UUID":"NPU-2","memory":21527},{"UUID":"NPU-1","memory":21527}]'
    )
    assert env.admit(pod(**with_limits(1, 24576, word=P))).limits() == with_limits("1", "21527", word=P)
    assert "huawei.com/Ascend310P-memory 24577 is invalid" in env.admit(pod(**with_limits(1, 24577, word=P))).message


def test_4_two_slices() -> None:
    env = FitEnv([node(2, soft=True)])
    refused = env.admit(pod(**with_limits(2, 16384)))
    assert "vNPU not supported for multiple devices" in refused.message
    assert "container main" in refused.message
    result = placed(env, notes=SOFT, **with_limits(2, 16384))
    assert result.annotations["hami.io/Ascend910B3-devices-allocated"] == (
        "NPU-1,Ascend910B3,16384,0:NPU-0,Ascend910B3,16384,0:;"
    )
    assert result.annotations["huawei.com/Ascend910B3"] == (
        '[{"UUID":"NPU-1","memory":16384},{"UUID":"NPU-0","memory":16384}]'
    )


def test_5_soft_mode() -> None:
    cards = npus(1, devcore=100)
    env = FitEnv([node(cards, soft=True)])
    placed(env, name="first", notes=SOFT, **with_limits(1, 20000, 70))
    more = pod("more", annotations=SOFT, **with_limits(1, 28672, 40))
    assert env.place(more) == {"n1": "1/1 CardInsufficientCore"}
    result = placed(env, name="less", notes=SOFT, **with_limits(1, 28672, 30))
    assert result.annotations["huawei.com/Ascend910B3"] == '[{"UUID":"NPU-0","memory":28672,"core":30}]'
    assert result.annotations["hami.io/Ascend910B3-devices-allocated"] == "NPU-0,Ascend910B3,28672,30:;"
    assert result.debits == {COUNT: 1, MEMORY: 28672, CORE: 30}
    says_no = FitEnv([node(cards, soft=False)], chips(soft=True))
    assert says_no.place(pod(annotations=SOFT, **with_limits(1, 28672, 30))) == {"n1": "1/1 ModeNotFit"}
    says_nothing = FitEnv([node(cards)], chips(soft=True))
    assert isinstance(says_nothing.place(pod(annotations=SOFT, **with_limits(1, 28672, 30))), Placed)


def test_6_cores_without_soft_mode() -> None:
    refused = FitEnv([node(1)]).admit(pod(**with_limits(1, core=20)))
    assert refused.message.startswith("huawei.com/Ascend910B3-core is only supported in hami-core (soft split) mode")
    assert "container main" in refused.message
    assert "huawei.com/vnpu-mode: hami-core" in refused.message


def test_7_super_pod() -> None:
    env = FitEnv([node(4, C)])
    # the slice goes where the walk begins, so one list puts it on index 1
    busy = {"hami.io/use-Ascend910C-uuid": "NPU-1"}
    hand_made = pod("busy", annotations=busy, **with_limits(1, 16384, word=C))
    assert isinstance(env.place(hand_made, admit=False), Placed)
    wish = pod(**with_limits(1, word=C))
    admitted = env.admit(wish)
    assert admitted.limits() == with_limits("2", "65536", word=C)
    assert chosen(env.place(wish, keep=False), C) == "NPU-3 NPU-2"
    four = env.place(pod(**with_limits(4, word=C)))
    assert four == {"n1": "1/4 CardInsufficientMemory, 2/4 AllocatedCardsInsufficientRequest"}
    refused = env.admit(pod(**with_limits(3, word=C)))
    assert refused.message.startswith("Ascend910C device request must be 1 or 2*n, got 3")
    assert "container main" in refused.message


def test_8_hccs_groups() -> None:
    env = FitEnv([node(npus(6, groups=[0, 0, 1, 1, 1, 1]))])
    two = env.placed(pod(**with_limits(2)), keep=False)
    assert chosen(two) == "NPU-5 NPU-4"
    five = env.placed(pod(**with_limits(5)), keep=False)
    assert chosen(five) == "NPU-5 NPU-4 NPU-3 NPU-2 NPU-1"
    assert [two.score, five.score] == pytest.approx([10 * 2 / 2, 10 * 4 / 5])


def test_9_two_containers_one_card() -> None:
    env = FitEnv([node(1)])
    result = placed(env, container("a", **with_limits(1, 16384)), container("b", **with_limits(1, 16384)))
    one = "NPU-0,Ascend910B3,16384,0:;"
    assert result.annotations["hami.io/Ascend910B3-devices-allocated"] == one + one
    assert env.used(B3, "NPU-0") == (2, 32768, 0)
    assert result.debits == {COUNT: 2, MEMORY: 32768}
    env.remove("p")
    only_b = placed(env, container("a"), container("b", **with_limits(1, 16384)))
    assert only_b.annotations["hami.io/Ascend910B3-devices-allocated"] == ";" + one
    assert len(json.loads(only_b.annotations["huawei.com/Ascend910B3"])) == 1


def test_10_uuid_lists() -> None:
    env = FitEnv([node(2)])
    use, no_use = "hami.io/use-Ascend910B3-uuid", "hami.io/no-use-Ascend910B3-uuid"

    def under(**annotations: str) -> str:
        return chosen(env.place(pod(annotations=annotations, **with_limits(1)), keep=False))

    assert under(**{use: "NPU-0, NPU-9"}) == "NPU-0"
    assert under(**{use: "NPU-9"}) == "2/2 CardUuidMismatch"
    assert under(**{use: " "}) == "NPU-1"
    assert under(**{no_use: " NPU-1"}) == "NPU-0"
    assert under(**{use: "NPU-1", no_use: "NPU-1"}) == "2/2 CardUuidMismatch"
    assert under(**{"hami.io/use-ascend910b3-uuid": "NPU-0"}) == "NPU-1", "the word keeps its case"


# quota (10)


def test_the_quota_example_charges_what_admission_wrote() -> None:
    env = FitEnv([node(2, soft=True)])
    assert env.waiting(pod(**with_limits(1, 10000))) == {COUNT: 1, MEMORY: 16384}
    assert env.waiting(pod(**with_limits(1))) == {COUNT: 1, MEMORY: 65536}
    assert env.waiting(pod(**with_limits(2))) == {COUNT: 2, MEMORY: 131072}
    soft = pod(annotations=SOFT, **with_limits(2, 8000, 20))
    assert env.waiting(soft) == env.placed(soft).debits == {COUNT: 2, MEMORY: 16000, CORE: 40}
    assert FitEnv([]).waiting(pod(**with_limits(1, word=P))) == {
        "limits.huawei.com/Ascend310P": 1,
        "limits.huawei.com/Ascend310P-memory": 21527,
    }


def test_a_pod_that_admission_did_not_see_is_charged_what_the_driver_carves() -> None:
    env = FitEnv([node(1, P)])

    def unseen(**limits: Any) -> dict[str, int]:
        return dict(price_pending(Pod.from_object(pod(**limits)), CHART, env.state.capacity).amounts)

    key = "limits.huawei.com/Ascend310P-memory"
    assert unseen(**with_limits(1, 5000, word=P))[key] == 6144
    assert unseen(**with_limits(1, 13000, word=P))[key] == 21527
    assert unseen(**with_limits(1, 30000, word=P))[key] == 30000
    assert unseen(**with_limits(1, word=P))[key] == 21527, "the floor: the smallest card"
    whole = env.placed(pod(**with_limits(1, word=P)), admit=False)
    assert whole.debits[key] == 21527
    assert whole.annotations["huawei.com/Ascend310P"] == '[{"UUID":"NPU-0","memory":21527}]'
