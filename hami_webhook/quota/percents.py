"""Limits that are percents of the healthy cards, as AcceleratorQuotas write them (docs/spec/quota.md#5.3).

The status has the amount of each, which the leader writes: every replica goes by that, whatever cards it sees itself.
A percent whose amount isn't there yet limits nothing to a number, so charges of its key are refused until it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

from hami_webhook.kube.objects import ResourceQuota
from hami_webhook.kube.quota_fields import Percents

PAUSE = 300.0
"""Seconds for which there have been fewer cards before a limit falls."""
_PERCENT = re.compile(r"(?:100(?:\.0{1,2})?|[0-9]{1,2}(?:\.[0-9]{1,2})?)%", re.ASCII)
_PART, _AMOUNT = "percent", "amount"


def percents_of(hard: Mapping[str, Any]) -> Mapping[str, str]:
    """The limits that are written as percents."""
    return {key: text for key, text in hard.items() if isinstance(text, str) and text.endswith("%")}


def read_percent(text: str) -> Fraction | None:
    """The part of all cards, from 0 to 1; None for what isn't from 0% to 100% with at most two decimals."""
    return Fraction(text[:-1]) / 100 if _PERCENT.fullmatch(text) else None


def known_amounts(percents: Percents) -> dict[str, str]:
    """What the status has of percents, by key. What it has of another percent of the key doesn't count."""
    found = {}
    for key, text in percents.written.items():
        share = percents.shares.get(key)
        amount = share.get(_AMOUNT) if isinstance(share, Mapping) and share.get(_PART) == text else None
        if isinstance(amount, str) and amount.isascii() and amount.isdecimal() and len(amount) <= 18:
            found[key] = amount
    return found


def unwritten(percents: Percents) -> frozenset[str]:
    """Return the keys of percents of which the status has no amount."""
    return frozenset(percents.written.keys() - known_amounts(percents).keys())


def written_shares(percents: Mapping[str, str], amounts: Mapping[str, int]) -> dict[str, Any]:
    """These amounts as a status has them."""
    return {key: {_PART: percents[key], _AMOUNT: str(amount)} for key, amount in sorted(amounts.items())}


def shares_patch(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a status' merge patch that leads from one to the other."""
    if before == after:
        return {}
    return {"shares": {**dict.fromkeys(before.keys() - after.keys()), **after} if after else None}


def percent_faults(quota: ResourceQuota) -> Iterator[tuple[str, str]]:
    """The percents that can't be read, each with what would be right.

    The API server refuses them by the definition of the kind; this is for objects from files, too.
    """
    for key, text in quota.percents.written.items():
        if read_percent(text) is None:
            yield key, f"{key}: {text} isn't a percent from 0% to 100%, so no pod is charged; write one such as 40%"


Seen = tuple[tuple[int, float], ...]
"""The amounts that cards gave lately, the largest first, each with the time (Unix seconds) until which they gave it."""


def damped(shown: int | None, amount: int, seen: Seen, now: float) -> tuple[int, Seen]:
    """Return the limit at `now` where the cards there are now give `amount`, and what to remember for the next time.

    The limit is the largest amount of the last `PAUSE` seconds: it rises at once, and cards that come and go don't move
    it. `shown` is the one in the status, None for none. If `seen` lacks it, its age is unknown, so it counts until now.
    """
    if shown is None or amount >= shown:
        return amount, ()
    # what was seen last was there until now; a clock that went back shortens no pause
    held = [(each, min(until, now)) for each, until in seen[:-1]] + [(each, now) for each, _ in seen[-1:]]
    if not held or held[0][0] < shown:
        held.insert(0, (shown, now))
    # what is larger than the status isn't needed any more; what is as large may be there still as a write failed
    kept = [(each, until) for each, until in held if amount < each <= shown]
    return max((each for each, until in kept if now < until + PAUSE), default=amount), (*kept, (amount, now))


def next_fall(seen: Seen, now: float) -> float | None:
    """Return when a limit falls if cards stay as they are, in Unix seconds; None if it is what there is."""
    return min((until + PAUSE for _, until in seen[:-1] if now < until + PAUSE), default=None)
