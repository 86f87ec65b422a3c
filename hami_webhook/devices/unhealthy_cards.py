"""The annotation of a node in which its monitor lists unhealthy cards (docs/monitor.md#unhealthy-cards).

The role `node` writes it and the scheduler reads it, for cards of every vendor: no new pod gets one that is listed.
Every writer of the node can write this annotation. So its length is limited, and an unreadable entry closes no card.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

import orjson

from hami_webhook.devices.registration import MOST_CARDS
from hami_webhook.kube.message_text import shown

ANNOTATION = "hami.io/unhealthy-cards"
_LONGEST = 65_536
_MOST_CAUSES = 16
_CAUSE = re.compile(r"[a-z][a-z0-9-]{0,31}", re.ASCII)

LOST, ECC, THERMAL, RECOVERY, XID = "lost", "ecc-double-bit", "thermal-slowdown", "recovery-needed", "xid-"
"""Causes; one of NVIDIA's errors is the last with its number."""
_WORDS = {
    LOST: "NVML no longer finds it",
    ECC: "it has ECC double-bit errors",
    THERMAL: "the hardware slows it down, as it is too hot",
    RECOVERY: "NVML says that it needs a reset",
}
_XIDS = {
    "48": "double-bit ECC error",
    "62": "microcontroller halted",
    "64": "row that can't be remapped",
    "74": "NVLink error",
    "79": "fallen off the bus",
    "95": "uncontained memory error",
    "119": "GSP doesn't answer",
    "120": "GSP error",
}
"""What NVIDIA's list says of those that are seen most often."""


class UnhealthyCard(NamedTuple):
    """Why a card is unhealthy, and since when, as RFC 3339."""

    causes: tuple[str, ...]
    since: str = ""

    @property
    def sentence(self) -> str:
        """The causes in words."""
        return "; ".join(map(_in_words, self.causes))


def unhealthy_cards(annotations: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """The reasons in words by the UUIDs of a node's unhealthy cards, and what of its annotation can't be read."""
    text = annotations.get(ANNOTATION)
    if text is None:
        return {}, ""
    cards, problem = decode(text)
    return {uuid: card.sentence for uuid, card in cards.items()}, problem


def decode(text: str) -> tuple[dict[str, UnhealthyCard], str]:
    """The cards of an annotation by UUID, and what of it can't be read, in words; those entries are left out."""
    if len(text) > _LONGEST:
        return {}, f"{ANNOTATION} is ignored: it has {len(text)} characters, and may have {_LONGEST}"
    try:
        found = orjson.loads(text)
    except ValueError:
        return {}, f"{ANNOTATION} is ignored: it is no JSON"
    if not isinstance(found, dict) or len(found) > MOST_CARDS:
        return {}, f"{ANNOTATION} is ignored: it is no JSON object of at most {MOST_CARDS} cards"
    read = {uuid: card for uuid, entry in found.items() if (card := _read(entry)) is not None}
    bad = [uuid for uuid in found if uuid not in read]
    if not bad:
        return read, ""
    entries = "an entry is" if len(bad) == 1 else f"{len(bad)} entries are"
    return read, f'{ANNOTATION}: {entries} ignored: that of {shown(bad[0])} is no {{"causes": ["lost"]}}'


def encode(cards: Mapping[str, UnhealthyCard]) -> str:
    """The annotation for these cards."""
    entries = {uuid: {"causes": card.causes, "since": card.since} for uuid, card in sorted(cards.items())}
    return orjson.dumps(entries).decode()


def _read(entry: object) -> UnhealthyCard | None:
    causes = entry.get("causes") if isinstance(entry, dict) else None
    if not isinstance(causes, list) or not 0 < len(causes) <= _MOST_CAUSES:
        return None
    if not all(isinstance(cause, str) and _CAUSE.fullmatch(cause) for cause in causes):
        return None
    since = entry.get("since") if isinstance(entry, dict) else None
    return UnhealthyCard(tuple(causes), since if isinstance(since, str) else "")


def _in_words(cause: str) -> str:
    number = cause.removeprefix(XID)
    if number == cause:
        return _WORDS.get(cause, cause)
    known = _XIDS.get(number)
    return f"its driver reported XID {number}" + (f" ({known})" if known else "")
