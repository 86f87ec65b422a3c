"""A quota's ledger: the charges in used that the pods themselves don't show (docs/spec/quota.md#6).

`find_entry` decides to which pod an entry belongs, for admission, recompute and placement (Q5). Nothing that a
pod carries may name an entry (Q14): tenants write annotations, and may read ledgers. So a UID in an annotation is
ignored, and the ledger has only the digest of a secret. `QuotaAccount` computes how entries change used.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from functools import lru_cache
from typing import Annotated

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from hami_webhook.kube.objects import RESERVATION

LEDGER = "hami.io/quota-ledger"


class State(Enum):
    """The state of one pod's entry. `ADMITTED`: charged, not stored yet. `PLACING`: being placed. `UPDATING`: being
    updated to a higher cost.

    `FLOOR` is of all pods of a namespace with the same request: what each costs while it waits. Older versions wrote
    `WAITING` for one pod; this version only reads it.
    """

    ADMITTED = "admitted"
    PLACING = "placing"
    UPDATING = "updating"
    FLOOR = "floor"
    WAITING = "waiting"


IN_ADMISSION = (State.ADMITTED, State.UPDATING)
"""The states of entries of pods that are being created or updated."""


Amounts = Mapping[str, Annotated[int, msgspec.Meta(ge=0)]]

_WRITTEN_AS = {
    "state": "s", "time": "t", "amounts": "c", "actual": "a", "observed": "o",
    "namespace": "n", "claim": "f", "attempt": "w", "subject": "u",
}  # fmt: skip


class Entry(Struct, frozen=True, omit_defaults=True, rename=_WRITTEN_AS):
    """One charge to one quota. `time` is Unix seconds; `actual` is the new placement's charge while placing.

    `observed`: the quota had no room for the charge, and admitted it because the quota only observes. `namespace` is
    the pod's, where the quota is of several. `claim`: while placing, the allocated claim's UID; for a new claim, its
    UID or `SEVERAL`. `attempt` marks its last writer, as `new_attempt` gives it; older versions leave it empty.
    `subject`: the subject to whose limit the entry is charged as well, if the quota has limits per subject. `floor_id`:
    for an update, the id of the new request's floor entry; `amounts` are then the added ones.

    Amounts are exact: keys that a quota may count in bytes are always stored in bytes. So an entry stays valid if hard
    changes from `16` to `16Gi`.
    """

    state: State
    time: int
    amounts: Amounts
    actual: Amounts | None = None
    observed: bool = False
    namespace: str = ""
    claim: str = ""
    attempt: str = ""
    subject: str = ""
    floor_id: str = ""

    @property
    def is_allocation(self) -> bool:
        """Whether it is of a claim's allocation."""
        return self.state is State.PLACING and self.claim != ""

    def only(self, keys: Iterable[str]) -> dict[str, int]:
        """The amounts of the given keys."""
        return {key: self.amounts[key] for key in keys if key in self.amounts}

    def covers(self, amounts: Mapping[str, int]) -> bool:
        """Whether it charges at least these amounts."""
        return all(self.amounts.get(key, 0) >= amount for key, amount in amounts.items())

    def raised_to(self, amounts: Mapping[str, int]) -> dict[str, int]:
        """Its amounts, or these where they are larger."""
        return {key: max(self.amounts.get(key, 0), amounts.get(key, 0)) for key in {*self.amounts, *amounts}}

    def no_more_than(self, other: Entry) -> Entry:
        """The entry with no larger amounts than another's."""
        return replace(
            self, amounts={key: min(value, other.amounts.get(key, 0)) for key, value in self.amounts.items()}
        )

    def expired(self, now: float, ttl: float) -> bool:
        """Return whether the entry's time is at least `ttl` seconds before or after `now`.

        Our clocks never differ that much.
        """
        return abs(now - self.time) >= ttl


Ledger = Mapping[str, Entry]


def new_attempt() -> str:
    """Return a new mark for one attempt to charge. The attempt recognises its own entries by it, and undoes only these.

    Reviews can't contain marks: the program reads them from the ledger only.
    """
    return secrets.token_hex(4)


