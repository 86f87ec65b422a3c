"""Debian's Prometheus, which scrapes what is installed as docs/metrics.md says, and evaluates the alerts."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from hack.devcluster.plane import free_ports

from .deployment import ROOT, SYSTEM, Kubectl, eventually
from .installation import Cluster
from .objects import JSON

ALERTS = ROOT / "manifests" / "components" / "monitoring" / "prometheusrule.yaml"
LOOKBACK = "5s"
"""Longer than a few scrapes, so that one that is late on a busy machine leaves no gap."""


@dataclass(frozen=True)
class Sample:
    labels: dict[str, str]
    value: float


@dataclass(frozen=True)
class Prometheus:
    url: str
    kubectl: Kubectl
    folder: Path

    def discover(self) -> None:
        """Scrape the pods that there are, each port of theirs with the labels that Kubernetes' discovery gives it."""
        targets = []
        for item in self.kubectl.get("pods", "-n", SYSTEM)["items"]:
            name, labels = item["metadata"]["name"], item["metadata"].get("labels", {})
            meta = {f"__meta_kubernetes_pod_label_{_meta(key)}": value for key, value in labels.items()}
            meta |= {"__meta_kubernetes_namespace": SYSTEM, "__meta_kubernetes_pod_name": name}
            for container in item["spec"]["containers"]:
                meta["__meta_kubernetes_pod_container_name"] = container["name"]
                for port in container.get("ports", ()):
                    address = f"{item['status']['podIP']}:{port['containerPort']}"
                    named = {"__meta_kubernetes_pod_container_port_name": port["name"]}
                    targets.append({"targets": [address], "labels": meta | named})
        anew = self.folder / "anew.json"
        anew.write_text(json.dumps(targets))
        anew.rename(self.folder / "targets.json")

    def query(self, expression: str) -> list[Sample]:
        """What an instant query returns now."""
        found = self._get("query", query=expression)["result"]
        return [Sample(each["metric"], float(each["value"][1])) for each in found]

    def value(self, expression: str) -> float | None:
        """The value of an expression without labels; None if it has none."""
        found = self.query(expression)
        assert len(found) <= 1, found
        return found[0].value if found else None

    def values(self, expression: str, since: float) -> dict[float, float]:
        """The values of an expression without labels, a second apart, by time; times without one are lacking."""
        found = self._get("query_range", query=expression, start=f"{since}", end=f"{time.time()}", step="1")["result"]
        assert len(found) <= 1, found
        return {at: float(value) for each in found for at, value in each["values"]}

    def alerts(self, since: float) -> set[tuple[str, str]]:
        """The alerts that there were, each with its states, `pending` or `firing`, up to the next evaluation."""
        seen = time.time()
        eventually(lambda: all(_seconds(rule["lastEvaluation"]) > seen for rule in self.rules()))
        found = self._get("query_range", query="ALERTS", start=f"{since}", end=f"{time.time()}", step="1")["result"]
        return {(each["metric"]["alertname"], each["metric"]["alertstate"]) for each in found}

    def rules(self) -> list[JSON]:
        return [rule for group in self._get("rules")["groups"] for rule in group["rules"]]

    def targets(self) -> dict[str, str]:
        """Health of what is scraped, by pod."""
        return {each["labels"]["pod"]: each["health"] for each in self._get("targets")["activeTargets"]}

    def _get(self, path: str, **parameters: str) -> Any:
        address = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(address, timeout=20) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            with error:
                pytest.fail(f"{parameters}: {error.read().decode()}")


def _seconds(written: str) -> float:
    """A time as Prometheus writes it, in Unix seconds."""
    return datetime.fromisoformat(written).timestamp()


def _meta(key: str) -> str:
    """A label's key as it is in the names of meta labels."""
    return re.sub(r"\W", "_", key)


def scrape_job() -> JSON:
    """The job that docs/metrics.md has for a Prometheus without the operator."""
    page = (ROOT / "docs" / "metrics.md").read_text()
    (text,) = re.findall(r"^```yaml\n(- job_name:.*?)^```", page, re.MULTILINE | re.DOTALL)
    (job,) = yaml.safe_load(text)
    return dict(job)


def alert_rules() -> JSON:
    """The rules of the manifests, as Prometheus reads them."""
    found: JSON = yaml.safe_load(ALERTS.read_text())["spec"]
    return found


def shortened(*alerts: str, by: int) -> JSON:
    """The rules of some alerts, whose faults have to last for a fraction of the time."""
    rules = [rule for group in alert_rules()["groups"] for rule in group["rules"] if rule["alert"] in alerts]
    for rule in rules:
        rule["for"] = f"{int(rule['for'].removesuffix('m')) * 60 // by}s"
    return {"groups": [{"name": "shortened", "rules": rules}]}


@contextlib.contextmanager
def scraping(cluster: Cluster, rules: JSON | None = None) -> Iterator[Prometheus]:
    """A Prometheus that scrapes the cluster every second, and has the alerts or `rules`, until the block ends."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.fail("there is no Prometheus on the PATH; `apt-get install prometheus` does it", pytrace=False)
    job = scrape_job()
    folder = cluster.folder / "prometheus"
    folder.mkdir()
    # Debian's Prometheus is built without the discovery of Kubernetes
    del job["kubernetes_sd_configs"]
    job["file_sd_configs"] = [{"files": ["targets.json"]}]
    (folder / "alerts.json").write_text(json.dumps(rules or alert_rules()))
    configuration = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": ["alerts.json"],
        "scrape_configs": [job],
    }
    (folder / "prometheus.yml").write_text(json.dumps(configuration))
    (port,) = free_ports(1)
    flags = {
        "config.file": folder / "prometheus.yml",
        "storage.tsdb.path": folder / "data",
        "web.listen-address": f"127.0.0.1:{port}",
        "query.lookback-delta": LOOKBACK,
    }
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [program, *(f"--{name}={value}" for name, value in flags.items())], stdout=log, stderr=log
        )
    found = Prometheus(f"http://127.0.0.1:{port}", cluster.kubectl, folder)
    found.discover()
    try:
        eventually(lambda: process.poll() is not None or _is_ready(found.url))
        assert process.poll() is None, Path(folder / "log").read_text()
        yield found
    finally:
        process.terminate()
        process.wait(120)


def _is_ready(url: str) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/-/ready", timeout=2):
        return True
    return False
