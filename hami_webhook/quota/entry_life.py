"""The life of a ledger's entries as a table: what becomes of an entry in each state with each event.

Source: docs/spec/quota.md#6, which shows the same table. Charges begin entries and raise them; here is how they end.
An entry counts what no pod shows yet, and the table stands between two faults. One that goes too early gives its room
to others (Q2): it goes by evidence only, when its pod counts by itself or has gone. One that stays for ever keeps room
from others for nothing (Q3): where the evidence may never come, it goes when it is too old. What a pod says of itself,
or what a cache doesn't show, is no event.

Every reader of an event uses the table, and has no rule beside it: the recompute as it reads the pods, a quota as it is
read with other cards, the ledgers of quotas that were deleted or replaced.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from hami_webhook.quota.ledger import Entry, State


class Event(Enum):
    """What is known of an entry's pod; of a claim's allocation, of the claim; of a floor entry, of all its pods."""

    UNSEEN = "nobody has seen it, and it may still come"
    QUEUED = "it waits behind the queue's gate"
    SEEN = "it is there, and doesn't show what the entry is of"
    OLD = "one of these, and the entry is older than the TTL"
    NEEDED = "it waits, and costs what the entry says"
    SHOWN = "it shows what the entry is of"
    GONE = "it has ended, or left the quota's scope"
    REPLACED = "the quota was made anew, or its annotation wiped"
    OTHER_CARDS = "the quota counts other cards"


class Fate(Enum):
    """What becomes of an entry, and what is charged then; `c` are its amounts, and the pod's are those by itself."""

    DROPPED = "dropped"
    STAYS = "stays"
    ALONE = "`c`"
    INSTEAD = "`c` for the pod's"
    LARGER = "the larger"
    ADDED = "`c` and the pod's"


LIFE: Mapping[State, Mapping[Event, Fate]] = {
    State.ADMITTED: {
        Event.UNSEEN: Fate.ALONE,
        Event.QUEUED: Fate.INSTEAD,  # the gate goes after the charge, and nothing else counts the pod until it has gone
        Event.SEEN: Fate.DROPPED,
        Event.OLD: Fate.DROPPED,
        Event.SHOWN: Fate.DROPPED,
        Event.GONE: Fate.DROPPED,
        Event.REPLACED: Fate.ALONE,  # in all other states the pods are there, and show what they cost
        Event.OTHER_CARDS: Fate.STAYS,
    },
    State.PLACING: {
        Event.UNSEEN: Fate.ALONE,  # only an allocation: it may be stored though its pod has gone
        Event.QUEUED: Fate.INSTEAD,
        Event.SEEN: Fate.LARGER,  # the placement may come, or never: then what was charged before holds
        Event.OLD: Fate.DROPPED,
        Event.SHOWN: Fate.DROPPED,
        Event.GONE: Fate.DROPPED,
        Event.REPLACED: Fate.DROPPED,
        Event.OTHER_CARDS: Fate.STAYS,
    },
    State.UPDATING: {
        Event.SEEN: Fate.ADDED,
        Event.OLD: Fate.DROPPED,
        Event.SHOWN: Fate.DROPPED,
        Event.GONE: Fate.DROPPED,
        Event.REPLACED: Fate.DROPPED,
        Event.OTHER_CARDS: Fate.STAYS,
    },
    State.FLOOR: {
        Event.UNSEEN: Fate.STAYS,
        Event.OLD: Fate.DROPPED,
        Event.NEEDED: Fate.STAYS,  # however old: a new one would be of today's cards, and move used (Q11a)
        Event.REPLACED: Fate.DROPPED,
        Event.OTHER_CARDS: Fate.DROPPED,
    },
    State.WAITING: {
        Event.NEEDED: Fate.INSTEAD,
        Event.SHOWN: Fate.DROPPED,
        Event.GONE: Fate.DROPPED,
        Event.REPLACED: Fate.DROPPED,
        Event.OTHER_CARDS: Fate.STAYS,
    },
}
"""What isn't here can't come: an update and a placement are of pods that are there."""

UNTIL_OLD = (Event.UNSEEN, Event.QUEUED, Event.SEEN)
"""The events that the age of an entry ends; the others are certain."""


def fate_of(entry: Entry, event: Event, now: float, ttl: float) -> Fate:
    """What becomes of an entry with an event, or with its age (both in seconds)."""
    return LIFE[entry.state][Event.OLD if event in UNTIL_OLD and entry.expired(now, ttl) else event]


def survives(entry: Entry, event: Event) -> bool:
    """Whether an entry is still there after an event, as far as its age allows."""
    return LIFE[entry.state][event] is not Fate.DROPPED


def grows_old(state: State) -> bool:
    """Whether the age of an entry may end it."""
    return Event.OLD in LIFE[state]
