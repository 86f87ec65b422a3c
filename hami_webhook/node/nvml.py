"""How the GPUs of this machine are linked, as NVML reports it (docs/spec/nvidia.md#3.6)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pynvml  # type: ignore[import-untyped]  # NVIDIA's binding has no types

from hami_webhook.devices.vendors.nvidia.pairscores import MAX_NVLINKS, NvLink, PcieLevel, ProbedCard, RemoteType

_PCIE_LEVELS = {
    pynvml.NVML_TOPOLOGY_INTERNAL: PcieLevel.INTERNAL,
    pynvml.NVML_TOPOLOGY_SINGLE: PcieLevel.SINGLE,
    pynvml.NVML_TOPOLOGY_MULTIPLE: PcieLevel.MULTIPLE,
    pynvml.NVML_TOPOLOGY_HOSTBRIDGE: PcieLevel.HOSTBRIDGE,
    pynvml.NVML_TOPOLOGY_NODE: PcieLevel.NODE,
    pynvml.NVML_TOPOLOGY_SYSTEM: PcieLevel.SYSTEM,
}
_SKIPPED = (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_INVALID_ARGUMENT)


class ProbeError(Exception):
    """NVML isn't there, or failed; the text says what it said."""


def probe() -> list[ProbedCard]:
    """The GPUs in NVML's order. Raises `ProbeError`."""
    try:
        with _initialised():
            handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
            uuids = [pynvml.nvmlDeviceGetUUID(handle) for handle in handles]
            bus_ids = [_bus_id(pynvml.nvmlDeviceGetPciInfo(handle)) for handle in handles]
            return [
                ProbedCard(
                    uuid,
                    bus_id,
                    {
                        peer: _PCIE_LEVELS[pynvml.nvmlDeviceGetTopologyCommonAncestor(handle, other)]
                        for peer, other in zip(uuids, handles, strict=True)
                        if peer != uuid
                    },
                    list(_nvlinks(handle, bus_ids)),
                )
                for handle, uuid, bus_id in zip(handles, uuids, bus_ids, strict=True)
            ]
    except pynvml.NVMLError as error:
        raise ProbeError(str(error)) from error


@contextmanager
def _initialised() -> Iterator[None]:
    pynvml.nvmlInit()
    try:
        yield
    finally:
        pynvml.nvmlShutdown()


def _nvlinks(handle: object, bus_ids: Sequence[str]) -> Iterator[NvLink]:
    """The enabled NVLinks of a GPU that end at another one or at a switch."""
    for link in range(MAX_NVLINKS):
        if _answer(pynvml.nvmlDeviceGetNvLinkState, handle, link) != pynvml.NVML_FEATURE_ENABLED:
            continue
        remote = _answer(pynvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link)
        if remote is not None and _bus_id(remote) in bus_ids:
            yield NvLink(RemoteType.GPU, _bus_id(remote))
        elif _answer(pynvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link) == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
            yield NvLink(RemoteType.SWITCH)


def _answer(call: Callable[[object, int], Any], handle: object, link: int) -> Any:
    """What NVML says of a link, None where it has nothing to say of it."""
    try:
        return call(handle, link)
    except pynvml.NVMLError as error:
        if error.value in _SKIPPED:
            return None
        raise


def _bus_id(info: Any) -> str:
    text = info.busId
    return text.decode() if isinstance(text, bytes) else str(text)
