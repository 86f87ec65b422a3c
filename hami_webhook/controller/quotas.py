"""The reconcile loop: recompute a namespace's quotas when something of it changed, and all of them now and then."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from hami_webhook.assembly import Core
from hami_webhook.cluster.api import ClusterError, EventNote, NotFound
from hami_webhook.devices.placed import NODE, TIME
from hami_webhook.kube.objects import Pod, ResourceQuota
from hami_webhook.quota.books import Books
from hami_webhook.quota.ledger import Entry
from hami_webhook.quota.recompute import Recomputed

logger = logging.getLogger(__name__)

_LONGEST_DELAY = 2.0
"""Seconds after the first change by which a namespace is recomputed, however many follow."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds: how long changes are gathered, between full resyncs, and an entry's life without a pod."""

    debounce: float = 0.5
    resync: float = 300.0
    ttl: float = 45.0


class QuotaReconciler:
    """Keeps quotas true. `pod_changed` and `quota_changed` tell it of events; `step` does what is due."""

    def __init__(self, core: Core, pace: Pace, *, jitter: Callable[[], float] = random.random) -> None:
        self._core = core
        self._pace = pace
        self._jitter = jitter
        self._due: dict[str, float] = {}
        self._gathering: dict[str, float] = {}
        self._seen: dict[str, dict[str, Entry]] = {}
        self._next_resync = 0.0
        self._wake = asyncio.Event()

    def pod_changed(self, before: Pod | None, after: Pod | None) -> None:
        """A pod was added, changed or is gone; only what quota depends on makes work."""
        pod = after or before
        if pod is None or not any(v.asks(c) for v in self._core.vendors.values() for c in pod.containers):
            return
        if before is None or after is None or _quota_facts(before) != _quota_facts(after):
            self.touch(pod.namespace)

    def quota_changed(self, before: ResourceQuota | None, after: ResourceQuota | None) -> None:
        """A quota was added, its spec changed, or its ledger has entries that will expire."""
        if after is None:
            return
        books = Books.read(after, self._core.vendors)
        if not books.hard:
            return
        if books.ledger:
            self._seen[after.uid] = dict(books.ledger)
        if before is None or before.hard != after.hard:
            self.touch(after.namespace)
        for entry in books.ledger.values():
            self._at(after.namespace, entry.time + self._pace.ttl + 1)

    def touch(self, namespace: str) -> None:
        """Recompute the namespace soon: debounced, but no later than 2 s after the first change."""
        now = self._core.clock()
        first = self._gathering.setdefault(namespace, now)
        self._due[namespace] = min(now + self._pace.debounce, first + _LONGEST_DELAY)
        self._wake.set()

    def _at(self, namespace: str, when: float) -> None:
        if namespace not in self._gathering and when < self._due.get(namespace, float("inf")):
            self._due[namespace] = when
            self._wake.set()

    def next_due(self) -> float:
        """When `step` next has something to do."""
        return min(self._next_resync, *self._due.values()) if self._due else self._next_resync

    async def step(self) -> int:
        """Recompute what is due now; how many quotas were looked at."""
        now = self._core.clock()
        if now >= self._next_resync:
            self._next_resync = now + self._pace.resync * (0.9 + 0.2 * self._jitter())
            for quota in self._core.caches.all_quotas():
                self._due[quota.namespace] = now
        namespaces = [namespace for namespace, due in self._due.items() if due <= now]
        looked = 0
        for namespace in namespaces:
            del self._due[namespace]
            self._gathering.pop(namespace, None)
            looked += await self._reconcile(namespace)
        return looked

    async def run(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Work until cancelled."""
        while True:
            await self.step()
            self._wake.clear()
            pause = max(0.01, self.next_due() - self._core.clock())
            waits = [asyncio.ensure_future(self._wake.wait()), asyncio.ensure_future(sleep(pause))]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()

    async def _reconcile(self, namespace: str) -> int:
        quotas = [q for q in self._core.caches.all_quotas() if q.namespace == namespace]
        managed = [quota for quota in quotas if Books.read(quota, self._core.vendors).hard]
        for quota in managed:
            try:
                result = await self._core.recomputer.run(namespace, quota.name, self._seen.get(quota.uid))
            except NotFound:
                self._seen.pop(quota.uid, None)
                continue
            except ClusterError as error:
                logger.warning("recomputing quota %s/%s: %s; trying again", namespace, quota.name, error)
                self._at(namespace, self._core.clock() + 1 + self._jitter())
                continue
            self._seen[quota.uid] = dict(result.after.ledger)
            await self._report(result)
        return len(managed)

    async def _report(self, result: Recomputed) -> None:
        """Events for what a person should know: pods that can't be read, used above hard."""
        quota = result.after.quota
        over = [
            f"{key}: used {result.after.used[key]}, limited {hard}"
            for key, hard in sorted(result.after.hard.items())
            if result.after.used[key] > hard
        ]
        if over and result.changed:
            await self._event("ResourceQuota", quota.namespace, quota.name, quota.uid, "QuotaExceeded", "; ".join(over))
        for key, texts in result.problems.items():
            namespace, _, name = key.partition("/")
            for text in texts:
                await self._event("Pod", namespace, name, "", "BadAllocation", text)

    async def _event(self, kind: str, namespace: str, name: str, uid: str, reason: str, message: str) -> None:
        try:
            await self._core.cluster.record_event(EventNote(kind, namespace, name, uid, "Warning", reason, message))
        except ClusterError as error:
            logger.warning("can't record event %s on %s %s/%s: %s", reason, kind, namespace, name, error)


def _quota_facts(pod: Pod) -> tuple[object, ...]:
    """What of a pod a quota depends on."""
    notes = pod.annotations
    placed = tuple(sorted((k, v) for k, v in notes.items() if k.endswith("-allocated") or k in (NODE, TIME)))
    return (
        pod.terminal,
        pod.node_name,
        pod.deletion_time,
        pod.deletion_grace,
        pod.init_finished,
        pod.active_deadline,
        placed,
    )
