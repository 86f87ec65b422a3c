"""DCUs and MLUs on random nodes: against a plain reading of the pages' section 7, and never oversold."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_webhook.devices.codecs import DeviceEntry, decode_pod_devices
from hami_webhook.devices.debit import per_device
from hami_webhook.devices.model import (
    AllocatedDevice,
    Allocation,
    Device,
    DeviceReservation,
    Inventory,
    NodeView,
    Usage,
)
from hami_webhook.kube.objects import Pod
from hami_webhook.quota.budget import PodBudget
from hami_webhook.scheduling.fit import NodeFit, fit_pod, read_pod_request

from .yard import CHART, JSON, Placed, Yard, container, node, pod

NAMES = {
    "DCU": ("hygon.com/dcunum", "hygon.com/dcumem", "hygon.com/dcucores", "hygon.com", "dcutype"),
    "MLU": (
        "cambricon.com/vmlu",
        "cambricon.com/mlu.smlu.vmemory",
        "cambricon.com/mlu.smlu.vcore",
        "cambricon.com",
        "mlutype",
    ),
}
UNIT = {"DCU": 1, "MLU": 256}
BOTH = pytest.mark.parametrize("vendor", list(NAMES))
POLICIES = ("spread", "binpack", "mutex", "binpack,mutex", "spread, numa", "nonsense", "")


@dataclass(frozen=True)
class World:
    """Cards with what is taken of each, in registered order."""

    devices: tuple[Device, ...]
    usage: dict[str, Usage]

    def view(self, vendor: str) -> NodeView:
        taken = {(vendor, uuid): usage for uuid, usage in self.usage.items()}
        return NodeView(node("n1"), {vendor: Inventory(self.devices)}, taken)


@st.composite
def worlds(draw: Any, vendor: str) -> World:
    devices, usage = [], {}
    for position in range(draw(st.integers(1, 5))):
        memory = draw(st.sampled_from([1024, 1024, 2048, 2000])) * UNIT[vendor] // 256
        device = Device(
            vendor=vendor,
            uuid=f"c{position}",
            index=draw(st.integers(0, 3)) if vendor == "DCU" else position,
            slots=4 if vendor == "DCU" else 100,
            memory=memory,
            cores=100,
            type=draw(st.sampled_from(["DCU-Z100L", "DCU-K100_AI"] if vendor == "DCU" else ["MLU", "MLU370-X8"])),
            healthy=draw(st.sampled_from([True, True, True, vendor == "MLU"])),
        )
        devices.append(device)
        if draw(st.booleans()):
            cores = st.sampled_from([0, 10, 60, 100])
            usage[device.uuid] = Usage(draw(st.integers(1, 4)), draw(st.integers(0, memory)), draw(cores))
    return World(tuple(devices), usage)


@st.composite
def wants(draw: Any, vendor: str) -> dict[str, int]:
    """Count, and perhaps memory in the vendor's units and cores."""
    wanted = {"count": draw(st.sampled_from([1, 1, 1, 2, 3]))}
    if draw(st.booleans()):
        wanted["memory"] = draw(st.sampled_from([0, 1, 2, 4, 5, 8]))
    if draw(st.booleans()):
        wanted["cores"] = draw(st.sampled_from([0, 10, 40, 41, 100, 120]))
    return wanted


def limits(vendor: str, wanted: dict[str, int]) -> dict[str, int]:
    return {NAMES[vendor][("count", "memory", "cores").index(key)]: amount for key, amount in wanted.items()}


def lists(vendor: str) -> Any:
    """Annotations that allow and deny, by the words of `allowed`."""
    prefix, word = NAMES[vendor][3:]
    return st.fixed_dictionaries(
        {},
        optional={
            f"{prefix}/use-gpuuuid": st.sampled_from(["", "c0, c1,c2", "c3"]),
            f"{prefix}/nouse-gpuuuid": st.sampled_from([" ", "c1", "c0,c4"]),
            f"{prefix}/use-{word}": st.sampled_from(["", "k100,mlu370", "l"]),
            f"{prefix}/nouse-{word}": st.sampled_from(["", "Z100,X8", "x,"]),
        },
    )


