"""Informers that keep the caches, and tell the reconciler what changed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

from hami_webhook.assembly import Core
from hami_webhook.cluster.api import Kind, WatchType
from hami_webhook.cluster.informer import Change, Informer, Replaced
from hami_webhook.controller.quotas import QuotaReconciler

_ALIVE_SECONDS = 60.0
_WATCHED = (Kind.NAMESPACES, Kind.NODES, Kind.RESOURCE_QUOTAS, Kind.PODS)


class Feed:
    """One informer for each kind that the core reads."""

    def __init__(
        self,
        core: Core,
        reconciler: QuotaReconciler | None = None,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._core = core
        self._reconciler = reconciler
        self._informers = {
            kind: Informer(core.cluster, kind, self._handler(kind), clock=core.clock, sleep=sleep, random=jitter)
            for kind in _WATCHED
        }
        core.caches.quotas_alive = lambda: self._informers[Kind.RESOURCE_QUOTAS].alive_within(_ALIVE_SECONDS)

    @property
    def synced(self) -> bool:
        """Every cache has had its first list."""
        return all(informer.synced.is_set() for informer in self._informers.values())

    async def wait_synced(self) -> None:
        for informer in self._informers.values():
            await informer.synced.wait()

    async def run(self) -> None:
        """Keep the caches until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for informer in self._informers.values():
                tasks.create_task(informer.run())

    def _handler(self, kind: Kind) -> Callable[[Change], None]:
        def handle(change: Change) -> None:
            if isinstance(change, Replaced):
                for obj in change.items:
                    self._changed(kind, obj, gone=False)
            else:
                self._changed(kind, change.object, gone=change.type is WatchType.DELETED)

        return handle

    def _changed(self, kind: Kind, obj: dict[str, Any], *, gone: bool) -> None:
        caches, reconciler = self._core.caches, self._reconciler
        meta = obj["metadata"]
        uid, namespace, name = meta.get("uid", ""), meta.get("namespace", ""), meta["name"]
        pod_before = self._core.state.pod(uid) if kind is Kind.PODS else None
        quota_before = caches.quota(namespace, name) if kind is Kind.RESOURCE_QUOTAS else None
        (caches.drop if gone else caches.put)(kind, obj)
        if reconciler is None:
            return
        if kind is Kind.PODS:
            reconciler.pod_changed(pod_before, self._core.state.pod(uid))
        elif kind is Kind.RESOURCE_QUOTAS:
            reconciler.quota_changed(quota_before, caches.quota(namespace, name))
