"""JSON Patch (RFC 6902) and JSON Merge Patch (RFC 7386).

A draft records changes to one document and gives the operations for just those. jsonpatch, with which `simulate`
applies them, would compare two documents: that takes longer than the whole review
(docs/decisions/0006-typed-decode.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Operation = dict[str, Any]


def pointer(*parts: str | int) -> str:
    """A JSON Pointer (RFC 6901) to the place the parts lead to."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)


class MapDraft(Mapping[str, Any]):
    """A map under change: reads see the changes, `operations` lists them.

    `original` is None where the document lacks the map; the first write then adds it whole. `changes` is empty as long
    as nothing differs from it.
    """

    __slots__ = ("_original", "changes", "path")
    _GONE = object()

    def __init__(self, path: str, original: Mapping[str, Any] | None) -> None:
        self.path = path
        self._original = original
        self.changes: dict[str, Any] = {}

    def __getitem__(self, key: str) -> Any:
        if key in self.changes:
            value = self.changes[key]
            if value is self._GONE:
                raise KeyError(key)
            return value
        if self._original is None:
            raise KeyError(key)
        return self._original[key]

    def __contains__(self, key: object) -> bool:
        if key in self.changes:
            return self.changes[key] is not self._GONE
        return self._original is not None and key in self._original

    def get(self, key: str, default: Any = None) -> Any:
        if key in self.changes:
            value = self.changes[key]
            return default if value is self._GONE else value
        return default if self._original is None else self._original.get(key, default)

    def __iter__(self) -> Iterator[str]:
        return iter(self.plain())

    def __len__(self) -> int:
        return len(self.plain())

    def __setitem__(self, key: str, value: Any) -> None:
        if self._original is not None and key in self._original and self._original[key] == value:
            self.changes.pop(key, None)
        else:
            self.changes[key] = value

    def __delitem__(self, key: str) -> None:
        if self._original is not None and key in self._original:
            self.changes[key] = self._GONE
        else:
            self.changes.pop(key, None)

    def plain(self) -> Mapping[str, Any]:
        """The map with its changes; not to be changed."""
        if not self.changes:
            return {} if self._original is None else self._original
        kept = {**(self._original or {}), **self.changes}
        return {key: value for key, value in kept.items() if value is not self._GONE}

    @property
    def missing(self) -> bool:
        """The document has no such map yet."""
        return self._original is None

    def operations(self) -> list[Operation]:
        if not self.changes:
            return []
        if self._original is None:
            return [{"op": "add", "path": self.path, "value": dict(self)}]
        operations: list[Operation] = []
        for key, value in self.changes.items():
            path = self.path + pointer(key)
            if value is self._GONE:
                operations.append({"op": "remove", "path": path})
            else:
                op = "replace" if key in self._original else "add"
                operations.append({"op": op, "path": path, "value": value})
        return operations


def merge_patch(document: Any, patch: Any) -> Any:
    """`document` after the merge patch `patch` (RFC 7386); neither is changed."""
    if not isinstance(patch, Mapping):
        return patch
    result = dict(document) if isinstance(document, Mapping) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge_patch(result.get(key), value)
    return result
