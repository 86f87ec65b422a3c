"""The role `node` with the rights of its manifests: it writes the pair scores of its own node, and nothing else."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from node.machines import DGX_A100, compile_library, environment, set_health
from node.regions import region

from hack.devcluster.identities import kubeconfig
from hack.devcluster.plane import ControlPlane, free_ports
from hami_webhook.cluster.api import Kind
from hami_webhook.cluster.kubernetes import KubernetesCluster
from hami_webhook.cluster.object_events import ObjectEvents
from hami_webhook.devices.unhealthy_cards import ANNOTATION
from hami_webhook.node.card_health import WELL_AFTER, CardHealthLoop
from hami_webhook.node.cards import CardHealth
from hami_webhook.node.region import MAGIC

from .deployment import ROOT, SYSTEM, Kubectl, eventually
from .objects import add_node, gpu_node, namespace, pod
from .scheduling import on_cluster, place_waiting

COMPONENT = ROOT / "manifests" / "components" / "node"
MONITOR = ROOT / "manifests" / "components" / "monitor"
ACCOUNT = "hami-webhook-node"
SCORES = "hami.io/node-nvidia-score"
NOTES = {"other": "stays"}
NOT_ITS_OWN = "may write the node that its pod runs on"
NOT_ITS_KEYS = "may write the pair scores of GPUs and which are unhealthy, and nothing else"


@pytest.fixture
def kubectl(plane: ControlPlane) -> Iterator[Kubectl]:
    kubectl = Kubectl(plane.kubeconfig)
    kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}})
    for name in ("gpu-1", "gpu-2"):
        kubectl.apply(
            {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "annotations": {"other": "stays"}}}
        )
    kubectl("apply", "-f", str(COMPONENT / "rbac.yaml"))
    yield kubectl
    kubectl("delete", "-f", str(COMPONENT / "rbac.yaml"), "--wait=false")
    kubectl("delete", "node", "gpu-1", "gpu-2")


@pytest.fixture
def login(plane: ControlPlane, kubectl: Kubectl, tmp_path: Path) -> Iterator[Path]:
    """A kubeconfig with the token that kubelet mounts into the role's pod on gpu-1."""
    daemon_set, _ = yaml.safe_load_all((COMPONENT / "daemonset.yaml").read_text())
    template: dict[str, Any] = daemon_set["spec"]["template"]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "node-role", "namespace": SYSTEM}}
    kubectl.apply({**pod, "spec": {**template["spec"], "nodeName": "gpu-1", "priorityClassName": ""}})
    bound = ("--bound-object-kind", "Pod", "--bound-object-name", "node-role")
    token = kubectl("create", "token", ACCOUNT, "-n", SYSTEM, *bound).strip()
    ca = plane.authority.certificate.read_bytes()
    path = tmp_path / "login"
    path.write_text(json.dumps(kubeconfig(plane.server, ca, {"token": token})))
    # the API server takes a moment to know a new policy
    eventually(lambda: NOT_ITS_OWN in patched(path, "gpu-2", {"metadata": {"annotations": {SCORES: "[]"}}}).stderr)
    yield path
    kubectl("delete", "pod", "node-role", "-n", SYSTEM, "--force", "--grace-period=0")


