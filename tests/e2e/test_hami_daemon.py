"""The chart hami-daemon: what helm makes of it, and its pods with the rights that it gives them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from node.machines import DGX_A100, compile_library, environment
from node.regions import region

from hack.devcluster.identities import kubeconfig
from hack.devcluster.plane import ControlPlane, free_ports

from .deployment import ROOT, SYSTEM, Kubectl, eventually
from .helm import Helm
from .objects import namespace
from .test_node_role import scraped

CHART = ROOT / "manifests" / "hami-daemon"
JSON = dict[str, Any]


@pytest.fixture
def helm(tmp_path: Path) -> Helm:
    return Helm(tmp_path)


def daemon_set(helm: Helm, *arguments: str) -> JSON:
    (found,) = [each for each in helm.template(*arguments, chart=CHART) if each["kind"] == "DaemonSet"]
    return found


def test_it_passes_helm_lint(helm: Helm) -> None:
    assert "0 chart(s) failed" in helm("lint", CHART, "--strict")


def test_values_of_koordinators_chart_mean_the_same(helm: Helm) -> None:
    values = {
        "affinity": {"nodeAffinity": {}},
        "tolerations": [{"operator": "Exists"}],
        "hamiCore": {
            "libvgpuSoVersion": "v2.7.0",
            "image": {"repository": "registry.example:5000/hami", "tag": "v2.7.1"},
            "imagePullPolicy": "Always",
            "resources": {"limits": {"memory": "1Gi"}},
        },
    }
    pod = daemon_set(helm, "-f", str(helm.values("values", {"daemon": values})))["spec"]["template"]["spec"]
    (copies,) = pod["initContainers"]
    assert pod["tolerations"] == values["tolerations"]
    assert (copies["image"], copies["imagePullPolicy"]) == ("registry.example:5000/hami:v2.7.1", "Always")
    assert copies["resources"]["limits"] == {"memory": "1Gi"}
    assert copies["env"] == [{"name": "VERSION", "value": "v2.7.0"}]


def test_without_the_monitor_it_copies_the_library_and_has_no_rights(helm: Helm) -> None:
    off = ("--set", "daemon.vgpuMonitor.enabled=false")
    assert {each["kind"] for each in helm.template(*off, chart=CHART)} == {"DaemonSet", "ServiceAccount"}
    pod = daemon_set(helm, *off)["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert [each["name"] for each in pod["containers"]] == ["idle"]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("daemon.vgpuMonitor.enabeld=true", "enabeld"),
        ("daemon.hamiCore.libvgpuSoVersion=../../etc", "libvgpuSoVersion"),
        ("daemon.hamiCore.image.tag=", "tag"),
    ],
)
def test_a_value_that_means_nothing_is_refused_with_its_path(helm: Helm, value: str, why: str) -> None:
    assert why in helm.refused("template", "x", CHART, "--set", value)


def test_the_library_is_replaced_by_a_new_file(helm: Helm, tmp_path: Path) -> None:
    """Programs that run have the old one mapped: to write into it would end them."""
    (copies,) = daemon_set(helm)["spec"]["template"]["spec"]["initContainers"]
    source, target = tmp_path / "image", tmp_path / "node"
    source.mkdir()
    target.mkdir()
    (source / "libvgpu.so.v2.6.0").write_text("new")
    (target / "libvgpu.so").write_text("old")
    script = copies["command"][-1].replace("/k8s-vgpu/lib/nvidia", str(source)).replace("/usr/local/vgpu", str(target))
    with (target / "libvgpu.so").open() as mapped:
        subprocess.run(["sh", "-ec", script], env={**os.environ, "VERSION": "v2.6.0"}, check=True)
        assert mapped.read() == "old"
    assert {file.name: file.read_text() for file in target.iterdir()} == {"libvgpu.so": "new"}


@pytest.fixture
def kubectl(plane: ControlPlane, helm: Helm, tmp_path: Path) -> Iterator[Kubectl]:
    """The chart's objects are on the cluster, and the node gpu-1."""
    kubectl = Kubectl(plane.kubeconfig)
    kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}})
    kubectl.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "gpu-1"}})
    objects = tmp_path / "objects.yaml"
    objects.write_text(yaml.safe_dump_all(helm.template(chart=CHART)))
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
