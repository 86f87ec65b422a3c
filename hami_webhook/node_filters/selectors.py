"""Label selectors as functions of labels, made once for many nodes or pods: a value is found in constant time."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from hami_webhook.kube import wire
from hami_webhook.kube.names import is_label_value

Labels = Mapping[str, str]
Matches = Callable[[Labels], bool]

_INTEGER = re.compile(r"[+-]?[0-9]{1,20}")
_INT64 = 2**63


class Unmatchable(ValueError):
    """kube-scheduler can't parse the expression; the text says why."""


def nothing(labels: Labels) -> bool:
    """What a selector that isn't there matches."""
    return False


def expression(key: str, operator: str, values: Sequence[str]) -> Matches:
    """One expression of a selector of labels. Raises `Unmatchable`."""
    found = frozenset(values)
    if operator in ("In", "NotIn"):
        if not found or not all(map(is_label_value, found)):
            raise Unmatchable(f"{operator} must have values of labels")
        if operator == "In":
            return lambda labels: labels.get(key) in found
        return lambda labels: labels.get(key) not in found
    if operator in ("Exists", "DoesNotExist"):
        if found:
            raise Unmatchable(f"{operator} must have no values")
        return (lambda labels: key in labels) if operator == "Exists" else (lambda labels: key not in labels)
    if operator in ("Gt", "Lt"):
        bound = _integer(values[0]) if len(values) == 1 else None
        if bound is None:
            raise Unmatchable(f"{operator} must have one integer")
        return _above(key, bound) if operator == "Gt" else _below(key, bound)
    raise Unmatchable(f"the operator {operator} is unknown")


def label_selector(selector: wire.LabelSelectorObject | None, more: Iterable[Matches] = ()) -> Matches:
    """A LabelSelector, with more expressions; without one nothing matches. Raises `MalformedObject`."""
    if selector is None:
        return nothing
    try:
        parts = [
            *(expression(key, "In", (text,)) for key, text in (selector.match_labels or {}).items()),
            *(
                expression(each.key, _of_labels(each.operator), each.values or ())
                for each in selector.match_expressions or ()
            ),
            *more,
        ]
    except Unmatchable as error:
        raise wire.MalformedObject(f"a labelSelector can't be used: {error}") from error
    return all_of(parts)


def is_empty(selector: wire.LabelSelectorObject | None) -> bool:
    """Whether a selector is there and has no expression: it matches everything."""
    return selector is not None and not selector.match_labels and not selector.match_expressions


def size(selector: wire.LabelSelectorObject | None) -> int:
    """How many comparisons a match may need."""
    return 1 if selector is None else 1 + len(selector.match_labels or ()) + len(selector.match_expressions or ())


def all_of(parts: Sequence[Matches]) -> Matches:
    """Whether all of them match."""
    if len(parts) == 1:
        return parts[0]
    return lambda labels: all(part(labels) for part in parts)


def _of_labels(operator: str) -> str:
    if operator in ("Gt", "Lt"):
        raise Unmatchable(f"the operator {operator} is unknown")
    return operator


def _above(key: str, bound: int) -> Matches:
    return lambda labels: (number := _integer(labels.get(key, ""))) is not None and number > bound


def _below(key: str, bound: int) -> Matches:
    return lambda labels: (number := _integer(labels.get(key, ""))) is not None and number < bound


def _integer(text: str) -> int | None:
    """The integer of 64 bits in a text."""
    number = int(text) if _INTEGER.fullmatch(text) else None
    return number if number is not None and -_INT64 <= number < _INT64 else None
