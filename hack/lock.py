"""Writes `requirements/`, every package's version with the hashes of its files: `python -m hack.lock [--upgrade]`.

build.txt has what builds the wheel; node.txt what it needs with the extra `node`, as in the image; all.txt adds the
other extras, dev.txt and docs.txt the groups of these names. They include each other, so what is installed has each
package from one line.
Versions stay as they are as far as pyproject.toml allows; --upgrade takes the newest of all. It needs uv on the PATH.

Hashes are those of all files of a version. For all but the site it is checked that there is a wheel for each of
`MACHINES` and `PYTHONS`.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "requirements"
HEADER = "# Written by hack/lock.py. Renovate raises versions and their hashes here.\n"
MACHINES = ("x86_64", "aarch64")
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
ENTRY = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>\S+).*?(?=^\S|\Z)", re.MULTILINE | re.DOTALL)
"""A package with its marker and its hashes."""

SOURCES: Mapping[str, Sequence[str]] = {
    "build.txt": (),
    "node.txt": ("--extra", "node"),
    "all.txt": ("--extra", "all"),
    "dev.txt": ("--extra", "all", "--group", "dev"),
    "docs.txt": ("--extra", "all", "--group", "dev", "--group", "docs"),
}
"""The files, and what of pyproject.toml each is for."""
INCLUDED: Mapping[str, Sequence[str]] = {
    "all.txt": ("node.txt",),
    "dev.txt": ("build.txt", "all.txt"),
    "docs.txt": ("dev.txt",),
}
"""The files that a file includes."""
EVERYTHING = "docs.txt"
OLDEST_FOR_SITE = "3.11.5"
"""The generator of the site needs it, and nothing else does."""
BUILDING = "hatchling\neditables\n"
"""What builds the wheel, and installs the working tree in its place."""


class LockError(Exception):
    """Why there are no files, in a sentence."""


def entries(text: str) -> dict[str, str]:
    """The lines of each package in a requirements file, by its normalised name."""
    return {re.sub(r"[-_.]+", "-", found["name"]).lower(): found[0] for found in ENTRY.finditer(text)}


def included(name: str) -> list[str]:
    """A file, after those that it includes, and theirs."""
    return [*(each for other in INCLUDED.get(name, ()) for each in included(other)), name]


def pins(name: str) -> dict[str, str]:
    """The versions that a file and what it includes have now, by normalised name."""
    found = {}
    for each in included(name):
        for package, text in entries((FOLDER / each).read_text()).items():
            match = ENTRY.match(text)
            assert match is not None
            found[package] = match["version"]
    return found


def uv(*arguments: str | Path) -> None:
    program = shutil.which("uv")
    if program is None:
        raise LockError("uv isn't on the PATH; pip, pipx and most distributions install it")
    done = subprocess.run([program, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise LockError(f"uv {arguments[0]} {arguments[1]} failed:\n{done.stderr}".rstrip())


def compiled(sources: Sequence[str | Path], constraints: Path, to: Path, oldest: str) -> dict[str, str]:
    """What pyproject.toml resolves to on any machine with the `oldest` Python or a newer one."""
    universal = ("--universal", "--python-version", oldest, "--generate-hashes", "--no-annotate", "--no-header")
    uv("pip", "compile", "--quiet", *universal, *sources, "--constraint", constraints, "--output-file", to)
    return entries(to.read_text())


def without_windows(found: Mapping[str, str]) -> dict[str, str]:
    """The packages that Linux and macOS need."""
    return {name: text for name, text in found.items() if "sys_platform == 'win32'" not in text}


def resolve(constraints: Path, work: Path) -> dict[str, str]:
    """The text of each file."""
    building = work / "build.in"
    building.write_text(BUILDING)
    constraining = work / "every.txt"
    every = compiled([building, "pyproject.toml", *SOURCES[EVERYTHING]], constraints, constraining, OLDEST_FOR_SITE)
    written: dict[str, dict[str, str]] = {}
    for name, flags in SOURCES.items():
        oldest = OLDEST_FOR_SITE if name == EVERYTHING else PYTHONS[0]
        found = compiled(
            [building] if name == "build.txt" else ["pyproject.toml", *flags], constraining, work / name, oldest
        )
        before = {package for each in included(name)[:-1] for package in written[each]}
        written[name] = without_windows({package: text for package, text in found.items() if package not in before})
    missing = without_windows(every).keys() - {package for found in written.values() for package in found}
    if missing:
        raise LockError(f"no file has {', '.join(sorted(missing))}")
    twice = written["build.txt"].keys() & {*written["node.txt"], *written["all.txt"]}
    if twice:
        raise LockError(f"{', '.join(sorted(twice))} would stand in build.txt and in what the program needs")
    return {
        name: HEADER + "".join(f"-r {each}\n" for each in INCLUDED.get(name, ())) + "".join(found.values())
        for name, found in written.items()
    }


def check_wheels() -> None:
    """Raise a `LockError` if a package has no wheel for one of the machines, or none of the hashes fits."""
    with tempfile.TemporaryDirectory() as target:
        for machine in MACHINES:
            for python in PYTHONS:
                platform = ("--python-platform", f"{machine}-manylinux_2_28", "--python-version", python)
                strict = ("--dry-run", "--no-deps", "--require-hashes", "--only-binary", ":all:", "--target", target)
                uv("pip", "install", *strict, *platform, "-r", FOLDER / "dev.txt")


def main() -> int:
    parser = argparse.ArgumentParser(
        allow_abbrev=False, prog="python -m hack.lock", description="Write requirements/ anew."
    )
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions that pyproject.toml allows")
    arguments = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory() as work:
            constraints = Path(work) / "constraints.txt"
            kept = {} if arguments.upgrade else pins(EVERYTHING)
            constraints.write_text("".join(f"{package}=={version}\n" for package, version in kept.items()))
            for name, text in resolve(constraints, Path(work)).items():
                (FOLDER / name).write_text(text)
        check_wheels()
    except LockError as error:
        print(f"lock: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
