"""`python -m hack.bench.simulate`: the simulator on files, pods per second; baseline: reading the same files alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from hack.bench.figures import Figure, run, show_progress
from hack.bench.objects import JSON, NAMESPACE, gpu, node, pod_with, quota
from hami_webhook.cluster.loading import read_objects

NODES = {"smallest": 20, "usual": 1000, "large": 1000}
PODS = {"smallest": 200, "usual": 500, "large": 5000}
SHAPES = 5
"""Pods ask for so many different amounts of memory."""


def measure(size: str) -> Sequence[Figure]:
    nodes, pods = NODES[size], PODS[size]
    show_progress(f"simulate: {pods} pods on {nodes} nodes")
    with tempfile.TemporaryDirectory(prefix="hami-webhook-bench-") as folder:
        cluster, asked = Path(folder) / "cluster.json", Path(folder) / "pods.json"
        hard = {"limits.nvidia.com/gpu": 10**6, "limits.nvidia.com/gpumem": 10**9}
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
        _write(cluster, [namespace, *(_whole("Node", node(n)) for n in range(nodes)), _quota(hard)])
        _write(asked, [_whole("Pod", pod_with(f"p{n}", gpu(1000 + 100 * (n % SHAPES)))) for n in range(pods)])
        started = time.perf_counter()
        for path in (cluster, asked):
            read_objects(str(path), sys.stdin.buffer)
        reading = time.perf_counter() - started
        single = Path(folder) / "one.json"
        _write(single, [_whole("Pod", pod_with("cpu", {"cpu": "1"}))])
        idle = _simulated(cluster, single)
        whole = _simulated(cluster, asked)
    each = max(whole - idle, 1e-9) / (pods - 1)
    name = f"{pods} pods, {nodes} nodes"
    return [Figure("simulate", name, 1 / each, "pods per second", "reading pods and nodes", (pods + nodes) / reading)]


def _simulated(cluster: Path, pods: Path) -> float:
    started = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "hami_webhook", "simulate", "--cluster", str(cluster), str(pods), "-o", "json"],
        stdout=subprocess.DEVNULL,
        env={**os.environ, "CI": "true"},  # no progress bar
        check=True,
    )
    return time.perf_counter() - started


def _whole(kind: str, obj: JSON) -> JSON:
    return {"apiVersion": "v1", "kind": kind, **obj}


def _quota(hard: JSON) -> JSON:
    return _whole("ResourceQuota", quota("gpu", hard))


def _write(path: Path, items: Sequence[JSON]) -> None:
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": list(items)}))


if __name__ == "__main__":
    run({"simulate": measure}, __doc__)
