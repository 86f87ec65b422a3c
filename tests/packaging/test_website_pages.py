"""The pages as the site's generator takes them: where links lead, the navigation, Chinese beside English."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt

from hack.website.__main__ import newest_first, version
from hack.website.markdown import code_blocks, headings, in_four_columns
from hack.website.staging import (
    LANGUAGES,
    ROOT,
    BrokenPages,
    Staging,
    chinese_titles,
    navigation,
    pages,
    place,
    translated,
)
from hami_webhook import __version__

IN_CHINESE = [page for page in pages() if (ROOT / translated(page)).is_file()]


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_page_is_in_the_navigation_and_every_link_leads_somewhere(language: str, tmp_path: Path) -> None:
    Staging(language, tmp_path / "docs").write()
    assert navigation(language)


def repository(root: Path, files: dict[str, str]) -> Path:
    (root / "docs" / "images").mkdir(parents=True)
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def staged(root: Path, language: str = "en") -> Path:
    Staging(language, root / language, root).write()
    return root / language


PAGES = {
    "README.md": "# One\n\n[two](docs/two.md#b), [中文](README.zh.md), [`A.b`](src/a.py), [c](https://c.example)\n",
    "README.zh.md": "# 一\n\n[二](docs/two.zh.md#乙)、[English](README.md)、[`A.b`](src/a.py)\n",
    "docs/two.md": "# Two\n\n[one](../README.md)\n\n## B\n\n[here](#b)\n",
    "docs/two.zh.md": "# 二\n\n[一](../README.zh.md)\n\n## 乙\n\n[这里](#乙)\n",
    "docs/three.md": "# Three\n\n![p](images/p.png) `[x](y)`\n",
    "docs/images/p.png": "",
    "src/a.py": "class A:\n    def b(self): ...\n",
}


def test_links_lead_to_their_place_on_the_site(tmp_path: Path) -> None:
    root = repository(tmp_path, PAGES)
    english, chinese = staged(root), staged(root, "zh")
    assert (english / "index.md").read_text() == (
        "# One {#one}\n\n[two](two.md#b), [中文](zh/index.html), "
        "[`A.b`](source/src/a.py.md#__codelineno-0-2), [c](https://c.example)\n"
    )
    assert (chinese / "index.md").read_text() == (
        "# 一 {#one}\n\n[二](two.md#b)、[English](../index.html)、[`A.b`](source/src/a.py.md#__codelineno-0-2)\n"
    )
    assert (chinese / "two.md").read_text() == "# 二 {#two}\n\n[一](index.md)\n\n## 乙 {#b}\n\n[这里](two.md#b)\n"
    assert (english / "three.md").read_text() == "# Three {#three}\n\n![p](images/p.png) `[x](y)`\n"
    assert "中文版" in (chinese / "three.md").read_text()
    assert "def b" in (english / "source" / "src" / "a.py.md").read_text()


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"docs/two.md": "[x](three.md)\n"}, "docs/two.md: three.md is no file of the repository"),
        ({"docs/two.md": "[x](../README.md#two)\n"}, "docs/two.md: README.md has no heading #two"),
        (
            {"docs/two.md": "# Two\n", "docs/two.zh.md": "# 二\n\n## 乙\n"},
            "docs/two.zh.md has 2 headings, and docs/two.md 1",
        ),
    ],
)
def test_what_leads_nowhere_is_named(change: dict[str, str], fault: str, tmp_path: Path) -> None:
    root = repository(tmp_path, {"README.md": "# One\n", **change})
    with pytest.raises(BrokenPages, match=f"^{re.escape(fault)}$"):
        staged(root, "zh")


@pytest.mark.parametrize(
    ("entries", "faults"),
    [
        (["docs/*"], "README.md is in the navigation 0 times, not once"),
        (["README.md", "docs/*", "docs/a.md"], "docs/a.md is in the navigation 2 times, not once"),
        (["README.md", "docs/*", "docs/b.md"], "there is no page docs/b.md"),
    ],
)
def test_a_navigation_that_has_not_each_page_once_is_refused(entries: list[str], faults: str, tmp_path: Path) -> None:
    root = repository(tmp_path, {"README.md": "# One\n", "docs/a.md": "# A\n"})
    with pytest.raises(BrokenPages, match=f"^navigation.yaml: {re.escape(faults)}$"):
        navigation("en", root, entries)


def test_a_page_without_a_chinese_version_has_a_chinese_title_in_the_navigation(tmp_path: Path) -> None:
    files = {
        "README.md": "# One\n",
        "README.zh.md": "# 一\n",
        "docs/a.md": "# A\n",
        "docs/runbooks/HamiX.md": "# HamiX\n",
    }
    root, entries = repository(tmp_path, files), ["README.md", "docs/*", "docs/runbooks/*"]
    found = navigation("zh", root, entries, {"docs/a.md": "甲"})
    assert found == ["index.md", {"甲": "a.md"}, "runbooks/HamiX.md"]
    for titles, fault in (
        ({}, "docs/a.md has no title here"),
        ({"docs/a.md": "甲", "README.md": "一"}, "README.md is no page without a Chinese version"),
    ):
        with pytest.raises(BrokenPages, match=f"^titles.zh.yaml: {re.escape(fault)}$"):
            chinese_titles(root, titles)


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        ("README.md", "index.md"),
        ("docs/a.md", "a.md"),
        ("docs/b/README.md", "b/index.md"),
        ("ROADMAP.md", "project/roadmap.md"),
    ],
)
def test_where_a_page_is_on_the_site(page: str, expected: str) -> None:
    assert place(page) == expected


@pytest.mark.parametrize(
    ("forge", "generator"),
    [
        pytest.param("Text\n- a\n- b\n", "Text\n\n- a\n- b\n", id="a list after a sentence"),
        pytest.param("- a\n  more\n  - b\n    - c\n", "- a\n    more\n    - b\n        - c\n", id="lists in lists"),
        pytest.param(
            "1. a\n   ```\n   x\n     y\n   ```\n", "1. a\n    ```\n    x\n      y\n    ```\n", id="code in a list"
        ),
        pytest.param("- a\n\n  b\n- c\n", "- a\n\n    b\n\n- c\n", id="a paragraph in an item"),
        pytest.param("Text\n| a |\n|---|\n", "Text\n\n| a |\n|---|\n", id="a table after a sentence"),
        pytest.param("- #12: a\n#13 is another\n", "- \\#12: a\n    \\#13 is another\n", id="numbers of issues"),
        pytest.param("```\n#!/bin/sh\n- a\n```\n", "```\n#!/bin/sh\n- a\n```\n", id="code"),
    ],
)
def test_markdown_of_forges_is_written_as_the_generator_reads_it(forge: str, generator: str) -> None:
    assert in_four_columns(forge) == generator


def test_the_newest_release_comes_first_and_what_is_not_released_last() -> None:
    assert newest_first(["0.9.0", "dev", "0.10.0"]) == ["0.10.0", "0.9.0", "dev"]


@pytest.mark.parametrize(
    ("changelog", "name"), [("# Changelog\n\n## Unreleased\n\n- More.\n", "dev"), (f"## {__version__}\n", __version__)]
)
def test_what_a_version_of_the_site_is_called(changelog: str, name: str) -> None:
    assert version(changelog) == name


def structure(page: str) -> dict[str, Any]:
    """What a translation keeps: the number of headings and of rows, names in code, commands without their comments."""
    text = (ROOT / page).read_text()
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    names = Counter(part.content for token in tokens for part in token.children or [] if part.type == "code_inline")
    commands = [
        (language, re.sub(r"(^|\s+)#.*$", "", code, flags=re.MULTILINE)) for language, code in code_blocks(text)
    ]
    rows = sum(token.type == "tr_open" for token in tokens)
    return {"headings": len(headings(text)), "rows": rows, "names": names, "commands": commands}


@pytest.mark.parametrize("page", IN_CHINESE)
def test_a_chinese_page_says_what_the_english_one_says(page: str) -> None:
    assert structure(translated(page)) == structure(page)


def test_there_is_chinese_for_the_pages_that_one_begins_with() -> None:
    assert set(IN_CHINESE) >= {"README.md", "docs/install.md", "docs/quotas.md", "docs/troubleshooting.md"}
