"""The pages: links of the architecture lead to code, citations to sections, comparisons deny nothing that we have."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from document_steps import new_files
from tables import in_one_test

ROOT = Path(__file__).parents[2]
DOCS, PACKAGE = ROOT / "docs", ROOT / "hami_webhook"
TEXT = (DOCS / "architecture.md").read_text()
CODE_LINK = re.compile(r"\[`([\w.]+)`\]\(([^)]+\.py)\)")
STEPS = re.compile(r"^## ([^\n]+), step by step\n(.*?)(?=^## )", re.MULTILINE | re.DOTALL)


@cache
def definitions(path: Path) -> frozenset[str]:
    """The qualified names of the classes and functions that a module defines."""
    found = set()

    def collect(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                found.add(prefix + child.name)
                collect(child, f"{prefix}{child.name}.")

    collect(ast.parse(path.read_text()), "")
    return frozenset(found)


@pytest.mark.parametrize(("name", "path"), sorted(set(CODE_LINK.findall(TEXT))))
def test_what_is_linked_is_defined_there(name: str, path: str) -> None:
    assert name in definitions((DOCS / path).resolve())


@pytest.mark.parametrize(("title", "steps"), STEPS.findall(TEXT), ids=lambda text: text.split("\n")[0])
def test_each_walk_has_at_most_a_dozen_steps_and_each_names_its_function(title: str, steps: str) -> None:
    numbered = re.findall(r"^\d+\. (.+)$", steps, re.MULTILINE)
    assert 1 < len(numbered) <= 12
    assert [step for step in numbered if not CODE_LINK.search(step)] == []


def test_there_are_five_walks_of_which_each_is_drawn_as_a_line_of_packages() -> None:
    titles = [title for title, _ in STEPS.findall(TEXT)]
    assert titles == ["A review", "A placement", "An eviction", "A release from the queue", "A reconcile"]
    lines = re.findall(r"^ (\w+) +((?:\w+ ──► )+\w+) ", TEXT, re.MULTILINE)
    assert [name for name, _ in lines] == [title.split()[1] for title in titles]
    packages = {name for names in first_column("| package | holds | must not know |") for name in names}
    assert [room for _, line in lines for room in line.split(" ──► ") if room not in packages] == []


def test_every_decision_is_listed() -> None:
    pages = {path.name for path in (DOCS / "decisions").glob("0*.md")}
    assert set(re.findall(r"\]\((0[^)]+)\)", (DOCS / "decisions" / "README.md").read_text())) == pages


def first_column(head: str) -> list[list[str]]:
    """What is quoted in the first column of each row of the table with this head."""
    (table,) = re.findall(rf"^{re.escape(head)}\n\|[-|]+\|\n((?:\|.*\n)+)", TEXT, re.MULTILINE)
    return [re.findall(r"`([\w.]+)`", row.split(" | ")[0]) for row in table.splitlines()]


def test_the_table_of_packages_has_each_in_the_order_of_the_contract() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contract = project["tool"]["importlinter"]["contracts"][0]
    layers = [{name.strip() for name in layer.split("|")} for layer in contract["layers"]]
    rows = [set(names) for names in first_column("| package | holds | must not know |")]
    assert rows == layers
    tree = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert set().union(*rows) == tree - {"__init__"}


def remembering(module: Path) -> Iterator[str]:
    """The functions of a module whose last answers functools remembers."""
    text = module.read_text()
    for node in ast.walk(ast.parse(text)) if "cache" in text else ():
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from [node.name for each in node.decorator_list if re.search(r"\b(lru_)?cache\b", ast.unparse(each))]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Call) and "cache" in ast.unparse(node.func.func):
            yield ast.unparse(node.args[0]).rpartition(".")[2]


def test_the_table_of_functions_that_remember_their_answers_is_complete() -> None:
    listed = {name.rpartition(".")[2] for names in first_column("| function | answers | of |") for name in names}
    assert listed - {"_shared"} == {name for path in PACKAGE.rglob("*.py") for name in remembering(path)}


# The specification in docs/spec


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


# The pages that compare deny nothing that we have


DOCS = Path(__file__).parents[2] / "docs"
COMPARISONS = sorted((DOCS / "compare").glob("*.md"))
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


@pytest.mark.parametrize("page", COMPARISONS, ids=lambda page: page.stem)
def test_no_comparison_denies_what_we_have(page: Path) -> None:
    assert len([*said_of_us(page.read_text())]) >= 5
    assert denied(page.read_text()) == []
