"""The Dockerfile, as far as it can be checked without a container engine."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
IGNORED = (ROOT / ".dockerignore").read_text().split()


def instructions(name: str) -> list[list[str]]:
    return [line.split()[1:] for line in DOCKERFILE.splitlines() if line.startswith(f"{name} ")]


def copied() -> list[str]:
    """What is copied from the build context."""
    return [path for words in instructions("COPY") if not words[0].startswith("--from") for path in words[:-1]]


def test_every_copied_file_is_there_and_part_of_the_context() -> None:
    kept = [pattern[1:] for pattern in IGNORED if pattern.startswith("!")]
    assert copied()
    for path in copied():
        assert (ROOT / path).exists(), path
        assert any(fnmatch(path, pattern) for pattern in kept), path


def test_the_context_has_nothing_that_is_not_copied() -> None:
    assert {pattern[1:] for pattern in IGNORED if pattern.startswith("!")} == set(copied())


def test_it_ends_without_root_and_without_build_tools() -> None:
    _, root, last = re.split(r"^FROM ", DOCKERFILE, flags=re.MULTILINE)[1:]
    assert "AS root" in root
    assert "USER" not in root
    assert "RUN" not in root
    assert last.split() == ["root", "USER", "65532:65532"]
    assert instructions("ENTRYPOINT") == [['["hami-webhook"]']]


def test_the_image_has_what_every_pod_of_the_chart_runs() -> None:
    assert ["EXTRAS=node"] in instructions("ARG")
    assert '-r "requirements/$EXTRAS.txt"' in DOCKERFILE


def test_every_package_is_a_wheel_with_a_hash() -> None:
    (command,) = [line for line in DOCKERFILE.splitlines() if line.startswith("RUN")]
    for step in command.split("&&"):
        if " install " in step and "/wheels/*.whl" not in step:
            assert "--no-deps --require-hashes --only-binary :all:" in " ".join(step.split())
        if " wheel " in step:
            assert "--no-deps --no-build-isolation" in step
