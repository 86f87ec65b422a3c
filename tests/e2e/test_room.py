"""Room on nodes, on a real API server with a stock kube-scheduler: moves that free cards, replays (docs/room.md)."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import builders
import pytest
from monitoring.recorded import KnownPod, kube_state_metrics, recorded

from hack.devcluster.plane import ControlPlane

from .api_client import api_client
from .deployment import Deployment, Kubectl, eventually
from .hamischeduler import HamiScheduler
from .objects import JSON, add_ready_node, namespace, pod, replicated
from .revisions import Revisions
from .scheduling import scheduler_account

MODEL, MEMORY = "E2E-ROOM", 24576
HIGH = "e2e-room"


@pytest.fixture(scope="module")
def program(one_replica: Deployment) -> Deployment:
    scheduler_account(one_replica.kubectl)
    meta = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": HIGH}}
    one_replica.kubectl.apply({**meta, "value": 100})
    return one_replica


class Room:
    """Nodes r0, r1, … with one card each, and a namespace."""

    def __init__(self, kubectl: Kubectl, nodes: int) -> None:
        self.kubectl = kubectl
        self.api = api_client(kubectl.kubeconfig)
        self.space = namespace(kubectl)
        self.nodes: list[str] = []
        for _ in range(nodes):
            self.add_node()

    def add_node(self) -> None:
        name = f"r{len(self.nodes)}-{self.space}"
        self.nodes.append(name)
        made = builders.node(name, builders.card(f"{name}-0", MEMORY, type=f"NVIDIA {MODEL}"), capacity={})
        made["metadata"]["labels"] = {"room": self.space, "name": name}
        add_ready_node(self.kubectl, made, gpu=10)

    def only(self, *numbers: int) -> None:
        """No other node takes new pods."""
        for number, name in enumerate(self.nodes):
            self.api.merge({"spec": {"unschedulable": number not in numbers or None}}, "node", name)

    def deployment(self, name: str, replicas: int, gpumem: int, **spec: Any) -> None:
        template = pod(self.space, name, gpu=1, gpumem=gpumem)
        rest = {**template["spec"], "nodeSelector": {"room": self.space}, "terminationGracePeriodSeconds": 1, **spec}
        self.kubectl.apply(replicated(self.space, name, rest, replicas=replicas))

    def placed(self, app: str) -> dict[str, int]:
        """How many of its pods that don't end each node has, by number."""
        pods = self.kubectl.get("pods", "-n", self.space, "-l", f"app={app}")["items"]
        live = [each for each in pods if "deletionTimestamp" not in each["metadata"]]
        return dict(Counter(each["spec"].get("nodeName", "").partition("-")[0] for each in live))

    def set_ready(self) -> None:
        """A kubelet's word that what runs is ready."""
        for each in self.kubectl.get("pods", "-n", self.space)["items"]:
            if each["status"].get("phase") == "Running" and not is_ready(each):
                conditions = [*each["status"].get("conditions", ()), {"type": "Ready", "status": "True"}]
                with contextlib.suppress(Exception):  # it is gone
                    name = each["metadata"]["name"]
                    self.kubectl(
                        "patch", "pod", name, "-n", self.space, "--subresource=status", "--type=merge",
                        "-p", json.dumps({"status": {"conditions": conditions}}),
                    )  # fmt: skip


def is_ready(obj: JSON) -> bool:
    ready = {"type": "Ready", "status": "True"}.items()
    return any(ready <= each.items() for each in obj["status"].get("conditions", ()))


@contextlib.contextmanager
def under_load(room: Room) -> Iterator[None]:
    """Small pods come and go on the first and the last node, and what runs becomes ready."""
    stop, faults = threading.Event(), list[Exception]()
    others = [room.nodes[0], room.nodes[-1]]

    def work() -> None:
        number = 0
        while not stop.is_set():
            name = f"load-{number % 3}"
            made = pod(room.space, name, gpu=1, gpumem=200)
            made["spec"] |= {"nodeSelector": {"name": others[number % 2]}, "terminationGracePeriodSeconds": 1}
            try:
                room.kubectl("delete", "pod", name, "-n", room.space, "--ignore-not-found")
                room.kubectl.apply(made)
                room.set_ready()
            except Exception as error:
                faults.append(error)
                return
            number += 1

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert not faults


def held(pods: list[JSON]) -> Counter[str]:
    """MiB of each card."""
    found = Counter[str]()
    for each in pods:
        text = each["metadata"].get("annotations", {}).get(builders.ALLOCATED, "")
        for part in text.replace(";", ":").split(":"):
            if part:
                uuid, _, memory, _ = part.split(",")
                found[uuid] += int(memory)
    return found


