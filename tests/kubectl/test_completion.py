"""Completion by kubectl's convention for plugins."""

from __future__ import annotations

from pathlib import Path

import pytest

from hami_webhook.kubectl.completion import main

from .apiserver import ApiServer, serving
from .test_verbs import cluster


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", "nowhere")


@pytest.mark.parametrize(
    ("words", "candidates", "directive"),
    [
        (["quo"], ["quota"], ":4"),
        (["explain", ""], ["pod", "quota", "node", "deployment", "job", "statefulset"], ":4"),
        (["quota", "-n", "team-a", "--wat"], ["--watch"], ":4"),
        (["quota", "-o", ""], ["json", "yaml", "wide"], ":4"),
        (["quota", "-o", "w"], ["wide"], ":4"),
        (["quota", "--wat"], ["--watch"], ":4"),
        (["simulate", ""], [], ":0"),
        (["quota", "-n", ""], [], ":0"),
        (["pods", ""], [], ":0"),
    ],
)
def test_candidates(
    capsys: pytest.CaptureFixture[str], words: list[str], candidates: list[str], directive: str
) -> None:
    assert main(words) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert ([line.partition("\t")[0] for line in lines], last) == (candidates, directive)


ABOVE = {"kind": "AcceleratorQuota", "metadata": {"name": "all"}, "spec": {}}


@pytest.mark.parametrize(
    ("words", "candidates"),
    [
        (["pods", ""], ["busy", "waiting", "web"]),
        (["explain", "pod", "w"], ["waiting", "web"]),
        (["explain", "pod", "-n", "team-b", ""], ["other"]),
        (["explain", "pod", "--namespace=team-b", ""], ["other"]),
        (["explain", "pod", "web", ""], []),
        (["pods", "-n", ""], ["team-a", "team-b"]),
        (["pods", "-n", "team-b"], ["team-b"]),
        (["nodes", ""], ["n1", "cpu"]),
        (["cards", "n"], ["n1"]),
        (["explain", "node", "c"], ["cpu"]),
        (["explain", "quota", ""], ["gpu-quota", "AcceleratorQuota/all"]),
    ],
)
def test_names_are_those_of_the_cluster(
    words: list[str],
    candidates: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with serving(ApiServer(cluster(ABOVE)), tmp_path) as kubeconfig:
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
        assert main(words) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert (lines, last) == (candidates, ":4" if candidates else ":0")


def test_a_tenant_is_offered_what_it_may_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(ApiServer(cluster(ABOVE), only="team-a"), tmp_path) as kubeconfig:
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
        assert [main(["nodes", ""]), main(["quota", ""])] == [0, 0]
    assert capsys.readouterr().out.splitlines() == [":0", "gpu-quota", ":4"]
