"""The pages of the repository as the generator of the site takes them: one folder of Markdown for each language.

Pages keep the links that work on a forge. Here a link to another page becomes one to its place on the site, and a link
to a file of the source becomes one to a page that shows it. What leads nowhere is an error.
"""

from __future__ import annotations

import ast
import posixpath
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import yaml

from hack.website.markdown import anchors, headings, in_four_columns, replace_links, with_anchors

ROOT = Path(__file__).parents[2]
NAVIGATION = Path(__file__).parent / "navigation.yaml"
CHINESE_TITLES = Path(__file__).parent / "titles.zh.yaml"
ALERTS = "docs/runbooks/Hami"
"""How the paths of runbooks begin: each has the name of its alert."""
LANGUAGES = {"en": "English", "zh": "简体中文"}
ONLY_IN_ENGLISH = "> 本页暂无中文版，以下为英文原文。"

Navigation = list[Any]
"""As the generator takes it: paths, and mappings of a section's title to its own navigation."""


class BrokenPages(Exception):
    """What has to be mended before the site can be built, a line each."""


def pages(root: Path = ROOT) -> list[str]:
    """The English pages of the repository, as paths in it."""
    found = [*root.glob("*.md"), *(root / "docs").rglob("*.md")]
    return sorted(path.relative_to(root).as_posix() for path in found if not path.name.endswith(".zh.md"))


def translated(page: str) -> str:
    """The Chinese page of an English one, whether or not there is one."""
    return page.removesuffix(".md") + ".zh.md"


def place(page: str) -> str:
    """Where a page is on the site."""
    folder, name = posixpath.split(page.removeprefix("docs/"))
    if name == "README.md":
        return posixpath.join(folder, "index.md")
    return posixpath.join(folder, name) if page.startswith("docs/") else f"project/{name.lower()}"


def chinese_titles(root: Path = ROOT, titles: dict[str, str] | None = None) -> dict[str, str]:
    """The titles of the pages that have no Chinese version, in the Chinese site's navigation.

    Raises:
        BrokenPages: such a page has none, or there is no such page.
    """
    found = yaml.safe_load(CHINESE_TITLES.read_text()) if titles is None else titles
    english = {page for page in pages(root) if not (root / translated(page)).is_file() and not page.startswith(ALERTS)}
    faults = [f"{page} has no title here" for page in sorted(english - found.keys())]
    faults += [f"{page} is no page without a Chinese version" for page in sorted(found.keys() - english)]
    if faults:
        raise BrokenPages("\n".join(f"{CHINESE_TITLES.name}: {fault}" for fault in faults))
    return found


def navigation(
    language: str, root: Path = ROOT, entries: list[Any] | None = None, titles: dict[str, str] | None = None
) -> Navigation:
    """The tree of `navigation.yaml`, with its patterns resolved to the pages that are there.

    Raises:
        BrokenPages: a page is not in it, or more than once, or an entry names none; or a page has no Chinese title.
    """
    own_titles = chinese_titles(root, titles) if language == "zh" else {}
    known = pages(root)
    listed: Counter[str] = Counter()
    faults = []

    def resolved(entry: Any) -> Iterator[Any]:
        if isinstance(entry, dict):
            yield {entry["title"][language]: [item for inner in entry["pages"] for item in resolved(inner)]}
            return
        found = [page for page in known if Path("/", page).match(f"/{entry}")]
        if not found:
            faults.append(f"there is no page {entry}")
        listed.update(found)
        for page in sorted(found, key=lambda page: (not page.endswith("README.md"), page)):
            yield {own_titles[page]: place(page)} if page in own_titles else place(page)

    written = yaml.safe_load(NAVIGATION.read_text()) if entries is None else entries
    tree = [item for entry in written for item in resolved(entry)]
    faults += [f"{page} is in the navigation {listed[page]} times, not once" for page in known if listed[page] != 1]
    if faults:
        raise BrokenPages("\n".join(f"{NAVIGATION.name}: {fault}" for fault in faults))
    return tree


@cache
def _anchors(file: Path) -> set[str]:
    return anchors(file.read_text())


@cache
def _heading_anchors(file: Path) -> list[str]:
    return [heading.anchor for heading in headings(file.read_text())]


