"""The queries for what containers used over a time, on a real Prometheus that has recorded samples."""

from __future__ import annotations

import contextlib
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hack.devcluster.plane import free_ports
from hami_webhook.usage.history import ContainerHistory, read_history

from .promtool import with_promtool

MIB = 1 << 20
DAY = 86400
EVERY = 60


@contextmanager
def recorded(folder: Path, samples: list[str]) -> Iterator[str]:
    """The URL of a Prometheus that has these samples of OpenMetrics, and scrapes nothing."""
    (folder / "samples").write_text("\n".join([*samples, "# EOF\n"]))
    create: list[str | Path] = [
        "promtool",
        "tsdb",
        "create-blocks-from",
        "openmetrics",
        folder / "samples",
        folder / "data",
    ]
    subprocess.run(create, check=True, capture_output=True, timeout=60)
    (folder / "prometheus.yml").write_text("{}\n")
    (port,) = free_ports(1)
    flags = {
        "config.file": folder / "prometheus.yml",
        "storage.tsdb.path": folder / "data",
        "web.listen-address": f"127.0.0.1:{port}",
    }
    arguments = [f"--{flag}={value}" for flag, value in flags.items()]
    with subprocess.Popen(["prometheus", *arguments], stderr=subprocess.DEVNULL) as process:
        try:
            deadline = time.monotonic() + 120
            ready = False
            while not ready and time.monotonic() < deadline:
                assert process.poll() is None
                with (
                    contextlib.suppress(OSError),
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=5),
                ):
                    ready = True
            assert ready
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


@pytest.mark.integration
@with_promtool
def test_the_queries_find_percentile_most_and_span_of_each_container(tmp_path: Path) -> None:
    """One container on two cards, whose monitor restarts in between; one whose labels Prometheus renamed; one old."""
    now = int(time.time())
    own = 'namespace="team-a",pod="p",container="main"'
    renamed = 'namespace="hami-system",exported_namespace="team-b",exported_pod="q",exported_container="main"'
    hours = 6 * 60
    rising = [index * MIB for index in range(1, 101)]
    text = [
        "# TYPE hami_vgpu_memory_used_bytes gauge",
        *(f"hami_vgpu_memory_used_bytes{{{labels}}} {value} {at}" for labels, value, at in [
            *((f'{own},device_uuid="0",instance="1"', 100 * MIB, now - (2 * hours - i) * EVERY) for i in range(hours)),
            *((f'{own},device_uuid="0",instance="2"', 200 * MIB, now - (hours - i) * EVERY) for i in range(hours)),
            *((f'{own},device_uuid="1",instance="2"', 50 * MIB, now - (hours - i) * EVERY) for i in range(hours)),
            *((f'{renamed},device_uuid="2"', value, now - (100 - i) * EVERY) for i, value in enumerate(rising)),
            (f'{own.replace("team-a", "old")},device_uuid="3"', 9 * MIB, now - 2 * DAY),
        ]),
        "# TYPE hami_container_device_utilization_ratio gauge",
        *(f"hami_container_device_utilization_ratio{{{own}}} {50 if i else 90} {now - (hours - i) * EVERY}"
          for i in range(hours)),
    ]  # fmt: skip
    with recorded(tmp_path, text) as url:
        found = read_history(url, DAY)
        only = read_history(url, DAY, "team-b")
        of_the_other = read_history(url, DAY, "team-a")
    p, q = ("team-a", "p", "main"), ("team-b", "q", "main")
    assert found.keys() == {p, q}
    assert ([*only], [*of_the_other]) == ([q], [p])
    assert (found[p].memory_p95, found[p].memory_most, found[p].cores_p95, found[p].cores_most) == (200, 200, 50, 90)
    assert found[p].seconds == pytest.approx(12 * 3600, abs=900)  # steps, and the five minutes that a sample lasts
    assert found[q] == only[q] == ContainerHistory(found[q].seconds, 96, 100, None, None)
    assert found[q].seconds == pytest.approx(100 * 60, abs=900)
