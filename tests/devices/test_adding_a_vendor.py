"""docs/adding-a-vendor.md adds a vendor: all it says, done on a copy of the repository, adds ACME and nothing else.

That the manifests name its resources and guard its annotations is in `test_made_up_vendor.py`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from document_steps import ROOT, copy_of_repository, run, steps

from hami_webhook.devices.vendor import Vendor

TEXT = (ROOT / "docs" / "adding-a-vendor.md").read_text()
WRITTEN = {
    file
    for cell in re.findall(r"^\| (`[^|]+[/.][^|]+`) \|", TEXT, re.MULTILINE)
    for file in re.findall(r"`([^`]+)`", cell)
}
"""What the page's table of files names."""
RENDERED = set(re.findall(r"`([^`]+)`", "".join(re.findall(r"^- of the .+$", TEXT, re.MULTILINE))))
MOST_WRITTEN = 8


@dataclass(frozen=True)
class Walked:
    """A copy after the walk: what its commands printed, and its files, new and changed."""

    root: Path
    printed: dict[str, str]
    files: set[str]


def contents(root: Path) -> dict[str, bytes]:
    """Every file but caches, by its path."""
    files = {str(path.relative_to(root)): path for path in root.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in files.items() if not re.search(r"(^|/)(\.|__pycache__)", name)}


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory) -> Walked:
    root = copy_of_repository(tmp_path_factory.mktemp("guide") / "copy")
    before, printed = contents(root), {}
    for step in steps(TEXT):
        if step.path:
            step.write(root)
            continue
        for command in step.text.splitlines():
            done = run(command, root)
            assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
            printed[command] = done.stdout
    return Walked(root, printed, {path for path, text in contents(root).items() if before.get(path) != text})


@pytest.mark.integration
def test_the_table_of_files_has_all_that_the_walk_changes_and_no_other(walked: Walked) -> None:
    assert walked.files == (WRITTEN | RENDERED) - {"CHANGELOG.md"}
    assert {file for file in WRITTEN | RENDERED if "acme" not in file and not (ROOT / file).is_file()} == set()


def test_few_files_are_written_by_hand() -> None:
    assert len(WRITTEN) <= MOST_WRITTEN


@pytest.mark.integration
def test_its_section_is_explained_and_its_pods_are_placed_charged_and_refused(walked: Walked) -> None:
    check = next(text for command, text in walked.printed.items() if " config check " in command)
    assert "acme: ACME" in check
    simulated = next(text for command, text in walked.printed.items() if " simulate " in command)
    assert "3 pods: 2 placed, 1 denied, 0 without a node" in simulated


def hooks(part: str) -> list[str]:
    """The names in the second column of the page's table, or in a sentence of it."""
    return re.findall(r"`(\w+)`", part)


def subclasses(cls: type[Vendor]) -> set[type[Vendor]]:
    return {cls, *(each for child in cls.__subclasses__() for each in subclasses(child))}


def test_every_hook_of_a_vendor_is_in_the_table_or_follows_from_others() -> None:
    (table,) = re.findall(r"^\| question \| hooks \| notes \|\n\|[-|]+\|\n((?:\|.*\n)+)", TEXT, re.MULTILINE)
    listed = [name for row in table.splitlines() for name in hooks(row.split(" | ")[1])]
    (sentence,) = re.findall(r"^Don't override the members that follow from these: (.+)$", TEXT, re.MULTILINE)
    follows = hooks(sentence)
    public = {name for name in {**vars(Vendor), **Vendor.__annotations__} if not name.startswith("_")}
    assert sorted([*listed, *follows]) == sorted(public)
    assert {name for cls in subclasses(Vendor) - {Vendor} for name in follows if name in vars(cls)} == set()
