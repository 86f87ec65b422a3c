"""Warning events for what a person should know, each once as long as it says the same."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection

from hami_webhook.cluster.api import Cluster, ClusterError, EventNote

logger = logging.getLogger(__name__)


class ObjectEvents:
    """Remembers what was told of each object, by UID, and tells what is new; `counts` are such problems by reason."""

    def __init__(self, cluster: Cluster, counts: Counter[str]) -> None:
        self._cluster = cluster
        self._counts = counts
        self._told: dict[str, dict[str, str]] = {}

    async def tell(
        self, kind: str, namespace: str, name: str, uid: str, reason: str, message: str, topic: str = ""
    ) -> None:
        """Record an event, unless it was the last of its reason; an empty message: there is nothing to say now.

        With a `topic`: the last of its reason and topic.
        """
        told = self._told.setdefault(uid, {})
        subject = f"{reason} {topic}".strip()
        if told.get(subject, "") == message:
            return
        told[subject] = message
        if not message:
            return
        try:
            await self._cluster.record_event(EventNote(kind, namespace, name, uid, "Warning", reason, message))
        except ClusterError as error:
            del told[subject]
            logger.warning(
                "can't record event %s on %s %s: %s", reason, kind, f"{namespace}/{name}".removeprefix("/"), error
            )
        else:
            self._counts[reason] += 1

    def reasons(self, uid: str) -> Collection[str]:
        """Of what was told of an object."""
        return tuple(self._told.get(uid, ()))

    def forget(self, uid: str) -> None:
        """An object is gone."""
        self._told.pop(uid, None)

    def keep_only(self, uids: Collection[str]) -> None:
        """No other objects are there any longer."""
        self._told = {uid: told for uid, told in self._told.items() if uid in uids}
