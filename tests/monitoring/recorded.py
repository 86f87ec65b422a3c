"""A real Prometheus that has recorded samples, and those of kube-state-metrics."""

from __future__ import annotations

import contextlib
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hack.devcluster.plane import free_ports

SCRAPED_EVERY = 60
"""Seconds."""


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


@dataclass(frozen=True)
class KnownPod:
    """A pod as kube-state-metrics knows it: Unix seconds, None for what hasn't happened.

    `completed`: its containers ended; `deleted`: it is gone.
    """

    name: str
    namespace: str
    created: int
    started: int | None
    limits: Mapping[str, int]
    completed: int | None = None
    deleted: int | None = None
    labels: str = 'namespace="{namespace}",pod="{name}",uid="{name}"'
    container: str = 'container="main"'


def kube_state_metrics(pods: Sequence[KnownPod], start: int, end: int) -> list[str]:
    """What kube-state-metrics 2.15 serves of the pods, scraped every minute, as OpenMetrics."""
    times = range(start, end, SCRAPED_EVERY)
    families: dict[str, list[str]] = {}
    for pod in pods:
        labels = pod.labels.format(namespace=pod.namespace, name=pod.name)
        for at in times:
            if not pod.created <= at < (pod.deleted or end):
                continue
            bound = pod.started is not None and pod.started <= at
            done = pod.completed is not None and pod.completed <= at
            node = 'node="n1"' if bound else 'node=""'
            of_container = f"{labels},{pod.container},{node}"
            found: list[tuple[str, str, float]] = [
                ("created", labels, pod.created),
                ("info", f'{labels},{node},priority_class=""', 1),
                *(("status_phase", f'{labels},phase="{phase}"', phase == ("Succeeded" if done else "Running"))
                  for phase in ("Running", "Succeeded", "Failed")),
                *(("container_resource_limits", f'{of_container},resource="{name}",unit="integer"', amount)
                  for name, amount in pod.limits.items()),
            ]  # fmt: skip
            if bound and pod.started is not None:
                found.append(("status_scheduled_time", labels, pod.started))
            if done and pod.completed is not None:
                found.append(("completion_time", labels, pod.completed))
            for name, text, value in found:
                families.setdefault(name, []).append(f"kube_pod_{name}{{{text}}} {float(value)} {at}")
    return [line for name, lines in families.items() for line in (f"# TYPE kube_pod_{name} gauge", *lines)]
