"""Completion by kubectl's convention for plugins."""

from __future__ import annotations

import pytest

from hami_webhook.kubectl.completion import main


@pytest.mark.parametrize(
    ("words", "candidates", "directive"),
    [
        (["quo"], ["quota"], ":4"),
        (["explain", ""], ["pod", "quota", "node"], ":4"),
        (["quota", "-n", "team-a", "--wat"], ["--watch"], ":4"),
        (["quota", "-o", ""], ["json", "yaml", "wide"], ":4"),
        (["quota", "-o", "w"], ["wide"], ":4"),
        (["quota", "--wat"], ["--watch"], ":4"),
        (["simulate", ""], [], ":0"),
        (["quota", "-n", ""], [], ":0"),
    ],
)
def test_candidates(
    capsys: pytest.CaptureFixture[str], words: list[str], candidates: list[str], directive: str
) -> None:
    assert main(words) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert ([line.partition("\t")[0] for line in lines], last) == (candidates, directive)
