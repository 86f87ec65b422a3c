"""Warning events on Namespaces for annotations that have no effect there."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from hami_webhook.charging.namespaces import ignored_annotations
from hami_webhook.cluster.object_events import ObjectEvents
from hami_webhook.loops import Sleep, repeat
from hami_webhook.state.cluster_view import ClusterView

EVERY = 30.0


class NamespaceAnnotations:
    """Reports scheduler-owned annotations of Namespaces; again only when they changed."""

    def __init__(self, view: ClusterView, object_events: ObjectEvents) -> None:
        self._view = view
        self._object_events = object_events
        self._reported: frozenset[str] = frozenset()

    async def run(self, sleep: Sleep = asyncio.sleep) -> None:
        """A pass every 30 seconds, until cancelled."""
        await repeat(self.audit, EVERY, sleep)

    async def audit(self) -> None:
        """One pass over the namespaces."""
        found: Mapping[str, str] = {
            name: ignored_annotations(keys)
            for name, namespace in self._view.caches.namespaces.items()
            if (keys := self._owned(namespace.annotations))
        }
        for name in sorted(self._reported | found.keys()):
            await self._object_events.warn("Namespace", "", name, "", "PolicyIgnored", found.get(name, ""), topic=name)
        self._reported = frozenset(found)

    def _owned(self, annotations: Mapping[str, str]) -> list[str]:
        return sorted(self._view.vendors.reserved.among(annotations, with_cards=True))