def items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def plain_reading(vendor: str, world: World, wanted: dict[str, int], notes: dict[str, str], policy: str) -> object:
    """Section 7, rule by rule: the entries, or the refusal."""
    count, whole = wanted["count"], wanted["count"] > 1
    if count > len(world.devices):
        return "NodeInsufficientDevice"
    least = wanted.get("memory", 0) * UNIT[vendor]
    cores = 100 if whole else min(wanted.get("cores", 100), 100)
    prefix, word = NAMES[vendor][3:]
    words = items(policy) or [""]

    def needed(device: Device) -> int:
        return max(device.memory, least) if whole else (least or device.memory)

    def free_first(place: int) -> tuple[Any, ...]:
        device, used = world.devices[place], world.usage.get(world.devices[place].uuid, Usage())
        score = (
            Fraction(used.slots + 1, device.slots)
            + Fraction(used.cores + cores, device.cores)
            + Fraction(used.memory + needed(device), device.memory)
        )
        if len(words) > 1:
            return (-score if words[0] == "binpack" else score, -device.index, -place)
        if policy == "mutex":
            return (used.slots, -place)
        return (-score if policy == "binpack" else score, -place)

    def label(device: Device) -> str | None:
        used = world.usage.get(device.uuid, Usage())
        use, nouse = (items(notes.get(f"{prefix}/{key}-gpuuuid", "")) for key in ("use", "nouse"))
        types, no_types = (items(notes.get(f"{prefix}/{key}-{word}", "").lower()) for key in ("use", "nouse"))
        model = device.type.lower()
        if not device.healthy:
            return "CardNotHealth"
        if (types and not any(item in model for item in types)) or any(item in model for item in no_types):
            return "CardTypeMismatch"
        if (use and device.uuid not in use) or device.uuid in nouse:
            return "CardUuidMismatch"
        if used.slots >= device.slots:
            return "CardTimeSlicingExhausted"
        if "mutex" in words and used.slots > 0:
            return "ExclusiveDeviceAllocateConflict"
        if device.memory - used.memory < needed(device):
            return "CardInsufficientMemory"
        if 100 - used.cores < cores:
            return "CardInsufficientCore"
        if cores == 100 and used.slots > 0:
            return "ExclusiveDeviceAllocateConflict"
        if used.cores >= 100 and cores == 0:
            return "CardComputeUnitsExhausted"
        return None

    counted: Counter[str] = Counter()
    chosen: list[DeviceEntry] = []
    for place in sorted(range(len(world.devices)), key=free_first):
        device = world.devices[place]
        why = label(device)
        if why is not None:
            counted[why] += 1
            continue
        chosen.append(DeviceEntry(device.uuid, vendor, needed(device), cores))
        if len(chosen) == count:
            return chosen
    counted["AllocatedCardsInsufficientRequest"] = len(chosen)
    return ", ".join(sorted(f"{n}/{len(world.devices)} {why}" for why, n in counted.items() if n))


def fitted(incoming: JSON, view: NodeView, budget: PodBudget | None = None) -> Any:
    ask = read_pod_request(Pod.from_object(incoming), CHART, "spread")
    assert ask is not None
    return fit_pod(view, ask, CHART, budget)


@BOTH
@given(st.data())
def test_the_choice_is_that_of_a_plain_reading(vendor: str, data: st.DataObject) -> None:
    world, wanted = data.draw(worlds(vendor)), data.draw(wants(vendor))
    notes, policy = data.draw(lists(vendor)), data.draw(st.sampled_from(POLICIES))
    incoming = pod(annotations={**notes, "hami.io/gpu-scheduler-policy": policy}, **limits(vendor, wanted))
    found = fitted(incoming, world.view(vendor))
    message: object = str(found)
    if isinstance(found, NodeFit):
        devices = found.rows[0][vendor].devices
        message = [DeviceEntry(d.uuid, vendor, d.booking.memory, d.booking.cores) for d in devices]
    assert message == plain_reading(vendor, world, wanted, notes, policy)


