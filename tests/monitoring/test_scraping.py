"""What the component for the Prometheus operator scrapes, in every overlay."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

MANIFESTS = Path(__file__).parents[2] / "manifests"
INSTALLED = ["default", "cert-manager", "drop-in"]

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl renders the overlays")


def rendered(overlay: str, folder: Path, **more: Any) -> list[dict[str, Any]]:
    """An overlay with the component, and what more a user writes."""
    base, component = (
        os.path.relpath(path, folder.resolve())
        for path in (MANIFESTS / "overlays" / overlay, MANIFESTS / "components" / "monitoring")
    )
    (folder / "kustomization.yaml").write_text(json.dumps({"resources": [base], "components": [component], **more}))
    done = subprocess.run(["kubectl", "kustomize", folder], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    """Whether a selector of the manifests' forms fits."""
    listed = (labels.get(each["key"]) in each["values"] for each in selector.get("matchExpressions", ()))
    return selector.get("matchLabels", {}).items() <= labels.items() and all(listed)


def scraped(objects: list[dict[str, Any]], deployment: dict[str, Any]) -> list[str]:
    """The monitors that have Prometheus ask the pods of a Deployment, each under its port's name."""
    template = deployment["spec"]["template"]
    labels = template["metadata"]["labels"]
    found = []
    for each in objects:
        if each["kind"] == "PodMonitor" and selects(each["spec"]["selector"], labels):
            ports = [
                port["name"] for container in template["spec"]["containers"] for port in container.get("ports", ())
            ]
            found += [each["metadata"]["name"] for end in each["spec"]["podMetricsEndpoints"] if end["port"] in ports]
        if each["kind"] == "ServiceMonitor":
            services = [
                item
                for item in objects
                if item["kind"] == "Service"
                and selects(each["spec"]["selector"], item["metadata"]["labels"])
                and selects({"matchLabels": item["spec"]["selector"]}, labels)
            ]
            ports = [port["name"] for item in services for port in item["spec"]["ports"]]
            found += [each["metadata"]["name"] for end in each["spec"]["endpoints"] if end["port"] in ports]
    return found


@pytest.mark.parametrize("overlay", INSTALLED)
def test_every_process_is_scraped_once_and_the_network_policy_lets_prometheus_in(overlay: str, tmp_path: Path) -> None:
    objects = rendered(overlay, tmp_path)
    deployments = [each for each in objects if each["kind"] == "Deployment"]
    assert {each["metadata"]["name"]: len(scraped(objects, each)) for each in deployments} == dict.fromkeys(
        ["hami-webhook", "hami-webhook-controller"] + ["hami-scheduler"] * (overlay != "drop-in"), 1
    )
    prometheus = [{"namespaceSelector": {}, "podSelector": {"matchLabels": {"app.kubernetes.io/name": "prometheus"}}}]
    policies = [each for each in objects if each["kind"] == "NetworkPolicy"]
    assert len(policies) == len(deployments)
    for policy in policies:
        assert [rule["from"] for rule in policy["spec"]["ingress"] if {"port": "metrics"} in rule["ports"]] == [
            prometheus
        ]


@pytest.mark.parametrize("overlay", INSTALLED)
def test_a_metrics_own_labels_win_over_those_of_the_target(overlay: str, tmp_path: Path) -> None:
    """Without honorLabels, `namespace` of a quota's metric would be that of our pod."""
    ends = [
        end
        for each in rendered(overlay, tmp_path)
        for end in (*each.get("spec", {}).get("endpoints", ()), *each.get("spec", {}).get("podMetricsEndpoints", ()))
    ]
    assert len(ends) == 2
    assert [end for end in ends if end["honorLabels"] is not True] == []


def test_another_prometheus_is_let_in_as_the_page_says(tmp_path: Path) -> None:
    page = (MANIFESTS.parent / "docs" / "metrics.md").read_text()
    (patches,) = re.findall(r"^```yaml\n(patches:\n.*?)^```", page, re.MULTILINE | re.DOTALL)
    policies = [
        each for each in rendered("default", tmp_path, **yaml.safe_load(patches)) if each["kind"] == "NetworkPolicy"
    ]
    assert len(policies) == 3
    monitoring = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
    wanted = {"from": monitoring, "ports": [{"port": "metrics"}]}
    assert [each for each in policies if each["spec"]["ingress"][0] != wanted] == []
