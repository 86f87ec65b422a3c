"""CEL expressions about devices from what people write: lists of UUIDs and types (docs/spec/dra.md#8).

Users' lists become string literals only: every character except a few harmless ones is replaced by its numeric escape.
If a device lacks the attribute, it is in neither the allow list nor the deny list.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence

from hami_webhook.devices.model import BadRequest
from hami_webhook.devices.pod_preferences import ListRule
from hami_webhook.dra.devices import QualifiedName

_PLAIN = frozenset(string.ascii_letters + string.digits + " _-.:,/+()|?")
_NEEDS_NO_ESCAPE = frozenset(string.ascii_letters + string.digits + " _")
_LAST_OF_FOUR_DIGITS = 0xFFFF
_NO_TEXT = frozenset((*map(chr, range(0x20)), "\x7f", *map(chr, range(0xD800, 0xE000))))
"""Control characters, and halves of characters."""


def string_literal(text: str) -> str:
    """A text as a CEL string."""
    return f'"{"".join(map(_escaped, text))}"'


def _escaped(char: str) -> str:
    number = ord(char)
    if char in _PLAIN:
        return char
    return f"\\u{number:04x}" if number <= _LAST_OF_FOUR_DIGITS else f"\\U{number:08x}"


def attribute(name: QualifiedName) -> str:
    """An attribute of a device."""
    return f'device.attributes["{name.domain}"].{name.name}'


def capacity_is(name: QualifiedName, amount: str) -> str:
    """The device has just this much of a capacity."""
    capacity = f'device.capacity["{name.domain}"].{name.name}'
    return f'has({capacity}) && {capacity}.compareTo(quantity("{amount}")) == 0'


def uuids_admitted(name: QualifiedName, rule: ListRule) -> list[str]:
    """The device's UUID is in the allow lists and not in the deny list, as `ListRule.admits` has it.

    Raises `BadRequest` for invalid Unicode.
    """
    return _admitted(rule, lambda items: _is_one_of(name, items))


def types_admitted(name: QualifiedName, rule: ListRule) -> list[str]:
    """The device's model contains an item of the allow lists and none of the deny list, whatever their case."""
    return _admitted(rule, lambda items: _contains_any(name, items))


def _admitted(rule: ListRule, holds: Callable[[Sequence[str]], str]) -> list[str]:
    allows = [items for items in (rule.allow, *rule.also) if items]
    if not _NO_TEXT.isdisjoint("".join(item for items in (*allows, rule.deny) for item in items)):
        raise BadRequest("a list of cards has characters that are no text")
    return [*map(holds, allows), *([f"!({holds(rule.deny)})"] if rule.deny else [])]


def _is_one_of(name: QualifiedName, items: Sequence[str]) -> str:
    value = attribute(name)
    return f"has({value}) && {value} in [{', '.join(map(string_literal, items))}]"


def _contains_any(name: QualifiedName, items: Sequence[str]) -> str:
    value, pattern = attribute(name), "|".join("".join(map(_literally, item)) for item in items)
    return f"has({value}) && {value}.matches({string_literal(f'(?i)({pattern})')})"


def _literally(char: str) -> str:
    """A character in a regular expression (RE2), as nothing but itself."""
    if char in _NEEDS_NO_ESCAPE:
        return char
    return f"\\x{{{ord(char):x}}}"
