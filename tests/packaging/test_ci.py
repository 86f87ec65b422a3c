"""`.ci/run` runs an end-to-end test that fails once more: what passes then is flaky, and the run is green."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from hack.yardstick import loop_milliseconds, shown

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
MAKE = shutil.which("make")
FLAKY = """\
from pathlib import Path
def test_passes(): pass
def test_flaky():
    tried = Path("tried")
    print("the log of a test")
    assert tried.exists() or tried.touch()
"""
BROKEN = "def test_broken(): assert False\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with our Makefile, in which CI's other steps do nothing."""
    (tmp_path / "tests" / "e2e").mkdir(parents=True)
    for name in (".ci/run", "hack/yardstick.py", "Makefile"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / ".venv").symlink_to(Path(sys.executable).parents[1])
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("prometheus", "gcc", "chromium-headless-shell", "ip", "buildah", "debootstrap"):
        (programs / name).symlink_to("/bin/true")
    make = programs / "make"
    make.write_text(f'#!/bin/sh\ncase $1 in e2e*) exec {MAKE} -o .venv/.dev-installed "$@" ;; esac\n')
    make.chmod(0o755)
    return tmp_path


def run(project: Path, tests: Mapping[str, str], **variables: str) -> subprocess.CompletedProcess[str]:
    for name, text in tests.items():
        (project / "tests" / "e2e" / name).write_text(text)
    path = f"{project / 'bin'}:{os.environ['PATH']}"
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "MAKE"))}
    environment |= {"PATH": path, **variables}
    return subprocess.run(
        [project / ".ci" / "run"], env=environment, cwd=project, capture_output=True, text=True, check=False
    )


def test_a_test_that_passes_alone_is_reported_as_flaky_with_its_log(project: Path) -> None:
    summary = project / "summary"
    done = run(project, {"test_a.py": FLAKY, "test_b.py": "def test(): pass\n"}, GITHUB_STEP_SUMMARY=str(summary))
    assert done.returncode == 0, done.stdout + done.stderr
    again = done.stdout.partition("ci: what failed is run once more, alone\n")[2]
    assert "1 passed" in again, "and nothing else is run again"
    flaky = done.stdout.partition("ci: flaky: ")[2]
    assert "the log of a test" in flaky
    assert "FAILED tests/e2e/test_a.py::test_flaky" in flaky
    assert flaky.rpartition("\nci: all took")[0] in summary.read_text()


@pytest.mark.parametrize("broken", [BROKEN, "import nothing_that_exists\n"])
def test_a_test_that_fails_again_fails_the_run(project: Path, broken: str) -> None:
    done = run(project, {"test_a.py": FLAKY, "test_broken.py": broken})
    assert done.returncode != 0
    assert "ci: flaky" not in done.stdout
    assert "ci: end_to_end failed after" in done.stderr


def test_what_failed_in_an_earlier_run_is_not_run_again(project: Path) -> None:
    assert run(project, {"test_broken.py": BROKEN}).returncode != 0
    done = run(project, {"test_broken.py": "def test_broken(): pass\n"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "once more" not in done.stdout


def test_each_step_is_printed_beside_a_fixed_loop(project: Path) -> None:
    done = run(project, {"test_a.py": "def test(): pass\n"})
    steps = [line for line in done.stdout.splitlines() if " took " in line and "all took" not in line]
    assert [line for line in steps if "; a fixed loop takes " not in line] == []
    assert next(line.split()[1:3] for line in steps if "make" in line) == ["make", "lint"], "what is quick comes first"
    assert 1 < loop_milliseconds() < 10_000
    assert shown(41.6) == "a fixed loop takes 42 ms now"
