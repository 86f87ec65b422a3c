"""The worked examples of docs/spec/volcano.md#15, under their numbers."""

from __future__ import annotations

import pytest
from builders import container
from devices.fit_env import configured, pod

from hami_webhook.devices.foreign_scheduler import Part

from .schedulers_env import SchedulersEnv
from .volcanoes import (
    CORES,
    IDS,
    MEMORY,
    MODE,
    NUMBER,
    PERCENTAGE,
    a40,
    debits,
    pod_with_limits,
    t4,
    vgpu,
    volcano_node,
)

TWO_T4 = (t4("GPU-a"), t4("GPU-b"))


def test_1_plain() -> None:
    env = SchedulersEnv([volcano_node("n1", *TWO_T4)])
    admitted = env.admit(pod_with_limits(1, 3000, 50))
    assert admitted.scheduler == "volcano"
    assert not admitted.warnings
    predicted, cost = env.place(pod_with_limits(1, 3000, 50))
    assert predicted.node == "n1"
    assert predicted.parts == {0: (Part("GPU-b", 3000, 50),)}
    assert predicted.annotations[IDS] == "GPU-b,NVIDIA,3000,50:"
    assert cost == debits(1, 3000, 50)


@pytest.mark.parametrize(("policy", "card"), [("binpack", "GPU-a"), ("spread", "GPU-b"), ("", "GPU-b")])
def test_1_by_policy(policy: str, card: str) -> None:
    env = SchedulersEnv([volcano_node("n1", *TWO_T4)], configured(f'volcano: {{schedulePolicy: "{policy}"}}'))
    env.keep(pod_with_limits(1, 4096, name="u"), "n1", {IDS: "GPU-a,NVIDIA,4096,0:"})
    predicted, _ = env.place(pod_with_limits(1, 3000, 50))
    assert predicted.annotations[IDS] == f"{card},NVIDIA,3000,50:"


def test_2_two_vgpus() -> None:
    env = SchedulersEnv([volcano_node("n1", *TWO_T4)])
    predicted, cost = env.place(pod_with_limits(2, 2000))
    assert predicted.annotations[IDS] == "GPU-b,NVIDIA,2000,0:GPU-a,NVIDIA,2000,0:"
    assert cost == debits(2, 4000, 0)
    three = pod_with_limits(3, 2000, name="three")
    assert env.admit(three).codes == ["volcano/count"]
    assert env.failed(three) == {"n1": "NodeInsufficientDevice"}


def test_3_memory_only() -> None:
    assert SchedulersEnv().admit(pod_with_limits(memory=1024)).limits() == {MEMORY: "1024", NUMBER: "1"}


def test_4_percentage_on_equal_cards() -> None:
    env = SchedulersEnv([volcano_node("n1", *TWO_T4)])
    admitted = env.admit(pod_with_limits(1, percent=20))
    assert admitted.limits() == {NUMBER: "1", MEMORY: "3276"}
    assert not admitted.warnings


def test_4_percentage_on_unequal_cards() -> None:
    env = SchedulersEnv([volcano_node("n1", t4("GPU-a")), volcano_node("n2", a40("GPU-b", "hami-core"))])
    admitted = env.admit(pod_with_limits(1, percent=20))
    assert admitted.limits() == {NUMBER: "1", PERCENTAGE: "20"}
    assert admitted.codes == ["volcano/percentage"]
    assert env.waiting(pod_with_limits(1, percent=20)) == debits(1, 3276)
    predicted, cost = env.place(pod_with_limits(1, percent=20, notes={"nvidia.com/use-gputype": "A100"}), admit=False)
    assert predicted.annotations[IDS] == "GPU-b,NVIDIA,8192,0:"
    assert cost == debits(1, 8192)


