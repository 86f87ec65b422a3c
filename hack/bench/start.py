"""`python -m hack.bench.start`: from start to ready on a real API server full of nodes and pods, and resident memory.

The baseline lists the same objects with the client alone, page by page, and decodes them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from hack.devcluster.plane import ControlPlane, assets, free_ports
from hami_webhook.cluster.api import AlreadyExists, Kind
from hami_webhook.cluster.connect import connect
from hami_webhook.cluster.kubernetes import KubernetesCluster

JSON = dict[str, Any]
KINDS = (Kind.NAMESPACES, Kind.NODES, Kind.RESOURCE_QUOTAS, Kind.PODS)
WRITERS = 32
SPACE = "bench"


def node(number: int) -> JSON:
    cards = [
        {"id": f"GPU-{number}-{i}", "index": i, "count": 10, "devmem": 40960, "devcore": 100, "type": "NVIDIA A100",
         "mode": "hami-core", "health": True}
        for i in range(8)
    ]  # fmt: skip
    notes = {
        "hami.io/node-nvidia-register": json.dumps(cards),
        "hami.io/node-handshake": "Requesting_2099-01-01 00:00:00",
    }
    return {"metadata": {"name": f"node-{number}", "annotations": notes}}


def pod(number: int, nodes: int) -> JSON:
    """A pod that runs on a card, with as much beside it as pods have."""
    on = number % nodes
    allocated = f"GPU-{on}-{number % 8},NVIDIA,2000,10:;"
    notes = {"hami.io/vgpu-node": f"node-{on}", "hami.io/vgpu-time": "1767225600"}
    env = [{"name": f"SETTING_{i}", "value": "x" * 40} for i in range(20)]
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "2000", "nvidia.com/gpucores": "10"}
    container = {"name": "main", "image": "registry.invalid/team/train:1", "env": env, "resources": {"limits": limits}}
    return {
        "metadata": {
            "name": f"pod-{number}",
            "namespace": SPACE,
            "labels": {"app": f"app-{number % 50}"},
            "annotations": {**notes, "hami.io/vgpu-devices-allocated": allocated},
        },
        "spec": {"schedulerName": "hami-scheduler", "nodeName": f"node-{on}", "containers": [container]},
    }


async def fill(login: Path, nodes: int, pods: int) -> None:
    async with KubernetesCluster(await connect(str(login))) as cluster:
        await cluster.create(Kind.NAMESPACES, {"metadata": {"name": SPACE}})
        with contextlib.suppress(AlreadyExists):  # the controller manager makes it too
            account = {"metadata": {"name": "default"}}
            await cluster.call("POST", f"/api/v1/namespaces/{SPACE}/serviceaccounts", account)
        waiting = [(Kind.PODS, pod(number, nodes)) for number in range(pods)]
        waiting += [(Kind.NODES, node(number)) for number in range(nodes)]
        total = len(waiting)

        async def write() -> None:
            while waiting:
                await cluster.create(*waiting.pop())
                if waiting and len(waiting) % 2000 == 0:
                    print(f"start: {total - len(waiting)} of {total} objects created", file=sys.stderr)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(WRITERS):
                tasks.create_task(write())


async def listed(login: Path) -> float:
    """Seconds to list everything with the client alone."""
    started = time.perf_counter()
    async with KubernetesCluster(await connect(str(login))) as cluster:
        await asyncio.gather(*(cluster.list(kind) for kind in KINDS))
    return time.perf_counter() - started


def started(login: Path) -> tuple[float, float]:
    """Seconds from start to ready, and MiB resident then."""
    main, metrics = free_ports(2)
    begun = time.perf_counter()
    process = subprocess.Popen(
        [
            *(
                sys.executable,
                "-m",
                "hami_webhook",
                "serve",
                "--kubeconfig",
                str(login),
                "--roles",
                "webhook,controller",
            ),
            *("--http_bind", f"127.0.0.1:{main}", "--metrics-bind-address", f"127.0.0.1:{metrics}"),
            *("--scheduler-name", "hami-scheduler", "--kube-qps", "50", "--kube-burst", "100"),
        ],
        env={**os.environ, "POD_NAMESPACE": "hami-system"},
        stderr=subprocess.DEVNULL,
    )
    try:
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{metrics}/readyz", timeout=1):
                    break
            except (urllib.error.URLError, OSError):
                if process.poll() is not None:
                    raise SystemExit("start: the program ended") from None
                time.sleep(0.02)
        seconds = time.perf_counter() - begun
        status = Path(f"/proc/{process.pid}/status").read_text()
        resident = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
        return seconds, resident / 1024
    finally:
        process.kill()
        process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--pods", type=int, default=5000)
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    programs = assets(build=False)
    if programs is None:
        raise SystemExit("start: the control plane isn't built; make controlplane does it")
    with tempfile.TemporaryDirectory(prefix="hami-webhook-bench-") as folder:
        plane = ControlPlane(programs, Path(folder), managers=("kube-controller-manager",))
        plane.start()
        try:
            asyncio.run(fill(plane.kubeconfig, arguments.nodes, arguments.pods))
            plane.end("kube-controller-manager")
            base = min(asyncio.run(listed(plane.kubeconfig)) for _ in range(3))
            runs = [started(plane.kubeconfig) for _ in range(3)]
        finally:
            plane.stop()
    seconds, resident = min(run[0] for run in runs), max(run[1] for run in runs)
    figures = {
        "nodes": arguments.nodes,
        "pods": arguments.pods,
        "ready_seconds": round(seconds, 2),
        "listing_alone_seconds": round(base, 2),
        "ratio": round(seconds / base, 2),
        "resident_mib": round(resident),
    }
    if arguments.json:
        print(json.dumps(figures))
    else:
        print("\n".join(f"{name.replace('_', ' '):22} {value}" for name, value in figures.items()))


if __name__ == "__main__":
    main()
