"""YAML text as plain values that know their lines.

Only YAML's own scalars, lists and mappings exist here: no tag constructs anything. Files are bounded before anything
recursive sees them: in size, in depth, and in how many values they expand to through aliases.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from hami_webhook.config.errors import ConfigError, cut, quoted

try:
    from yaml import CSafeLoader as _Loader
except ImportError:  # pragma: no cover - PyYAML without libyaml
    from yaml import SafeLoader as _Loader  # type: ignore[assignment]  # same interface

LARGEST_FILE = 1 << 20
"""Bytes: what a ConfigMap can hold."""
DEEPEST = 40
MOST_VALUES = 50_000

_TAG = "tag:yaml.org,2002:"
_MERGE = _TAG + "merge"


@dataclass(frozen=True, slots=True)
class Located:
    """A value and its line, 1 being the first. Mappings hold each value under its key, with the key's line."""

    value: "bool | int | float | str | dict[str, Located] | list[Located] | None"
    line: int
    block: bool = False
    """Whether this is the text of a `|` block, whose own lines follow one by one."""

    def plain(self) -> object:
        """The value without lines."""
        match self.value:
            case dict():
                return {key: entry.plain() for key, entry in self.value.items()}
            case list():
                return [entry.plain() for entry in self.value]
            case scalar:
                return scalar


class _Mark(Protocol):
    @property
    def line(self) -> int: ...


class _Fault(Exception):
    def __init__(self, mark: _Mark | None, sentence: str) -> None:
        super().__init__(sentence)
        self.line = 1 if mark is None else mark.line + 1
        self.sentence = sentence


def parse_yaml(text: str, source: str, line_in_file: Callable[[int], int] = int) -> Located | None:
    """The one document of `text`, or None when there is nothing in it.

    Raises ConfigError naming `source` and a line for anything else than one bounded YAML document. `line_in_file`
    turns a line of `text` into a line of the file that `text` was found in.
    """
    try:
        if len(text.encode()) > LARGEST_FILE:
            raise ConfigError([f"{source}: is larger than {LARGEST_FILE} bytes, which no ConfigMap can hold"])
        _check_bounds(text)
        node = yaml.compose(text, Loader=_Loader)
        return None if node is None else _Reader(line_in_file).located(node, node.start_mark, 0)
    except _Fault as fault:
        raise ConfigError([f"{source}:{line_in_file(fault.line)}: {fault.sentence}{_template_hint(text)}"]) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = line_in_file(1 if mark is None else mark.line + 1)
        raise ConfigError(
            [f"{source}:{line}: is not valid YAML: {error.problem or error.context}{_template_hint(text)}"]
        ) from None
    except (yaml.YAMLError, UnicodeError) as error:
        raise ConfigError([f"{source}: is not valid YAML: {cut(' '.join(str(error).split()))}"]) from None


def _template_hint(text: str) -> str:
    return " (it looks like a Helm template: render it first)" if "{{" in text else ""


def _check_bounds(text: str) -> None:
    """Refuse text whose nesting could exhaust the stack of the recursive composer; the event parser itself doesn't
    recurse.
    """
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > DEEPEST:
                raise _Fault(event.start_mark, f"is nested more than {DEEPEST} levels deep")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


class _Reader:
    """Turns composed nodes into located values, counting them as aliases expand."""

    def __init__(self, line_in_file: Callable[[int], int]) -> None:
        self._line_in_file = line_in_file
        self._values = 0

    def located(self, node: Node, mark: _Mark, depth: int) -> Located:
        self._values += 1
        if self._values > MOST_VALUES:
            raise _Fault(mark, f"expands to more than {MOST_VALUES} values")
        if depth > DEEPEST:
            raise _Fault(mark, "contains itself through an alias")
        line = self._line_in_file(mark.line + 1)
        if isinstance(node, MappingNode):
            return Located(self._entries(node, depth), line)
        if isinstance(node, SequenceNode):
            return Located([self.located(item, item.start_mark, depth + 1) for item in node.value], line)
        assert isinstance(node, ScalarNode)
        return Located(_scalar(node), line, block=node.style == "|")

    def _entries(self, node: MappingNode, depth: int) -> dict[str, Located]:
        entries: dict[str, Located] = {}
        merged: dict[str, Located] = {}
        for key_node, value_node in node.value:
            if key_node.tag == _MERGE:
                merged = self._merged(value_node, key_node.start_mark, depth) | merged
                continue
            if not isinstance(key_node, ScalarNode):
                raise _Fault(key_node.start_mark, "a key must be text, not a list or mapping")
            key = key_node.value
            if key in entries:
                raise _Fault(key_node.start_mark, f"the key {quoted(key)} is there twice in one mapping")
            entries[key] = self.located(value_node, key_node.start_mark, depth + 1)
        return merged | entries

    def _merged(self, node: Node, mark: _Mark, depth: int) -> dict[str, Located]:
        """The entries that `<<` brings in: those of one mapping, or of a list of mappings of which the earlier win."""
        merged = self.located(node, mark, depth + 1).value
        sources = merged if isinstance(merged, list) else [Located(merged, 0)]
        entries: dict[str, Located] = {}
        for source in sources:
            if not isinstance(source.value, dict):
                raise _Fault(mark, "<< must be followed by a mapping or a list of mappings")
            entries = source.value | entries
        return entries


def _scalar(node: ScalarNode) -> bool | int | float | str | None:
    text: str = node.value
    kind = node.tag.removeprefix(_TAG)
    if kind == "null":
        return None
    if kind == "bool":
        return text.lower() in {"true", "yes", "on"}
    number = {"int": lambda digits: int(digits, 0), "float": _float}.get(kind)
    if number is None:
        return text
    try:
        return number(text)
    except ValueError:  # a form of YAML 1.1 that Go doesn't read, such as 1:30
        return text


def _float(text: str) -> float:
    return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