def test_5_mig() -> None:
    env = SchedulersEnv([volcano_node("n1", a40("GPU-m"))])
    predicted, cost = env.place(pod_with_limits(1, 8000, name="a", mode="mig"))
    assert predicted.annotations[IDS] == "GPU-m[group2-0],NVIDIA,8000,0:"
    assert predicted.parts == {0: (Part("GPU-m", 10240, 0, "2g.10gb"),)}
    assert cost == debits(1, 10240)
    predicted, cost = env.place(pod_with_limits(1, 5000, name="b", mode="mig"))
    assert predicted.annotations[IDS] == "GPU-m[group2-3],NVIDIA,5000,0:"
    assert cost == debits(1, 5120)
    assert env.failed(pod_with_limits(1, 15000, name="c", mode="mig")) == {"n1": "1/1 CardMigTopologyInfeasible"}


@pytest.mark.parametrize(
    ("memory", "place", "given"), [(3000, "group1-0", 5120), (15000, "group3-0", 20480), (30000, "group4-0", 40960)]
)
def test_5_mig_on_an_idle_card(memory: int, place: str, given: int) -> None:
    predicted, cost = SchedulersEnv([volcano_node("n1", a40("GPU-m"))]).place(pod_with_limits(1, memory, mode="mig"))
    assert predicted.annotations[IDS] == f"GPU-m[{place}],NVIDIA,{memory},0:"
    assert cost == debits(1, given)


def test_6_mode_mismatch() -> None:
    env = SchedulersEnv([volcano_node("n1", *TWO_T4)])
    assert env.failed(pod_with_limits(1, 1000, mode="mig")) == {"n1": "1/2 ModeNotFit"}
    assert env.admit(pod_with_limits(1, 1000, mode="MIG ")).notes[MODE] == "mig"
    assert "invalid volcano.sh/vgpu-mode" in env.refusal(pod_with_limits(1, 1000, mode="time-slicing"))


def test_7_exclusive() -> None:
    env = SchedulersEnv([volcano_node("n1", t4("GPU-a"))])
    predicted, cost = SchedulersEnv([volcano_node("n1", t4("GPU-a"))]).place(pod_with_limits(1))
    assert (predicted.annotations[IDS], cost) == ("GPU-a,NVIDIA,16384,0:", debits(1, 16384))
    env.keep(pod_with_limits(1, 1, name="u"), "n1", {IDS: "GPU-a,NVIDIA,1,0:"})
    assert env.failed(pod_with_limits(1)) == {"n1": "1/1 CardInsufficientMemory"}
    assert env.failed(pod_with_limits(1, 1000, 100)) == {"n1": "1/1 ExclusiveDeviceAllocateConflict"}


def test_9_mixed() -> None:
    mixed = pod("p", container("a", **{"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1000}), vgpu(1, name="b"))
    admitted = SchedulersEnv().admit(mixed)
    assert admitted.codes == ["mixed-names"]
    denying = SchedulersEnv(
        vendors=configured(
            "nvidia: {resourceCountName: nvidia.com/gpu, resourceMemoryName: "
            "nvidia.com/gpumem}\nvolcano: {mixedNameSets: deny}"
        )
    )
    assert denying.refusal(mixed) == admitted.warnings[0]


@pytest.mark.parametrize(
    ("amounts", "resource", "value"),
    [
        ({"number": 1, "percent": 101}, PERCENTAGE, "101"),
        ({"number": 1, "cores": 150}, CORES, "150"),
        ({"number": 1, "memory": "4Gi"}, MEMORY, "4Gi"),
    ],
)
def test_10_bad_values(amounts: dict[str, object], resource: str, value: str) -> None:
    assert f"invalid {resource} value {value} in container main" in SchedulersEnv().refusal(pod_with_limits(**amounts))


def test_10_memory_is_explained() -> None:
    message = SchedulersEnv().refusal(pod_with_limits(1, "4Gi"))
    assert "blocks of 1 MiB" in message
    assert "4 GiB is 4096, not 4Gi" in message


def test_10_priority() -> None:
    two = pod("p", container("main", **{NUMBER: 1, "nvidia.com/priority": 2}))
    assert "queues" in SchedulersEnv().refusal(two)
    zero = pod("p", container("main", **{NUMBER: 1, "nvidia.com/priority": 0}))
    admitted = SchedulersEnv().admit(zero)
    assert admitted.limits() == {NUMBER: "1"}
    assert admitted.env() == {"CUDA_TASK_PRIORITY": "0"}
