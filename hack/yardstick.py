"""`python3 -m hack.yardstick`: what a fixed loop of Python takes now; with it a time can be read.

A machine whose neighbours share its cores changes its pace within minutes, by 1.7 where this was written. So seconds of
one run say nothing beside those of another without this figure of both. It needs nothing but Python.
"""

from __future__ import annotations

import time

_ROUNDS = 5
_STEPS = 500_000


def loop_milliseconds() -> float:
    """The least CPU time of some rounds, in milliseconds: other processes that take turns with this one don't count."""
    return min(_round() for _ in range(_ROUNDS))


def _round() -> float:
    before = time.process_time()
    total = 0
    for step in range(_STEPS):
        total += step & 7
    return 1000 * (time.process_time() - before)


def shown(milliseconds: float) -> str:
    """The figure in words."""
    return f"a fixed loop takes {milliseconds:.0f} ms now"


if __name__ == "__main__":
    print(shown(loop_milliseconds()))
