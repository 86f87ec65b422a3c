"""Cambricon MLUs (docs/spec/cambricon.md); the worked examples of its section 14 are tests under their numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from builders import container, node, read_node, read_pod
from tables import in_one_test

from hami_webhook.devices.lock_annotations import COMMON_LOCK, NodeLock
from hami_webhook.devices.model import AllocatedDevice, Allocation, DeviceShare

from .fit_env import CHART, JSON, NOW, FitEnv, Names, Placed, configured, pod
from .simulated_quota import amounts, run

COUNT, MEM, CORES = "cambricon.com/vmlu", "cambricon.com/mlu.smlu.vmemory", "cambricon.com/mlu.smlu.vcore"
MLU = CHART["MLU"]
ALLOCATED, PROFILE = "hami.io/cambricon-mlu-devices-allocated", "CAMBRICON_DSMLU_PROFILE"
NAMES = Names(COUNT, MEM, CORES)
limits, with_limits, one = NAMES.limits, NAMES.pod, NAMES.container
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
    ("cores", "memory", "cards"),
    [
        ("800", "728", [23296] * 8),
        (250, 250, [25600] * 3),
        (200, None, [0, 0]),
        ("2k", "1k", [12800] * 20),
        (None, 100, []),
    ],
)
def test_cards_are_made_from_the_sums(cores: object, memory: object, cards: list[int]) -> None:
    inventory = MLU.inventory(read_node("m1", capacity=capacity(cores, memory)))
    found = inventory.devices if inventory else ()
    assert [device.memory for device in found] == cards
    for index, device in enumerate(found):
        assert (device.uuid, device.index) == (f"m1-cambricon-mlu-{index}", index)
        assert (device.slots, device.cores, device.numa, device.healthy) == (100, 100, 0, True)


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
    inventory = MLU.inventory(read_node("m1", labels=labels, capacity=capacity(100, 91)))
    assert inventory is not None
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


# 7 to 14: placement

UUID = "m1-cambricon-mlu-"


def env(cores: int = 200, memory: int = 182, model: str | None = None) -> FitEnv:
    """Node `m1`: two cards of 23296 MiB unless told otherwise."""
    return FitEnv([read_node("m1", labels={"Model": model} if model else {}, capacity={CORES: cores, MEM: memory})])


def got(placed: Placed | dict[str, str]) -> tuple[str, str] | str:
    """The record, its UUIDs short, and the profile; or why the only node refused."""
    if not isinstance(placed, Placed):
        return placed["m1"]
    return placed.annotations[ALLOCATED].replace(UUID, "-"), placed.annotations[PROFILE]


def on(index: int) -> dict[str, str]:
    return {"cambricon.com/use-gpuuuid": f"{UUID}{index}"}


def test_1_a_slice_of_the_last_card() -> None:
    placed = env().placed(with_limits("p", 1, 20, 10))
    assert got(placed) == ("-1,MLU,5120,10:;", "1_10_20")
    assert placed.annotations["CAMBRICON_DSMLU_ASSIGHED"] == placed.annotations["CAMBRICON_DSMLU_ASSIGNED"] == "false"
    assert placed.debits == {f"limits.{COUNT}": 1, f"limits.{MEM}": 20, f"limits.{CORES}": 10}


WHOLE = ("-1,MLU,23296,100:;", "1_100_91")
BOTH = ("-1,MLU,23296,100:-0,MLU,23296,100:;", "1_100_91")
SLICES = {0: ("-0,MLU,5120,10:;", "0_10_20"), 1: ("-1,MLU,5120,10:;", "1_10_20")}
MISMATCH = "2/2 CardTypeMismatch"


def slice_with(key: str, text: str) -> JSON:
    return with_limits("p", 1, 20, 10, notes={f"cambricon.com/{key}": text})


@in_one_test(
    ("on_node", "incoming", "answer"),
    [
        pytest.param(env(), with_limits(), WHOLE, id="2 a count alone is the whole card"),
        pytest.param(env(), with_limits("p", 1, 20), ("-1,MLU,5120,100:;", "1_100_20"), id="3 memory alone"),
        pytest.param(env(), with_limits("p", 1, 91, 10), ("-1,MLU,23296,10:;", "1_10_91"), id="4 what a card has"),
        pytest.param(env(), with_limits("p", 1, 92, 10), "2/2 CardInsufficientMemory", id="4 more than a card has"),
        pytest.param(env(), with_limits("p", 2, 20, 10), BOTH, id="6 several cards come whole"),
        pytest.param(env(), with_limits("p", 2, 91), BOTH, id="whole cards have what was written"),
        pytest.param(env(), with_limits("p", 2, 92), "2/2 CardInsufficientMemory", id="whole cards have too little"),
        pytest.param(
            env(), pod("p", container("side"), one(1, 20, 10)), (";-1,MLU,5120,10:;", "1_10_20"), id="7 an empty slot"
        ),
        pytest.param(env(), slice_with("use-gpuuuid", f"{UUID}0"), SLICES[0], id="8 allowed id"),
        pytest.param(env(), slice_with("nouse-gpuuuid", f"{UUID}1"), SLICES[0], id="8 denied id"),
        pytest.param(env(model="MLU370-X8"), slice_with("nouse-mlutype", "mlu370"), MISMATCH, id="8 denied model"),
        pytest.param(env(model="MLU370-X8"), slice_with("use-mlutype", "MLU590,mlu370"), SLICES[1], id="8 two models"),
        pytest.param(env(), slice_with("use-mlutype", "MLU370"), MISMATCH, id="8 a model that isn't known"),
        pytest.param(
            env(250, 250), with_limits("p", 3),
            ("-2,MLU,25600,100:-1,MLU,25600,100:-0,MLU,25600,100:;", "2_100_100"), id="10 an incomplete card is one",
        ),
        pytest.param(env(0, 0), with_limits(), "node unregistered", id="no capacity"),
    ],
)  # fmt: skip
def test_on_idle_cards(on_node: FitEnv, incoming: JSON, answer: object) -> None:
    assert got(on_node.place(incoming, keep=False)) == answer


@pytest.mark.parametrize(
    ("held", "asked", "answer"),
    [
        pytest.param((1, 10), (1, 20), "2/2 CardInsufficientCore", id="3 memory alone is exclusive"),
        pytest.param((20, 100), (1, 20, 0), "2/2 CardComputeUnitsExhausted", id="9 no cores where none are left"),
        pytest.param((20, 0), (1, 20), "2/2 ExclusiveDeviceAllocateConflict", id="all cores of a card in use"),
    ],
)
def test_where_both_cards_are_in_use(held: Sequence[int], asked: Sequence[int], answer: str) -> None:
    used = env()
    for index in (0, 1):
        used.place(with_limits(f"used{index}", 1, *held, notes=on(index)))
    assert got(used.place(with_limits("p", *asked))) == answer


def test_5_bytes_are_refused_with_the_unit() -> None:
    assert env().admit(with_limits("p", 1, "16Gi")).message == (
        "invalid cambricon.com/mlu.smlu.vmemory value 16Gi in container main: must be an integer number of units of "
        "256 MiB (16 GiB is 64, not 16Gi) between 0 and 8388607; for 16Gi write 64"
    )


def test_6_several_cards_of_which_one_is_in_use() -> None:
    shared = env()
    shared.place(with_limits("small", 1, 1, 1, notes=on(0)))
    assert got(shared.place(with_limits("p", 2, 20, 10))) == (
        "1/2 AllocatedCardsInsufficientRequest, 1/2 CardInsufficientMemory"
    )


def test_four_equal_pods_spread_over_four_cards() -> None:
    """HAMi 2.5.0 put them all on the last card (#946)."""
    four = env(400, 364)
    records = [got(four.place(with_limits(f"p{number}", 1, 20, 10)))[0] for number in range(4)]
    assert records == [f"-{index},MLU,5120,10:;" for index in (3, 2, 1, 0)]


# 10: quota

FOUR = [node("m1", capacity={CORES: 400, MEM: 640})]
"""Four cards of 40960 MiB, 160 units."""


def hard(mem: int | None = None, cores: int | None = None) -> JSON:
    return limits(None, mem, cores)


def debits(count: int, mem: int, cores: int) -> JSON:
    return {COUNT: count, MEM: mem, CORES: cores}


def test_quota_a_to_d() -> None:
    """B is refused at admission already: docs/spec/quota.md#5 charges a whole card the smallest one while it waits."""
    pods = [
        with_limits("a", 1, 20, 10),
        with_limits("b", 1, None, 10),
        with_limits("c", 1, 50),
        with_limits("d", 1, 200),
    ]
    result = run(FOUR, hard(100, 150), pods)
    found = amounts(result)
    assert found[0] == debits(1, 20, 10)
    assert f"requested: limits.{MEM}=160 (smallest eligible card), used: limits.{MEM}=20," in str(found[1])
    assert found[2] == debits(1, 50, 100)
    assert f"limits.{MEM}=200, used: limits.{CORES}=110,limits.{MEM}=70," in str(found[3])
    assert result.quotas[0]["used"] == {f"limits.{MEM}": 70, f"limits.{CORES}": 110}


def test_quota_e_the_product_is_declared() -> None:
    result = run(FOUR, hard(60), [with_limits("e", 2, 40), with_limits("f", 1, 40)])
    assert f"requested: limits.{MEM}=80, used: limits.{MEM}=0, limited: limits.{MEM}=60" in str(amounts(result)[0])
    assert amounts(result)[1] == debits(1, 40, 100)


def test_quota_f_whole_cards_are_charged_as_placed() -> None:
    result = run(FOUR, hard(None, 250), [with_limits("f", 2), with_limits("g", 1, 1, 60)])
    assert amounts(result)[0] == debits(2, 320, 200)
    assert f"limits.{CORES}=60, used: limits.{CORES}=200, limited: limits.{CORES}=250" in str(amounts(result)[1])


def test_units_are_rounded_up_once_for_the_pod() -> None:
    thirds = [node("m1", capacity={CORES: 300, MEM: 1000})]
    assert amounts(run(thirds, {}, [with_limits("p", 1), with_limits("q", 2)])) == [
        debits(1, 334, 100),
        debits(2, 667, 200),
    ]
