"""YAML as JSON values that know their lines: what Kubernetes' own tools read, within bounds.

Documents are built from the parser's events in one pass and without recursion. Scalars are resolved as go-yaml resolves
YAML 1.1 (a time or `22:22` is a string, `010` is 8), keys are text as written, and no tag makes anything but JSON's
types. Nesting and what aliases expand to are bounded.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

import yaml
from msgspec import Struct
from yaml.reader import ReaderError

Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The parser in C, ten times as fast, where PyYAML was built with it."""
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

Path = tuple[str | int, ...]
"""Keys of mappings and indices of lists, from the outside in."""


class YamlProblem(Enum):
    """Why a text can't be read as YAML; in brackets what `YamlError.detail` is."""

    SYNTAX = auto()
    """The parser's complaint (the complaint)."""
    CHARACTER = auto()
    """A character that YAML doesn't allow (why); the cause of the YamlError is the parser's own error."""
    TAG = auto()
    """A tag beyond JSON's types (the tag)."""
    KEY = auto()
    """A key that isn't text (nothing)."""
    DUPLICATE_KEY = auto()
    """A key that is there twice in one mapping, if `Limits.unique_keys` (the key)."""
    UNDEFINED_ALIAS = auto()
    """An alias of no anchor before it (the anchor)."""
    RECURSIVE_ALIAS = auto()
    """An alias of what it is part of (the anchor)."""
    MERGE = auto()
    """`<<` with anything but a mapping or a list of mappings (nothing)."""
    DEPTH = auto()
    """Nested deeper than `Limits.depth` (that number)."""
    VALUES = auto()
    """More values than `Limits.values`, or more by aliases than `Limits.aliased` (that number)."""


class YamlError(Exception):
    """Text that can't be read as YAML: the line, 1 being the first, the problem, and its detail."""

    def __init__(self, line: int, problem: YamlProblem, detail: object = "") -> None:
        super().__init__(f"line {line}: {problem.name} {detail}".rstrip())
        self.line = line
        self.problem = problem
        self.detail = detail


class Limits(Struct, frozen=True):
    """The deepest nesting, the most values with aliases expanded, and the most that aliases add to a document.

    Without `unique_keys` the last of equal keys counts. Lines are kept of `line_depth` levels. `single`: more than one
    document is an error.
    """

    depth: int
    values: int = sys.maxsize
    aliased: int = sys.maxsize
    unique_keys: bool = False
    line_depth: int = sys.maxsize
    single: bool = False


@dataclass(frozen=True, slots=True)
class Document:
    """A document's value, None for an empty one, and its lines, 1 being the first of the text."""

    value: Any
    line: int
    lines: Mapping[int, Mapping[Any, int]] = field(default_factory=dict, repr=False)
    """The lines of the keys or items of each mapping or list, by its `id`; empty if they aren't known."""
    block_lines: Set[int] = frozenset()
    """The lines of the keys whose values are the text of a `|` block; its own lines follow one by one."""

    def line_at(self, path: Sequence[str | int]) -> int:
        """The line of a path; where it leads to nothing, the line of the innermost value around that."""
        value, line = self.value, self.line
        for step in path:
            known = self.lines.get(id(value), {}) if isinstance(value, dict | list) else {}
            if step not in known:
                break
            value, line = value[step], known[step]
        return line


def read_documents(text: str, limits: Limits) -> Iterator[Document]:
    """The documents of a YAML stream, one by one. Raises YamlError."""
    builder = _Builder(limits)
    number = 0
    try:
        for event in yaml.parse(text, Loader=Loader):
            if isinstance(event, yaml.NodeEvent | yaml.CollectionEndEvent):
                builder.take(event)
            elif isinstance(event, yaml.DocumentStartEvent):
                number += 1
                if limits.single and number > 1:
                    raise YamlError(_line(event), YamlProblem.SYNTAX, "but found another document")
            elif isinstance(event, yaml.DocumentEndEvent):
                yield Document(builder.root, builder.line, builder.lines, builder.block_lines)
                builder = _Builder(limits)
    except yaml.MarkedYAMLError as error:
        mark: Any = error.problem_mark or error.context_mark
        line = 1 if mark is None else mark.line + 1
        raise YamlError(line, YamlProblem.SYNTAX, error.problem or error.context) from error
    except (ReaderError, UnicodeEncodeError) as error:
        position = error.position if isinstance(error, ReaderError) else error.start
        line = text.count("\n", 0, position) + 1
        raise YamlError(line, YamlProblem.CHARACTER, error.reason) from error


class _Open(Struct):
    """A mapping or list under construction. `height` is how deep what it holds is nested so far."""

    value: Any
    line: int
    anchor: str | None
    elements_before: int
    lines: dict[Any, int] = {}
    key: Any = None
    key_line: int = 0
    merged: list[dict[str, Any]] = []
    height: int = 0

    @property
    def expects_key(self) -> bool:
        return self.key is None and isinstance(self.value, dict)


