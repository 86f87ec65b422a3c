"""Cambricon MLUs (docs/spec/cambricon.md).

Which cards a container gets is in `test_first_fit_vendors.py`, against a plain reading of section 7.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from builders import container, read_node, read_pod

from hami_webhook.devices.lock_annotations import COMMON_LOCK, NodeLock
from hami_webhook.devices.model import AllocatedDevice, Allocation, DeviceShare

from .fit_env import CHART, JSON, NOW, FitEnv, Names, configured, pod, registered

COUNT, MEM, CORES = "cambricon.com/vmlu", "cambricon.com/mlu.smlu.vmemory", "cambricon.com/mlu.smlu.vcore"
MLU = CHART["MLU"]
ALLOCATED, PROFILE = "hami.io/cambricon-mlu-devices-allocated", "CAMBRICON_DSMLU_PROFILE"
NAMES = Names(COUNT, MEM, CORES)
limits, with_limits = NAMES.limits, NAMES.pod
OF_370 = configured(
    "cambricon: {resourceCountName: cambricon.com/vmlu, resourceMemoryName: cambricon.com/mlu370.smlu.vmemory, "
    "resourceCoreName: cambricon.com/mlu370.smlu.vcore}"
)


def capacity(cores: object, memory: object) -> JSON:
    return limits(None, memory, cores)


# 2: configuration


def test_the_lock_is_the_plugins_own_of_two_minutes() -> None:
    assert MLU.lock == NodeLock("cambricon.com/dsmlu.lock", 120.0, names_holder=False)
    assert NodeLock("hami.io/mutex.lock", 300.0, names_holder=True) == COMMON_LOCK
    assert [key for key, vendor in CHART.items() if vendor.lock == MLU.lock] == ["MLU"]


def test_names_with_the_model_are_a_matter_of_configuration() -> None:
    on = read_node("m1", capacity={"cambricon.com/mlu370.smlu.vcore": 100, "cambricon.com/mlu370.smlu.vmemory": 91})
    incoming = pod(**{COUNT: 1, "cambricon.com/mlu370.smlu.vmemory": 20, "cambricon.com/mlu370.smlu.vcore": 10})
    placed = FitEnv([on], OF_370).placed(incoming)
    assert placed.annotations[ALLOCATED] == "m1-cambricon-mlu-0,MLU,5120,10:;"
    assert placed.debits["limits.cambricon.com/mlu370.smlu.vmemory"] == 20
    assert MLU.inventory(on) is None  # the chart's names find nothing there


# 3: node side


@pytest.mark.parametrize(
    ("label", "model"),
    [
        (None, "MLU"),
        ("MLU370-X8", "MLU370-X8"),
        (" mlu590 ", "mlu590"),
        ("X8", "MLU"),
    ],
)
def test_the_model_is_the_label_that_names_one(label: str | None, model: str) -> None:
    labels = {} if label is None else {"Model": label}
    inventory = registered(MLU, read_node("m1", labels=labels, capacity=capacity(100, 91)))
    assert [device.type for device in inventory.devices] == [model]


# 5: admission

NOT_ENFORCED = "container main: {} isn't enforced, because cambricon.com/vmlu 2 gives whole cards"
NOT_CALLED = (
    f"container main: without {MEM} and {CORES} it starts without a card, because in sMLU mode the device plugin isn't "
    "called for it"
)
CALLED_ONCE = (
    "container main: with {} alone, kubelet calls the device plugin once instead of twice: the slice is never marked "
    "as assigned, and the node's lock stays until it expires"
)


@pytest.mark.parametrize(
    ("amounts", "warnings"),
    [
        (limits(1, 20, 10), []),
        (limits(1), [NOT_CALLED]),
        (limits(1, 0, 0), [NOT_CALLED]),
        (limits(1, 20), [CALLED_ONCE.format(MEM)]),
        (limits(1, 20, 0), [CALLED_ONCE.format(MEM)]),
        (limits(1, None, 10), [CALLED_ONCE.format(CORES)]),
        (limits(2, 20), [NOT_ENFORCED.format(MEM)]),
        (limits(2, 20, 10), [NOT_ENFORCED.format(MEM), NOT_ENFORCED.format(CORES)]),
        (limits(None, 20, 10), []),
    ],
)
def test_what_the_plugin_cannot_serve_earns_a_warning(amounts: JSON, warnings: list[str]) -> None:
    incoming = pod("p", container(**amounts))
    admitted = FitEnv([]).admit(incoming)
    assert admitted.warnings == warnings
    assert admitted.pod == incoming  # nothing in the container is changed


def test_the_plugin_serves_one_container_of_a_pod() -> None:
    message = (
        f"containers a, c ask for {MEM} or {CORES}, but the device plugin serves only one such container of a pod; "
        "with more, the pod fails"
    )
    a, b, c = container("a", **limits(1, 20, 10)), container("b"), container("c", **limits(None, 20))
    assert FitEnv([]).admit(pod("p", a, b, c)).warnings == [message]
    assert FitEnv([]).admit(pod("p", a, b)).warnings == []
    assert FitEnv([]).admit(pod("p", b, c)).warnings == []  # a pod that asks for no MLU


@pytest.mark.parametrize("sidecar", [False, True])
def test_an_init_container_is_placed_but_the_plugin_gives_it_nothing(sidecar: bool) -> None:
    incoming = pod("p", container("main"), init=[container("prepare", sidecar=sidecar, **limits(1, 20, 10))])
    env = FitEnv([read_node("m1", capacity=capacity(100, 91))])
    assert env.admit(incoming).warnings == [
        "container prepare: an init container gets no MLU, because the device plugin looks at app containers only"
    ]
    placed = env.placed(incoming)
    assert placed.annotations[ALLOCATED] == "m1-cambricon-mlu-0,MLU,5120,10:;;"


# 9: what placement writes


def allocation(*cards: tuple[int, int, int]) -> dict[str, Allocation]:
    """Cards by index, with MiB and cores."""
    devices = (
        AllocatedDevice(f"m-1-cambricon-mlu-{index}", DeviceShare(memory, cores)) for index, memory, cores in cards
    )
    return {"MLU": Allocation("MLU", tuple(devices))}


@pytest.mark.parametrize(
    ("rows", "profile"),
    [
        ([allocation((7, 5120, 10))], "7_10_20"),
        ([{}, allocation((12, 85333, 100))], "12_100_333"),
        ([allocation((1, 256, 5), (0, 256, 5)), {}, allocation((0, 512, 6))], "1_5_1"),
    ],
)
def test_the_profile_is_that_of_the_first_card(rows: Sequence[Mapping[str, Allocation]], profile: str) -> None:
    written = MLU.encode(read_pod("p"), rows, read_node("m-1"), NOW)
    assert written.pop(ALLOCATED) == written.pop("hami.io/cambricon-mlu-devices-to-allocate")
    assert written == {
        "CAMBRICON_DSMLU_ASSIGHED": "false",
        "CAMBRICON_DSMLU_ASSIGNED": "false",
        PROFILE: profile,
    }


# 14, example 1


def test_1_a_slice_of_the_last_card() -> None:
    placed = FitEnv([read_node("m1", capacity=capacity(200, 182))]).placed(with_limits("p", 1, 20, 10))
    assert placed.annotations[ALLOCATED] == "m1-cambricon-mlu-1,MLU,5120,10:;"
    assert placed.annotations[PROFILE] == "1_10_20"
    assert placed.debits == {f"limits.{COUNT}": 1, f"limits.{MEM}": 20, f"limits.{CORES}": 10}


# 10: quota


@pytest.mark.parametrize(("count", "units"), [(1, 334), (2, 667)])
def test_units_are_rounded_up_once_for_the_pod(count: int, units: int) -> None:
    placed = FitEnv([read_node("m1", capacity=capacity(300, 1000))]).placed(with_limits("p", count))
    assert placed.debits == {f"limits.{COUNT}": count, f"limits.{MEM}": units, f"limits.{CORES}": 100 * count}
