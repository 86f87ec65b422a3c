"""The ledger in a ResourceQuota's annotation: the charges that can't be read off the pods (docs/spec/quota.md#6)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any

import orjson

LEDGER = "hami.io/quota-ledger"
RESERVATION = "hami.io/quota-reservation"


class State(Enum):
    """Charged and not known to exist; existing and unplaced with an amount that isn't derivable; being placed."""

    ADMITTED = "admitted"
    WAITING = "waiting"
    PLACING = "placing"


@dataclass(frozen=True, slots=True)
class Entry:
    """One pod's charge to one quota. `time` is Unix seconds; `actual` is the new placement's charge while placing.

    `observed`: the quota had no room for it, and let it pass as it only observes.

    Amounts are exact: a key that a quota may count in bytes is kept in bytes whatever this quota counts now, so that an
    entry means the same after `16` in hard became `16Gi`.
    """

    state: State
    time: int
    amounts: Mapping[str, int]
    actual: Mapping[str, int] | None = None
    observed: bool = False

    def only(self, keys: Iterable[str]) -> dict[str, int]:
        """The amounts of the given keys."""
        return {key: self.amounts[key] for key in keys if key in self.amounts}

    def covers(self, amounts: Mapping[str, int]) -> bool:
        """Whether it charges at least these amounts."""
        return all(self.amounts.get(key, 0) >= amount for key, amount in amounts.items())

    def raised_to(self, amounts: Mapping[str, int]) -> dict[str, int]:
        """Its amounts, or these where they are larger."""
        return {key: max(self.amounts.get(key, 0), amounts.get(key, 0)) for key in {*self.amounts, *amounts}}

    def expired(self, now: float, ttl: float) -> bool:
        """Whether the entry is older than `ttl`, or as far in the future, which no clock of ours is."""
        return abs(now - self.time) >= ttl


Ledger = Mapping[str, Entry]


def reservation_id(secret: str) -> str:
    """The ledger id of a pod that was charged before it had a UID, from the secret in its annotation `RESERVATION`.

    A digest: a reader of the ledger doesn't learn the secret, and no UID is such an id.
    """
    return f"sha256:{hashlib.sha256(secret.encode()).hexdigest()[:40]}"


def charge_ids(uid: str, annotations: Mapping[str, str]) -> tuple[str, ...]:
    """The ledger ids that a pod's charge may have: its UID, and that of its reservation if it carries one."""
    secret = annotations.get(RESERVATION)
    return (uid, reservation_id(secret)) if secret else (uid,)


def find_entry(
    ledger: Ledger, uid: str, secret: str, admission: Callable[[], Mapping[str, int]]
) -> tuple[str, Entry] | None:
    """A pod's own entry with its id; None if it has none. Nothing else decides which charge is a pod's.

    It stands under the pod's UID. If `/webhook` charged the pod, it stands under the digest of the secret that the
    pod's annotation carries until the pod is seen: then its amounts may not exceed `admission`, what the pod costs
    before it is placed (exact, the quota's keys only). That no other pod carries the secret is the caller's to check.
    """
    entry = ledger.get(uid)
    if entry is not None:
        return uid, entry
    identity = reservation_id(secret) if secret else ""
    entry = ledger.get(identity)
    if entry is None or entry.state is not State.ADMITTED:
        return None
    charge = admission()
    return (identity, entry) if all(charge.get(key, 0) >= amount for key, amount in entry.amounts.items()) else None


def decode(text: str | None) -> Ledger:
    """The entries of the annotation. What can't be read is left out: the recompute goes by the pods."""
    return _decoded(text) if text else {}


@lru_cache(maxsize=16)
def _decoded(text: str) -> Ledger:
    """The same text comes again: as the answer to a write, from the watch, with the next charge."""
    try:
        items = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}
    if not isinstance(items, dict):
        return {}
    return {key: entry for key, item in items.items() if (entry := _entry(item)) is not None}


def encode(ledger: Ledger) -> str | None:
    """The annotation's text, ids sorted; None (which deletes it) if there is nothing to remember."""
    if not ledger:
        return None
    return orjson.dumps({key: _item(ledger[key]) for key in sorted(ledger)}).decode()


def _item(entry: Entry) -> dict[str, Any]:
    item: dict[str, Any] = {"s": entry.state.value, "t": entry.time, "c": dict(sorted(entry.amounts.items()))}
    if entry.actual is not None:
        item["a"] = dict(sorted(entry.actual.items()))
    if entry.observed:
        item["o"] = True
    return item


def _entry(item: Any) -> Entry | None:
    if not isinstance(item, dict):
        return None
    try:
        state = State(item.get("s"))
    except ValueError:
        return None
    time, amounts, actual = item.get("t"), _amounts(item.get("c")), item.get("a")
    if not isinstance(time, int) or isinstance(time, bool) or amounts is None:
        return None
    return Entry(state, time, amounts, None if actual is None else _amounts(actual), item.get("o") is True)


def _amounts(value: Any) -> dict[str, int] | None:
    if not isinstance(value, dict):
        return None
    if not all(isinstance(amount, int) and not isinstance(amount, bool) and amount >= 0 for amount in value.values()):
        return None
    return value
