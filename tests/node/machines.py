"""Real machines as NVML describes them, and a libnvidia-ml.so.1 that does."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).parent / "fakenvml.c"
PIX, PXB, PHB, NODE, SYS = 10, 20, 30, 40, 50
"""NVML's topology levels, by the words of `nvidia-smi topo -m`."""


@dataclass(frozen=True)
class Card:
    """What NVML says is used of a GPU; -1: it has no answer; a memory of -2: the GPU is lost."""

    memory: int = -1
    utilisation: int = -1
    memory_controller: int = -1
    temperature: int = -1
    milliwatts: int = -1
    name: str = "A100-SXM4-40GB"

    def text(self) -> str:
        numbers = (self.memory, self.utilisation, self.memory_controller, self.temperature, self.milliwatts)
        return " ".join(map(str, (*numbers, self.name)))


@dataclass(frozen=True)
class Machine:
    """GPUs: the PCIe level and the direct NVLinks of each pair, the NVLinks of each to a switch (-1: it has none).

    `cards`: what is used of each; of others NVML has no answer.
    """

    gpus: int
    level: Callable[[int, int], int]
    direct: Callable[[int, int], int] = lambda x, y: 0
    switched: int = 0
    fails: bool = False
    cards: Sequence[Card] = ()

    def text(self) -> str:
        every = range(self.gpus)
        diagonal = -1 if self.fails else 0
        levels = [[self.level(x, y) if x != y else diagonal for y in every] for x in every]
        links = [[self.direct(x, y) if x != y else 0 for y in every] for x in every]
        rows = [[self.gpus], *levels, *links, [self.switched] * self.gpus]
        return "\n".join((*(" ".join(map(str, row)) for row in rows), *(card.text() for card in self.cards))) + "\n"


def set_health(folder: Path, *lines: str, xids: Sequence[tuple[int, int]] = ()) -> None:
    """How the machine's GPUs are from now on: `LOST ECC-ERRORS CLOCK-REASONS RECOVERY-ACTION` for each of them.

    `xids` are all errors since the machine was booted: the GPU, and the number.
    """
    for name, text in (("machine.xids", (f"{gpu} {xid}" for gpu, xid in xids)), ("machine.health", lines)):
        written = folder / f"{name}.new"
        written.write_text("\n".join(text))
        written.rename(folder / name)


DGX_A100 = Machine(8, lambda x, y: PXB if x // 2 == y // 2 else SYS, switched=12)
DGX_H100 = Machine(8, lambda x, y: NODE if x // 4 == y // 4 else SYS, switched=18)
FOUR_A100_PCIE = Machine(4, lambda x, y: NODE if x // 2 == y // 2 else SYS, lambda x, y: 12 if x // 2 == y // 2 else 0)
L40S = Machine(8, lambda x, y: PIX if x // 2 == y // 2 else NODE if x // 4 == y // 4 else SYS, switched=-1)
ONE_SIDED = Machine(2, lambda x, y: PHB, lambda x, y: 4 if x < y else 0)
FAILING = Machine(2, lambda x, y: PHB, fails=True)


def compile_library(folder: Path) -> None:
    """Put a libnvidia-ml.so.1 there."""
    library = folder / "libnvidia-ml.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", library, SOURCE], check=True)


def environment(folder: Path, machine: Machine) -> Mapping[str, str]:
    """That of a process on the machine."""
    described = folder / "machine"
    described.write_text(machine.text())
    return {**os.environ, "LD_LIBRARY_PATH": str(folder), "FAKE_NVML": str(described)}
