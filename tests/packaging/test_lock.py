"""requirements/: what pyproject.toml needs, with hashes, and nothing else."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from functools import cache
from importlib.metadata import requires
from pathlib import Path

import pytest
from pip._vendor.packaging.requirements import Requirement  # this folder hides the package of its name
from pip._vendor.packaging.utils import canonicalize_name

from hack.lock import BUILDING, FOLDER, INCLUDED, SOURCES, LockError, check_wheels, entries, included, pins

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PYPROJECT["project"]["optional-dependencies"]
OURS = [*PYPROJECT["project"]["dependencies"], *EXTRAS["node"]]
EVERYTHING = [*OURS, *EXTRAS["cli"], *EXTRAS["ui"]]
WANTED = {
    "build.txt": BUILDING.split(),
    "node.txt": OURS,
    "all.txt": EVERYTHING,
    "dev.txt": [*EVERYTHING, *BUILDING.split(), *PYPROJECT["dependency-groups"]["dev"]],
}
"""What a file is for; docs.txt is left out, as this environment may lack its packages, which say what they need."""


@cache
def of_package(name: str) -> list[Requirement]:
    return [Requirement(text) for text in requires(name) or ()]


def needed(requirements: Iterable[str]) -> dict[str, list[Requirement]]:
    """The packages that requirements need on this machine, and what is asked of each, by what is installed here."""
    found: dict[str, list[Requirement]] = {}
    seen: set[tuple[str, str]] = set()
    open_ones = [(Requirement(text), "") for text in requirements]
    while open_ones:
        requirement, extra = open_ones.pop()
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        found.setdefault(name, []).append(requirement)
        for each in {"", *requirement.extras} - {known for package, known in seen if package == name}:
            seen.add((name, each))
            open_ones += [(requirement, each) for requirement in of_package(name)]
    return found


def for_this_machine(name: str) -> set[str]:
    """The packages of a file and what it includes whose marker holds here."""
    lines = [text.splitlines()[0] for each in included(name) for text in entries((FOLDER / each).read_text()).values()]
    written = [Requirement(line.rstrip(" \\")) for line in lines]
    return {canonicalize_name(each.name) for each in written if each.marker is None or each.marker.evaluate()}


@pytest.mark.parametrize("name", WANTED)
def test_a_file_has_what_is_needed_in_versions_that_do(name: str) -> None:
    wanted = needed(WANTED[name])
    assert for_this_machine(name) == set(wanted), "python -m hack.lock writes them anew"
    versions = pins(name)
    for package, requirements in wanted.items():
        for requirement in requirements:
            assert requirement.specifier.contains(versions[package], prereleases=True), (package, str(requirement))


def test_the_generator_of_the_site_is_there_in_a_version_that_does() -> None:
    versions = pins("docs.txt")
    for text in PYPROJECT["dependency-groups"]["docs"]:
        requirement = Requirement(text)
        assert requirement.specifier.contains(versions[canonicalize_name(requirement.name)])


@pytest.mark.parametrize("name", SOURCES)
def test_a_file_has_packages_with_hashes_and_nothing_else(name: str) -> None:
    text = (FOLDER / name).read_text()
    assert re.findall(r"^-r (\S+)$", text, re.MULTILINE) == list(INCLUDED.get(name, ()))
    lines = [line for line in text.splitlines() if not line.startswith(("#", "-r "))]
    assert "\n".join(lines) == "".join(entries(text).values()).rstrip("\n")
    for entry in entries(text).values():
        assert re.fullmatch(r"[^\n]+? \\\n(    --hash=sha256:[0-9a-f]{64}( \\\n|\n|\Z))+", entry), entry


def test_no_package_is_installed_from_two_lines() -> None:
    names = [package for each in included("docs.txt") for package in entries((FOLDER / each).read_text())]
    assert len(names) == len(set(names))


def test_it_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(LockError, match=r"uv isn't on the PATH"):
        check_wheels()
