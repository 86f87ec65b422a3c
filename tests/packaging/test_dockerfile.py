"""The Dockerfile, as far as it can be checked without a container engine."""

from __future__ import annotations

import os
import re
import subprocess
from fnmatch import fnmatch
from pathlib import Path

import pytest

from hami_webhook import __version__

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


def image_arguments(**variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHON_DIGEST": "", "SOURCE": "", **variables}
    command = (ROOT / "hack" / "image", "arguments")
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)


def test_both_stages_are_made_of_the_base_image_that_the_arguments_name() -> None:
    assert [words[0] for words in instructions("FROM")] == ["python:${PYTHON}", "python:${PYTHON}", "root"]
    digest = "sha256:" + "a1" * 32
    done = image_arguments(PYTHON_DIGEST=digest)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"--build-arg=PYTHON=3.14-slim-trixie@{digest}" in done.stdout.splitlines()
    assert f"--label=org.opencontainers.image.base.digest={digest}" in done.stdout.splitlines()


def test_an_image_says_what_it_is_made_of() -> None:
    done = image_arguments(SOURCE="https://example.org/hami-webhook")
    assert done.returncode == 0
    assert done.stderr == (
        "image: the base image is whatever the tag 3.14-slim-trixie is today; "
        "PYTHON_DIGEST=sha256:… names its content\n"
    )
    labels = dict(line.removeprefix("--label=").split("=", 1) for line in done.stdout.splitlines() if "label" in line)
    created = labels.pop("org.opencontainers.image.created")
    assert re.fullmatch(r"2\d{3}-\d\d-\d\dT\d\d:\d\d:\d\dZ", created)
    revision = labels.pop("org.opencontainers.image.revision")
    assert f"--build-arg=REVISION={revision}" in done.stdout.splitlines()
    assert labels == {
        "org.opencontainers.image.version": __version__,
        "org.opencontainers.image.source": "https://example.org/hami-webhook",
    }
    for name in ("title", "description", "licenses"):
        assert f"org.opencontainers.image.{name}=" in DOCKERFILE


@pytest.mark.parametrize("digest", ["sha256:12", "latest", "@sha256:" + "a1" * 32])
def test_a_digest_that_is_none_is_refused(digest: str) -> None:
    done = image_arguments(PYTHON_DIGEST=digest)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"image: PYTHON_DIGEST must be sha256: and 64 hexadecimal digits, not {digest}\n"


def test_every_package_is_a_wheel_with_a_hash() -> None:
    (command,) = [line for line in DOCKERFILE.splitlines() if line.startswith("RUN")]
    for step in command.split("&&"):
        if " install " in step and "/wheels/*.whl" not in step:
            assert "--no-deps --require-hashes --only-binary :all:" in " ".join(step.split())
        if " wheel " in step:
            assert "--no-deps --no-build-isolation" in step
