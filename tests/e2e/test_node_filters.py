"""kube-scheduler's filters as we judge them, beside those of a stock kube-scheduler."""

from __future__ import annotations

import asyncio
import json
import subprocess
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml
from node_filters.generated import OVERHEAD, Generator

from hack.devcluster.client import Client
from hack.devcluster.plane import ControlPlane, free_ports
from hami_webhook.cluster.api import Kind
from hami_webhook.cluster.connect import connect
from hami_webhook.cluster.kept_fields import decode_for_scheduling
from hami_webhook.cluster.kubernetes import KubernetesCluster
from hami_webhook.node_filters.result import FilteredNodes
from hami_webhook.node_filters.snapshot import SchedulerSnapshot

JSON = dict[str, Any]
SCHEDULER = "filters-only"
STAGES = {"filters-a": "test", "filters-b": "live", "filters-c": "test"}
SEED, PLACED, WAITING = 29, 40, 500
REASONS = {
    "node(s) were unschedulable",
    "node(s) had untolerated taint(s)",
    "pod affinity terms conflict",
    "node(s) didn't satisfy plugin(s) [NodeAffinity]",
    "node(s) didn't match Pod's node affinity/selector",
    "node(s) didn't have free ports for the requested pod ports",
    "Too many pods",
    "Insufficient cpu",
    "Insufficient memory",
    "Insufficient ephemeral-storage",
    "Insufficient hugepages-2Mi",
    "Insufficient example.com/widget",
    "node(s) didn't match pod topology spread constraints (missing required label)",
    "node(s) didn't match pod topology spread constraints",
    "node(s) didn't match pod affinity rules",
    "node(s) didn't match pod anti-affinity rules",
    "node(s) didn't satisfy existing pods anti-affinity rules",
}
"""Each of these must have been the word for some pod and node."""
PASSED = "passed all filters"


