"""Find the pods by which used exceeds hard, for the event that names them (docs/spec/quota.md#9).

It decides nothing: used above hard blocks new charges whichever pods hold it, and no pod is evicted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import NamedTuple

from hami_webhook.kube.objects import Pod

_MOST_NAMED = 5
"""Pods in a sentence: an event's message has 1024 bytes."""


class Holding(NamedTuple):
    """A pod, or a claim of no pod, and what it costs a quota, by key; `allowed` if the ledger had its charge."""

    pod: Pod
    costs: Mapping[str, int]
    allowed: bool


def above_hard(excess: Mapping[str, int], held: Iterable[Holding]) -> list[Holding]:
    """Return the pods without which used would be within hard, with their costs. `excess`: the amounts above hard, by
    key.

    Pods that no entry allowed come first, each part youngest first. If charges in flight alone exceed hard, the
    returned pods don't cover the excess.
    """
    if not excess:
        return []
    left = dict(excess)
    found = []
    for holding in sorted(held, key=_last_in, reverse=True):
        if any(amount > 0 and holding.costs.get(key, 0) > 0 for key, amount in left.items()):
            left = {key: amount - holding.costs.get(key, 0) for key, amount in left.items()}
            found.append(holding._replace(costs={key: n for key, n in holding.costs.items() if key in excess and n}))
    return found


def excess_sentence(excess: Sequence[Holding]) -> str:
    """Name the first pods of `above_hard` with their amounts, and count the others; empty if there are none."""
    if not excess:
        return ""
    named = [_named(holding) for holding in excess[:_MOST_NAMED]]
    more = len(excess) - len(named)
    return "above the limit: " + ", ".join(named) + (f" and {more} more" if more else "")


def _last_in(holding: Holding) -> tuple[bool, float, str]:
    return not holding.allowed, holding.pod.created or 0.0, holding.pod.key


def _named(holding: Holding) -> str:
    amounts = ", ".join(f"{key}={amount}" for key, amount in sorted(holding.costs.items(), key=itemgetter(0)))
    return f"{holding.pod.key} ({amounts})"
