"""Devices, classes and claims as the API has them, short to write."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hami_webhook.config.drivers import DraSection
from hami_webhook.devices.debit import Debit
from hami_webhook.dra.allocation import ClaimedDevice
from hami_webhook.dra.cost import DeviceInventory
from hami_webhook.dra.devices import PublishedDevices
from hami_webhook.kube import claims_wire as wire
from hami_webhook.kube.wire import convert

JSON = dict[str, Any]
HAMI, NVIDIA, MIG = "hami-core-gpu.project-hami.io", "gpu.nvidia.com", "mig.nvidia.com"
VFIO = "vfio.gpu.nvidia.com"
ROWS = DraSection().devices
CLASSES: Mapping[str, tuple[str, ...]] = {
    HAMI: (f'device.driver == "{HAMI}"',),
    NVIDIA: (f'device.driver == "{NVIDIA}" && device.attributes["{NVIDIA}"].type == "gpu"',),
    MIG: (f'device.driver == "{NVIDIA}" && device.attributes["{NVIDIA}"].type == "mig"',),
    VFIO: (f'device.driver == "{NVIDIA}" && device.attributes["{NVIDIA}"].type == "vfio"',),
}


def share(name: str, memory: str = "40Gi", model: str = "NVIDIA A100", **policy: Any) -> JSON:
    """A card that HAMi's driver shares; `policy` is that of its memory, in place of any multiple of 1 MiB."""
    policy = policy or {"default": memory, "validRange": {"min": "1Mi", "step": "1Mi", "max": memory}}
    percent = {"default": "100", "validRange": {"min": "0", "step": "1", "max": "100"}}
    return {
        "name": name,
        "allowMultipleAllocations": True,
        "attributes": {"type": {"string": "hami-gpu"}, "uuid": {"string": name}, "productName": {"string": model}},
        "capacity": {
            "memory": {"value": memory, "requestPolicy": policy},
            "cores": {"value": "100", "requestPolicy": percent},
        },
    }


def whole(name: str, memory: str = "40Gi", kind: str = "gpu", model: str = "NVIDIA A100") -> JSON:
    """A card of NVIDIA's driver, or a MIG instance, for one claim."""
    attributes = {"type": {"string": kind}, "uuid": {"string": name}, "productName": {"string": model}}
    return {"name": name, "attributes": attributes, "capacity": {"memory": {"value": memory}}}


def passed_through(name: str, memory: str = "40Gi") -> JSON:
    """A card of NVIDIA's driver that a virtual machine gets as a PCI device."""
    made = whole(name, memory, "vfio")
    return {**made, "capacity": {"addressableMemory": {"value": memory}}}


def consumable(name: str, mode: str, memory: str = "40Gi", kind: str = "gpu") -> JSON:
    """A card of NVIDIA's driver with its feature ConsumableShares: `memory`, `unlimited`, or a number of shares."""
    least = memory if mode == "memory" else "0"
    policy = {"default": least, "validRange": {"min": "1Mi" if mode == "memory" else "0", "step": "1Mi", "max": memory}}
    capacity: JSON = {"memory": {"value": memory, "requestPolicy": policy}}
    if mode.isdigit():
        shares = {"default": "1", "validRange": {"min": "1", "step": "1", "max": mode}}
        capacity["shares"] = {"value": mode, "requestPolicy": shares}
    return {**whole(name, memory, kind), "allowMultipleAllocations": True, "capacity": capacity}


def resource_slice(node: str, *devices: JSON, driver: str = HAMI, generation: int = 1, name: str = "") -> JSON:
    spec = {
        "driver": driver,
        "pool": {"name": node, "generation": generation, "resourceSliceCount": 1},
        "nodeName": node,
    }
    meta = {"name": name or f"{node}-{driver}-{generation}"}
    return {"metadata": meta, "spec": {**spec, "devices": list(devices)}}


def inventory(*slices: JSON, classes: Mapping[str, tuple[str, ...]] = CLASSES) -> DeviceInventory:
    return DeviceInventory(classes, published(slices))


def published(slices: Iterable[JSON]) -> PublishedDevices:
    return PublishedDevices([convert(each, wire.ResourceSlice, "resourceslice") for each in slices], ROWS)


def exactly(device_class: str = HAMI, cel: str = "", **fields: Any) -> JSON:
    """A request's `exactly`; `memory` and `cores` are of its capacity, None for what it leaves out."""
    amounts = {key: fields.pop(key) for key in ("memory", "cores") if key in fields}
    found: JSON = {"deviceClassName": device_class, **fields}
    if amounts:
        found["capacity"] = {"requests": amounts}
    if cel:
        found["selectors"] = [{"cel": {"expression": cel}}]
    return found


def requests(*written: JSON | list[JSON]) -> list[wire.DeviceRequest]:
    """Requests of these, a list being the alternatives of one."""
    forms = ({"firstAvailable": each} if isinstance(each, list) else {"exactly": each} for each in written)
    return [convert({"name": f"r{i}", **form}, wire.DeviceRequest, "request") for i, form in enumerate(forms)]


def result(device: str, node: str = "n1", driver: str = HAMI, **fields: Any) -> wire.AllocationResult:
    found = {"request": "r0", "driver": driver, "pool": node, "device": device, **fields}
    return convert(found, wire.AllocationResult, "result")


def total(devices: Iterable[ClaimedDevice]) -> dict[str, Debit]:
    """What devices come to, by vendor."""
    found: dict[str, Debit] = {}
    for each in devices:
        found[each.vendor] = found.get(each.vendor, Debit()) + each.debit
    return found
