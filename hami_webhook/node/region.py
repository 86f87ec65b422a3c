"""The region that HAMi-core shares with its node: what a container uses of its cards (docs/spec/hami-core.md).

Pure: bytes come in through a function. What they say is the container's word, which may be anything: nothing of it is
used as a position or a size before it is bounded, and every text of it is checked.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

MAGIC = 19920718
MOST_DEVICES = 16
MOST_SLOTS = 1024
LARGEST = 2**64 - 1
"""Sums stay below this, as the numbers that they are made of do."""

Read = Callable[[int, int], bytes]
"""Reads so many bytes at an offset of a region; fewer where it ends."""

_UUID_BYTES = 96
_UUID_CHARACTERS = 40
_WORD = 8
_TRIES = 8
"""How often a slot is read that is being written; after that it counts as it is: its process may have died in it."""
_LONGER = 4096
"""Bytes that a file may be longer than its region: HAMi-core makes it one byte longer."""


class BadRegion(ValueError):
    """A region isn't what it says it is; the text says why."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a version of the region has its fields: offsets and sizes in bytes, those of a slot from its beginning.

    All are whole words. `used` has context, module, data, offset and total of each device, `utilisation` decoder,
    encoder and SM. The four fields behind `proc_num` are 32 bits each: itself, utilization_switch, recent_kernel,
    priority.
    """

    size: int
    device_num: int
    uuids: int
    limits: int
    slots: int
    slot_size: int
    used: int
    used_size: int
    utilisation: int
    utilisation_size: int
    status: int
    proc_num: int
    seqlock: int | None = None
    last_kernel_time: int | None = None

    @property
    def utilization_switch(self) -> int:
        return self.proc_num + 4

    @property
    def recent_kernel(self) -> int:
        return self.proc_num + 8


V0 = Layout(
    size=1_197_896,
    device_num=48,
    uuids=56,
    limits=1592,
    slots=1848,
    slot_size=1168,
    used=8,
    used_size=40,
    utilisation=776,
    utilisation_size=24,
    status=1160,
    proc_num=1_197_880,
)
_V1 = {
    "size": 2_008_952,
    "device_num": 56,
    "uuids": 64,
    "limits": 1600,
    "slots": 1856,
    "slot_size": 1960,
    "used": 8,
    "used_size": 64,
    "utilisation": 1160,
    "utilisation_size": 48,
    "status": 1928,
    "proc_num": 2_008_896,
    "last_kernel_time": 2_008_912,
}
V1_1 = Layout(**_V1)
V1_2 = Layout(**_V1, seqlock=1936)
_MINORS = {1: V1_1, 2: V1_2}
"""The layouts of major version 1 by their minor version."""


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """What a container uses of a device: bytes of memory by what they are for, and percent of its SMs."""

    index: int
    uuid: str
    limit: int
    context: int
    module: int
    data: int
    total: int
    utilisation: int

    @property
    def offset(self) -> int:
        """The memory that is none of the other three."""
        return max(0, self.total - self.context - self.module - self.data)


@dataclass(frozen=True, slots=True)
class Region:
    """A region as it was read; `last_kernel` is Unix seconds, 0 where it isn't known."""

    layout: Layout
    devices: tuple[DeviceUse, ...]
    utilization_switch: int
    recent_kernel: int
    priority: int
    last_kernel: int


def read_region(read: Read, size: int) -> Region:
    """A region in a file of `size` bytes. Raises `BadRegion`; what `read` raises passes."""
    layout, head = _head(read, size)
    tail = _exactly(read, layout.size - layout.proc_num, layout.proc_num)
    proc_num, switch, recent_kernel, priority = struct.unpack_from("<4i", tail)
    last_kernel = 0
    if layout.last_kernel_time is not None:
        (last_kernel,) = struct.unpack_from("<q", tail, layout.last_kernel_time - layout.proc_num)
    slots = _slots(read, layout, min(max(proc_num, 0), MOST_SLOTS))
    return Region(layout, _devices(layout, head, slots), switch, recent_kernel, priority, max(last_kernel, 0))


