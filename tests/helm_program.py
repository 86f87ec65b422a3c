"""helm as a user runs it, on our charts."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
JSON = dict[str, Any]
CHART = ROOT / "manifests" / "chart"
DAEMON_CHART = ROOT / "manifests" / "hami-daemon"
RELEASE = "hami-webhook"
SYSTEM = "hami-system"


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


@cache
def built() -> Path | None:
    """The program; None if it isn't built."""
    build = ROOT / "hack" / "helm" / "build.sh"
    done = subprocess.run([build, "--where"], stdout=subprocess.PIPE, text=True, check=False)
    return None if done.returncode else Path(done.stdout.strip())


def program() -> Path:
    found = built()
    if found is None:
        pytest.fail("helm isn't built; `make helm` does it", pytrace=False)
    return found


def daemon_set(helm: Helm, *arguments: str | Path) -> JSON:
    """The DaemonSet of the chart hami-daemon."""
    (found,) = [each for each in helm.template(*arguments, chart=DAEMON_CHART) if each["kind"] == "DaemonSet"]
    return found
