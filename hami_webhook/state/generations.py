"""Find the nodes changed since a given generation, in time proportional to their number."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container
from itertools import count

_SPARE = 1000
"""As many nodes that are gone may be remembered, and as many again as are there."""


class Generations:
    """Numbers that grow with every change of any node, and each node's latest."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._changed: OrderedDict[str, int] = OrderedDict()
        self._complete_after = 0
        self.latest = 0
        """The number of the last change; 0 before the first."""

    def changed(self, name: str) -> int:
        """A node changed, appeared or is gone; the change's number."""
        self.latest = number = next(self._numbers)
        self._changed[name] = number
        self._changed.move_to_end(name)
        return number

    def since(self, number: int) -> list[str] | None:
        """Return the nodes that changed after generation `number`; None if the history no longer goes back so far."""
        if number < self._complete_after:
            return None
        found = []
        for name, changed in reversed(self._changed.items()):
            if changed <= number:
                break
            found.append(name)
        return found

    def keep_only(self, names: Container[str], number_of_names: int) -> None:
        """Forget nodes that are gone, if they have become many."""
        if len(self._changed) <= 2 * number_of_names + _SPARE:
            return
        gone = [name for name in self._changed if name not in names]
        for name in gone:
            self._complete_after = max(self._complete_after, self._changed.pop(name))
