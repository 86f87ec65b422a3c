"""The life of a ledger's entries as a table: what becomes of an entry in each state with each event.

Source: docs/spec/quota.md#6, which shows the same table. Charges create entries and raise them; this table removes
them. An entry counts what no pod shows yet. The table avoids two faults: an entry removed too early, or never. An entry
removed too early gives its room to others (Q2), so it is removed only if its pod counts by itself or is deleted. An
entry that is never removed blocks room (Q3), so an entry whose pod may never appear is removed after a TTL. Neither a
pod's own annotations nor an object's absence from a cache counts as an event.

Every reader of an event uses the table, and has no rule beside it: the recompute as it reads the pods, a quota as it is
read with other cards, the ledgers of quotas that were deleted or replaced.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from hami_webhook.quota.ledger import Entry, State


class Event(Enum):
    """The state of an entry's pod; for an allocation's entry, of the claim; for a floor entry, of all its pods."""

    UNSEEN = "nobody has seen it, and it may still come"
    QUEUED = "it waits behind the queue's gate"
    SEEN = "it is there, and doesn't show what the entry is of"
    OLD = "one of these, and the entry is older than the TTL"
    NEEDED = "it waits, and costs what the entry says"
    SHOWN = "it shows what the entry is of"
    GONE = "it has ended, or left the quota's scope"
    REPLACED = "the quota was created again, or its annotation removed"
    OTHER_CARDS = "the quota counts other cards"


class Fate(Enum):
    """The fate of an entry, and the amounts charged then: `c` are the entry's, "the pod's" the pod's own."""

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
    """Return whether an entry stays after an event, until it is too old."""
    return LIFE[entry.state][event] is not Fate.DROPPED


def grows_old(state: State) -> bool:
    """Whether the age of an entry may end it."""
    return Event.OLD in LIFE[state]
