"""Unhealthy cards, listed in an annotation of the node, which Fit obeys, and in events on it.

Source: docs/monitor.md#unhealthy-cards. A cause counts from when NVML shows it until it hasn't for a minute. An error
of the driver counts as shown until NVML says that no reset is needed; where it doesn't say, until the machine boots.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from hami_webhook.cluster.api import Cluster, ClusterError, Conflict, EventNote, Kind
from hami_webhook.cluster.object_events import ObjectEvents
from hami_webhook.devices.unhealthy_cards import ANNOTATION, LOST, RECOVERY, XID, UnhealthyCard, decode, encode
from hami_webhook.kube.objects import MalformedObject, Node, format_time
from hami_webhook.loops import News, Sleep, repeat
from hami_webhook.node.cards import CardActivity, CardHealth, ProbeError

logger = logging.getLogger(__name__)

EVERY = 5.0
"""Seconds between two looks at the cards."""
WELL_AFTER = 60.0
"""Seconds after which a cause that isn't shown any more is over: a card that heats up again and again stays closed."""
READ_EVERY = 60.0
"""Seconds after which the node is read again, as somebody may have changed the annotation."""


class Probe(Protocol):
    """Asks for the health of the cards; raises `ProbeError`. `close`: let go of them."""

    def __call__(self) -> Sequence[CardHealth]: ...

    def close(self) -> None: ...


class UnhealthyCards:
    """The unhealthy cards of a machine, by what is shown of them. Times are Unix seconds."""

    def __init__(self) -> None:
        self._shown: dict[str, dict[str, float]] = {}
        self._since: dict[str, str] = {}
        self._known: set[str] = set()

    @property
    def cards(self) -> dict[str, UnhealthyCard]:
        """By UUID."""
        return {
            uuid: UnhealthyCard(tuple(sorted(causes)), self._since[uuid])
            for uuid, causes in self._shown.items()
            if causes
        }

    def take_over(self, cards: Mapping[str, UnhealthyCard], now: float, booted: float) -> None:
        """Go on from what a process before wrote, unless the machine was booted since."""
        for uuid, card in cards.items():
            if card.since >= format_time(booted):
                self._known.add(uuid)
                self._shown[uuid] = dict.fromkeys(card.causes, now)
                self._since[uuid] = card.since

    def forget(self, uuid: str) -> None:
        """Somebody says that the card is well; what NVML still shows comes back."""
        self._shown.pop(uuid, None)
        self._known.discard(uuid)

    def look(self, cards: Sequence[CardHealth], now: float) -> None:
        """These are the cards now."""
        for card in cards:
            causes = {*card.causes, *(f"{XID}{number}" for number in card.xids)}
            if card.needs_recovery:
                causes.add(RECOVERY)
            if card.needs_recovery is not False:
                causes |= {cause for cause in self._shown.get(card.uuid, ()) if cause.startswith(XID)}
            self._show(card.uuid, causes, now)
        found = {card.uuid for card in cards}
        for uuid in self._known - found:
            self._show(uuid, {LOST}, now)
        self._known |= found

    def _show(self, uuid: str, causes: set[str], now: float) -> None:
        before = self._shown.get(uuid, {})
        if causes and not before:
            self._since[uuid] = format_time(now)
        lasting = {cause: at for cause, at in before.items() if 0 <= now - at < WELL_AFTER}
        self._shown[uuid] = lasting | dict.fromkeys(causes, now)


class CardHealthLoop:
    """Does it for a node. `booted` is when the machine was; nothing is asked while `mig_lock` is there.

    `activity` learns which cards computed, as NVML is asked every few seconds here alone.
    """

    def __init__(
        self,
        cluster: Cluster,
        node: str,
        probe: Probe,
        events: ObjectEvents,
        clock: Callable[[], float],
        *,
        booted: float,
        mig_lock: Path,
        activity: CardActivity | None = None,
    ) -> None:
        self._cluster = cluster
        self._node = node
        self._probe = probe
        self._events = events
        self._clock = clock
        self._booted = booted
        self._mig_lock = mig_lock
        self._activity = activity or CardActivity()
        self._found = UnhealthyCards()
        self._written: dict[str, UnhealthyCard] | None = None
        self._read_at = 0.0
        self._news = News(logger, f"node {node}: ")

    @property
    def cards(self) -> Mapping[str, UnhealthyCard]:
        """The unhealthy cards, by UUID."""
        return self._found.cards

    async def run(self, sleep: Sleep = asyncio.sleep) -> None:
        """A look every five seconds, until cancelled."""
        try:
            await repeat(self.step, EVERY, sleep)
        finally:
            self._probe.close()

    async def step(self) -> bool:
        """Ask NVML, and write what changed; False if the node changed meanwhile."""
        if self._mig_lock.exists():
            self._probe.close()
            return True
        try:
            cards = await asyncio.to_thread(self._probe)
        except ProbeError as error:
            self._news.say(f"the health of the cards isn't known: NVML: {error}")
            return True
        now = self._clock()
        self._activity.look(cards, now)
        try:
            if self._written is None:
                await self._take_over(now)
            self._found.look(cards, now)
            if self._found.cards != self._written or not 0 <= now - self._read_at < READ_EVERY:
                await self._write(now)
        except Conflict:
            return False
        except (ClusterError, MalformedObject) as error:
            self._news.say(f"{ANNOTATION} can't be written: {error}")
            return True
        self._news.say("")
        return True

    async def _take_over(self, now: float) -> None:
        before = decode((await self._read())[1])[0]
        self._found.take_over(before, now, self._booted)
        self._written, self._read_at = before, now

    async def _write(self, now: float) -> None:
        version, there = await self._read()
        written = self._written or {}
        for uuid in written.keys() - decode(there)[0].keys():
            self._found.forget(uuid)
        cards = self._found.cards
        text = encode(cards) if cards else ""
        if text != there:
            patch = {"resourceVersion": version, "annotations": {ANNOTATION: text or None}}
            await self._cluster.patch(Kind.NODES, self._node, {"metadata": patch})
        self._written, self._read_at = cards, now
        for uuid in sorted(cards.keys() | written.keys()):
            await self._tell(uuid, written.get(uuid), cards.get(uuid))

    async def _read(self) -> tuple[str, str]:
        """The version of the node, and its annotation, empty if it has none."""
        obj = await self._cluster.get(Kind.NODES, self._node)
        return obj["metadata"]["resourceVersion"], Node.from_object(obj).annotations.get(ANNOTATION, "")

    async def _tell(self, uuid: str, before: UnhealthyCard | None, now: UnhealthyCard | None) -> None:
        if now is not None and (before is None or now.causes != before.causes):
            text = f"the card {uuid} gets no new pods: {now.sentence}"
            note = EventNote("Node", "", self._node, self._node, "Warning", "CardUnhealthy", text)
        elif now is None:
            text = f"the card {uuid} is well again, and gets new pods"
            note = EventNote("Node", "", self._node, self._node, "Normal", "CardHealthy", text)
        else:
            return
        logger.warning("node %s: %s", self._node, text)
        await self._events.record(note)
