"""What Prometheus scrapes: by the component for its operator, in every overlay, and by the jobs of docs/metrics.md."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import threading
import time
import urllib.request
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from hack.devcluster.plane import free_ports

from .promtool import with_promtool

pytestmark = pytest.mark.integration

MANIFESTS = Path(__file__).parents[2] / "manifests"
INSTALLED = ["default", "cert-manager", "drop-in"]

with_kubectl = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl renders the overlays")
PAGE = (MANIFESTS.parent / "docs" / "metrics.md").read_text()


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


def block(start: str) -> str:
    """The block of YAML on the page that begins so."""
    (found,) = re.findall(rf"^```yaml\n({re.escape(start)}.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    return str(found)


@with_promtool
def test_a_prometheus_takes_the_job_that_finds_pods_or_says_what_the_page_says(tmp_path: Path) -> None:
    """Debian's says it; a build with the discovery of Kubernetes takes the job."""
    (tmp_path / "prometheus.yml").write_text("scrape_configs:\n" + block("- job_name:"))
    check = ["promtool", "check", "config", str(tmp_path / "prometheus.yml")]
    done = subprocess.run(check, capture_output=True, text=True, check=False, timeout=60)
    lacks = "field kubernetes_sd_configs not found"
    assert f"`{lacks}`" in PAGE
    assert done.returncode == 0 or lacks in done.stderr


class _Exposition(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(b"hami_webhook_leader 0\n")

    def log_message(self, format: str, *args: object) -> None:
        pass


@with_promtool
def test_the_job_with_addresses_runs_as_printed(tmp_path: Path) -> None:
    """Behind the port-forwards of the page stand servers of ours."""
    text = block("scrape_configs:")
    ports = [int(port) for port in re.findall(r"127\.0\.0\.1:(\d+)", text)]
    assert ports == [
        int(port) for port in re.findall(r"^kubectl .* port-forward deployment/\S+ (\d+):9395$", PAGE, re.M)
    ]
    (web,) = free_ports(1)
    (tmp_path / "prometheus.yml").write_text("global: {scrape_interval: 1s}\n" + text)
    with ExitStack() as stack:
        for port in ports:
            server = stack.enter_context(ThreadingHTTPServer(("127.0.0.1", port), _Exposition))
            threading.Thread(target=server.serve_forever, daemon=True).start()
            stack.callback(server.shutdown)
        flags = {
            "config.file": tmp_path / "prometheus.yml",
            "storage.tsdb.path": tmp_path / "data",
            "web.listen-address": f"127.0.0.1:{web}",
        }
        arguments = [f"--{flag}={value}" for flag, value in flags.items()]
        process = stack.enter_context(subprocess.Popen(["prometheus", *arguments], stderr=subprocess.DEVNULL))
        stack.callback(process.terminate)
        found: dict[str, str] = {}
        deadline = time.monotonic() + 60
        while len(found) < len(ports) and time.monotonic() < deadline:
            assert process.poll() is None
            with contextlib.suppress(OSError):
                query = f"http://127.0.0.1:{web}/api/v1/query?query=up==1"
                answer = json.load(urllib.request.urlopen(query, timeout=5))
                labels = [each["metric"] for each in answer["data"]["result"]]
                found = {each["container"]: each["namespace"] for each in labels}
    assert found == dict.fromkeys(("webhook", "controller", "extender"), "hami-system")


@with_kubectl
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


@with_kubectl
@pytest.mark.parametrize("overlay", INSTALLED)
def test_a_metrics_own_labels_win_over_those_of_the_target(overlay: str, tmp_path: Path) -> None:
    """Without honorLabels, `namespace` of a quota's metric would be that of our pod."""
    ends = [
        end
        for each in rendered(overlay, tmp_path)
        for end in (*each.get("spec", {}).get("endpoints", ()), *each.get("spec", {}).get("podMetricsEndpoints", ()))
    ]
    assert len(ends) == 3
    assert [end for end in ends if end["honorLabels"] is not True] == []


@with_kubectl
def test_another_prometheus_is_let_in_as_the_page_says(tmp_path: Path) -> None:
    patches = yaml.safe_load(block("patches:"))
    policies = [each for each in rendered("default", tmp_path, **patches) if each["kind"] == "NetworkPolicy"]
    assert len(policies) == 3
    monitoring = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
    wanted = {"from": monitoring, "ports": [{"port": "metrics"}]}
    assert [each for each in policies if each["spec"]["ingress"][0] != wanted] == []
