"""What NVML reports of this machine's GPUs every few seconds: their health (docs/monitor.md#unhealthy-cards), and
whether they computed.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections import defaultdict
from typing import Any

import pynvml  # type: ignore[import-untyped]  # NVIDIA's binding has no types

from hami_webhook.devices.unhealthy_cards import ECC, THERMAL
from hami_webhook.node.cards import CardHealth, ProbeError

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
            found = [card for index in range(count) if (card := _card(index, xids, self._sampled)) is not None]
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


def _card(index: int, xids: dict[str, set[int]], sampled: dict[str, int]) -> CardHealth | None:
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