def test_the_role_writes_the_scores_of_its_own_node_alone(kubectl: Kubectl, login: Path, tmp_path: Path) -> None:
    compile_library(tmp_path)
    command = [sys.executable, "-m", "hami_webhook", "serve", "--roles=node", "--kubeconfig", str(login)]
    command.append("--metrics-bind-address=127.0.0.1:0")
    set_health(tmp_path, "0 1 0 -1", *["0 0 0 -1"] * 7, xids=[(1, 79), (2, 31)])
    own = {**environment(tmp_path, DGX_A100), "NODE_NAME": "gpu-1", "POD_NAMESPACE": SYSTEM}
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, env=own, stderr=log, cwd=ROOT)
    try:
        both = {SCORES, ANNOTATION}
        eventually(lambda: both <= kubectl.get("node", "gpu-1")["metadata"]["annotations"].keys())
        eventually(lambda: "gets no new pods" in kubectl("get", "events", "-n", "default"))
    finally:
        process.terminate()
    assert process.wait(120) == 0, (tmp_path / "log").read_text()
    notes = kubectl.get("node", "gpu-1")["metadata"]["annotations"]
    assert json.loads(notes[SCORES])[0] == {
        "uuid": "GPU-0",
        "score": {"GPU-1": 1240} | {f"GPU-{peer}": 1210 for peer in range(2, 8)},
    }
    unhealthy = {uuid: card["causes"] for uuid, card in json.loads(notes[ANNOTATION]).items()}
    assert unhealthy == {"GPU-0": ["ecc-double-bit"], "GPU-1": ["xid-79"]}
    assert notes["other"] == "stays"


class Cards:
    """The two cards of gpu-1, of which NVML finds one."""

    def __init__(self) -> None:
        self.lost = True

    def __call__(self) -> list[CardHealth]:
        found = ["gpu-1-0"] if self.lost else ["gpu-1-0", "gpu-1-1"]
        return [CardHealth(uuid, frozenset(), frozenset(), None) for uuid in found]

    def close(self) -> None:
        pass


def test_no_pod_gets_a_lost_card_until_it_is_well(
    plane: ControlPlane, kubectl: Kubectl, login: Path, tmp_path: Path
) -> None:
    """Written with the role's own rights; a pod that has the card stays there."""
    add_node(kubectl, gpu_node("gpu-1", 8000, 8000), gpu=20)
    space = namespace(kubectl)

    def placed(name: str, mebibytes: int, **annotations: str) -> str:
        made = pod(space, name, gpu=1, gpumem=mebibytes)
        made["spec"]["schedulerName"] = "hami-scheduler"
        made["metadata"]["annotations"] = annotations
        kubectl.apply(made)
        return place_waiting(plane.kubeconfig, space, ["gpu-1"], only=name)[name]

    async def looks(cluster: KubernetesCluster) -> None:
        cards, now = Cards(), time.time()
        loop = CardHealthLoop(
            cluster,
            "gpu-1",
            cards,
            ObjectEvents(cluster, Counter()),
            lambda: now,
            booted=0.0,
            mig_lock=tmp_path / "lock",
        )
        cards.lost = False
        await loop.step()
        on_it = {"nvidia.com/use-gpuuuid": "gpu-1-1"}
        assert await asyncio.to_thread(lambda: placed("before", 2000, **on_it)) == "gpu-1"
        cards.lost = True
        await loop.step()
        assert await asyncio.to_thread(placed, "on-the-other", 6000) == "gpu-1"
        assert await asyncio.to_thread(placed, "waiting", 6000) == ""
        assert (await cluster.get(Kind.NODES, "gpu-1"))["metadata"]["annotations"][ANNOTATION].count("lost") == 1
        cards.lost = False
        now += WELL_AFTER
        await loop.step()
        assert await asyncio.to_thread(place_waiting, plane.kubeconfig, space, ["gpu-1"]) == {"waiting": "gpu-1"}

    on_cluster(login, looks)


