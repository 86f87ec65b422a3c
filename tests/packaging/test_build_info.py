"""Which commit a build says that it is of."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from hami_webhook.build_info import FILE_NAME, BuildInfo, build_info, commit

ROOT = Path(__file__).parents[2]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with one commit."""
    git = ("git", "-C", tmp_path, "-c", "user.name=n", "-c", "user.email=e@example", "-c", "commit.gpgsign=false")
    subprocess.run((*git, "init", "-q"), check=True)
    subprocess.run((*git, "commit", "-q", "--allow-empty", "-m", "one"), check=True)
    return tmp_path


def test_a_checkout_has_the_commit_that_is_checked_out(checkout: Path) -> None:
    head = subprocess.run(("git", "-C", checkout, "rev-parse", "HEAD"), capture_output=True, text=True, check=True)
    found = build_info(checkout / "hami_webhook")
    assert found.revision == head.stdout.strip()
    assert found.date.startswith("20")


def test_a_folder_without_a_record_or_a_repository_is_of_nothing_known(tmp_path: Path) -> None:
    assert build_info(tmp_path / "hami_webhook") == BuildInfo()
    (tmp_path / ".git").mkdir()  # which is no repository
    assert commit(tmp_path) == BuildInfo()


@pytest.mark.integration
def test_the_wheel_has_the_record_of_its_build(tmp_path: Path) -> None:
    command = (sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path)
    message = {"REVISION": "abc", "SOURCE_DATE_EPOCH": "1767225600", "PATH": "/usr/bin:/bin"}
    subprocess.run(command, cwd=ROOT, env=message, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        packed.extract(f"hami_webhook/{FILE_NAME}", tmp_path)
    assert json.loads((tmp_path / "hami_webhook" / FILE_NAME).read_text())["revision"] == "abc"
    assert build_info(tmp_path / "hami_webhook") == BuildInfo("abc", "2026-01-01T00:00:00+00:00")