@pytest.mark.usefixtures("plugin")
def test_moves_free_a_card_under_load_and_keep_budgets(
    program: Deployment, scheduler: HamiScheduler, plane: ControlPlane
) -> None:
    """Two replicas move, one after the other; what has no owner, or the same priority, stays."""
    kubectl, room = program.kubectl, Room(program.kubectl, 3)
    room.only(0)
    room.deployment("important", 1, 8000, priorityClassName=HIGH)
    eventually(lambda: room.placed("important"), {"r0": 1})
    room.only(1)
    room.deployment("moves", 2, 6000)
    eventually(lambda: room.placed("moves"), {"r1": 2})
    room.only(2)
    bare = pod(room.space, "bare", gpu=1, gpumem=20000)
    kubectl.apply({**bare, "spec": {**bare["spec"], "nodeSelector": {"room": room.space}}})
    eventually(lambda: kubectl.get("pod", "bare", "-n", room.space)["spec"].get("nodeName"), room.nodes[2])
    room.only(0, 1, 2)
    kubectl.apply({
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "one", "namespace": room.space},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "moves"}}},
    })  # fmt: skip
    room.set_ready()
    eventually(lambda: kubectl.get("pdb", "one", "-n", room.space)["status"]["disruptionsAllowed"], 1)
    want = ("hami", "defrag", "-n", room.space, "--want", f"1x{MODEL}", "--priority-class", HIGH)

    planned = kubectl.run(*want)
    assert planned.stdout.startswith(f"Node {room.nodes[1]} would have 1 x {MODEL} free after 2 moves. This is only")
    assert room.placed("moves") == {"r1": 2}
    equal = kubectl.run("hami", "defrag", "-n", room.space, "--want", f"1x{MODEL}", "--apply")
    assert (equal.returncode, equal.stdout.startswith("No moves free")) == (1, True), "nobody is below priority 0"
    with Revisions(plane, room.space) as revisions, under_load(room):
        done = kubectl.run(*want, "--apply", "--timeout", "60s")
    freed = f"Node {room.nodes[1]} has 1 x {MODEL} free after 2 moves."
    assert (done.returncode, done.stdout.startswith(freed)) == (0, True), done.stderr
    assert (room.placed("moves"), room.placed("important")) == ({"r0": 2}, {"r0": 1})
    assert "unschedulable" not in kubectl.get("node", room.nodes[1])["spec"]
    events = kubectl.get("events", "-n", room.space, "--field-selector", "reason=PodMoved")["items"]
    assert len(events) == 2
    for _, pods, _ in revisions.replay():
        assert max(held(pods).values(), default=0) <= MEMORY
        there = [each for each in pods if each["metadata"].get("labels", {}).get("app") == "moves"]
        assert not there or any("deletionTimestamp" not in each["metadata"] and is_ready(each) for each in there)
    kubectl.delete_all("pods", namespace=room.space)


@pytest.mark.usefixtures("plugin")
def test_a_node_that_is_simulated_places_what_the_node_places_then(
    program: Deployment, scheduler: HamiScheduler
) -> None:
    kubectl, room = program.kubectl, Room(program.kubectl, 1)
    room.deployment("serve", 3, 20000)
    eventually(lambda: room.placed("serve"), {"r0": 1, "": 2})

    def simulated(*flags: str) -> list[str | None]:
        done = kubectl.run("hami", "simulate", "-n", room.space, "-o", "json", *flags)
        assert done.returncode == 0, done.stderr
        pods = json.loads(done.stdout)["pods"]
        return [(each["placement"] or {}).get("node") for each in pods if each["namespace"] == room.space]

    (first,) = room.nodes
    assert simulated("--waiting") == [None, None]
    assert simulated("--waiting", "--add", f"1x{first}") == [f"{first}-new-1", None]
    assert simulated("--remove", first) == [None]
    assert room.placed("serve") == {"r0": 1, "": 2}, "nothing was written"
    room.add_node()
    eventually(lambda: room.placed("serve"), {"r0": 1, "r1": 1, "": 1})
    kubectl.delete_all("deployments", namespace=room.space)


@pytest.mark.usefixtures("plugin")
def test_a_recorded_day_is_replayed_on_the_nodes_of_today(program: Deployment, tmp_path: Path) -> None:
    """A real Prometheus has the series of kube-state-metrics; it says nothing of the pods that are there today.

    The day's last two jobs wait for the first on one card. With another card one starts when it comes.
    """
    kubectl, room, hour = program.kubectl, Room(program.kubectl, 1), 3600
    (first,) = room.nodes
    end = int(time.time())
    start = end - 24 * hour
    whole = {"nvidia_com_gpu": 1, "nvidia_com_gpumem": MEMORY}
    pods = [
        KnownPod("a", room.space, start + hour, start + hour, whole, start + 7 * hour),
        KnownPod("b", room.space, start + 2 * hour, start + 7 * hour, whole, start + 13 * hour),
        KnownPod("c", room.space, start + 3 * hour, start + 13 * hour, whole),
    ]
    names = [each["metadata"]["name"] for each in kubectl.get("nodes")["items"]]
    others = [flag for name in names if name != first for flag in ("--remove", name)]
    flags = ["--at", datetime.fromtimestamp(end, UTC).isoformat(), "-n", room.space, "-o", "json", *others]

    def rows(*more: str) -> list[JSON]:
        done = kubectl.run("hami", "simulate", "--replay", "24", "--prometheus", url, *flags, *more)
        assert done.returncode == 0, done.stderr
        found: list[JSON] = json.loads(done.stdout)["rows"]
        return found

    with recorded(tmp_path, kube_state_metrics(pods, start, end)) as url:
        as_recorded, *_, alone = rows()
        *_, with_another = rows("--add", f"1x{first}")
    assert [each["wait_mean"] for each in (as_recorded, alone)] == [5 * hour, 5 * hour]
    assert [each["started"] for each in (as_recorded, alone, with_another)] == [3, 3, 3]
    assert with_another["wait_mean"] == 4 * hour / 3
    assert kubectl.get("pods", "-n", room.space)["items"] == [], "nothing was written"