@BOTH
@given(st.data())
def test_a_placement_keeps_within_every_card_and_the_quota(vendor: str, data: st.DataObject) -> None:
    world = data.draw(worlds(vendor))
    asked = [data.draw(wants(vendor)) for _ in range(data.draw(st.integers(1, 3)))]
    boxes = [container(f"c{n}", sidecar=False, **limits(vendor, wanted)) for n, wanted in enumerate(asked)]
    inits = data.draw(st.integers(0, len(boxes) - 1))
    if inits and data.draw(st.booleans()):
        boxes[0]["restartPolicy"] = "Always"
    incoming = pod(*boxes[inits:], init=boxes[:inits])
    kinds = Pod.from_object(incoming).kinds
    hard = {f"limits.{NAMES[vendor][1]}": data.draw(st.integers(0, 40))} if data.draw(st.booleans()) else {}
    budget = PodBudget(hard, kinds, CHART)
    view = world.view(vendor)
    fit = fitted(incoming, view, budget)
    if not isinstance(fit, NodeFit):
        assert str(fit)
        return
    assert budget.admits(fit.holds())
    cards = {device.uuid: device for device in world.devices}
    for (_, uuid), debit in per_device(fit.holds(), kinds).items():
        used = view.used(vendor, uuid)
        assert used.slots + debit.slots <= cards[uuid].slots
        assert used.memory + debit.memory <= cards[uuid].memory
        assert used.cores + debit.cores <= 100
        assert cards[uuid].healthy
    for wanted, row in zip(asked, fit.rows, strict=True):
        devices = row[vendor].devices
        assert len({device.uuid for device in devices}) == len(devices) == wanted["count"]
        if wanted["count"] > 1:
            assert all(d.booking == DeviceReservation(cards[d.uuid].memory, 100) for d in devices)
            assert all(view.used(vendor, d.uuid).slots == 0 for d in devices)


@given(st.data())
def test_pod_after_pod_what_the_annotations_say_never_exceeds_the_cards(data: st.DataObject) -> None:
    register = "".join(f"c{n},4,{4 + n},100,DCU-K100_AI,0,true,{n},hami:" for n in range(3))
    capacity = {NAMES["MLU"][2]: 300, NAMES["MLU"][1]: 20}
    yard = Yard([node("n1", capacity=capacity, **{"hami.io/node-dcu-register": register})])
    whole: Counter[tuple[str, str]] = Counter()
    for number in range(data.draw(st.integers(1, 10))):
        vendor = data.draw(st.sampled_from(list(NAMES)))
        wanted = data.draw(wants(vendor))
        placed = yard.place(pod(name=f"p{number}", **limits(vendor, wanted)))
        if isinstance(placed, Placed):
            for row in decode_pod_devices(placed.annotations[CHART[vendor].keys.allocated]):
                whole.update((vendor, entry.uuid) for entry in row if entry.cores == 100)
    view = yard.state.view("n1")
    assert view is not None
    for vendor, inventory in view.inventories.items():
        for device in inventory.devices:
            used = view.used(vendor, device.uuid)
            assert used.slots <= device.slots
            assert used.memory <= device.memory
            assert used.cores <= device.cores
            assert not whole[vendor, device.uuid] or used.slots == 1 or used.cores == 100


@BOTH
@given(st.data())
def test_what_is_written_is_read_back(vendor: str, data: st.DataObject) -> None:
    entry = st.builds(
        lambda index, memory, cores: AllocatedDevice(f"n1-cambricon-mlu-{index}", DeviceReservation(memory, cores)),
        st.integers(0, 30),
        st.integers(0, 2**31 - 1),
        st.integers(0, 100),
    )
    row = st.just({}) | st.lists(entry, min_size=1, max_size=3).map(lambda ds: {vendor: Allocation(vendor, tuple(ds))})
    rows = data.draw(st.lists(row, min_size=1, max_size=4).filter(any))
    written = CHART[vendor].encode(rows, node("n1"), 0)
    assert CHART[vendor].decode(Pod.from_object(pod(annotations=written))) == [
        [DeviceEntry(d.uuid, vendor, d.booking.memory, d.booking.cores) for d in r[vendor].devices] if r else []
        for r in rows
    ]


@BOTH
@pytest.mark.parametrize(
    ("used", "policy", "label"),
    [
        (Usage(1, 10**6, 100), "spread", "ResourceQuotaNotFit"),
        (Usage(1, 0, 0), "mutex", "ExclusiveDeviceAllocateConflict"),
        (Usage(100, 0, 0), "spread", "CardTimeSlicingExhausted"),
    ],
)
def test_quota_is_asked_behind_the_pods_own_wishes_and_before_what_is_free(
    vendor: str, used: Usage, policy: str, label: str
) -> None:
    world = World((Device(vendor, "c0", 0, 4, 10**6, 100, vendor),), {"c0": used})
    incoming = pod(annotations={"hami.io/gpu-scheduler-policy": policy}, **limits(vendor, {"count": 1, "memory": 1}))
    nothing = PodBudget({f"limits.{NAMES[vendor][1]}": 0}, Pod.from_object(incoming).kinds, CHART)
    assert str(fitted(incoming, world.view(vendor), nothing)) == f"1/1 {label}"