def is_full(ledger: Ledger, most: int, state: State, namespace: str = "", namespaces: int = 1) -> bool:
    """Return whether the ledger has no room for another entry of this state and namespace (docs/spec/quota.md#6).

    `most`: the limit for entries of pods in flight; a ResourceQuota's ledger may have a quarter as many floor entries.
    In a ledger of several namespaces, each namespace has a guaranteed share of both limits, and may use free entries up
    to half of all.
    """
    floors = state is State.FLOOR
    share = max(1, most // namespaces) if namespace else max(1, most // 4) if floors else most
    if len(ledger) < share:
        return False
    if not namespace:
        return sum((entry.state is State.FLOOR) == floors for entry in ledger.values()) >= share
    # those of single waiting pods are of an older version, and no new ones come: they take nobody's part
    of_kind = [
        e.namespace for e in ledger.values() if (e.state is State.FLOOR) == floors and e.state is not State.WAITING
    ]
    own = of_kind.count(namespace)
    return own >= share and (own >= most // 2 or len(of_kind) >= most)


def reservation_id(secret: str) -> str:
    """The ledger id of a pod that was charged before it had a UID, from the secret in its annotation `RESERVATION`.

    A digest: a reader of the ledger doesn't learn the secret, and no UID is such an id.
    """
    return f"sha256:{hashlib.sha256(secret.encode()).hexdigest()[:40]}"


SEVERAL = "several"
"""In the place of a claim's UID: several of the name were to be created, of which one came to be, or none."""
UPDATE = "update:"
"""What the ledger ids of updates begin with; no UID does."""


def update_id(uid: str) -> str:
    """The ledger id of what an update of a waiting pod adds to its charge."""
    return f"{UPDATE}{uid}"


def charge_ids(uid: str, annotations: Mapping[str, str]) -> tuple[str, ...]:
    """The ledger ids that a pod's charge may have: its UID, and that of its reservation if it carries one."""
    secret = annotations.get(RESERVATION)
    return (uid, reservation_id(secret)) if secret else (uid,)


def find_entry(
    ledger: Ledger, uid: str, secret: str, admission: Callable[[], Mapping[str, int]]
) -> tuple[str, Entry] | None:
    """A pod's own entry with its id; None if it has none. Only this function matches entries to pods.

    It stands under the pod's UID. If `/webhook` charged the pod, its entry's id is the digest of its reservation secret
    until a recompute sees the pod. Such an entry's amounts may not exceed `admission`, the pod's cost before its
    placement (exact, the quota's keys only). The caller must check that no other pod has the secret.
    """
    entry = ledger.get(uid)
    if entry is not None and entry.state not in (State.FLOOR, State.UPDATING):
        return uid, entry
    identity = reservation_id(secret) if secret else ""
    entry = ledger.get(identity)
    if entry is None or entry.state is not State.ADMITTED:
        return None
    charge = admission()
    return (identity, entry) if all(charge.get(key, 0) >= amount for key, amount in entry.amounts.items()) else None


def find_claim_entry(ledger: Ledger, identity: str, uid: str) -> tuple[str, Entry] | None:
    """Return a new claim's ledger id and entry, unless another claim of that name may still be created
    (docs/spec/dra.md#7).
    """
    entry = ledger.get(identity)
    return (identity, entry) if entry is not None and entry.state is State.ADMITTED and entry.claim == uid else None


@lru_cache(maxsize=16)
def decode(text: str | None) -> Ledger:
    """The entries of the annotation. What can't be read is left out: the recompute goes by the pods.

    The same text comes again: as the answer to a write, from the watch, with the next charge.
    """
    if not text:
        return {}
    try:
        items = _ITEMS.decode(text)
    except (ValueError, RecursionError):
        return {}
    return {key: entry for key, item in items.items() if (entry := _entry(item)) is not None}


def encode(ledger: Ledger) -> str | None:
    """The annotation's text, ids sorted; None (which deletes it) if there is nothing to remember."""
    if not ledger:
        return None
    return _ENCODER.encode({key: _item(entry) for key, entry in ledger.items()}).decode()


_ITEMS = msgspec.json.Decoder(dict[str, Raw])
_ENTRY = msgspec.json.Decoder(Entry)
_ENCODER = msgspec.json.Encoder(order="deterministic")


def _item(entry: Entry) -> Entry:
    """The entry as it is written: no entry has both a claim and a floor entry, so `f` is either."""
    return replace(entry, claim=entry.floor_id, floor_id="") if entry.state is State.UPDATING else entry


def _entry(item: Raw) -> Entry | None:
    try:
        entry = _ENTRY.decode(item)
    except msgspec.ValidationError:
        return None
    return replace(entry, claim="", floor_id=entry.claim) if entry.state is State.UPDATING else entry
