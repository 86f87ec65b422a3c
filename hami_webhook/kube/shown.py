"""Values from outside in sentences: of bounded size, however long or deeply nested they are."""

from __future__ import annotations

import reprlib


class _Short(reprlib.Repr):
    """Python's notation, cut: `repr` of a list that is nested a thousand deep raises `RecursionError`."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = self.maxlong = 100


shown = _Short().repr
"""A value as sentences quote it, in at most some hundred characters."""
