"""Input files for `simulate`, and running it in this process."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import builders
import pytest

from hami_webhook import cli

JSON = dict[str, Any]
GPU, MEM, CORES = "limits.nvidia.com/gpu", "limits.nvidia.com/gpumem", "limits.nvidia.com/gpucores"
START = 1_767_225_600
"""When a run starts whose files name no time."""


pod = functools.partial(builders.pod, namespace="team-a")
quota = functools.partial(builders.quota, namespace="team-a")


def listed(*objects: JSON) -> JSON:
    return {"apiVersion": "v1", "kind": "List", "items": list(objects)}


@dataclass(frozen=True)
class Run:
    """What a run of the command line left: exit status, standard output and error."""

    status: int
    out: str
    err: str

    @property
    def result(self) -> Any:
        """The report as JSON: an object, or a list of them."""
        assert self.status in (0, 1), self.err
        return json.loads(self.out)

    @property
    def pods(self) -> list[JSON]:
        found: list[JSON] = self.result["pods"]
        return found

    def pod(self, name: str) -> JSON:
        return next(found for found in self.pods if found["name"] == name)

    @property
    def used(self) -> JSON:
        """Used of the only quota."""
        (only,) = self.result["quotas"]
        found: JSON = only["used"]
        return found


def run_main(main: Callable[[Sequence[str]], int], arguments: Sequence[str], capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command line in this process."""
    capsys.readouterr()
    try:
        status = main(arguments)
    except SystemExit as stop:  # argparse
        status = stop.code if isinstance(stop.code, int) else 1
    captured = capsys.readouterr()
    return Run(status, captured.out, captured.err)


def kubeconfig(directory: Path, namespace: str = "default") -> str:
    """The path of a kubeconfig whose current context names a namespace."""
    cluster = {"name": "c", "cluster": {"server": "https://localhost:1"}}
    chosen = {"name": "x", "context": {"cluster": "c", "user": "u", "namespace": namespace}}
    path = directory / f"kubeconfig-{namespace}"
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "x",
        "clusters": [cluster],
        "contexts": [chosen],
    }
    path.write_text(json.dumps(content))
    return str(path)


class Simulate:
    """`simulate -o json` in this process, on objects that are put into files."""

    def __init__(self, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._directory = directory
        self._capsys = capsys

    def file(self, name: str, content: str | JSON) -> str:
        path = self._directory / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return str(path)

    def main(self, *arguments: str) -> Run:
        return run_main(cli.main, arguments, self._capsys)

    def __call__(self, cluster: Sequence[JSON], *pods: JSON, flags: Sequence[str] = ()) -> Run:
        return self.main(
            "simulate",
            *("--cluster", self.file("cluster.json", listed(*cluster))),
            *("-o", "json", *flags),
            self.file("pods.json", listed(*pods)),
        )
