"""The check of pages finds sentences that are hard to read, and leaves code, links and images alone."""

from __future__ import annotations

import pytest

from hack.check_source import MOST_WORDS, page_faults

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
