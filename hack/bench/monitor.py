"""`python -m hack.bench.monitor`: what a scrape of a node's monitor takes, and how much memory its process has.

The process runs as in a pod, with a stand-in for the API server; its containers have regions of version 1.2 on disk,
with two processes each. NVML isn't there. CPU time is the process's, of all threads, over scrapes that are a second
apart, as what was read is answered again for so long.
"""

from __future__ import annotations

import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector, CollectorRegistry

from hack.bench.apiserver import scraped, wait_ready
from hack.bench.figures import Figure, Goal, run, show_progress
from hack.bench.objects import JSON
from hack.bench.processes import cpu_seconds, mebibytes, resident
from hack.bench.served import Served, served
from hack.devcluster.plane import free_ports
from hami_webhook.node.region import MAGIC, V1_2
from hami_webhook.server.node_process import NodeSettings

SIZES = {"smallest": (3, 2), "usual": (200, 8), "large": (1000, 16)}
"""Containers, and cards of each."""
SCRAPES = {"smallest": 2, "usual": 10, "large": 10}
PROCESSES = 2
PROGRAM = """
import sys
from pathlib import Path
import msgspec, uvloop
from hami_webhook.cluster.in_pod import PodClient
from hami_webhook.server.node_process import NodeSettings
from hami_webhook.server.serve_node import serve_node

async def client(_):
    return PodClient("127.0.0.1", sys.argv[2], Path(sys.argv[3]))

uvloop.run(serve_node(msgspec.json.decode(sys.argv[1], type=NodeSettings), client))
"""


def measure(size: str) -> Sequence[Figure]:
    containers, cards = SIZES[size]
    show_progress(f"monitor: {containers} containers, {cards} cards")
    lists = {"/api/v1/pods": [_pod(number) for number in range(containers)]}
    with tempfile.TemporaryDirectory() as folder, served(lists) as api:
        for number in range(containers):
            _write_region(Path(folder) / "containers" / f"uid-{number}_main", number, cards)
        with _monitor(Path(folder), api) as (process, port):
            scraped(port)
            milliseconds, text = [], ""
            for _ in range(SCRAPES[size]):
                time.sleep(1.1)
                before = cpu_seconds(process)
                text = scraped(port)
                milliseconds.append(1000 * (cpu_seconds(process) - before))
            memory = resident(process)
    by_library = _by_library(text)
    samples = len([line for line in text.splitlines() if line.startswith(("hami_vgpu", "hami_container"))])
    about = f"{containers} containers on {cards} cards, {samples} samples"
    usual = size == "usual"
    return [
        Figure("monitor", f"CPU of a scrape, {about}", sum(milliseconds) / len(milliseconds), "ms",
               "writing it by the library", by_library, Goal(at_most=100, of="value") if usual else None),
        Figure("monitor", "resident memory", memory, "MiB", "the interpreter", _interpreter(),
               Goal(at_most=60, of="value") if usual else None),
    ]  # fmt: skip


def _write_region(folder: Path, number: int, cards: int) -> None:
    written = bytearray(V1_2.size + 1)
    struct.pack_into("<3i", written, 0, MAGIC, 1, 2)
    struct.pack_into("<Q", written, V1_2.device_num, cards)
    for card in range(cards):
        struct.pack_into("<40s", written, V1_2.uuids + 96 * card, f"GPU-{number:018d}-{card:017d}".encode())
        for process in range(PROCESSES):
            slot = V1_2.slots + process * V1_2.slot_size
            struct.pack_into("<i", written, slot + V1_2.status, 1)
            used = (300 << 20, 40 << 20, card << 20, 0, 1 << 30)
            struct.pack_into("<5Q", written, slot + V1_2.used + card * V1_2.used_size, *used)
    struct.pack_into("<i", written, V1_2.proc_num, PROCESSES)
    struct.pack_into("<q", written, V1_2.last_kernel_time or 0, 1_767_225_600)
    folder.mkdir(parents=True)
    (folder / "a.cache").write_bytes(written)


def _pod(number: int) -> JSON:
    """The pod of a container."""
    return {
        "metadata": {"name": f"pod-{number}", "namespace": f"team-{number % 20}", "uid": f"uid-{number}"},
        "spec": {"nodeName": "gpu-1", "containers": [{"name": "main"}]},
        "status": {"phase": "Running"},
    }


@contextmanager
def _monitor(folder: Path, api: Served) -> Iterator[tuple[int, int]]:
    """The number of the process, and of the port where it serves."""
    (port,) = free_ports(1)
    settings = NodeSettings("gpu-1", "hami-system", "", 0, "127.0.0.1", port, False, str(folder), 300, False, 0, "text")
    text = msgspec.json.encode(settings).decode()
    account = api.kubeconfig.parent
    (account / "token").write_text("token")
    command = [sys.executable, "-c", PROGRAM, text, str(api.port), str(account)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            wait_ready(process, port)
            yield process.pid, port
        finally:
            process.terminate()


def _interpreter() -> float:
    """MiB of one that does nothing."""
    command = [sys.executable, "-c", "print(open('/proc/self/status').read())"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return mebibytes(text, "VmRSS")


def _by_library(text: str) -> float:
    """Milliseconds in which prometheus_client writes the same metrics."""

    class Parsed(Collector):
        def collect(self) -> Iterator[Metric]:
            yield from families

    families = list(text_string_to_metric_families(text))
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Parsed())
    started = time.process_time()
    generate_latest(registry)
    return 1000 * (time.process_time() - started)


if __name__ == "__main__":
    run({"monitor": measure}, __doc__)
