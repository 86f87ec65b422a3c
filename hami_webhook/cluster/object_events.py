"""Warning events about objects, each recorded once for as long as its message stays the same."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection

from hami_webhook.cluster.api import Cluster, ClusterError, EventNote
from hami_webhook.kube.event_reasons import EventReason

logger = logging.getLogger(__name__)


class ObjectEvents:
    """Keeps the last messages of each object, by UID, and records new ones; `counts` are the events by reason."""

    def __init__(self, cluster: Cluster, counts: Counter[str]) -> None:
        self._cluster = cluster
        self._counts = counts
        self._recorded: dict[str, dict[tuple[EventReason, str], str]] = {}

    async def warn(
        self,
        kind: str,
        namespace: str,
        name: str,
        uid: str,
        reason: EventReason,
        message: str,
        topic: str = "",
        detail: str = "",
    ) -> None:
        """Record an event unless its message is the last one of its reason, or of its reason and `topic`.

        An empty message means that the problem is over, so that the next one is recorded whatever it is. `detail` goes
        with the message, and isn't compared.
        """
        recorded = self._recorded.setdefault(uid, {})
        key = (reason, topic)
        if recorded.get(key, "") == message:
            return
        recorded[key] = message
        if not message:
            return
        text = f"{message}; {detail}" if detail else message
        if not await self.record(EventNote(kind, namespace, name, uid, "Warning", reason, text)):
            del recorded[key]

    async def record(self, note: EventNote) -> bool:
        """Record an event whatever was recorded before; whether that worked."""
        try:
            await self._cluster.record_event(note)
        except ClusterError as error:
            where = f"{note.namespace}/{note.name}".removeprefix("/")
            logger.warning("can't record event %s on %s %s: %s", note.reason, note.kind, where, error)
            return False
        self._counts[note.reason] += note.times
        return True

    def reasons(self, uid: str) -> Collection[EventReason]:
        """The reasons of the last messages of an object."""
        return {reason for reason, _ in self._recorded.get(uid, ())}

    def forget(self, uid: str) -> None:
        """Forget an object that was deleted."""
        self._recorded.pop(uid, None)

    def keep_only(self, uids: Collection[str]) -> None:
        """Forget all other objects."""
        self._recorded = {uid: recorded for uid, recorded in self._recorded.items() if uid in uids}
