"""helm as a user runs it, on our chart."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from .deployment import ROOT, SYSTEM, eventually
from .installation import Cluster

JSON = dict[str, Any]
CHART = ROOT / "manifests" / "chart"
RELEASE = "hami-webhook"
MADE_WHILE_IT_RAN = {
    ("Secret", SYSTEM, "hami-webhook-tls"),
    ("Lease", SYSTEM, "hami-scheduler"),
    ("Lease", SYSTEM, "hami-scheduler-controller"),
}
"""What goes with the namespace only, beside what every namespace has."""
DEFINED = "acceleratorquotas.hami.io"
KEPT = {("CustomResourceDefinition", "", DEFINED), ("APIService", "", "v1alpha1.hami.io")}
"""What helm leaves, as users' AcceleratorQuotas would go with it."""
OF_A_NAMESPACE = {
    ("Namespace", "", SYSTEM),
    ("ServiceAccount", SYSTEM, "default"),
    ("ConfigMap", SYSTEM, "kube-root-ca.crt"),
}


@dataclass(frozen=True)
class Helm:
    """helm with the kubeconfig of a cluster, or without any for `lint` and `template`."""

    folder: Path
    """Its home: nothing of the user's own counts."""
    kubeconfig: Path | None = None

    def start(self, *arguments: str | Path) -> subprocess.Popen[str]:
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.folder)}
        environment["KUBECONFIG"] = str(self.kubeconfig or os.devnull)
        return subprocess.Popen(
            [program(), *arguments], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def run(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        with self.start(*arguments) as process:
            try:
                output, errors = process.communicate(timeout=300)
            except BaseException:
                process.kill()
                raise
        return subprocess.CompletedProcess(process.args, process.returncode, output, errors)

    def __call__(self, *arguments: str | Path) -> str:
        """What it prints; fails where it does."""
        done = self.run(*arguments)
        assert done.returncode == 0, done.stderr + done.stdout
        return done.stdout

    def refused(self, *arguments: str | Path) -> str:
        """What a user reads where it fails."""
        done = self.run(*arguments)
        assert done.returncode != 0, done.stdout
        return done.stderr

    def template(self, *arguments: str | Path, chart: Path = CHART) -> list[JSON]:
        """The objects of the chart, hooks included."""
        rendered = self("template", RELEASE, chart, "--namespace", SYSTEM, *arguments)
        return [each for each in yaml.safe_load_all(rendered) if each is not None]

    def on_release(self, verb: str, *arguments: str | Path, timeout: str = "240s") -> list[str | Path]:
        """The arguments for a verb on the release in our namespace, which waits until everything is ready."""
        return [verb, RELEASE, *arguments, "--namespace", SYSTEM, "--wait", f"--timeout={timeout}"]

    def values(self, name: str, values: JSON) -> Path:
        """A file of values, as for `-f`."""
        path = self.folder / f"{name}.yaml"
        path.write_text(json.dumps(values))
        return path


@contextlib.contextmanager
def installed(
    cluster: Cluster,
    helm: Helm,
    *arguments: str | Path,
    chart: Path = CHART,
    meanwhile: Callable[[], None] = lambda: None,
) -> Iterator[None]:
    """`helm install --wait`, and `helm uninstall` at the end of the block: what is left goes with the namespace."""
    before = cluster.objects()
    try:
        with _release(cluster, helm, chart, *arguments, meanwhile=meanwhile):
            yield
        eventually(lambda: left(cluster, before) - MADE_WHILE_IT_RAN - KEPT, set())
    finally:
        cluster.kubectl("delete", "namespace", SYSTEM, "--ignore-not-found")
        cluster.kubectl("delete", "crd", DEFINED, "--ignore-not-found")
    eventually(lambda: cluster.objects() - before, set())


@contextlib.contextmanager
def _release(
    cluster: Cluster, helm: Helm, chart: Path, *arguments: str | Path, meanwhile: Callable[[], None]
) -> Iterator[None]:
    try:
        with helm.start(*helm.on_release("install", chart, "--create-namespace", *arguments)) as process:
            try:
                meanwhile()
                output, errors = process.communicate(timeout=300)
            except BaseException:
                process.kill()
                raise
        assert process.returncode == 0, errors + output + cluster.logs()
        yield
    finally:
        helm("uninstall", RELEASE, "--namespace", SYSTEM, "--wait", "--ignore-not-found")


def left(cluster: Cluster, before: set[tuple[str, str, str]]) -> set[tuple[str, str, str]]:
    """What there is that wasn't, but for what every namespace has, and what a test adds to ours."""
    new = cluster.objects() - before - OF_A_NAMESPACE
    return {each for each in new if not each[-1].startswith("hami-device-plugin")}


def program() -> Path:
    done = subprocess.run(
        [ROOT / "hack" / "helm" / "build.sh", "--where"], stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        pytest.fail("helm isn't built; `make helm` does it", pytrace=False)
    return Path(done.stdout.strip())
