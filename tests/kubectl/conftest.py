from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from simulate.files import Run, run_main

from hami_webhook.kubectl.main import main

from .apiserver import ApiServer, calls_of, kubeconfig

Hami = Callable[..., Run]


@pytest.fixture
def hami(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Hami:
    """`kubectl hami ARGUMENTS` as the user of an API server, both in this process; test_processes.py has a socket."""
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path, "http://api.example")))

    def run(api: ApiServer, *arguments: str) -> Run:
        monkeypatch.setattr("hami_webhook.cluster.connect._Client.call_api", calls_of(api))
        return run_main(main, arguments, capsys)

    return run
