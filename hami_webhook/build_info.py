"""Which commit the program was built from, for `hami-webhook version` and the metric `hami_build_info`."""

from __future__ import annotations

import json
import subprocess
from functools import cache
from pathlib import Path
from typing import NamedTuple

FILE_NAME = "_build.json"
"""The file that hatch_build.py puts into the wheel: the fields of BuildInfo."""

_PACKAGE = Path(__file__).parent


class BuildInfo(NamedTuple):
    """The commit and the date of a build, RFC 3339; empty where they aren't known."""

    revision: str = ""
    date: str = ""


@cache
def build_info(package: Path = _PACKAGE) -> BuildInfo:
    """What the build recorded in the package; in a checkout the commit that is checked out, and its date."""
    try:
        return BuildInfo(**json.loads((package / FILE_NAME).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return commit(package.parent)


def commit(checkout: Path) -> BuildInfo:
    """The commit that is checked out in a folder."""
    if not (checkout / ".git").exists():
        return BuildInfo()
    command = ["git", "-C", str(checkout), "log", "-1", "--format=%H %cI"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603 - nothing of a user
    except (OSError, subprocess.CalledProcessError):
        return BuildInfo()
    revision, _, date = found.stdout.strip().partition(" ")
    return BuildInfo(revision, date)
