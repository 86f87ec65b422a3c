"""The pages that compare deny nothing that we have: none of our cells says no to a feature of the glossary."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted((DOCS / "compare").glob("*.md"))
FEATURES = {
    "queue": r"\bqueues?\b|\bwaits?\b",
    "pod group": r"\bgangs?\b|\bpod groups?\b|\bstart together\b",
    "nominal": r"\blend|\bborrow",
    "reclaim": r"\btak(?:es|ing) back\b|\breclaim",
    "claim": r"\bDRA\b|\bclaims?\b|\bResourceClaims?\b",
    "nomination": r"\bpreemption\b",
    "AcceleratorQuota": r"\bseveral namespaces\b",
    "observed": r"\bobserve\b",
}
"""What the glossary has of each feature, and the words by which the pages name it."""
DENIAL = re.compile(r"(?:none|no|never|not yet|doesn't)\b", re.IGNORECASE)
Said = tuple[str, str]
"""What a cell or a line is about, and what it says of us."""


def said_of_us(text: str) -> Iterator[Said]:
    """What tables and lists of denials say of hami-webhook; a table has it in a row of its own, or in a column."""
    for table in re.findall(r"(?:^\|.*\n?)+", text, re.MULTILINE):
        head, _, *rows = (
            [cell.strip() for cell in line.strip().strip("|").split(" | ")] for line in table.splitlines()
        )
        for row in rows:
            if row[0] == "hami-webhook":
                yield from zip(head[1:], row[1:], strict=True)
            elif head[-1] == "hami-webhook":
                yield row[0], row[-1]
    for line in re.findall(r"^- (.*)$", text, re.MULTILINE):
        subject = re.split(r"[:.]", line)[0]
        yield subject, subject
        for denial in re.findall(r"\bwe (?:count none|don't [^.,]*)", line):
            yield line, denial.replace("we ", "").replace("count ", "")


def denied(text: str) -> list[Said]:
    """What of our features a page says that we don't have."""
    return [
        (subject, saying)
        for subject, saying in said_of_us(text)
        if re.match(DENIAL, saying) and any(re.search(words, subject, re.IGNORECASE) for words in FEATURES.values())
    ]


def test_each_feature_is_in_the_glossary() -> None:
    glossary = (DOCS / "glossary.md").read_text()
    assert [feature for feature in FEATURES if f"**{feature}**" not in glossary] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_comparison_denies_what_we_have(page: Path) -> None:
    assert len([*said_of_us(page.read_text())]) >= 5
    assert denied(page.read_text()) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("| | Kueue | hami-webhook |\n|---|---|---|\n| **gangs** | yes | none; see below |\n", 1),
        ("| | Kueue | hami-webhook |\n|---|---|---|\n| **gangs** | none | pod groups |\n", 0),
        ("| | waits in order |\n|---|---|\n| hami-webhook | no |\n| HAMi | no |\n", 1),
        ("- No queue of jobs: pods wait.\n", 1),
        ("- Cover several clusters: each quota covers one cluster.\n", 0),
        ("- Your pods ask for devices with ResourceClaims: HAMi-DRA is for that, we count none.\n", 1),
    ],
)
def test_a_denial_is_found(text: str, found: int) -> None:
    assert len(denied(text)) == found
