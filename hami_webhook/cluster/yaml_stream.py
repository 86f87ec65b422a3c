"""YAML streams as JSON values, with the line each document starts at.

Read from the parser's events in one pass and without recursion: scalars as go-yaml's YAML 1.1 resolves them (so a
time or `22:22` is a string), keys as written, no tags beyond JSON's types, bounded depth and bounded aliases.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml
from yaml.reader import ReaderError

from hami_webhook.cluster.api import JSON

MAX_DEPTH = 200
MAX_ALIASED = 1_000_000

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TRUE, _FALSE, _NULL = ("yes", "true", "on"), ("no", "false", "off"), ("null",)
_CONSTANTS: dict[str, Any] = {"": None, "~": None} | {
    spelled: value
    for words, value in ((_TRUE, True), (_FALSE, False), (_NULL, None))
    for word in words
    for spelled in (word, word.title(), word.upper())
}
_INTEGER = re.compile(r"[-+]?(?:0[bB][01_]+|0[xX][0-9a-fA-F_]+|0[oO]?[0-7_]+|0|[1-9][0-9_]*)", re.ASCII)
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", re.ASCII)
_TAG = "tag:yaml.org,2002:"
_STRING_TAGS = ("!", _TAG + "str", _TAG + "timestamp")
_PLAIN_TAGS = (_TAG + "null", _TAG + "bool", _TAG + "int", _TAG + "float")


class LoadError(ValueError):
    """What was given can't be used; the text is one sentence that starts with the source and line."""


@dataclass(frozen=True, slots=True)
class Document:
    """A document's value and line, and where the elements of its top-level `items` start, if that is known."""

    value: Any
    line: int
    item_lines: Sequence[int] = ()


def too_deep(source: str, line: int) -> LoadError:
    """The error for a document that is nested beyond `MAX_DEPTH`."""
    return LoadError(f"{source}:{line}: nested more than {MAX_DEPTH} levels deep")


@dataclass(slots=True)
class _Open:
    """A mapping or sequence under construction. `height` is how deep what it holds is nested so far."""

    value: Any
    line: int
    anchor: str | None
    elements_before: int
    key: Any = None
    merged: list[JSON] = field(default_factory=list)
    height: int = 0


_MERGE = object()


