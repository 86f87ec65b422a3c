"""Whether what watches have shown may be believed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from hami_webhook.cluster.api import Kind


class Watches(Protocol):
    """The watches that fill the caches."""

    @property
    def synced(self) -> bool:
        """Whether every cache has had its first list."""
        ...

    def alive_within(self, kind: Kind, seconds: float) -> bool:
        """Whether a kind's cache has all, and its watch gave a sign of life in the last seconds."""
        ...


@dataclass(frozen=True, slots=True)
class NoWatches:
    """Caches that are filled by whoever changes the objects: those of the kinds in `complete` have all there is."""

    complete: Collection[Kind] = ()
    synced: bool = True

    def alive_within(self, kind: Kind, seconds: float) -> bool:
        return kind in self.complete
