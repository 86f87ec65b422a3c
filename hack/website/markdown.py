"""Markdown as forges read it (GFM), and the same text for a reader of the older dialect of Python-Markdown.

The pages of `docs/` are written for a forge. The site's generator reads nested items at four columns, and no list that
follows a sentence without a blank line; `in_four_columns` writes them so. A test compares what both make of each page.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, pairwise

from markdown_it import MarkdownIt
from markdown_it.token import Token

_SENTENCES = MarkdownIt("commonmark")
_BLOCKS = MarkdownIt("commonmark").enable("table").disable("inline")
"""What is in a sentence takes half the time of a page, and only headings are asked for it."""
_ANCHOR = re.compile(r'<a id="([^"]+)"></a>')
_TARGET = re.compile(r"(?:\[(?P<label>[^\[\]]*))?(?P<middle>\]\()(?P<target>[^()\s]+)\)")
_SPAN = re.compile(r"(?<!`)(`+)(?!`)(?:(?!\n\n).)+?(?<!`)\1(?!`)", re.DOTALL)
_NO_HEADING = re.compile(r"^((?:[-*+] +|\d+[.)] +)*)#(?=[^# ])")
"""What Python-Markdown reads as a heading, and forges don't: a number of an issue at the start of a line."""
_MARKER = re.compile(r" *(?:[-*+]|\d+[.)])(?: {1,4}(?! )|$)")


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading with its line, counted from 0, and the anchor that a forge gives it."""

    line: int
    title: str
    anchor: str


@cache
def _blocks(text: str) -> list[Token]:
    return _BLOCKS.parse(text)


@cache
def headings(text: str) -> list[Heading]:
    """The headings of a page, in order."""
    seen: Counter[str] = Counter()
    found = []
    for opening, inline in pairwise(_blocks(text)):
        if opening.type == "heading_open" and opening.map:
            (parsed,) = _SENTENCES.parseInline(inline.content)
            words = "".join(token.content for token in parsed.children or [] if token.type in ("text", "code_inline"))
            slug = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
            found.append(Heading(opening.map[0], inline.content, f"{slug}-{seen[slug]}" if seen[slug] else slug))
            seen[slug] += 1
    return found


def anchors(text: str) -> set[str]:
    """What a link to this page may name: its headings, and what it marks itself."""
    return {heading.anchor for heading in headings(text)} | set(_ANCHOR.findall(text))


def code_blocks(text: str) -> list[tuple[str, str]]:
    """The language and the text of each fenced block."""
    return [(token.info.strip(), token.content) for token in _blocks(text) if token.type == "fence"]


def _code(text: str) -> list[tuple[int, int]]:
    """Where the code of a page is, as offsets: blocks, and spans in sentences."""
    lines = text.splitlines(keepends=True)
    offsets = [0, *accumulate(map(len, lines))]
    blocks = [token.map for token in _blocks(text) if token.type in ("fence", "code_block") and token.map]
    ranges = [(offsets[first], offsets[end]) for first, end in blocks]
    prose = list(text)
    for first, end in ranges:
        prose[first:end] = "\n" * (end - first)
    return ranges + [found.span() for found in _SPAN.finditer("".join(prose))]


def replace_links(text: str, new_target: Callable[[str, str], str]) -> str:
    """The page with the target of each link and picture replaced, given its label and target; code is left alone."""
    code = _code(text)

    def replaced(found: re.Match[str]) -> str:
        if any(first <= found.start("middle") < end for first, end in code):
            return found[0]
        before = text[found.start() : found.end("middle")]
        return f"{before}{new_target(found['label'] or '', found['target'])})"

    return _TARGET.sub(replaced, text)


def with_anchors(text: str, anchors: list[str]) -> str:
    """The page with its headings' anchors written out, as the generator would make others of them."""
    lines = text.splitlines()
    for heading, anchor in zip(headings(text), anchors, strict=True):
        lines[heading.line] += f" {{#{anchor}}}"
    return "\n".join(lines) + "\n"


def in_four_columns(text: str) -> str:
    """The page as Python-Markdown reads it: nested blocks at four columns, lists and tables after a blank line."""
    lines = text.splitlines()
    written = [_NO_HEADING.sub(r"\1\#", line) for line in lines]
    blank_before = set()
    columns = [0]  # where the text of each open list item starts
    spaced = [False]  # whether each open list has blank lines
    for token in _blocks(text):
        if token.type == "list_item_close":
            columns.pop()
        elif token.type in ("bullet_list_close", "ordered_list_close"):
            spaced.pop()
        if token.map is None:
            continue
        first, end = token.map
        if token.type == "fence" and token.level == 0:
            written[first:end] = lines[first:end]
        elif token.type == "table_open":
            blank_before.add(first)
        elif token.type in ("bullet_list_open", "ordered_list_open"):
            spaced.append("" in "\n".join(lines[first:end]).rstrip().split("\n"))
            if token.level == 0 or lines[first - 1].strip() == "```":
                blank_before.add(first)
        elif token.type == "list_item_open":
            marker = _MARKER.match(lines[first], columns[-1])
            assert marker, lines[first]
            columns.append(marker.end())
            if spaced[-1]:
                blank_before.add(first)
            for number in range(first, end):
                rest = lines[number][: columns[-1]].lstrip(" ") + lines[number][columns[-1] :]
                indent = "    " * (len(columns) - 1 - (number == first)) if rest else ""
                written[number] = indent + _NO_HEADING.sub(r"\1\#", rest)
    for number in blank_before:
        if number and lines[number - 1].strip():
            written[number] = f"\n{written[number]}"
    return "\n".join(written) + "\n"