class _YamlDocument:
    """One YAML document, built from its events without recursion."""

    def __init__(self, source: str) -> None:
        self.root: Any = None
        self.line = 0
        self.item_lines: list[int] = []
        self._source = source
        self._open: list[_Open] = []
        self._anchors: dict[str, tuple[Any, int, int]] = {}  # value, elements in it, height
        self._elements = 0
        self._aliased = 0

    def take(self, event: yaml.NodeEvent | yaml.CollectionEndEvent) -> None:
        mark: Any = event.start_mark  # None only for events made by hand
        line = mark.line + 1
        match event:
            case yaml.ScalarEvent():
                self._scalar(event, line)
            case yaml.AliasEvent():
                self._alias(event, line)
            case yaml.CollectionStartEvent():
                self._begin(event, line)
            case _:
                self._end()

    def _scalar(self, event: yaml.ScalarEvent, line: int) -> None:
        text, tag = event.value, event.tag
        if self._open and self._open[-1].key is None and isinstance(self._open[-1].value, dict):
            merge = text == "<<" and event.tag is None and event.implicit[0]
            self._open[-1].key = _MERGE if merge else text
            self._anchor(event.anchor, text, 1, 0)
            return
        if tag in _PLAIN_TAGS or (tag is None and event.implicit[0]):
            value = _resolved(text)
        elif tag is None or tag in _STRING_TAGS:
            value = text
        else:
            raise self._error(line, f"the tag {tag} isn't one of Kubernetes' YAML")
        self._elements += 1
        self._anchor(event.anchor, value, 1, 0)
        self._put(value, line, 0)

    def _alias(self, event: yaml.AliasEvent, line: int) -> None:
        if event.anchor not in self._anchors:
            raise self._error(line, f"the alias *{event.anchor} points to nothing, or to what it is part of")
        value, elements, height = self._anchors[event.anchor]
        self._elements += elements
        self._aliased += elements
        if self._aliased > MAX_ALIASED:
            raise self._error(line, f"aliases stand for more than {MAX_ALIASED} values")
        if len(self._open) + height > MAX_DEPTH:
            raise too_deep(self._source, line)
        parent = self._open[-1]  # an alias can't be a document
        if parent.key is None and isinstance(parent.value, dict):
            if not isinstance(value, str):
                raise self._error(line, "a key must be a string")
            parent.key = value
            return
        self._put(value, line, height)

    def _begin(self, event: yaml.CollectionStartEvent, line: int) -> None:
        mapping = isinstance(event, yaml.MappingStartEvent)
        if event.tag not in (None, "!", _TAG + ("map" if mapping else "seq")):
            raise self._error(line, f"the tag {event.tag} isn't one of Kubernetes' YAML")
        if self._open and self._open[-1].key is None and isinstance(self._open[-1].value, dict):
            raise self._error(line, "a key must be a string")
        if len(self._open) >= MAX_DEPTH:
            raise too_deep(self._source, line)
        self._elements += 1
        self._open.append(_Open({} if mapping else [], line, event.anchor, self._elements))

    def _end(self) -> None:
        done = self._open.pop()
        for source in done.merged:
            for key, value in source.items():
                done.value.setdefault(key, value)
        height = done.height + 1
        self._anchor(done.anchor, done.value, self._elements - done.elements_before + 1, height)
        self._put(done.value, done.line, height)

    def _put(self, value: Any, line: int, height: int) -> None:
        if not self._open:
            self.root, self.line = value, line
            return
        parent = self._open[-1]
        parent.height = max(parent.height, height)
        if isinstance(parent.value, list):
            parent.value.append(value)
            if len(self._open) == 2 and self._open[0].key == "items":
                self.item_lines.append(line)
            return
        key, parent.key = parent.key, None
        if key is not _MERGE:
            parent.value[key] = value
            return
        sources = value if isinstance(value, list) else [value]
        if not all(isinstance(source, dict) for source in sources):
            raise self._error(line, "<< can merge only mappings")
        parent.merged.extend(sources)

    def _anchor(self, anchor: str | None, value: Any, elements: int, height: int) -> None:
        if anchor is not None:
            self._anchors[anchor] = (value, elements, height)

    def _error(self, line: int, problem: str) -> LoadError:
        return LoadError(f"{self._source}:{line}: not usable YAML: {problem}")


def yaml_documents(text: str, source: str) -> Iterator[Document]:
    """The documents of a YAML stream, one by one (None for an empty one); raises `LoadError`."""
    building = _YamlDocument(source)
    try:
        for event in yaml.parse(text, Loader=_Loader):
            if isinstance(event, yaml.NodeEvent | yaml.CollectionEndEvent):
                building.take(event)
            elif isinstance(event, yaml.DocumentEndEvent):
                yield Document(building.root, building.line, building.item_lines)
                building = _YamlDocument(source)
    except yaml.MarkedYAMLError as error:
        mark: Any = error.problem_mark
        raise LoadError(f"{source}:{mark.line + 1}: not YAML: {error.problem}") from error
    except (ReaderError, UnicodeEncodeError) as error:  # a character YAML doesn't allow
        position = error.position if isinstance(error, ReaderError) else error.start
        line = text.count("\n", 0, position) + 1
        raise LoadError(f"{source}:{line}: not YAML: {error.reason}") from error


def _resolved(text: str) -> Any:
    """What a plain scalar means: null, a boolean, a number or a string."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if text[0] not in "+-.0123456789":
        return text
    try:
        if _INTEGER.fullmatch(text):
            whole = _whole(text.replace("_", ""))
            return whole if abs(whole) < 1 << 63 else float(whole)
        return float(text) if _FLOAT.fullmatch(text) else text
    except (ValueError, OverflowError):  # `0x_`, or thousands of digits
        return text


def _whole(text: str) -> int:
    digits = text.lstrip("+-").lower()
    if len(digits) > 1 and digits[0] == "0" and digits[1].isdigit():
        digits = "0o" + digits
    return int(digits, 0) * (-1 if text[0] == "-" else 1)
