from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hami_webhook.kubectl.main import main

from .apiserver import ApiServer, serving


@dataclass(frozen=True)
class Run:
    """What `kubectl hami` left: exit status, standard output and error."""

    status: int
    out: str
    err: str

    @property
    def result(self) -> Any:
        assert self.status in (0, 1), self.err
        return json.loads(self.out)


Hami = Callable[..., Run]


@pytest.fixture
def hami(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Hami]:
    """`kubectl hami ARGUMENTS` in this process, as the user of an API server."""
    monkeypatch.delenv("KUBECONFIG", raising=False)
    with ExitStack() as stack:

        def run(api: ApiServer, *arguments: str) -> Run:
            kubeconfig = stack.enter_context(serving(api, tmp_path))
            monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
            try:
                status = main(arguments)
            except SystemExit as end:  # argparse
                status = int(end.code or 0)
            captured = capsys.readouterr()
            return Run(status, captured.out, captured.err)

        yield run
