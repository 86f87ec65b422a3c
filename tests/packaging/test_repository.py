"""What strangers need to adopt the repository is there, and names only what exists."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]


def test_the_licence_is_the_one_that_the_metadata_names() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    text = (ROOT / "LICENSE").read_text()
    assert project["license"] == "Apache-2.0"
    assert "Apache License\n" in text
    assert "Version 2.0, January 2004" in text
    for file in project["license-files"]:
        assert (ROOT / file).is_file()


def test_code_owners_are_of_folders_and_files_that_exist() -> None:
    lines = (ROOT / ".github" / "CODEOWNERS").read_text().splitlines()
    paths = [line.split()[0] for line in lines if line and not line.startswith("#")]
    assert paths[0] == "*"
    for path in paths[1:]:
        assert (ROOT / path.strip("/")).exists(), path


@pytest.mark.parametrize("path", sorted((ROOT / ".github").rglob("*.y*ml")), ids=lambda path: path.name)
def test_what_a_forge_reads_is_yaml(path: Path) -> None:
    assert isinstance(yaml.safe_load(path.read_text()), dict)


def test_the_workflow_runs_what_everybody_runs() -> None:
    (job,) = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yaml").read_text())["jobs"].values()
    assert job["steps"][-1]["run"].endswith(".ci/run")