def layout_of(head: bytes, size: int) -> Layout:
    """The layout of a region that begins with `head`, in a file of `size` bytes. Raises `BadRegion`."""
    magic, major, minor = struct.unpack_from("<3i", head)
    if magic != MAGIC:
        raise BadRegion("it doesn't begin with HAMi-core's number")
    if V0.size <= size <= V0.size + _LONGER:
        return V0
    layout = _MINORS.get(minor) if major == 1 else None
    if layout is None:
        raise BadRegion(
            f"its version {major}.{minor} isn't known in {size} bytes; known are 1.1, 1.2 and the one before"
        )
    if not layout.size <= size <= layout.size + _LONGER:
        raise BadRegion(f"it has {size} bytes, where version {major}.{minor} has {layout.size}")
    return layout


def _head(read: Read, size: int) -> tuple[Layout, bytes]:
    head = _exactly(read, min(V0.slots, V1_1.slots), 0)
    layout = layout_of(head, size)
    return layout, head + _exactly(read, layout.slots - len(head), len(head))


def _exactly(read: Read, length: int, offset: int) -> bytes:
    found = read(length, offset)
    if len(found) != length:
        raise BadRegion(f"it ends at {offset + len(found)} bytes, in the middle of a field")
    return found


def _slots(read: Read, layout: Layout, count: int) -> memoryview:
    """The slots in use as words, each as it was when nobody wrote it."""
    if count == 0:
        return memoryview(b"").cast("Q")
    size = layout.slot_size
    found = _exactly(read, count * size, layout.slots)
    if layout.seqlock is None:
        return memoryview(found).cast("Q")
    kept = bytearray(found)
    words, stride, at = memoryview(kept).cast("Q"), size // _WORD, layout.seqlock // _WORD
    waiting: Sequence[int] = range(count)
    for _ in range(_TRIES):
        # a slot is whole if the number behind it is even and was the same before: pread copies upwards
        before = words[at::stride].tolist()
        again = _exactly(read, count * size, layout.slots)
        after = memoryview(again).cast("Q")[at::stride].tolist()
        for slot in waiting:
            kept[slot * size : (slot + 1) * size] = again[slot * size : (slot + 1) * size]
        waiting = [slot for slot in waiting if before[slot] != after[slot] or after[slot] & 1]
        if not waiting:
            break
    return words


def _devices(layout: Layout, head: bytes, slots: memoryview) -> tuple[DeviceUse, ...]:
    """The devices whose UUID can be read."""
    (number,) = struct.unpack_from("<Q", head, layout.device_num)
    limits = struct.unpack_from(f"<{MOST_DEVICES}Q", head, layout.limits)
    counted = _SlotSums(layout, slots)
    found = []
    for index in range(min(number, MOST_DEVICES)):
        uuid = _uuid(head, layout.uuids + index * _UUID_BYTES)
        if uuid:
            used = layout.used + index * layout.used_size
            context, module, data, _, total = (counted.of(used + field * _WORD) for field in range(5))
            busy = counted.of(layout.utilisation + index * layout.utilisation_size + 2 * _WORD)
            found.append(DeviceUse(index, uuid, limits[index], context, module, data, total, busy))
    return tuple(found)


class _SlotSums:
    """Sums of a field over the slots of live processes; those with status 0 don't count."""

    def __init__(self, layout: Layout, slots: memoryview) -> None:
        self._stride = layout.slot_size // _WORD
        self._slots = slots
        status = slots[layout.status // _WORD :: self._stride].tolist()
        live = [slot for slot, word in enumerate(status) if word & 0xFFFFFFFF]
        self._live: Sequence[int] | None = None if len(live) == len(status) else live

    def of(self, offset: int) -> int:
        """The sum of a word at an offset of the slot."""
        values = self._slots[offset // _WORD :: self._stride].tolist()
        return min(LARGEST, sum(values if self._live is None else (values[slot] for slot in self._live)))


def _uuid(head: bytes, offset: int) -> str:
    """A UUID, empty where there is none, or it is no text that a label may have."""
    written = head[offset : offset + _UUID_CHARACTERS].partition(b"\0")[0]
    return written.decode() if written.isascii() and written.decode().isprintable() else ""
