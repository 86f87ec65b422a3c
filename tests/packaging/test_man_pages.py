"""The manual pages: every verb and flag of the parsers is there, and groff reads them without a warning."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from hack.man_pages import escaped, leaves, write
from hami_webhook import cli
from hami_webhook.kubectl.main import parser as kubectl_parser
from hami_webhook.terminal import Parser

PAGES = {"hami-webhook.1": cli.parser(), "kubectl-hami.1": kubectl_parser()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("man")
    write(found, 1_767_225_600)
    return found


@pytest.mark.parametrize(("name", "parser"), PAGES.items())
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
@pytest.mark.parametrize("name", PAGES)
def test_groff_reads_a_page_without_a_warning(folder: Path, name: str) -> None:
    done = subprocess.run(["groff", "-man", "-ww", "-z", folder / name], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_text_is_never_a_request() -> None:
    assert escaped(".TH\n'x\\n – a-b") == "\\&.TH\n\\(aqx\\en \\[u2013] a\\-b"
