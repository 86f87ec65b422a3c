"""The specification in docs/spec: what code, tests and documents cite of it is there."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from document_steps import new_files
from tables import in_one_test

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "spec").glob("*.md"))
FOLDERS = ("hami_webhook", "tests", "hack", "docs", "manifests")
CITATION = re.compile(r"docs/spec/([\w-]+\.md)(?:#([\w.-]*\w))?")
ANCHOR = re.compile(r'^<a id="([^"]+)"></a>$', re.MULTILINE)
NUMBERED = re.compile(r"^#{2,4} ([A-D]?\d+(?:\.\d+)*)\.? ", re.MULTILINE)


def anchors(page: str) -> list[str]:
    return ANCHOR.findall((ROOT / "docs" / "spec" / page).read_text())


def texts() -> list[Path]:
    found = [
        path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".md", ".yaml")
    ]
    return [*sorted(found), ROOT / "README.md", ROOT / "CHANGELOG.md"]


def test_every_citation_names_a_section_that_exists() -> None:
    cited = [(path, match) for path in texts() for match in CITATION.finditer(path.read_text())]
    assert cited
    for path, match in cited:
        page, section = match.groups()
        if path.suffix == ".md" and match[0] in new_files(path.read_text()):
            continue
        assert (ROOT / "docs" / "spec" / page).exists(), (path, match[0])
        assert section is None or section in anchors(page), (path, match[0])


@in_one_test("page", PAGES)
def test_every_numbered_section_has_an_anchor_of_its_number(page: Path) -> None:
    plain = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    known = anchors(page.name)
    assert [section for section in NUMBERED.findall(plain) if section not in known] == []
    assert [anchor for anchor, times in Counter(known).items() if times > 1] == []


VENDORS = sorted((ROOT / "hami_webhook" / "devices" / "vendors").glob("[a-z]*"))


def test_every_page_is_in_the_index_or_a_vendors() -> None:
    index = (ROOT / "docs" / "spec" / "README.md").read_text()
    index += "".join(
        path.read_text() for vendor in VENDORS for path in [vendor, *vendor.glob("*.py")] if path.is_file()
    )
    assert [
        page.name for page in PAGES if not re.search(rf"[`/]{page.name}\b", index) and page.name != "README.md"
    ] == []


@in_one_test("vendor", VENDORS)
def test_every_vendor_names_its_page(vendor: Path) -> None:
    modules = [vendor] if vendor.is_file() else vendor.glob("*.py")
    assert any(CITATION.search(module.read_text()) for module in modules)
