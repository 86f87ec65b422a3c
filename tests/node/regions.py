"""Shared regions for tests: made by a program that stands in for HAMi-core, or of the fields that a test names."""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

import pytest

from hami_webhook.node.region import MAGIC, V0, V1_1, V1_2, Layout

SOURCE = Path(__file__).parent / "fakevgpu.c"
VERSIONS: Mapping[Layout, int] = {V0: 0, V1_1: 1, V1_2: 2}
"""What the program calls each layout."""


def compile_program(folder: Path) -> Path:
    """The program that stands in for a container's HAMi-core; skips the test where there is no compiler."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc compiles the program that stands in for HAMi-core; `apt-get install gcc libc6-dev` has it")
    program = folder / "fakevgpu"
    subprocess.run(["gcc", "-O1", "-Wall", "-Wextra", "-Werror", "-o", program, SOURCE], check=True)
    return program


class Container:
    """The processes of a container that share a region, while the block runs."""

    def __init__(self, program: Path, region: Path, layout: Layout, *, devices: int = 1, processes: int = 1) -> None:
        self.region = region
        region.parent.mkdir(parents=True, exist_ok=True)
        numbers = (VERSIONS[layout], devices, processes)
        self._command = [str(program), str(region), *map(str, numbers)]

    def __enter__(self) -> Container:
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._answer() == "ready"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate()
        assert self._process.returncode == 0

    def tell(self, *commands: str) -> None:
        """Commands, as the program's source lists them; returns when they are done."""
        for command in commands:
            assert self._ask(command) == "done", command

    def use(self, process: int, device: int, *, context: int, module: int, data: int, total: int, sm: int = 0) -> None:
        self.tell(f"use {process} {device} {context} {module} {data} {total} {sm}")

    def tail(self) -> tuple[int, int]:
        """recent_kernel and utilization_switch, as the container sees them."""
        recent, switch = self._ask("tail?").split()
        return int(recent), int(switch)

    def _ask(self, command: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


def region(
    layout: Layout = V1_1,
    *,
    uuids: Sequence[bytes] = (b"GPU-0",),
    devices: int | None = None,
    slots: Sequence[Mapping[int, Sequence[int]]] = (),
    processes: int | None = None,
    tail: Sequence[int] = (0, 0, 0),
    magic: int = MAGIC,
    version: tuple[int, int] | None = None,
) -> bytearray:
    """A region. `slots`: for each process and device context, module, data, offset and total; `tail`: as in the file,
    utilization_switch, recent_kernel, priority.
    """
    made = bytearray(layout.size + 1)
    struct.pack_into("<i", made, 0, magic)
    if layout is not V0:
        struct.pack_into("<2i", made, 4, *(version or (1, VERSIONS[layout])))
    struct.pack_into("<Q", made, layout.device_num, len(uuids) if devices is None else devices)
    for index, uuid in enumerate(uuids):
        struct.pack_into(f"<{len(uuid)}s", made, layout.uuids + 96 * index, uuid)
    for number, used in enumerate(slots):
        slot = layout.slots + number * layout.slot_size
        struct.pack_into("<i", made, slot + layout.status, 1)
        for device, amounts in used.items():
            struct.pack_into("<5Q", made, slot + layout.used + device * layout.used_size, *amounts)
    struct.pack_into("<4i", made, layout.proc_num, len(slots) if processes is None else processes, *tail)
    return made