_MERGE = object()


class _Builder:
    """Builds one document from its events, without recursion."""

    def __init__(self, limits: Limits) -> None:
        self.root: Any = None
        self.line = 1
        self.lines: dict[int, dict[Any, int]] = {}
        self.block_lines: set[int] = set()
        self._limits = limits
        self._open: list[_Open] = []
        self._anchors: dict[str, tuple[Any, int, int]] = {}  # value, elements in it, height
        self._elements = 0
        self._aliased = 0

    def take(self, event: yaml.NodeEvent | yaml.CollectionEndEvent) -> None:
        line = _line(event)
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
        if self._open and self._open[-1].expects_key:
            merges = text == "<<" and tag is None and event.implicit[0]
            self._take_key(_MERGE if merges else text, line)
            self._anchor(event.anchor, text, 1, 0)
            return
        if tag in _PLAIN_TAGS or (tag is None and event.implicit[0]):
            value = _resolved(text)
        elif tag is None or tag in _STRING_TAGS:
            value = text
        else:
            raise YamlError(line, YamlProblem.TAG, tag)
        self._count(1, line)
        self._anchor(event.anchor, value, 1, 0)
        if event.style == "|" and self._open:
            self.block_lines.add(self._open[-1].key_line)
        self._put(value, line, 0)

    def _alias(self, event: yaml.AliasEvent, line: int) -> None:
        anchor = str(event.anchor)
        if anchor not in self._anchors:
            inside = any(collection.anchor == anchor for collection in self._open)
            problem = YamlProblem.RECURSIVE_ALIAS if inside else YamlProblem.UNDEFINED_ALIAS
            raise YamlError(line, problem, anchor)
        value, elements, height = self._anchors[anchor]
        self._aliased += elements
        if self._aliased > self._limits.aliased:
            raise YamlError(line, YamlProblem.VALUES, self._limits.aliased)
        self._count(elements, line)
        if len(self._open) + height > self._limits.depth:
            raise YamlError(line, YamlProblem.DEPTH, self._limits.depth)
        if self._open[-1].expects_key:  # an alias can't be a document
            if not isinstance(value, str):
                raise YamlError(line, YamlProblem.KEY)
            self._take_key(value, line)
        else:
            self._put(value, line, height)

    def _begin(self, event: yaml.CollectionStartEvent, line: int) -> None:
        mapping = isinstance(event, yaml.MappingStartEvent)
        if event.tag not in (None, "!", _TAG + ("map" if mapping else "seq")):
            raise YamlError(line, YamlProblem.TAG, event.tag)
        if self._open and self._open[-1].expects_key:
            raise YamlError(line, YamlProblem.KEY)
        if len(self._open) >= self._limits.depth:
            raise YamlError(line, YamlProblem.DEPTH, self._limits.depth)
        self._count(1, line)
        self._anchors.pop(event.anchor or "", None)  # until it is complete, an alias of it is recursive
        collection = _Open({} if mapping else [], line, event.anchor, self._elements)
        if len(self._open) < self._limits.line_depth:
            self.lines[id(collection.value)] = collection.lines
        self._open.append(collection)

    def _end(self) -> None:
        done = self._open.pop()
        for source in done.merged:
            lines = self.lines.get(id(source), {})
            for key, value in source.items():
                if key not in done.value:
                    done.value[key], done.lines[key] = value, lines.get(key, done.line)
        height = done.height + 1
        self._anchor(done.anchor, done.value, self._elements - done.elements_before + 1, height)
        self._put(done.value, done.line, height)

    def _take_key(self, key: Any, line: int) -> None:
        parent = self._open[-1]
        if self._limits.unique_keys and key in parent.value:
            raise YamlError(line, YamlProblem.DUPLICATE_KEY, key)
        parent.key, parent.key_line = key, line

    def _put(self, value: Any, line: int, height: int) -> None:
        if not self._open:
            self.root, self.line = value, line
            return
        parent = self._open[-1]
        parent.height = max(parent.height, height)
        if isinstance(parent.value, list):
            parent.lines[len(parent.value)] = line
            parent.value.append(value)
            return
        key, parent.key = parent.key, None
        if key is not _MERGE:
            parent.lines[key] = parent.key_line
            parent.value[key] = value
            return
        sources = value if isinstance(value, list) else [value]
        if not all(isinstance(source, dict) for source in sources):
            raise YamlError(parent.key_line, YamlProblem.MERGE)
        parent.merged.extend(sources)

    def _anchor(self, anchor: str | None, value: Any, elements: int, height: int) -> None:
        if anchor is not None:
            self._anchors[anchor] = (value, elements, height)

    def _count(self, elements: int, line: int) -> None:
        self._elements += elements
        if self._elements > self._limits.values:
            raise YamlError(line, YamlProblem.VALUES, self._limits.values)


def _line(event: yaml.Event) -> int:
    mark: Any = event.start_mark  # None only for events made by hand
    line: int = mark.line
    return line + 1


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
