"""What is read of a shared region: as a program writes it that stands in for HAMi-core, and of regions that lie."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from hami_webhook.node.region import (
    LARGEST,
    MOST_DEVICES,
    MOST_SLOTS,
    V0,
    V1_1,
    V1_2,
    BadRegion,
    DeviceUse,
    Layout,
    Region,
    read_region,
)

from .regions import Container, compile_program, region

LAYOUTS = {"v0": V0, "v1.1": V1_1, "v1.2": V1_2}
GIB = 1 << 30


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_program(tmp_path_factory.mktemp("fakevgpu"))


def of_file(path: Path) -> Region:
    file = os.open(path, os.O_RDONLY)
    try:
        return read_region(lambda length, offset: os.pread(file, length, offset), os.fstat(file).st_size)
    finally:
        os.close(file)


def of_bytes(content: bytes | bytearray) -> Region:
    return read_region(lambda length, offset: bytes(content[offset : offset + length]), len(content))


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize(("devices", "processes"), [(1, 1), (16, 5)])
def test_what_the_processes_of_a_container_write_is_added_up(
    program: Path, tmp_path: Path, layout: Layout, devices: int, processes: int
) -> None:
    with Container(program, tmp_path / "x.cache", layout, devices=devices, processes=processes) as container:
        for device in range(devices):
            container.tell(f"uuid {device} GPU-{device:036d}", f"limit {device} {(device + 1) * GIB}")
            for process in range(processes):
                amount = (device + 1) * 1000 + process
                container.use(process, device, context=amount, module=2, data=3, total=amount + 50, sm=process + device)
        container.tell("tail 2 1 1")
        found = of_file(container.region)
    assert found.layout is layout
    assert (found.recent_kernel, found.utilization_switch, found.priority) == (2, 1, 1)
    ids = sum(range(processes))
    assert list(found.devices) == [
        DeviceUse(
            index=device,
            uuid=f"GPU-{device:036d}",
            limit=(device + 1) * GIB,
            context=(context := processes * (device + 1) * 1000 + ids),
            module=2 * processes,
            data=3 * processes,
            total=context + 50 * processes,
            utilisation=ids + device * processes,
        )
        for device in range(devices)
    ]
    assert [device.offset for device in found.devices] == [45 * processes] * devices


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_a_process_that_ended_counts_no_longer(program: Path, tmp_path: Path, layout: Layout) -> None:
    with Container(program, tmp_path / "x.cache", layout, processes=3) as container:
        container.tell("uuid 0 GPU-0")
        for process in range(3):
            container.use(process, 0, context=0, module=0, data=0, total=10**process)
        container.tell("end 1")
        assert of_file(container.region).devices[0].total == 101


def test_when_the_last_kernel_ran_is_known_from_version_1_on(program: Path, tmp_path: Path) -> None:
    with Container(program, tmp_path / "x.cache", V1_1) as container:
        container.tell("kernel 1700000000")
        assert of_file(container.region).last_kernel == 1_700_000_000
    assert of_bytes(region(V0)).last_kernel == 0


def test_a_slot_that_is_written_meanwhile_is_read_as_a_whole(program: Path, tmp_path: Path) -> None:
    with Container(program, tmp_path / "x.cache", V1_2, devices=4, processes=3) as container:
        container.tell(*(f"uuid {device} GPU-{device}" for device in range(4)))
        for process in range(3):
            for device in range(4):
                container.use(process, device, context=300, module=40, data=0, total=340)
        container.tell("churn")
        found: list[DeviceUse] = []
        while len({device.total for device in found}) < 100:
            found += of_file(container.region).devices
    assert [device for device in found if device.total != device.context + device.module + device.data] == []


def test_a_slot_that_is_written_for_ever_counts_as_it_is() -> None:
    made = region(V1_2, slots=[{0: (1, 2, 3, 0, 6)}])
    struct.pack_into("<Q", made, V1_2.slots + 1936, 7)
    assert of_bytes(made).devices[0].total == 6


def test_a_slot_is_read_again_until_nobody_writes_it() -> None:
    halves, whole = region(V1_2, slots=[{0: (1, 0, 0, 0, 0)}]), region(V1_2, slots=[{0: (1, 0, 0, 0, 1)}])
    struct.pack_into("<Q", halves, V1_2.slots + 1936, 1)
    struct.pack_into("<Q", whole, V1_2.slots + 1936, 2)
    states = iter([halves, halves, whole, whole])

    def read(length: int, offset: int) -> bytes:
        content = next(states) if offset == V1_2.slots else whole
        return bytes(content[offset : offset + length])

    assert read_region(read, len(whole)).devices[0].total == 1
    assert next(states, None) is None, "read four times: twice unchanged and even is enough"


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize(
    ("written", "counted"), [(-1, 0), (-(2**31), 0), (MOST_SLOTS + 1, MOST_SLOTS), (2**31 - 1, MOST_SLOTS)]
)
def test_a_number_of_processes_that_cannot_be_is_bounded(layout: Layout, written: int, counted: int) -> None:
    made = region(layout, slots=[{0: (0, 0, 0, 0, 1)}] * MOST_SLOTS, processes=written)
    assert of_bytes(made).devices[0].total == counted


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("written", [MOST_DEVICES + 1, 2**64 - 1])
def test_a_number_of_devices_that_cannot_be_is_bounded(layout: Layout, written: int) -> None:
    made = region(layout, uuids=[b"GPU-%d" % index for index in range(MOST_DEVICES)], devices=written)
    assert [device.index for device in of_bytes(made).devices] == list(range(MOST_DEVICES))


def test_sums_stay_below_two_to_the_64() -> None:
    device = of_bytes(region(slots=[{0: (LARGEST, 0, 0, 0, LARGEST - 1)}] * 3)).devices[0]
    assert (device.context, device.total, device.offset) == (LARGEST, LARGEST, 0)


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        (b"GPU-" + b"7" * 36, "GPU-" + "7" * 36),
        (b"GPU-" + b"7" * 90, "GPU-" + "7" * 36),
        (b'a "quoted\\ one', 'a "quoted\\ one'),
    ],
    ids=["ordinary", "longer", "odd"],
)
def test_forty_characters_of_a_uuid_count(written: bytes, shown: str) -> None:
    assert [device.uuid for device in of_bytes(region(uuids=[written])).devices] == [shown]


@pytest.mark.parametrize("written", [b"", b"\0GPU", b"GPU-\xff", b"GPU\n1", b"GPU\x1b[31m", "GPU-\u0663".encode()])
def test_a_uuid_that_is_none_costs_its_device_only(written: bytes) -> None:
    assert [device.index for device in of_bytes(region(uuids=[b"GPU-0", written, b"GPU-2"])).devices] == [0, 2]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "it ends at 0 bytes"),
        (region()[:1000], "it ends at 1000 bytes"),
        (region(magic=1), "doesn't begin with HAMi-core's number"),
        (region()[:-2], "it has 2008951 bytes, where version 1.1 has 2008952"),
        (region(V1_2) + bytes(4096), "it has 2013049 bytes, where version 1.2 has 2008952"),
        (region(version=(1, 3)), "its version 1.3 isn't known"),
        (region(version=(2, 1)), "its version 2.1 isn't known"),
        (region(version=(-1, 2**31 - 1)), "its version -1.2147483647 isn't known"),
        (region(V0)[: V0.size - 1], "its version 0.0 isn't known in 1197895 bytes"),
    ],
    ids=["empty", "short head", "magic", "short", "long", "minor", "major", "negative", "short v0"],
)
def test_a_file_that_is_no_region_is_refused(content: bytes | bytearray, why: str) -> None:
    with pytest.raises(BadRegion, match=why):
        of_bytes(content)


@pytest.mark.parametrize("left", [0, 100, V1_1.slots + 10, V1_1.proc_num])
def test_a_file_that_is_cut_short_while_it_is_read_is_refused(left: int) -> None:
    content = region(slots=[{}] * 3)

    def read(length: int, offset: int) -> bytes:
        return bytes(content[:left][offset : offset + length])

    with pytest.raises(BadRegion, match="in the middle of a field"):
        read_region(read, len(content))
