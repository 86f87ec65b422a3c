from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from simulate.files import Run, run_main

from hami_webhook.kubectl.main import main

from .apiserver import ApiServer, serving

Hami = Callable[..., Run]


@pytest.fixture
def hami(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Hami]:
    """`kubectl hami ARGUMENTS` in this process, as the user of an API server."""
    monkeypatch.delenv("KUBECONFIG", raising=False)
    with ExitStack() as stack:

        def run(api: ApiServer, *arguments: str) -> Run:
            kubeconfig = stack.enter_context(serving(api, tmp_path))
            monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
            return run_main(main, arguments, capsys)

        yield run
