"""`python -m hack.bench.ui`: `kubectl hami ui` on nodes with 8 cards and 4 pods each; baseline: its smallest page.

Of a page the computing of the program is measured, of an update the time from the change of a pod to the last byte of
the page that has it. The memory is the process's largest resident set.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import httpx

from hack.bench.figures import Figure, Goal, run, show_progress
from hack.bench.objects import JSON, NAMESPACE, SCHEDULER, gpu, node, pod_with, quota, running
from hack.bench.processes import cpu_seconds, most_resident
from hack.bench.served import Served, served

NODES = {"smallest": 20, "usual": 1000, "large": 5000}
PODS_A_NODE = 4
TURNS, ROUNDS = 3, 5
MOST_MILLISECONDS = 50
MOST_MEBIBYTES = 210
UPDATES = 5
MOST_SECONDS = 2
GOALS_UP_TO = 1000
PROGRAM = "import sys; from hami_webhook.kubectl.main import main; sys.exit(main())"


def measure(size: str) -> Sequence[Figure]:
    nodes = NODES[size]
    show_progress(f"ui: {nodes} nodes")
    with served(objects(nodes)) as server, ui(server.kubeconfig) as (process, client):
        updates = [updated(client, server, number) for number in range(UPDATES)]
        gets = [partial(page, client, path) for path in ("/cluster?node=none", "/cluster")]
        smallest, seconds = (1000 * least_cpu_seconds(process.pid, get) for get in gets)
        memory = most_resident(process.pid)

    def figure(name: str, value: float, unit: str, most: float, baseline: str = "-", base: float = 0) -> Figure:
        goal = Goal(at_most=most, of="value") if nodes <= GOALS_UP_TO else None
        return Figure("ui", f"{name}, {nodes} nodes", value, unit, baseline, base, goal)

    return [
        figure("cluster", seconds, "ms of CPU", MOST_MILLISECONDS, "a page without nodes", smallest),
        figure("update", max(updates), "s", MOST_SECONDS),
        figure("memory", memory, "MiB", MOST_MEBIBYTES),
    ]


def least_cpu_seconds(process: int, run: Callable[[], object]) -> float:
    """The least computing of a process for one run, of some turns of `ROUNDS` runs."""
    found = []
    for _ in range(TURNS):
        before = cpu_seconds(process)
        for _ in range(ROUNDS):
            run()
        found.append((cpu_seconds(process) - before) / ROUNDS)
    return min(found)


def page(client: httpx.Client, path: str) -> None:
    client.get(path).raise_for_status()


def updated(client: httpx.Client, server: Served, number: int) -> float:
    """Seconds from a change of a pod until the page Pods has it, asked for as a browser does."""
    pod = running(number, on=number // PODS_A_NODE, card=7, memory=9000)
    pod["metadata"] |= {"uid": f"uid-{pod['metadata']['name']}", "name": f"changed-{number}"}
    with client.stream("GET", "/events") as events:
        server.watched("/api/v1/pods")
        began = time.perf_counter()
        server.change("/api/v1/pods", pod)
        for line in events.iter_lines():
            if line.startswith("data: ") and f"changed-{number}" in client.get(f"/pods?q=changed-{number}").text:
                return time.perf_counter() - began
    raise AssertionError("the program ended")


def objects(nodes: int) -> Mapping[str, list[JSON]]:
    """The objects of each list that is asked for, by its path."""
    running_pods = [
        running(number, on=number // PODS_A_NODE, card=number % 8, memory=9000) for number in range(nodes * PODS_A_NODE)
    ]
    waiting = pod_with("waiting", gpu(40_000, **{"nvidia.com/gpu": "8"}))
    waiting["spec"]["schedulerName"] = SCHEDULER
    pods = [*running_pods, waiting]
    for pod in pods:
        pod["metadata"]["uid"] = f"uid-{pod['metadata']['name']}"
    hard = {"limits.nvidia.com/gpu": 10**6, "limits.nvidia.com/gpumem": 10**9}
    return {
        "/api/v1/nodes": [node(number) for number in range(nodes)],
        "/api/v1/pods": pods,
        "/api/v1/resourcequotas": [quota("gpu", hard)],
        "/api/v1/namespaces": [{"metadata": {"name": NAMESPACE}}],
    }


@contextmanager
def ui(kubeconfig: Path) -> Iterator[tuple[subprocess.Popen[str], httpx.Client]]:
    """The program, and a client that was let in."""
    environment = {**os.environ, "KUBECONFIG": str(kubeconfig)}
    command = [sys.executable, "-c", PROGRAM, "ui"]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout is not None
            address, _, token = process.stdout.readline().strip().partition("/#")
            with httpx.Client(base_url=address, timeout=600) as client:
                client.post("/login", content=token).raise_for_status()
                yield process, client
        finally:
            process.kill()


if __name__ == "__main__":
    run({"ui": measure}, __doc__)
