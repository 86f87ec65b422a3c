"""Warning events on DeviceClasses that take a resource which pods ask for by limits (docs/spec/dra.md#10)."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from hami_webhook.cluster.api import Kind
from hami_webhook.cluster.object_events import ObjectEvents
from hami_webhook.dra.taken_resources import taken_resources
from hami_webhook.state.caches import Subscriptions
from hami_webhook.state.cluster_view import ClusterView

_EFFECT = (
    "A kube-scheduler whose filter DynamicResources is on for such pods places none of those that name memory or cores "
    "of cards; disable it in their profile, or remove extendedResourceName"
)
EVERY = 30.0
LOOP = "device classes"


class DeviceClassEvents:
    """Records an event on each class that takes a managed resource; again only when that changed."""

    def __init__(self, view: ClusterView, object_events: ObjectEvents) -> None:
        self._view = view
        self._object_events = object_events
        self._reported: frozenset[str] = frozenset()
        self._changed = asyncio.Event()

    def subscriptions(self) -> Subscriptions:
        return {Kind.DEVICE_CLASSES: lambda change: self._changed.set()}

    async def run(self) -> None:
        """A pass after each change, and every 30 seconds for events that couldn't be recorded, until cancelled."""
        while True:
            self._changed.clear()
            await self.audit()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), EVERY)

    async def audit(self) -> None:
        """One pass over the classes."""
        found = taken_resources(self._view.caches.claims.classes, self._view.vendors.resource_names)
        for name in sorted(self._reported | found.keys()):
            resource = found.get(name)
            message = f"takes {resource}, which pods request by limits. {_EFFECT}" if resource else ""
            await self._object_events.warn("DeviceClass", "", name, name, "DeviceClassTakesResource", message)
        self._reported = frozenset(found)
