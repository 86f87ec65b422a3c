"""What is expected of a run's result, compared with what came out. Source: docs/spec/cli.md#test.

Only what is written is compared. Lists whose items have names are compared by name, other lists item by item. The
mapping `{contains: TEXT}` expects a text with TEXT in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from msgspec import Struct

from hami_webhook.kube.message_text import did_you_mean
from hami_webhook.kube.yaml_reader import Path

_CONTAINS = "contains"


class Absent(Struct, frozen=True):
    """Stands for a value that isn't there: what there is to say about it, in a few words."""

    remark: str


class Difference(Struct, frozen=True):
    """A value that isn't as expected: its path among the expectations, and the same with names instead of indices."""

    path: Path
    named_path: Path
    expected: Any
    actual: Any


def differences(expected: Any, actual: Any, *, exact: bool, path: Path = (), named: Path = ()) -> Iterator[Difference]:
    """Where what came out differs from what is written; if `exact`, more than that mustn't come out either."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        for key, value in expected.items():
            came_out = actual[key] if key in actual else _absent(key, actual)
            yield from differences(value, came_out, exact=exact, path=(*path, key), named=(*named, key))
        for key in actual if exact else ():
            if key not in expected:
                yield Difference(path, (*named, key), Absent("nothing"), actual[key])
    elif isinstance(expected, list) and isinstance(actual, list) and (pairs := _pairs(expected, actual)) is not None:
        for index, (item, came_out) in enumerate(pairs):
            step = _name(item) or index
            yield from differences(item, came_out, exact=exact, path=(*path, index), named=(*named, step))
        if exact and [id(came_out) for _, came_out in pairs] != [id(item) for item in actual]:
            yield Difference(path, named, [_name(item) for item in expected], [_name(item) for item in actual])
    elif not _equal(expected, actual):
        yield Difference(path, named, expected, actual)


def as_written(expected: Any, actual: Any, *, exact: bool) -> Any:
    """What came out, in the form of what is written.

    Unless `exact`, what isn't written isn't there, and keys and items of names that didn't come out stay.
    """
    if isinstance(expected, dict) and isinstance(actual, dict):
        return {
            key: as_written(expected.get(key, actual.get(key)), actual.get(key, expected.get(key)), exact=exact)
            for key in (actual if exact else expected)
        }
    if isinstance(expected, list) and isinstance(actual, list) and (pairs := _pairs(expected, actual)) is not None:
        if not exact:
            return [
                item if isinstance(came_out, Absent) else as_written(item, came_out, exact=False)
                for item, came_out in pairs
            ]
        written = {id(came_out): item for item, came_out in pairs}
        return [as_written(written.get(id(item), item), item, exact=True) for item in actual]
    return expected if _equal(expected, actual) else actual


def _pairs(expected: Sequence[Any], actual: Sequence[Any]) -> list[tuple[Any, Any]] | None:
    """Each expected item with what came out for it; None for lists that differ in length and have no names."""
    if not (expected and all(map(_name, expected)) and all(map(_name, actual))):
        return list(zip(expected, actual, strict=True)) if len(expected) == len(actual) else None
    left = list(actual)
    pairs: list[tuple[Any, Any]] = []
    for item in expected:
        index = next((index for index, other in enumerate(left) if _is_named_as(other, item)), None)
        pairs.append((item, _absent(_name(item), map(_name, actual)) if index is None else left.pop(index)))
    return pairs


def _absent(name: str, names: Iterable[str]) -> Absent:
    return Absent(f"nothing of that name{did_you_mean(name, names)}")


def _name(item: Any) -> str:
    """What an item is called, with its namespace if it has one; empty if it has no name."""
    if not isinstance(item, dict) or not isinstance(item.get("name"), str):
        return ""
    return f"{item['namespace']}/{item['name']}" if item.get("namespace") else str(item["name"])


def _is_named_as(actual: dict[str, Any], expected: dict[str, Any]) -> bool:
    namespace = actual.get("namespace")
    return bool(actual["name"] == expected["name"] and expected.get("namespace", namespace) == namespace)


def _equal(expected: Any, actual: Any) -> bool:
    if isinstance(expected, dict) and expected.keys() == {_CONTAINS} and isinstance(actual, str):
        return str(expected[_CONTAINS]) in actual
    return bool(expected == actual) and isinstance(expected, bool) == isinstance(actual, bool)
