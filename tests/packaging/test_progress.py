"""Builds and benchmarks show on a terminal how far they are, and in a pipe or in CI only what else there is to say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from terminals import ROOT, on_terminal

pytestmark = pytest.mark.integration

GO = r"""#!/bin/bash
# Stands in for go: compiles 40 packages, and nothing if $FAULT is set.
if [ "$1" = list ]; then seq 40; exit; fi
echo "go: downloading k8s.io/api v0.1.2" >&2
seq -f "k8s.io/package%g" 40 >&2
if [ -n "${FAULT:-}" ]; then printf '# k8s.io/package41\nx.go:1:2: undefined: y\n' >&2; exit 1; fi
while [ $# -gt 0 ]; do [ "$1" = -o ] && to=$2; shift; done
case ${to:-} in
  "") programs=("$GOBIN/helm") ;;
  */) programs=("$to"{kube-apiserver,kube-controller-manager,kube-scheduler}) ;;
  *) programs=("$to") ;;
esac
touch "${programs[@]}" && chmod +x "${programs[@]}"
"""
BUILDS = {"controlplane": "controlplane: 40 of at most 40 packages", "helm": "helm: 40 packages"}
QUEUE = [sys.executable, "-m", "hack.bench", "queue", "--size", "smallest"]


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    go = tmp_path / "bin" / "go"
    go.parent.mkdir()
    go.write_text(GO)
    go.chmod(0o755)
    path = f"{go.parent}:{os.environ['PATH']}"
    return {"PATH": path, "XDG_CACHE_HOME": str(tmp_path / "cache"), "KUBEBUILDER_ASSETS": "", "CI": "", "K8S": "1.36"}


def build(name: str) -> list[str]:
    return [str(ROOT / "hack" / name / "build.sh")]


def piped(command: list[str], variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in {**os.environ, **variables}.items() if value}
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", BUILDS)
def test_a_terminal_counts_compiled_packages(name: str, variables: dict[str, str]) -> None:
    shown = on_terminal(build(name), "stderr", variables)
    assert f"\r{BUILDS[name]} compiled" in shown
    assert f"\r{name}: downloading k8s.io/api" in shown
    assert "\r\x1b[K" + f"{name}: ready in" in shown, "the line is empty again before the next"


@pytest.mark.parametrize("name", BUILDS)
def test_a_terminal_of_ci_and_a_pipe_have_what_else_there_is_to_say(name: str, variables: dict[str, str]) -> None:
    ci = on_terminal(build(name), "stderr", {**variables, "CI": "true"})
    done = piped(build(name), {**variables, "XDG_CACHE_HOME": variables["XDG_CACHE_HOME"] + "-other"})
    assert done.returncode == 0
    for said in (ci, done.stderr):
        first, last = said.splitlines()
        assert first.startswith(f"{name}: building ")
        assert last.startswith(f"{name}: ready in ")
    assert Path(done.stdout.strip()).exists()


@pytest.mark.parametrize("name", BUILDS)
def test_faults_of_a_build_are_said_everywhere(name: str, variables: dict[str, str]) -> None:
    broken = {**variables, "FAULT": "yes"}
    done = piped(build(name), broken)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[1:] == ["# k8s.io/package41", "x.go:1:2: undefined: y"]
    assert "\r\x1b[K# k8s.io/package41\r\nx.go:1:2: undefined: y" in on_terminal(
        build(name), "stderr", broken, status=1
    )


def test_a_terminal_shows_which_benchmark_is_measured() -> None:
    shown = on_terminal(QUEUE, "stderr", {"CI": ""})
    assert shown.splitlines() == [
        "queue: benchmark 1 of 1",
        "queue: 100 pods that are equal",
        "queue: 100 pods that all differ",
    ]


def test_a_pipe_gets_the_figures_of_a_benchmark_alone() -> None:
    done = piped(QUEUE, {"CI": ""})
    assert (done.returncode, done.stderr) == (0, "")
    assert "a flood may add" in done.stdout
