"""`python -m hack.bench.explain`: `kubectl hami explain pod` of a pod that fits on none of many mixed nodes.

The figure is the computing of the whole process, from its start to its end, system time included; the baseline is that
of the same command with a single copy of the nodes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence

from hack.bench.figures import Figure, Goal, run, show_progress
from hack.bench.objects import JSON, NAMESPACE, SCHEDULER, gpu, node, node_name, pod_with, quota, running
from hack.bench.served import served
from hack.bench.ui import PROGRAM

COPIES = {"smallest": 2, "usual": 42, "large": 420}
"""Of 24 nodes: 8 without cards, 4 with cards that are sick, 4 of another model, 8 on which the pod has no room."""
ROUNDS = 5
MOST_SECONDS = 1.0


def measure(size: str) -> Sequence[Figure]:
    copies = COPIES[size]
    show_progress(f"explain: {24 * copies} nodes")
    seconds, least = (min(_seconds(objects(each))) for each in (copies, 1))
    goal = Goal(at_most=MOST_SECONDS, of="value") if size == "usual" else None
    return [Figure("explain", f"pod, {24 * copies} mixed nodes", seconds, "s of CPU", "24 nodes", least, goal)]


def objects(copies: int) -> Mapping[str, list[JSON]]:
    """The objects of each list that is asked for, by its path."""
    nodes: list[JSON] = []
    pods: list[JSON] = []
    for number in range(24 * copies):
        kind = number % 24
        made = node(number)
        if kind < 8:
            made["metadata"]["annotations"], made["status"]["allocatable"] = {}, {}
        elif kind < 16:
            notes = made["metadata"]["annotations"]
            cards = json.loads(notes["hami.io/node-nvidia-register"])
            cards = [{**card, "health": False} if kind < 12 else {**card, "type": "NVIDIA T4"} for card in cards]
            notes["hami.io/node-nvidia-register"] = json.dumps(cards)
        else:
            pods += [running(len(pods) + card, number, card, 20_000 - 100 * kind) for card in range(8)]
        made["metadata"]["labels"] = {"kubernetes.io/hostname": node_name(number)}
        made["status"]["allocatable"]["pods"] = "110"
        nodes.append(made)
    waiting = pod_with("waiting", gpu(38_000), annotations={"nvidia.com/use-gputype": "A100"})
    waiting["spec"]["schedulerName"] = SCHEDULER
    pods.append(waiting)
    for pod in pods:
        pod["metadata"]["uid"] = f"uid-{pod['metadata']['name']}"
    gpus = quota("gpu", {"limits.nvidia.com/gpu": 10**6})
    gpus["status"] = {"hard": gpus["spec"]["hard"], "used": {"limits.nvidia.com/gpu": "1"}}
    lists = {"nodes": nodes, "pods": pods, "resourcequotas": [gpus], "namespaces": [{"metadata": {"name": NAMESPACE}}]}
    return {f"/api/v1/{name}": items for name, items in lists.items()}


def _seconds(lists: Mapping[str, list[JSON]]) -> list[float]:
    """What the command takes in each round, once its modules are compiled, as where it is installed."""
    found = []
    with served(lists) as server, tempfile.TemporaryDirectory(prefix="hami-webhook-bench-") as compiled:
        environment = {**os.environ, "KUBECONFIG": str(server.kubeconfig), "PYTHONPYCACHEPREFIX": compiled}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        for _ in range(ROUNDS + 1):
            before = os.times()
            command = [sys.executable, "-c", PROGRAM, "explain", "pod", "waiting"]
            subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
            after = os.times()
            found.append(after.children_user - before.children_user + after.children_system - before.children_system)
    return found[1:]


if __name__ == "__main__":
    run({"explain": measure}, __doc__)
