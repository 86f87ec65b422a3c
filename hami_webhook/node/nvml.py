"""What NVML reports of this machine's GPUs: how they are linked (docs/spec/nvidia.md#3.6), and what of them is used."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pynvml  # type: ignore[import-untyped]  # NVIDIA's binding has no types

from hami_webhook.node.cards import CardMetrics, ProbeError
from hami_webhook.node.pair_scores import MAX_NVLINKS, NvLink, PcieLevel, ProbedCard, RemoteType

_PCIE_LEVELS = {
    pynvml.NVML_TOPOLOGY_INTERNAL: PcieLevel.INTERNAL,
    pynvml.NVML_TOPOLOGY_SINGLE: PcieLevel.SINGLE,
    pynvml.NVML_TOPOLOGY_MULTIPLE: PcieLevel.MULTIPLE,
    pynvml.NVML_TOPOLOGY_HOSTBRIDGE: PcieLevel.HOSTBRIDGE,
    pynvml.NVML_TOPOLOGY_NODE: PcieLevel.NODE,
    pynvml.NVML_TOPOLOGY_SYSTEM: PcieLevel.SYSTEM,
}
_SKIPPED = (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_INVALID_ARGUMENT)


def read_cards() -> list[CardMetrics]:
    """The use of the GPUs in NVML's order, without those that NVML doesn't answer for. Raises `ProbeError`."""
    try:
        with _initialised():
            return [card for index in range(pynvml.nvmlDeviceGetCount()) if (card := _card(index)) is not None]
    except pynvml.NVMLError as error:
        raise ProbeError(str(error)) from error


def _card(index: int) -> CardMetrics | None:
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        uuid, name = _text(pynvml.nvmlDeviceGetUUID(handle)), _text(pynvml.nvmlDeviceGetName(handle))
    except pynvml.NVMLError:  # the card is lost
        return None
    memory, rates = _use(pynvml.nvmlDeviceGetMemoryInfo, handle), _use(pynvml.nvmlDeviceGetUtilizationRates, handle)
    milliwatts = _use(pynvml.nvmlDeviceGetPowerUsage, handle)
    return CardMetrics(
        index,
        uuid,
        name,
        None if memory is None else memory.used,
        None if rates is None else rates.gpu,
        None if rates is None else rates.memory,
        _use(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU),
        None if milliwatts is None else milliwatts / 1000,
    )


def _use(call: Callable[..., Any], handle: object, *what: int) -> Any:
    """What NVML says of a GPU, None where it says nothing, whatever the cause: others are asked all the same."""
    try:
        return call(handle, *what)
    except pynvml.NVMLError:
        return None


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
    return _text(info.busId)


def _text(text: str | bytes) -> str:
    return text.decode() if isinstance(text, bytes) else text
