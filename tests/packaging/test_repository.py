"""What strangers need to adopt the repository: files, web files of others, pages and manual pages to read."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from hack.check_source import MOST_WORDS, page_faults
from hack.man_pages import escaped, leaves, write
from hack.vendor_web import FILES, SUMS, VENDORED, sums
from hami_webhook import cli
from hami_webhook.kubectl.main import parser as kubectl_parser
from hami_webhook.terminal import Parser

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


# What the web pages load from other projects is what their packages have


def test_the_copies_are_those_of_the_packages_with_their_licences() -> None:
    assert sums() == SUMS.read_text()
    assert {file.name for file in VENDORED.iterdir()} == set(FILES.values())
    assert all((VENDORED / f"{name.split('.')[0]}.LICENSE").exists() for name in FILES.values())


# The check of pages finds sentences that are hard to read, and leaves code, links and images alone


LONG = "a word " * (MOST_WORDS // 2) + "more."


@pytest.mark.parametrize(
    ("page", "faults"),
    [
        pytest.param(f"Say {LONG}\n", 1, id="a long sentence"),
        pytest.param(f"- one\n- {LONG}\n  {LONG}\n", 0, id="each sentence has its own length"),
        pytest.param(f"- one: b\n- Say {LONG[:-5]}\n  more.\n", 1, id="a sentence over two lines"),
        pytest.param(f"| a | {LONG[:-1]} {LONG} |\n|---|---|\n", 1, id="a cell"),
        pytest.param(f"a\n```text\n{LONG} {LONG[:-1]} {LONG}\n```\nb\n", 0, id="code"),
        pytest.param(f"1. a\n   ```\n   {LONG[:-1]} {LONG}\n   ```\n", 0, id="code in a list"),
        pytest.param(f"![{LONG[:-1]} {LONG}](a.png)\n", 0, id="an image"),
        pytest.param(f"`{LONG[:-1]} {LONG}` [a](b.md)\n", 0, id="a word of code"),
        pytest.param(f"[{LONG[:-1]} {LONG}](b.md)\n", 1, id="the words of a link"),
        pytest.param("It is made anew.\n", 1, id="an obscure word"),
        pytest.param("Pods wait, or are refused else.\n", 1, id="else at the end"),
        pytest.param("Everything else waits.\n", 0, id="else before a verb"),
        pytest.param("Who may list pods sees them.\n", 1, id="a clause as subject"),
        pytest.param("Who reads this?\n", 0, id="a question"),
        pytest.param("## What a pod costs\n", 0, id="a heading"),
    ],
)
def test_the_sentences_of_a_page_that_are_hard_to_read_are_named(page: str, faults: int) -> None:
    assert len([*page_faults("docs/a.md", page)]) == faults


# The manual pages


MANUALS = {"hami-webhook.1": cli.parser(), "kubectl-hami.1": kubectl_parser()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("man")
    write(found, 1_767_225_600)
    return found


@pytest.mark.parametrize(("name", "parser"), MANUALS.items())
def test_a_page_has_every_verb_with_its_flags(folder: Path, name: str, parser: Parser) -> None:
    text = (folder / name).read_text()
    assert '1 "2026-01-01"' in text.splitlines()[0]
    found = [verb for verb, _ in leaves(parser)]
    assert len(found) > 5
    for verb in found:
        (section,) = re.findall(
            rf"^\.SS {re.escape(escaped(verb.prog.removeprefix(parser.prog).strip()))}\n(.*?)(?=^\.S|\Z)",
            text,
            re.M | re.S,
        )
        flags = {flag for action in verb._actions for flag in action.option_strings} - {"-h", "--help"}
        assert [flag for flag in sorted(flags) if rf"\fB{escaped(flag)}\fR" not in section] == []
        assert "SUPPRESS" not in section


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff reads them")
@pytest.mark.parametrize("name", MANUALS)
def test_groff_reads_a_page_without_a_warning(folder: Path, name: str) -> None:
    done = subprocess.run(["groff", "-man", "-ww", "-z", folder / name], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_text_is_never_a_request() -> None:
    assert escaped(".TH\n'x\\n – a-b") == "\\&.TH\n\\(aqx\\en \\[u2013] a\\-b"
