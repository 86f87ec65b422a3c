"""The version before this one: its chart, and its program as an image of the dev cluster.

A release is a commit whose title is `release: X.Y.Z`; tags, which clones may lack, only name it. Where there is no
release with a chart yet, the newest commit before this one that has a chart stands for it.
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from .deployment import ROOT

_TITLE = re.compile(r"release: \d+\.\d+\.\d+$")


@dataclass(frozen=True)
class Version:
    """A commit that has a chart."""

    commit: str
    title: str

    def extract(self, folder: Path) -> Path:
        """Write its tree into a new folder; where its chart is then."""
        folder.mkdir(parents=True)
        archive = subprocess.run(["git", "archive", self.commit], cwd=ROOT, stdout=subprocess.PIPE, check=True)
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        return folder / "manifests" / "chart"


def previous() -> Version:
    lines = _git("log", "--skip=1", "--format=%H %s").splitlines()
    versions = [Version(*line.split(" ", 1)) for line in lines]
    releases = [version for version in versions if _TITLE.match(version.title)]
    found = next(filter(_has_chart, [*releases, *versions]), None)
    if found is None:
        pytest.fail(
            "no commit before this one has a chart; a shallow clone lacks them: git fetch --unshallow", pytrace=False
        )
    return found


def _has_chart(version: Version) -> bool:
    return bool(_git("ls-tree", version.commit, "manifests/chart/Chart.yaml"))


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout
