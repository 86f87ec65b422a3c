"""What NVML reports of this machine's GPUs: how they are linked (docs/spec/nvidia.md#3.6), what of them is used, and
whether they are well (docs/monitor.md#unhealthy-cards).
"""

from __future__ import annotations

import contextlib
import ctypes
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pynvml  # type: ignore[import-untyped]  # NVIDIA's binding has no types

from hami_webhook.devices.unhealthy_cards import ECC, THERMAL
from hami_webhook.node.cards import CardHealth, CardMetrics, ProbeError
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


APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})
"""Errors of what runs on the card, after which it is still well: NVIDIA's device plugin leaves out the same."""
_MOST_EVENTS = 1000
"""Events that are taken at a time; others wait for the next time."""


class CardHealthProbe:
    """Asks NVML, and keeps it open in between: only a listener receives errors."""

    def __init__(self) -> None:
        self._events: Any = None
        self._uuids: dict[int | None, str] = {}
        self._sampled: dict[str, int] = {}
        """The time of the last sample of each card's use, in microseconds of the driver's clock."""

    def __call__(self) -> list[CardHealth]:
        """The cards that NVML finds. Raises `ProbeError`."""
        try:
            if self._events is None:
                self._open()
            xids = self._reported()
            count = pynvml.nvmlDeviceGetCount()
            found = [card for index in range(count) if (card := _health_of(index, xids, self._sampled)) is not None]
        except pynvml.NVMLError as error:
            self.close()
            raise ProbeError(str(error)) from error
        if {card.uuid for card in found} != set(self._uuids.values()):
            self.close()  # NVML shows cards that came back, and new ones, only after it is opened again
        return found

    def close(self) -> None:
        """Let NVML go, as long as MIG is changed or cards are reset."""
        if self._events is None:
            return
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlEventSetFree(self._events)
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()
        self._events = None

    def _open(self) -> None:
        pynvml.nvmlInit()
        try:
            self._events = pynvml.nvmlEventSetCreate()
        except pynvml.NVMLError:
            pynvml.nvmlShutdown()
            raise
        self._uuids = {}
        for index in range(pynvml.nvmlDeviceGetCount()):
            with contextlib.suppress(pynvml.NVMLError):  # a lost card, or one that tells of no events
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                self._uuids[_address(handle)] = pynvml.nvmlDeviceGetUUID(handle)
                pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, self._events)

    def _reported(self) -> dict[str, set[int]]:
        """The errors of each card since the last time, without those of applications."""
        xids: dict[str, set[int]] = defaultdict(set)
        for _ in range(_MOST_EVENTS):
            try:
                event = pynvml.nvmlEventSetWait_v2(self._events, 0)
            except pynvml.NVMLError_Timeout:  # there are no more
                break
            uuid = self._uuids.get(_address(event.device))
            if event.eventType == pynvml.nvmlEventTypeXidCriticalError and uuid is not None:
                xids[uuid].add(int(event.eventData))
        return {uuid: numbers - APPLICATION_XIDS for uuid, numbers in xids.items()}


def _health_of(index: int, xids: dict[str, set[int]], sampled: dict[str, int]) -> CardHealth | None:
    """None where NVML doesn't answer for the card: it is lost. `sampled` is brought up to date."""
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        uuid = pynvml.nvmlDeviceGetUUID(handle)
    except pynvml.NVMLError:
        return None
    causes = set()
    with contextlib.suppress(pynvml.NVMLError):
        kind = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
        if pynvml.nvmlDeviceGetTotalEccErrors(handle, *kind) > 0:
            causes.add(ECC)
    with contextlib.suppress(pynvml.NVMLError):
        reasons = pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
        if reasons & pynvml.nvmlClocksThrottleReasonHwThermalSlowdown:
            causes.add(THERMAL)
    computed = _computed(handle, uuid, sampled)
    return CardHealth(uuid, frozenset(causes), frozenset(xids.get(uuid, ())), _needs_recovery(handle), computed)


def _computed(handle: object, uuid: str, sampled: dict[str, int]) -> bool | None:
    """By the samples that the driver took since the last time: a look every few seconds misses no short kernel."""
    try:
        _, samples = pynvml.nvmlDeviceGetSamples(handle, pynvml.NVML_GPU_UTILIZATION_SAMPLES, sampled.get(uuid, 0))
        sampled[uuid] = max((int(each.timeStamp) for each in samples), default=sampled.get(uuid, 0))
        return any(each.sampleValue.uiVal > 0 for each in samples)
    except pynvml.NVMLError_NotFound:  # there are no new ones yet
        return False
    except pynvml.NVMLError:
        return None


def _needs_recovery(handle: object) -> bool | None:
    try:
        (answer,) = pynvml.nvmlDeviceGetFieldValues(handle, [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
    except pynvml.NVMLError:
        return None
    if answer.nvmlReturn != pynvml.NVML_SUCCESS:
        return None
    return bool(answer.value.uiVal != pynvml.NVML_GPU_RECOVERY_ACTION_NONE)


def _address(handle: object) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value  # type: ignore[arg-type]  # a pointer, of a binding without types
