"""What is measured of a card, by NVML or by what stands for it."""

from __future__ import annotations

from dataclasses import dataclass


class ProbeError(Exception):
    """NVML isn't there, or failed; the text says what it said."""


@dataclass(frozen=True, slots=True)
class CardHealth:
    """What NVML says of a GPU's health.

    `causes` are those that it shows now, `xids` the errors of its driver since it was last asked. `needs_recovery` is
    whether a reset is needed, `computed` whether it computed since it was last asked; None where NVML doesn't say it.
    """

    uuid: str
    causes: frozenset[str]
    xids: frozenset[int]
    needs_recovery: bool | None
    computed: bool | None = None


@dataclass(frozen=True, slots=True)
class CardMetrics:
    """What of a GPU is used; None where NVML doesn't say it, as of MIG, or of memory that GPU and processor share.

    Memory in bytes, utilisation of SMs and of the memory controller in percent, temperature in degrees Celsius, power
    in watts. `name` is NVML's.
    """

    index: int
    uuid: str
    name: str
    memory: int | None
    utilisation: int | None
    memory_controller: int | None
    temperature: int | None
    power: float | None
