"""What a running process takes, as the kernel counts it."""

from __future__ import annotations

import re
from pathlib import Path


def cpu_seconds(process: int) -> float:
    """Of all threads that it has now, exactly."""
    tasks = Path(f"/proc/{process}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def resident(process: int | str) -> float:
    """MiB in memory."""
    return mebibytes(_status(process), "VmRSS")


def most_resident(process: int | str) -> float:
    """MiB in memory, the most so far."""
    return mebibytes(_status(process), "VmHWM")


def mebibytes(status: str, key: str) -> float:
    """MiB of a line of /proc/PID/status."""
    found = re.search(rf"{key}:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) / 1024


def _status(process: int | str) -> str:
    return Path(f"/proc/{process}/status").read_text()
