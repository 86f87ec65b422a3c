"""ResourceQuotas whose status is kept in this process, for one that may not write it (docs/spec/quota.md#4)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

from msgspec import Struct

from hami_webhook.cluster.api import JSON, Cluster, Conflict, Kind, Listing, WatchEvent, WatchType
from hami_webhook.kube.patch import merge_patch

WITHOUT_STATUS = (
    "no right to patch resourcequotas/status: this process enforces quota from its memory. Usage is exact for one "
    "replica only, loses pods in flight with each restart, and isn't visible to kubectl. Grant the right "
    "(manifests/in-hami-chart does it for HAMi's chart) and restart"
)
"""What is lost without the right."""

_ENFORCEMENT = "hami.io/quota-enforcement"


class _Kept(Struct, frozen=True):
    """What was written to one quota: its UID, all merge patches in one, and how many they were."""

    uid: str
    patch: JSON
    writes: int


class QuotasInMemory:
    """A cluster like the one given, but for the status of ResourceQuotas and what is written with it.

    Reads, lists and watches show the quotas as if the writes had gone through, under versions of their own
    (`123.4`: the fourth write here, on what the API server has as 123), and a write for an older version conflicts, so
    that everything built on compare-and-swap goes on as ever. Other processes see nothing of it: exact for one alone.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._kept: dict[tuple[str, str], _Kept] = {}
        self._watchers: set[asyncio.Queue[WatchEvent | Exception | None]] = set()
        self._undelivered: dict[tuple[str, str], WatchEvent] = {}
        # what has nothing to do with a quota's status
        self.create, self.bind, self.record_event = cluster.create, cluster.bind, cluster.record_event
        self.delete_pod, self.evict_pod = cluster.delete_pod, cluster.evict_pod
        self.delete_claim_template = cluster.delete_claim_template
        self.get_lease, self.create_lease = cluster.get_lease, cluster.create_lease
        self.replace_lease = cluster.replace_lease

    async def get(self, kind: Kind, name: str, namespace: str = "") -> JSON:
        return self._shown(kind, await self._cluster.get(kind, name, namespace))

    async def list(self, kind: Kind, namespace: str = "", *, node: str = "") -> Listing:
        listing = await self._cluster.list(kind, namespace, node=node)
        return Listing([self._shown(kind, item) for item in listing.items], listing.resource_version)

    async def watch(self, kind: Kind, resource_version: str, *, node: str = "") -> AsyncIterator[WatchEvent]:
        events = self._cluster.watch(kind, resource_version.partition(".")[0], node=node)
        if kind is not Kind.RESOURCE_QUOTAS:
            async for event in events:
                yield event
            return
        queue: asyncio.Queue[WatchEvent | Exception | None] = asyncio.Queue()
        for event in self._undelivered.values():
            queue.put_nowait(event)
        self._undelivered.clear()
        self._watchers.add(queue)
        pumping = asyncio.create_task(self._pump(events, queue))
        try:
            while (item := await queue.get()) is not None:
                if isinstance(item, Exception):
                    raise item
                yield item
        finally:
            self._watchers.discard(queue)
            pumping.cancel()

    async def _pump(
        self, events: AsyncIterator[WatchEvent], queue: asyncio.Queue[WatchEvent | Exception | None]
    ) -> None:
        try:
            async for event in events:
                shown = event
                if event.type is not WatchType.BOOKMARK:
                    shown = WatchEvent(event.type, self._shown(Kind.RESOURCE_QUOTAS, event.object))
                if event.type is WatchType.DELETED:
                    self._kept.pop(_key(event.object), None)
                queue.put_nowait(shown)
            queue.put_nowait(None)
        except Exception as error:  # it is the watcher's
            queue.put_nowait(error)

    async def patch(self, kind: Kind, name: str, patch: JSON, namespace: str = "") -> JSON:
        return self._shown(kind, await self._cluster.patch(kind, name, patch, namespace))

    async def patch_status(self, kind: Kind, name: str, patch: JSON, namespace: str = "") -> JSON:
        if kind is not Kind.RESOURCE_QUOTAS:
            return await self._cluster.patch_status(kind, name, patch, namespace)
        stored = await self._cluster.get(kind, name, namespace)
        meta = dict(patch.get("metadata") or {})
        version = meta.pop("resourceVersion", None)
        found = self._shown(kind, stored)
        if version not in (None, found["metadata"]["resourceVersion"]):
            raise Conflict(
                f'Operation cannot be fulfilled on resourcequotas "{name}": the object has been modified; '
                "please apply your changes to the latest version and try again"
            )
        change = {"metadata": meta, "status": patch.get("status") or {}}
        if merge_patch(found, change) == found:
            return found
        key, uid = _key(stored), stored["metadata"]["uid"]
        before = self._kept.get(key)
        if before is None or before.uid != uid:
            before = _Kept(uid, {}, 0)
        self._kept[key] = _Kept(uid, _stacked(before.patch, change), before.writes + 1)
        written = self._shown(kind, stored)
        event = WatchEvent(WatchType.MODIFIED, written)
        for queue in self._watchers:
            queue.put_nowait(event)
        if not self._watchers:
            self._undelivered[key] = event
        return written

    def _shown(self, kind: Kind, obj: JSON) -> JSON:
        """The object with what was written to it here; a quota that queues enforces, as no one else sees charges."""
        if kind is Kind.RESOURCE_QUOTAS and (obj["metadata"].get("annotations") or {}).get(_ENFORCEMENT) == "queue":
            obj = merge_patch(obj, {"metadata": {"annotations": {_ENFORCEMENT: None}}})
        kept = self._kept.get(_key(obj)) if kind is Kind.RESOURCE_QUOTAS else None
        if kept is None or kept.uid != obj["metadata"].get("uid"):
            return obj
        shown: JSON = merge_patch(obj, kept.patch)
        shown["metadata"]["resourceVersion"] = f"{obj['metadata']['resourceVersion']}.{kept.writes}"
        return shown


def _key(obj: JSON) -> tuple[str, str]:
    return obj["metadata"].get("namespace", ""), obj["metadata"].get("name", "")


def _stacked(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """The one merge patch that does what two do, one after the other."""
    result = dict(first)
    for key, value in second.items():
        below = result.get(key)
        if isinstance(value, Mapping):
            value = _stacked(below if isinstance(below, Mapping) else {}, value)
        result[key] = value
    return result