def test_with_the_monitors_rights_it_shows_what_pods_use(kubectl: Kubectl, login: Path, tmp_path: Path) -> None:
    """Those of its own node, init containers too; of a region that lies an event tells."""
    compile_library(tmp_path)
    kubectl("apply", "-f", str(MONITOR / "rbac.yaml"))
    kubectl("create", "namespace", "team-a")
    for name, node in (("here", "gpu-1"), ("there", "gpu-2"), ("lies", "gpu-1")):
        spec = {"nodeName": node, "initContainers": [{"name": "init", "image": "i"}]}
        spec |= {"containers": [{"name": "main", "image": "i"}]}
        meta = {"name": name, "namespace": "team-a"}
        kubectl.apply({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
        uid = kubectl.get("pod", name, "-n", "team-a")["metadata"]["uid"]
        for container in ("init", "main"):
            folder = tmp_path / "containers" / f"{uid}_{container}"
            folder.mkdir(parents=True)
            (folder / "a.cache").write_bytes(region(magic=7 if name == "lies" else MAGIC))
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"
    command = [sys.executable, "-m", "hami_webhook", "serve", "--roles=node", f"--metrics-bind-address={address}"]
    own = {**environment(tmp_path, DGX_A100), "NODE_NAME": "gpu-1", "POD_NAMESPACE": SYSTEM, "HOOK_PATH": str(tmp_path)}
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen([*command, "--kubeconfig", str(login)], env=own, stderr=log, cwd=ROOT)
    try:
        eventually(lambda: 'pod="here"' in scraped(address))
        shown = set(re.findall(r'hami_vgpu_memory_used_bytes\{.*pod="(\w+)",container="(\w+)"', scraped(address)))
        assert shown == {("here", "init"), ("here", "main")}
        eventually(
            lambda: bool(scraped(address)) and "SharedRegionUnreadable" in kubectl("get", "events", "-n", "team-a")
        )
    finally:
        process.terminate()
    assert process.wait(120) == 0, (tmp_path / "log").read_text()
    for forbidden in (("get", "secrets", "-A"), ("delete", "pod", "here", "-n", "team-a"), ("get", "nodes")):
        assert "is forbidden" in as_role(login, *forbidden).stderr
    kubectl("delete", "-f", str(MONITOR / "rbac.yaml"))
    kubectl("delete", "namespace", "team-a", "--wait=false")


def scraped(address: str) -> str:
    """The metrics, empty while nobody serves them."""
    try:
        return httpx.get(f"http://{address}/metrics").text
    except httpx.TransportError:
        return ""


def test_the_policy_refuses_all_else(kubectl: Kubectl, login: Path) -> None:
    own_scores = {"metadata": {"annotations": {SCORES: "[]"}}}
    others: list[tuple[str, dict[str, Any], str]] = [
        ("gpu-2", own_scores, NOT_ITS_OWN),
        ("gpu-1", {"metadata": {"annotations": {"hami.io/node-nvidia-register": "[]"}}}, NOT_ITS_KEYS),
        ("gpu-1", {"metadata": {"annotations": {"other": None}}}, NOT_ITS_KEYS),
        ("gpu-1", {"metadata": {"annotations": {"other": "changed"}}}, NOT_ITS_KEYS),
        ("gpu-1", {"metadata": {"labels": {"gpu": "on"}}}, NOT_ITS_KEYS),
        ("gpu-1", {"spec": {"unschedulable": True}}, NOT_ITS_KEYS),
    ]
    for node, patch, why in others:
        assert why in patched(login, node, patch).stderr, patch
    allowed = patched(login, "gpu-1", own_scores)
    assert allowed.returncode == 0, allowed.stderr


def test_a_token_of_no_pod_may_write_no_node(plane: ControlPlane, kubectl: Kubectl, tmp_path: Path) -> None:
    token = kubectl("create", "token", ACCOUNT, "-n", SYSTEM).strip()
    path = tmp_path / "stolen"
    path.write_text(json.dumps(kubeconfig(plane.server, plane.authority.certificate.read_bytes(), {"token": token})))
    scores = {"metadata": {"annotations": {SCORES: "[]"}}}
    eventually(lambda: NOT_ITS_OWN in patched(path, "gpu-1", scores).stderr)
    for forbidden in (("get", "pods", "-A"), ("get", "secrets", "-A"), ("get", "nodes"), ("delete", "node", "gpu-1")):
        run = as_role(path, *forbidden)
        assert "is forbidden" in run.stderr, run


def patched(login: Path, node: str, patch: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    return as_role(login, "patch", "node", node, "--type=merge", "-p", json.dumps(patch))


def as_role(login: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["kubectl", "--kubeconfig", str(login), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env={**os.environ})
