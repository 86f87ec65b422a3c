"""Whether what watches have shown may be believed."""

from __future__ import annotations

from collections.abc import Collection
from math import inf
from typing import Protocol

from msgspec import Struct

from hami_webhook.cluster.api import Kind


class Watches(Protocol):
    """The watches that fill the caches."""

    @property
    def synced(self) -> bool:
        """Whether every cache has had its first list."""
        ...

    def silence(self, kind: Kind) -> float:
        """Seconds since a kind's watch gave a sign of life, when its cache had all; infinite while it may lack some."""
        ...


class NoWatches(Struct, frozen=True):
    """Caches filled by the code that changes the objects; those of the kinds in `complete` have all of them."""

    complete: Collection[Kind] = ()
    synced: bool = True

    def silence(self, kind: Kind) -> float:
        return 0.0 if kind in self.complete else inf
