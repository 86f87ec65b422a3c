"""Values that are derived from an object, kept as long as the object lives."""

from __future__ import annotations

import weakref
from typing import Any, Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class DerivedValues(Generic[K, V]):
    """A value for each of some frozen objects, such as pods or nodes.

    The key is the object itself, not what it is equal to: each version of a pod is an object of its own, which its
    cache lets go when the next one arrives, and so is a pod with other annotations. So no entry is ever wrong, and none
    outlives its object.
    """

    def __init__(self) -> None:
        self._entries: dict[int, tuple[weakref.ref[Any], V]] = {}

    def get(self, obj: K) -> V | None:
        """The value kept for this object, or None."""
        entry = self._entries.get(id(obj))
        return entry[1] if entry is not None and entry[0]() is obj else None

    def keep(self, obj: K, value: V) -> V:
        """Keep a value for this object, and return it."""
        key, entries = id(obj), self._entries

        def forget(reference: weakref.ref[Any]) -> None:
            if (entry := entries.get(key)) is not None and entry[0] is reference:
                del entries[key]

        entries[key] = weakref.ref(obj, forget), value
        return value

    def __len__(self) -> int:
        return len(self._entries)