class Extender(BaseHTTPRequestHandler):
    """Refuses every node that it is asked about, so that no pod changes what the next one is judged by."""

    feasible: ClassVar[dict[tuple[str, str], frozenset[str]]] = {}

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        meta, names = asked["Pod"]["metadata"], asked["NodeNames"]
        self.feasible[meta["namespace"], meta["name"]] = frozenset(names)
        answer = json.dumps({"NodeNames": [], "FailedNodes": dict.fromkeys(names, PASSED)}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def scheduler(plane: ControlPlane, tmp_path: Path) -> Iterator[None]:
    """A stock kube-scheduler with nothing but filters that decide: no preemption, and an extender that refuses."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Extender)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    Extender.feasible.clear()
    (port,) = free_ports(1)
    configuration = tmp_path / "kube-scheduler.yaml"
    extender = {"urlPrefix": f"http://127.0.0.1:{server.server_port}", "filterVerb": "filter", "nodeCacheCapable": True}
    profile = {"schedulerName": SCHEDULER, "plugins": {"postFilter": {"disabled": [{"name": "*"}]}}}
    document = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": str(plane.scheduler_kubeconfig), "qps": 5000, "burst": 5000},
        "leaderElection": {"leaderElect": False},
        "profiles": [profile],
        "extenders": [extender],
    }
    configuration.write_text(yaml.safe_dump(document))
    command = plane.scheduler_command(tmp_path / "certs", port, f"--config={configuration}")
    with (tmp_path / "kube-scheduler.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    yield
    process.kill()
    process.wait()
    server.shutdown()
    server.server_close()


@asynccontextmanager
async def world(plane: ControlPlane, generator: Generator) -> AsyncIterator[Client]:
    """Nodes, and pods on them, in namespaces of their own."""
    runtime = {"cpu": "300m", "memory": "100Mi"}
    async with Client(plane.server, plane.folder, "admin") as api:
        for name, stage in STAGES.items():
            await api.post("/api/v1/namespaces", {"metadata": {"name": name, "labels": {"stage": stage}}})
        for name in STAGES:
            async for accounts in api.follow(f"/api/v1/namespaces/{name}/serviceaccounts"):
                if accounts:
                    break
        await api.post(
            "/apis/node.k8s.io/v1/runtimeclasses",
            {"metadata": {"name": OVERHEAD}, "handler": "runc", "overhead": {"podFixed": runtime}},
        )
        for node in generator.nodes():
            path = f"/api/v1/nodes/{node['metadata']['name']}"
            await api.post("/api/v1/nodes", {key: value for key, value in node.items() if key != "status"})
            await api.patch(path, {"spec": {"taints": node["spec"].get("taints") or None}})
            offered = node["status"]["allocatable"]
            await api.patch(f"{path}/status", {"status": {"capacity": offered, "allocatable": offered}})
        for number in range(PLACED):
            pod = await created(api, generator.placed(f"placed-{number}"))
            path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
            if number % 10 == 0:
                await api.delete(path, {"gracePeriodSeconds": 3600})
            elif number % 10 == 1:
                await api.patch(f"{path}/status", {"status": {"phase": "Succeeded"}})
        try:
            yield api
        finally:
            for name in STAGES:
                for pod in (await api.get(f"/api/v1/namespaces/{name}/pods"))["items"]:
                    path = f"/api/v1/namespaces/{name}/pods/{pod['metadata']['name']}"
                    await api.delete(path, {"gracePeriodSeconds": 0})
                await api.delete(f"/api/v1/namespaces/{name}", {})
            for name in generator.node_names:
                await api.delete(f"/api/v1/nodes/{name}", {})
            await api.delete(f"/apis/node.k8s.io/v1/runtimeclasses/{OVERHEAD}", {})


async def created(api: Client, pod: JSON) -> JSON:
    return await api.post(f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods", pod)


async def decided(api: Client, count: int) -> dict[tuple[str, str], str]:
    """What kube-scheduler says of each waiting pod, once it has said it of all."""
    async for pods in api.follow("/api/v1/pods"):
        said = {
            (pod["metadata"]["namespace"], pod["metadata"]["name"]): condition["message"]
            for pod in pods.values()
            if pod["spec"]["schedulerName"] == SCHEDULER
            for condition in pod["status"].get("conditions", [])
            if condition["type"] == "PodScheduled" and condition["reason"] == "Unschedulable"
        }
        if len(said) == count:
            return said
    raise AssertionError


async def snapshot_of(plane: ControlPlane) -> tuple[SchedulerSnapshot, list[JSON]]:
    """The cluster as our commands read it, and the pods that wait for the scheduler."""
    snapshot = SchedulerSnapshot()
    waiting = []
    async with KubernetesCluster(await connect(str(plane.kubeconfig)), decode=decode_for_scheduling) as cluster:
        for namespace in (await cluster.list(Kind.NAMESPACES)).items:
            snapshot.put_namespace(namespace["metadata"]["name"], namespace["metadata"].get("labels") or {})
        for node in (await cluster.list(Kind.NODES)).items:
            snapshot.put_node(node)
        for pod in (await cluster.list(Kind.PODS)).items:
            snapshot.put_pod(pod)
            if pod["spec"]["schedulerName"] == SCHEDULER and not pod["spec"].get("nodeName"):
                waiting.append(pod)
    return snapshot, waiting


def message(found: FilteredNodes, nodes: int) -> str:
    """What kube-scheduler would say of a pod, with an extender that refuses each node that is left."""
    if found.pod_refused:
        (reason,) = {reason for refusal in found.refusals.values() for reason in refusal.reasons}
        return f"0/{nodes} nodes are available: {reason}."
    counts = Counter(reason for refusal in found.refusals.values() for reason in refusal.reasons)
    counts[PASSED] += nodes - len(found.refusals)
    reasons = sorted(f"{count} {reason}" for reason, count in counts.items() if count)
    return f"0/{nodes} nodes are available: {', '.join(reasons)}."


@pytest.mark.usefixtures("scheduler")
def test_500_random_pods_are_judged_as_by_kube_scheduler(plane: ControlPlane) -> None:
    async def run() -> None:
        generator = Generator(SEED, list(STAGES))
        async with world(plane, generator) as api:
            pods = [generator.waiting(f"waiting-{number}", schedulerName=SCHEDULER) for number in range(WAITING)]
            for start in range(0, WAITING, 20):
                await asyncio.gather(*(created(api, pod) for pod in pods[start : start + 20]))
            async with asyncio.timeout(300):
                said = await decided(api, WAITING)
            snapshot, waiting = await snapshot_of(plane)
            names = snapshot.nodes.keys()
            differences = []
            refused, fitting = set[str](), 0
            for pod in waiting:
                key = (pod["metadata"]["namespace"], pod["metadata"]["name"])
                found = snapshot.filter_nodes(pod)
                feasible = frozenset(names - found.refusals.keys())
                refused.update(reason for refusal in found.refusals.values() for reason in refusal.reasons)
                fitting += bool(feasible)
                ours = (message(found, len(names)), feasible)
                theirs = (said[key], Extender.feasible.get(key, frozenset()))
                if ours != theirs:
                    differences.append((key, ours, theirs, pod["spec"]))
            assert not differences, f"{len(differences)} of {len(waiting)}: {json.dumps(differences[0], default=str)}"
            assert refused == REASONS
            assert fitting > 100

    asyncio.run(run())
