"""Regions with random bytes in them, hundreds to an example: 100,000 in CI's long run.

Each is read or refused inside its file and its bounds (`targets.check_region`). Some are put beside those of two other
containers, whose regions are read as ever.
"""

from __future__ import annotations

import struct
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from node.regions import region

from hami_webhook.node.region import V0, V1_1, V1_2, Layout, Region
from hami_webhook.node.region_files import ContainerKey, RegionFolder

from .targets import check_region

REGIONS = 500
"""Of an example: 200 examples make 100,000."""
LAYOUTS = (V0, V1_1, V1_2)
UUIDS = [f"GPU-{index}".encode() for index in range(4)]
SLOTS = [dict.fromkeys(range(16), (1, 2, 3, 4, 10))] * 2
NUMBERS = (-1, 0, 1, 16, 17, 1024, 1025, 2**31 - 1, -(2**31), 2**32, 2**63, 2**64 - 1)
HONEST = [ContainerKey("honest", name) for name in ("a", "b")]
LIAR = ContainerKey("liar", "c")


def changed(content: bytearray, layout: Layout, random: Random) -> list[tuple[int, bytes]]:
    """Write something into a region; what was there before."""
    before = []
    fields = (0, 4, 8, layout.device_num, layout.uuids, layout.limits, layout.slots + layout.status)
    for _ in range(random.randint(1, 5)):
        kind = random.random()
        if kind < 0.004:
            offset = layout.proc_num  # slots that are in use cost the most to read
        elif kind < 0.4:
            offset = random.choice(fields)
        elif kind < 0.5:
            offset = layout.proc_num + 4 + 4 * random.randrange(10)
        else:
            offset = random.randrange(layout.slots + 2 * layout.slot_size)
        new = random.randbytes(random.randint(1, 24))
        if random.random() < 0.5:
            new = struct.pack("<Q", random.choice(NUMBERS) % 2**64)[: random.choice((4, 8))]
        new = new[: len(content) - offset]
        before.append((offset, bytes(content[offset : offset + len(new)])))
        content[offset : offset + len(new)] = new
    return before


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two honest containers, and one that isn't."""
    found = tmp_path_factory.mktemp("containers")
    for container in (*HONEST, LIAR):
        (found / container.folder).mkdir()
        (found / container.folder / "a.cache").write_bytes(region(V1_2, uuids=UUIDS, slots=SLOTS))
    return found


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**64 - 1))
def test_any_region_is_read_or_refused_and_changes_no_other(folder: Path, seed: int) -> None:
    random = Random(seed)
    contents = {layout: region(layout, uuids=UUIDS, slots=SLOTS) for layout in LAYOUTS}
    regions = RegionFolder(str(folder))
    honest = regions.read(HONEST)
    assert [len(each.devices) for each in honest.values() if isinstance(each, Region)] == [4, 4]
    for number in range(REGIONS):
        layout = random.choice(LAYOUTS)
        content = contents[layout]
        before = changed(content, layout, random)
        size = len(content) if random.random() < 0.9 else random.choice((0, 11, 1848, layout.size - 1, 2**40))
        there = size if random.random() < 0.95 else random.randrange(len(content))
        check_region(content, size, there)
        if number % 50 == 0:
            (folder / LIAR.folder / "a.cache").write_bytes(content[:there])
            found = regions.read([LIAR, *HONEST])
            assert {each: found[each] for each in HONEST} == honest
        for offset, bytes_before in reversed(before):
            content[offset : offset + len(bytes_before)] = bytes_before
