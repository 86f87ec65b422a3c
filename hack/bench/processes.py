"""What a running process takes, as the kernel counts it."""

from __future__ import annotations

import re
from pathlib import Path


def cpu_seconds(process: int) -> float:
    """Of all its threads, exactly."""
    tasks = Path(f"/proc/{process}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def resident(process: int | str) -> float:
    """MiB in memory."""
    return _mebibytes(process, "VmRSS")


def most_resident(process: int | str) -> float:
    """MiB in memory, the most so far."""
    return _mebibytes(process, "VmHWM")


def _mebibytes(process: int | str, key: str) -> float:
    found = re.search(rf"{key}:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
    assert found is not None
    return int(found[1]) / 1024
