"""Nodes that kube-scheduler refuses, as every command says it: cordoned, tainted, without cpu, NotReady."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import builders
import pytest
import yaml
from chromium import CHROMIUM
from playwright.sync_api import expect, sync_playwright

from hack.devcluster.plane import ControlPlane

from .deployment import ROOT, Kubectl, eventually
from .hamischeduler import scheduling
from .objects import JSON, gpu_node, namespace
from .test_ui import UPDATED, entered, ui

REASONS = {
    "cordoned": "node(s) were unschedulable",
    "full": "Insufficient cpu",
    "not-ready": "node(s) had untolerated taint(s)",
    "tainted": "node(s) had untolerated taint(s)",
}
AVAILABLE = (
    "0/4 nodes are available: 1 Insufficient cpu, 1 node(s) were unschedulable, 2 node(s) had untolerated taint(s)."
)


def wanting(space: str, name: str) -> JSON:
    """A pod that asks for a card and two CPUs."""
    asked = builders.container(limits={"nvidia.com/gpu": "1", "nvidia.com/gpumem": "2000"}, requests={"cpu": "2"})
    return builders.pod(name, asked, namespace=space, schedulerName="hami-scheduler")


@pytest.fixture
def space(plane: ControlPlane) -> Iterator[str]:
    """A namespace, and nodes with a free card each, none of which takes a pod."""
    kubectl = Kubectl(plane.kubeconfig)
    space = namespace(kubectl)
    for name in REASONS:
        # the API server taints a node that no kubelet has called ready yet
        kubectl.apply(gpu_node(name, 24576))
        offered = {"nvidia.com/gpu": "10", "cpu": "1" if name == "full" else "8", "memory": "8Gi", "pods": "110"}
        status = json.dumps({"status": {"capacity": offered, "allocatable": offered}})
        kubectl("patch", "node", name, "--subresource=status", "--type=merge", "-p", status)
        if name != "not-ready":
            kubectl("taint", "node", name, "node.kubernetes.io/not-ready:NoSchedule-")
    kubectl("cordon", "cordoned")
    kubectl("taint", "node", "tainted", "team=a:NoSchedule")
    yield space
    kubectl.delete_all("pods", namespace=space)
    kubectl("delete", "node", *REASONS)


def hami_webhook(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hami_webhook", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, cwd=ROOT, check=True)


@pytest.mark.usefixtures("plugin")
def test_every_command_says_what_kube_scheduler_says(plane: ControlPlane, space: str, tmp_path: Path) -> None:
    kubectl = Kubectl(plane.kubeconfig)
    with scheduling(plane, tmp_path / "scheduler", plane.kubeconfig, "cooperative"):
        kubectl.apply(wanting(space, "p"))

        def said() -> str:
            conditions = kubectl.get("pod", "p", "-n", space)["status"].get("conditions") or [{}]
            # what its other plugins say comes after it
            return str(conditions[0].get("message", ""))[: len(AVAILABLE)]

        eventually(said, AVAILABLE)

    found = json.loads(
        hami_webhook("explain", f"{space}/p", "--kubeconfig", str(plane.kubeconfig), "-o", "json").stdout
    )
    assert found["verdict"] == "fits on none of 4 nodes"
    assert {node["name"]: node["refusal"]["reasons"] for node in found["nodes"]} == {
        name: [reason] for name, reason in REASONS.items()
    }
    assert {node["reason"] for node in found["nodes"]} == {""}

    cluster = kubectl("get", "nodes,pods,namespaces", "-A", "-o", "yaml")
    others = [each for each in yaml.safe_load(cluster)["items"] if each["metadata"]["name"] != "p"]
    files = tmp_path / "cluster.yaml"
    files.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": others}))
    simulated = hami_webhook(
        *("simulate", "--cluster", str(files), "-o", "json", "-"), stdin=json.dumps(wanting(space, "q"))
    )
    (outcome,) = json.loads(simulated.stdout)["pods"]
    assert (outcome["placement"], outcome["failed"]) == (None, REASONS)

    kubectl("uncordon", "cordoned")
    again = json.loads(
        hami_webhook("explain", f"{space}/p", "--kubeconfig", str(plane.kubeconfig), "-o", "json").stdout
    )
    assert again["verdict"] == "isn't placed, but fits on cordoned"
    kubectl("cordon", "cordoned")

    faults = list[str]()
    with ui(kubectl, space) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM)
        page = entered(browser, address, f"/pods/{space}/p", faults)
        for reason in REASONS.values():
            expect(page.get_by_role("region", name="Evaluated", exact=True)).to_contain_text(reason, timeout=UPDATED)
        page = entered(browser, address, "/what-if", faults)
        page.get_by_label("Pods or workloads").fill(json.dumps(wanting(space, "q")))
        page.get_by_role("button", name="Try").click()
        for reason in REASONS.values():
            expect(page.get_by_role("region", name="Pods")).to_contain_text(reason, timeout=UPDATED)
        browser.close()
    assert faults == []
