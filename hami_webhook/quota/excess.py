"""Which pods hold more than a quota's hard, so that a person can see what passed it (docs/spec/quota.md#9).

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
    """Those without which used were within hard, with their costs of the keys of `excess`: what is above hard by key.

    Pods that no entry allowed come first, each part youngest first. They are fewer than needed where charges of pods
    that aren't there yet are above hard alone.
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
