"""How much work a search may do, counted in steps: the answer is the same on every replica and every machine."""

from __future__ import annotations

FIT_STEPS = 400_000
"""Steps to fit one pod on one node, some 20 ms. A choice of 8 of 16 linked cards takes 12,000."""


class OutOfSteps(Exception):
    """A search needs more steps than it has left."""


class StepLimit:
    """What is left of a number of steps. One step is the work for one item of a list: some 50 ns."""

    __slots__ = ("_kept", "left")

    def __init__(self, steps: int = FIT_STEPS) -> None:
        self.left = steps
        self._kept = 0

    def take(self, steps: int) -> None:
        """Count steps before they are done; raises `OutOfSteps`, and counts nothing, if there aren't as many."""
        if self.left - steps < self._kept:
            raise OutOfSteps
        self.left -= steps

    def at_most(self, share: float) -> StepShare:
        """Return a context manager that allows this share of the remaining steps; when they are used up, its block ends
        silently.
        """
        return StepShare(self, share)

    def keep(self, steps: int) -> int:
        """Reserve this number of steps, which `take` then leaves. Return the number reserved before."""
        before, self._kept = self._kept, steps
        return before

    def unused(self, share: float) -> int:
        """Return the number of steps that remain after this share of the available steps is used."""
        return self.left - int((self.left - self._kept) * share)


class StepShare:
    """A block of code with a share of a limit's steps."""

    __slots__ = ("_kept", "_limit", "_share")

    def __init__(self, limit: StepLimit, share: float) -> None:
        self._limit = limit
        self._share = share
        self._kept = 0

    def __enter__(self) -> None:
        self._kept = self._limit.keep(self._limit.unused(self._share))

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> bool:
        self._limit.keep(self._kept)
        return kind is OutOfSteps