@cache
def _definitions(module: Path) -> dict[str, int]:
    """The lines of a module's classes and functions, by qualified name."""
    found: dict[str, int] = {}

    def collect(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                found[prefix + child.name] = child.lineno
                collect(child, f"{prefix}{child.name}.")

    collect(ast.parse(module.read_text()), "")
    return found


@dataclass
class Staging:
    """The pages of one language in a folder."""

    language: str
    folder: Path
    root: Path = ROOT
    shown: set[str] = field(default_factory=set)
    """Files of the source that pages link to."""
    faults: list[str] = field(default_factory=list)

    @cached_property
    def known(self) -> list[str]:
        return pages(self.root)

    def write(self) -> None:
        """Write all pages, and all that they show.

        Raises:
            BrokenPages: links lead nowhere.
        """
        for page in self.known:
            self._write(place(page), self._staged(page))
        if self.faults:
            raise BrokenPages("\n".join(self.faults))
        for source in sorted(self.shown):
            self._write(f"source/{source}.md", _source_page(source, (self.root / source).read_text()))
        shutil.copytree(self.root / "docs" / "images", self.folder / "images")

    def _write(self, target: str, text: str) -> None:
        path = self.folder / target
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def _file(self, page: str) -> str:
        """The file that has the page in this language."""
        chinese = translated(page)
        return chinese if self.language == "zh" and (self.root / chinese).is_file() else page

    def _staged(self, page: str) -> str:
        file = self._file(page)
        text = (self.root / file).read_text()
        written = _heading_anchors(self.root / page)
        if len(headings(text)) != len(written):
            self.faults.append(f"{file} has {len(headings(text))} headings, and {page} {len(written)}")
            return text
        text = with_anchors(text, written)
        text = replace_links(text, lambda label, target: self._target(page, file, label, target))
        if self.language == "zh" and file == page:
            title, _, rest = text.partition("\n")
            text = f"{title}\n\n{ONLY_IN_ENGLISH}\n{rest}"
        return in_four_columns(text)

    def _target(self, page: str, file: str, label: str, target: str) -> str:
        """Where a link that stands in a file leads on the site."""
        if re.match(r"[a-z]+:", target):
            return target
        path, _, anchor = target.partition("#")
        linked = posixpath.normpath(posixpath.join(posixpath.dirname(file), path)) if path else file
        if not (self.root / linked).is_file():
            self.faults.append(f"{file}: {target} is no file of the repository")
            return target
        english = re.sub(r"\.zh\.md$", ".md", linked)
        if english in self.known:
            return self._page_target(page, file, linked, english, anchor)
        if linked.startswith("docs/images/"):
            return _relative(page, linked.removeprefix("docs/"))
        self.shown.add(linked)
        line = _definitions(self.root / linked).get(label.strip("`")) if linked.endswith(".py") else None
        return _relative(page, f"source/{linked}.md") + (f"#__codelineno-0-{line}" if line else "")

    def _page_target(self, page: str, file: str, linked: str, english: str, anchor: str) -> str:
        if anchor and anchor not in _anchors(self.root / linked):
            self.faults.append(f"{file}: {linked} has no heading #{anchor}")
            return linked
        if english == page and linked != file:  # the page itself in the other language
            other = "zh" if self.language == "en" else ".."
            return _relative(page, f"{other}/{place(page)}").removesuffix(".md") + ".html"
        if linked != english and anchor in (own := _heading_anchors(self.root / linked)):
            anchor = _heading_anchors(self.root / english)[own.index(anchor)]
        return _relative(page, place(english)) + (f"#{anchor}" if anchor else "")


def _relative(page: str, target: str) -> str:
    return posixpath.relpath(target, posixpath.dirname(place(page)) or ".")


def _source_page(source: str, text: str) -> str:
    """A page that shows a file, and that the search doesn't find."""
    fence = "`" * max(3, 1 + max(map(len, re.findall(r"^`+", text, re.MULTILINE)), default=0))
    language = {".py": "python", ".yaml": "yaml", ".md": "markdown"}.get(Path(source).suffix, "text")
    return f'---\nsearch: {{exclude: true}}\n---\n\n# {source}\n\n{fence} {{.{language} linenums="1"}}\n{text}{fence}\n'
