"""The commands in the documents can be typed: their targets, verbs, flags, variables and files exist."""

from __future__ import annotations

import operator
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from functools import cache, reduce
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from document_steps import new_files
from tables import in_one_test

from hack import release
from hack.render_reference import pages
from hami_webhook.cli import main
from hami_webhook.kubectl.main import main as kubectl_hami

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = frozenset(re.findall(r"^([a-z0-9-]+):.*## ", MAKEFILE, re.MULTILINE))
SCRIPTS = MAKEFILE + "".join(path.read_text() for path in sorted((ROOT / "hack").iterdir()) if path.is_file())

OF_OTHERS = {
    "cd",
    "cp",
    "docker",
    "export",
    "git",
    "grep",
    "helm",
    "kubectl",
    "openssl",
    "pip",
    "printf",
    "sed",
    "sha256sum",
}
"""Programs whose command lines aren't checked here."""

VALUES = yaml.safe_load((ROOT / "manifests" / "chart" / "values.yaml").read_text())

Command = list[str]


def commands(page: Path) -> Iterator[Command]:
    """The words of every simple command in a page's shell blocks, and of those in sentences."""
    text = page.read_text()
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    lines += re.findall(r"`((?:make|hami-webhook|kubectl|helm|hack/[\w-]+) [^`]+)`", text)
    for line in lines:
        substituted = re.sub(r"\$\(([^)]*)\)", "VALUE", line)
        for part in (substituted, *re.findall(r"\$\(([^)]*)\)", line)):
            for simple in re.split(r"\s(?:&&|\|\||\||;)\s", re.sub(r"(^|\s)#.*", "", part)):
                words = shlex.split(simple)
                while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                    del words[0]
                if words and not words[0].startswith("-"):  # a flag on its own
                    yield words


COMMANDS = [
    pytest.param(page, words, id=f"{page.stem}: {shlex.join(words)}"[:90]) for page in PAGES for words in commands(page)
]


def named_files(words: Command) -> Iterator[str]:
    """The files of this project, and of its releases, that a command names."""
    for word in words:
        for path in re.split("[=,]", word):
            if re.match(r"(manifests|hack|docs|certs|tests|dist)/", path) or re.fullmatch(r"install[\w-]*\.yaml", path):
                yield path


def known_file(path: str) -> bool:
    return (ROOT / path).exists() or path.removeprefix("dist/") in {
        *release.OVERLAYS,
        "SHA256SUMS",
        "sbom.cdx.json",
        "provenance.intoto.json",
        "krew.yaml",
    }


@cache
def kubectl_help(*words: str) -> str:
    done = subprocess.run(["kubectl", *words], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def check_make(words: Command) -> None:
    for word in words[1:]:
        name, value, _ = word.partition("=")
        if value or "=" in word:
            assert re.search(rf"\b{name}\b", SCRIPTS), f"nothing reads {name}"
        else:
            assert word in TARGETS, f"no target {word}"


def check_kubectl(words: Command) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl knows its flags")
    flags = [word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)]
    values = {after for flag, after in pairwise(words) if flag in {"-n", "-f", "-k", "-l", "-o"}}
    plain = [word for word in words[1:] if not word.startswith("-") and word not in values]
    known = kubectl_help(*plain, "--help") + kubectl_help("options")
    assert [flag for flag in flags if not re.search(rf"(?m)(^|[ ,]){flag}[=,]", known)] == []


def check_helm(words: Command) -> None:
    """The values that are set in our chart are values of it."""
    if "manifests/chart" in words:
        for option, pairs in pairwise(words):
            if option in {"--set", "--set-file"}:
                for path in re.findall(r"(?:^|,)([^=]+)=", pairs):
                    reduce(operator.getitem, path.split("."), VALUES)


def check_ours(program: Callable[[Sequence[str]], int], arguments: Command, capsys: pytest.CaptureFixture[str]) -> None:
    """The verbs and flags are the program's; a sentence may leave the rest out."""
    with pytest.raises(SystemExit):
        program([*arguments, "--help-is-not-a-flag"])
    message = capsys.readouterr().err
    assert "unrecognized arguments: --help-is-not-a-flag" in message or "arguments are required" in message, message


@pytest.mark.integration
@pytest.mark.parametrize(("page", "words"), COMMANDS)
def test_a_command_can_be_typed(page: Path, words: Command, capsys: pytest.CaptureFixture[str]) -> None:
    made = new_files(page.read_text())
    assert [path for path in named_files(words) if path not in made and not known_file(path)] == []
    program = words[0]
    if program == "make":
        check_make(words)
    elif words[:2] == ["kubectl", "hami"]:
        check_ours(kubectl_hami, words[2:], capsys)
    elif program == "kubectl" and words[1] != "krew":
        check_kubectl(words)
    elif program == "hami-webhook":
        check_ours(main, words[1:], capsys)
    elif program.startswith("hack/"):
        script = ROOT / program
        assert os.access(script, os.X_OK)
        assert len(words) == 1 or words[1] in script.read_text(), f"{program} knows no {words[1]}"
    elif program == "helm":
        check_helm(words)
    elif program.endswith("python"):
        assert find_spec(words[2]) is not None
    else:
        assert program in OF_OTHERS


@in_one_test("page", PAGES)
def test_the_files_of_the_project_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text()
    made = new_files(text)
    named = re.findall(r"`((?:manifests|hack|docs|certs|tests|hami_webhook)/[\w./-]+)`", text)
    assert [path for path in named if path not in made and not (ROOT / path).exists()] == []


@pytest.mark.parametrize(("page", "rendered"), pages().items(), ids=lambda value: getattr(value, "name", ""))
def test_the_reference_is_as_rendered(page: Path, rendered: str) -> None:
    assert page.read_text() == rendered, "make render writes it"
