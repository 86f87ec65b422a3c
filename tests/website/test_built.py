"""The site that `make docs` wrote: its pages have what the forge shows, and ask nothing of other servers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest
from chromium import CHROMIUM
from markdown_it import MarkdownIt
from playwright.sync_api import Page, sync_playwright

from hack.website.__main__ import SITE, version
from hack.website.staging import LANGUAGES, ROOT, pages, place, translated

VERSION = SITE / version((ROOT / "CHANGELOG.md").read_text())
FOLDERS = {"en": VERSION, "zh": VERSION / "zh"}
COMPARED = ("h2", "h3", "h4", "li", "table", "tr", "td", "pre", "img", "strong", "em", "blockquote")


class Html(HTMLParser):
    """The elements of a page with their attributes, those of the article apart from the rest."""

    def __init__(self, text: str, article: bool = True) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.in_article: Counter[str] = Counter()
        self._inside = not article
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._inside |= tag == "article"
        self.elements.append((tag, dict(attrs)))
        self.in_article[tag] += self._inside

    def handle_endtag(self, tag: str) -> None:
        self._inside &= tag != "article"


@cache
def html(path: Path) -> Html:
    return Html(path.read_text())


FILES = sorted(VERSION.rglob("*.html"))
SHOWN = [
    pytest.param(folder, page, id=f"{language}: {page}") for language, folder in FOLDERS.items() for page in pages()
]


@pytest.mark.parametrize(("folder", "page"), SHOWN)
def test_a_page_has_what_the_forge_shows(folder: Path, page: str) -> None:
    chinese = ROOT / translated(page)
    source = chinese if folder.name == "zh" and chinese.is_file() else ROOT / page
    forge = Html(MarkdownIt("commonmark").enable("table").render(source.read_text()), article=False).in_article
    site = html(folder / re.sub(r"\.md$", ".html", place(page))).in_article
    note = {"blockquote": 1} if folder.name == "zh" and source == ROOT / page else {}
    assert {tag: site[tag] for tag in COMPARED} == {tag: forge[tag] + note.get(tag, 0) for tag in COMPARED}


def fetched(page: Html) -> Iterator[str]:
    """What a browser asks for to show a page."""
    for tag, attributes in page.elements:
        names = {"link": ["href"], "img": ["src", "srcset"], "use": ["href"], "object": ["data"]}.get(tag, ["src"])
        if tag == "link" and attributes.get("rel") in ("alternate", "canonical", "prev", "next"):
            continue
        yield from (value for name in names if (value := attributes.get(name)))


def test_pages_ask_nothing_of_other_servers() -> None:
    assert len(FILES) > 2 * len(pages())
    for path in FILES:
        assert [
            url for url in fetched(html(path)) if re.match(r"[a-z]+:|//", url) and not url.startswith("data:")
        ] == []
    for path in VERSION.rglob("*.css"):
        assert re.findall(r"(?:@import|url\()\s*[\"']?(?:https?:)?//[^)]*", path.read_text()) == []


def test_links_between_pages_lead_to_a_page_and_its_anchor() -> None:
    ids = {path: {value for _, a in html(path).elements if (value := a.get("id"))} for path in FILES}
    broken = []
    for path in FILES:
        for tag, attributes in html(path).elements:
            target = attributes.get("href") or ""
            if tag != "a" or re.match(r"[a-z]+:", target) or path.name == "404.html":
                continue
            file, _, anchor = unquote(target).partition("#")
            linked = (path.parent / file).resolve() if file else path
            if not linked.is_file() or (anchor and anchor not in ids[linked]):
                broken.append(f"{path.relative_to(VERSION)}: {target}")
    assert broken == []


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    """A page of a browser that reads files alone: what it asks of a server fails the test."""
    asked: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM)
        page = browser.new_page()
        page.on("request", lambda request: asked.append(request.url))
        yield page
        browser.close()
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []


@pytest.mark.parametrize(
    ("language", "words", "expected"),
    [("en", "ledger", "The ledger is in the ResourceQuota"), ("zh", "借用", "多个命名空间")],
)
def test_the_search_works_from_files(language: str, words: str, expected: str, page: Page) -> None:
    page.goto((FOLDERS[language] / "index.html").as_uri())
    page.locator(".md-search__button").click()
    page.locator("dialog[open] input").fill(words)
    page.locator("dialog[open] ol a", has_text=expected).first.wait_for()


def test_a_page_leads_to_itself_in_the_other_language(page: Page) -> None:
    page.goto((VERSION / "spec" / "quota.html").as_uri())
    page.get_by_role("link", name=LANGUAGES["zh"]).click()
    page.wait_for_url("**/zh/spec/quota.html")
    page.get_by_role("link", name=LANGUAGES["en"]).click()
    page.wait_for_url(re.compile(r"(?<!/zh)/spec/quota\.html$"))


def test_the_menu_of_versions_has_those_that_are_there(page: Page) -> None:
    for folder in FOLDERS.values():
        page.goto((folder / "spec" / "quota.html").as_uri())
        assert page.locator(".site-versions").input_value() == VERSION.name
        there = {path.name for path in SITE.iterdir() if path.is_dir()}
        assert set(page.locator(".site-versions option").all_inner_texts()) == there


@pytest.mark.parametrize(
    "name",
    [
        "index",
        "install",
        "metrics",
        "chart-values",
        "security",
        "reference",
        "ui",
        "architecture",
        "spec/core",
        "zh/quotas",
    ],
)
def test_no_page_is_wider_than_a_phone(name: str, page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto((VERSION / f"{name}.html").as_uri())
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    tables = "each => each.filter(e => e.scrollWidth > e.parentElement.clientWidth).map(e => e.textContent)"
    assert page.locator("article table").evaluate_all(tables) == []
