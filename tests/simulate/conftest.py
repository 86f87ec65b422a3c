from __future__ import annotations

from pathlib import Path

import pytest

from .files import Simulate, kubeconfig


@pytest.fixture(scope="session")
def own_kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> str:
    return kubeconfig(tmp_path_factory.mktemp("kube"))


@pytest.fixture
def simulate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, own_kubeconfig: str
) -> Simulate:
    monkeypatch.setenv("KUBECONFIG", own_kubeconfig)  # not that of whoever runs the tests
    return Simulate(tmp_path, capsys)
