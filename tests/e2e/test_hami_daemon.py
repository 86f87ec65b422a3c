"""The pods of the chart hami-daemon, with the rights that it gives them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from helm_program import DAEMON_CHART, Helm, daemon_set
from node.machines import DGX_A100, compile_library, environment
from node.regions import region

from hack.devcluster.identities import kubeconfig
from hack.devcluster.plane import ControlPlane, free_ports

from .deployment import ROOT, SYSTEM, Kubectl, eventually
from .objects import namespace
from .test_node_role import scraped


@pytest.fixture
def helm(tmp_path: Path) -> Helm:
    return Helm(tmp_path)


@pytest.fixture
def kubectl(plane: ControlPlane, helm: Helm, tmp_path: Path) -> Iterator[Kubectl]:
    """The chart's objects are on the cluster, and the node gpu-1."""
    kubectl = Kubectl(plane.kubeconfig)
    kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}})
    kubectl.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "gpu-1"}})
    objects = tmp_path / "objects.yaml"
    objects.write_text(yaml.safe_dump_all(helm.template(chart=DAEMON_CHART)))
    kubectl("apply", "--dry-run=server", "-f", str(objects))
    kubectl("apply", "-f", str(objects))
    yield kubectl
    kubectl("delete", "-f", str(objects), "--wait=false")
    kubectl("delete", "node", "gpu-1")


def test_with_its_own_rights_it_shows_what_two_teams_use_and_follows(
    plane: ControlPlane, kubectl: Kubectl, helm: Helm, tmp_path: Path
) -> None:
    compile_library(tmp_path)
    template = daemon_set(helm)["spec"]["template"]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "daemon", "namespace": SYSTEM}}
    kubectl.apply({**pod, "spec": {**template["spec"], "nodeName": "gpu-1", "priorityClassName": ""}})
    bound = ("--bound-object-kind", "Pod", "--bound-object-name", "daemon")
    token = kubectl("create", "token", "hami-daemon", "-n", SYSTEM, *bound).strip()
    login = tmp_path / "login"
    login.write_text(json.dumps(kubeconfig(plane.server, plane.authority.certificate.read_bytes(), {"token": token})))
    regions = []
    for team in (namespace(kubectl), namespace(kubectl)):
        meta = {"name": "p", "namespace": team}
        spec = {"nodeName": "gpu-1", "containers": [{"name": "main", "image": "i"}]}
        kubectl.apply({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
        uid = kubectl.get("pod", "p", "-n", team)["metadata"]["uid"]
        folder = tmp_path / "containers" / f"{uid}_main"
        folder.mkdir(parents=True)
        regions.append((team, folder / "a.cache"))

    def grow(mebibytes: int) -> dict[str, int]:
        for number, (_, file) in enumerate(regions, start=1):
            written = file.with_suffix(".new")
            written.write_bytes(region(slots=[{0: (0, 0, 0, 0, number * mebibytes << 20)}]))
            written.rename(file)
        return {team: number * mebibytes << 20 for number, (team, _) in enumerate(regions, start=1)}

    (monitor,) = template["spec"]["containers"]
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"
    command = [sys.executable, "-m", "hami_webhook", *monitor["args"], f"--metrics-bind-address={address}"]
    machine = environment(tmp_path, DGX_A100)
    own = {**machine, "NODE_NAME": "gpu-1", "POD_NAMESPACE": SYSTEM, "HOOK_PATH": str(tmp_path)}
    used = grow(100)
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen([*command, "--kubeconfig", str(login)], env=own, stderr=log, cwd=ROOT)
    try:
        eventually(lambda: shown(address) == used)
        used = grow(300)
        eventually(lambda: shown(address) == used)
        assert "vGPU_device_memory_usage_in_bytes{" in scraped(address)
    finally:
        process.terminate()
    assert process.wait(120) == 0, (tmp_path / "log").read_text()
    assert "Forbidden" not in (tmp_path / "log").read_text()


def shown(address: str) -> dict[str, int]:
    """What is used of memory by namespace."""
    found = re.findall(r'hami_vgpu_memory_used_bytes\{.*namespace="([^"]+)".*\} (\d+)', scraped(address))
    return {team: int(used) for team, used in found}
