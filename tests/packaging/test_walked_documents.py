"""What is said of the documents' commands in tests/walked_documents.py, tests/e2e/test_documents.py can rely on."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from document_steps import blocks
from walked_documents import BEFORE, FAILS, NOT_RUN, PAGES, ROOT, SHOWN, STEPS, commands, path_of


@pytest.mark.parametrize("listed", [NOT_RUN, FAILS, BEFORE], ids=["not run", "fails", "before"])
def test_what_is_said_of_commands_is_said_of_commands_that_are_there(listed: dict[str, dict[str, object]]) -> None:
    stale = [(page, each) for page, said in listed.items() for each in said if each not in commands(ROOT / page)]
    assert stale == []


def test_what_is_run_elsewhere_is_named_by_a_test_that_is_there() -> None:
    reasons = [*STEPS.values(), *(reason for said in (*NOT_RUN.values(), *SHOWN.values()) for reason in said.values())]
    named = [
        found for reason in reasons for found in re.findall(r"(tests/[\w/]+\.py|docs/[\w.-]+\.md)(?:::(\w+))?", reason)
    ]
    assert named
    missing = [f"{path}::{test}" for path, test in named if not defined(ROOT / path, test)]
    assert missing == []


def test_what_another_page_runs_is_run_there() -> None:
    said = [
        (command.partition(" #")[0].rstrip(), page)
        for reasons in NOT_RUN.values()
        for command, reason in reasons.items()
        for page in re.findall(r"^(docs/\S+\.md) runs it$", reason)
    ]
    assert said
    missing = [each for each, page in said if each not in set(commands(ROOT / page)) - NOT_RUN[page].keys()]
    assert missing == []


def defined(path: Path, test: str) -> bool:
    return path.is_file() and f"def {test}" in path.read_text() if test else path.is_file()


def test_an_output_that_is_an_example_is_there() -> None:
    shown = {page: {block.text.splitlines()[0] for block in blocks((ROOT / page).read_text())} for page in SHOWN}
    assert [(page, line) for page, lines in SHOWN.items() for line in lines if line not in shown[page]] == []


def test_commands_are_in_blocks_that_say_so() -> None:
    programs = r"(?m)^(?:make|kubectl|helm|hami-webhook|hack/\S+|docker|\.venv/bin/\S+) (?![^\n]*(?:\[|──))"
    unmarked = [
        (path_of(page), block.text.splitlines()[0])
        for page in PAGES
        for block in blocks(page.read_text())
        if not block.language and re.match(programs, block.text)
    ]
    assert unmarked == []
