"""The reconcile loop: recompute a namespace's quotas when something of it changed, and all of them now and then."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from hami_webhook.assembly import Core
from hami_webhook.cluster.api import ClusterError, NotFound
from hami_webhook.cluster.rate import in_background
from hami_webhook.controller.ledger_history import LedgerHistory
from hami_webhook.controller.object_events import ObjectEvents
from hami_webhook.devices.placement_annotations import NODE, TIME
from hami_webhook.kube.objects import Pod, ResourceQuota
from hami_webhook.kube.quantity import is_binary
from hami_webhook.quota.account import QuotaAccount
from hami_webhook.quota.ledger import Entry, State, charge_ids
from hami_webhook.quota.recompute import Recomputed

logger = logging.getLogger(__name__)

_LONGEST_DELAY = 2.0
"""Seconds after the first change by which a namespace is recomputed, however many follow."""

_AFTER = 0.1
"""Seconds after a deadline at which it has surely passed."""

_LONGEST_BACKOFF = 60.0
LOOP = "quotas"


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds: how long changes are gathered, between full resyncs, and an entry's life without a pod."""

    debounce: float = 0.5
    resync: float = 300.0
    ttl: float = 45.0


class QuotaReconciler:
    """Keeps quotas true. `pod_changed` and `quota_changed` tell it of events; `step` does what is due.

    `expired` counts ledger entries for which no pod came, `drifted` recomputes that changed used for no known reason.
    """

    def __init__(self, core: Core, pace: Pace, *, jitter: Callable[[], float] = random.random) -> None:
        self._core = core
        self._pace = pace
        self._jitter = jitter
        self._due: dict[str, float] = {}
        self._gathering: dict[str, float] = {}
        self._failures: dict[str, int] = {}
        self._sightings = LedgerHistory(pace.ttl)
        self._facts: dict[str, tuple[object, ...]] = {}
        self._object_events = ObjectEvents(core.cluster, core.problems)
        self._next_resync = 0.0
        self._wake = asyncio.Event()
        self.expired = 0
        self.drifted = 0

    def pod_changed(self, before: Pod | None, after: Pod | None) -> None:
        """A pod was added, changed or is gone; only what quota depends on makes work."""
        pod = after or before
        if pod is None or not self._matters(pod):
            return
        # compared with what was told here: the state may know of a placement before its event comes
        known = self._facts.get(pod.uid)
        facts = self._quota_facts(pod)
        if known is None or after is None:
            self._sightings.pod(pod, self._core.clock())
        if after is None:
            self._facts.pop(pod.uid, None)
            self._object_events.forget(pod.uid)
            for identity in charge_ids(pod.uid, pod.annotations):
                self._sightings.gone[identity] = self._core.clock()
        else:
            self._facts[pod.uid] = facts
        if after is None or known != facts:
            self.touch(pod.namespace)

    def _matters(self, pod: Pod) -> bool:
        """Whether a quota may depend on the pod."""
        vendors = self._core.vendors
        own = any(map(vendors.named_by, pod.containers))
        return own or any(scheduler.concerns(pod) for scheduler in vendors.foreign)

    def quota_changed(self, before: ResourceQuota | None, after: ResourceQuota | None) -> None:
        """A quota was added, its spec changed, its ledger was wiped, or has entries that will expire."""
        if after is None or (before is not None and before.uid != after.uid):
            if before is not None:
                self._sightings.forget(before.uid)
                self._object_events.forget(before.uid)
            before = None
        if after is None:
            return
        books = QuotaAccount.read(after, self._core.vendors)
        if not books.managed:
            return
        lost = self._sightings.quota(books, self._core.clock())
        if before is None or before.hard != after.hard or books.gone or lost or books.used.keys() != books.hard.keys():
            self.touch(after.namespace)
        now = self._core.clock()
        for entry in books.ledger.values():
            if entry.state is not State.WAITING:
                expires = now if entry.expired(now, self._pace.ttl) else entry.time + self._pace.ttl + _AFTER
                self._at(after.namespace, expires)

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

    def resync(self) -> None:
        """Look at every quota with the next step, as a new leader does."""
        self._next_resync = 0.0
        self._wake.set()

    def next_due(self) -> float:
        """When `step` next has something to do."""
        return min(self._next_resync, *self._due.values()) if self._due else self._next_resync

    async def step(self) -> int:
        """Recompute what is due now; how many quotas were looked at."""
        now = self._core.clock()
        due = {namespace for namespace, when in self._due.items() if when <= now}
        quiet: set[str] = set()
        if now >= self._next_resync:
            self._next_resync = now + self._pace.resync * (0.9 + 0.2 * self._jitter())
            self._sightings.prune(now)
            quiet = {quota.namespace for quota in self._core.caches.all_quotas()} - due - self._gathering.keys()
            due |= {quota.namespace for quota in self._core.caches.all_quotas()}
        looked = 0
        for namespace in sorted(due):
            self._due.pop(namespace, None)
            self._gathering.pop(namespace, None)
            looked += await self._reconcile(namespace, quiet=namespace in quiet)
        return looked

    async def run(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Work until cancelled."""
        in_background.set(True)
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

    async def _reconcile(self, namespace: str, *, quiet: bool) -> int:
        """Recompute a namespace's quotas; `quiet` if nothing happened there that would change them."""
        quotas = [q for q in self._core.caches.all_quotas() if q.namespace == namespace]
        managed = [quota for quota in quotas if QuotaAccount.read(quota, self._core.vendors).managed]
        failed = False
        for quota in managed:
            try:
                with self._core.charger.held(namespace):
                    result = await self._core.recomputer.run(namespace, quota.name, self._lost, self._sightings.gone)
            except NotFound:
                continue
            except ClusterError as error:
                logger.warning("recomputing quota %s/%s: %s; trying again", namespace, quota.name, error)
                failed = True
                continue
            except Exception:
                self._core.failures[LOOP] += 1
                logger.exception("recomputing quota %s/%s failed; trying again", namespace, quota.name)
                failed = True
                continue
            self._sightings.confirm(result.confirmed, self._core.clock())
            self.expired += result.expired
            if quiet and result.before.used.keys() == result.after.used.keys() != set():
                self.drifted += result.before.used != result.after.used
            if result.wake is not None:
                self._at(namespace, result.wake + _AFTER)
            await self._report(result)
        failures = self._failures.pop(namespace, 0)
        if failed:
            self._failures[namespace] = failures + 1
            pause = min(_LONGEST_BACKOFF, 2.0 ** min(failures, 16))
            self._at(namespace, self._core.clock() + pause * (0.5 + self._jitter() / 2))
        return len(managed)

    def _lost(self, books: QuotaAccount) -> dict[str, Entry]:
        return self._sightings.quota(books, self._core.clock())

    async def _report(self, result: Recomputed) -> None:
        """Events for what a person should know: limits that hardly mean what they say, used above hard, bad pods."""
        quota, hard = result.after.quota, result.after.hard
        over = [
            f"{key}: used {result.after.used[key]}, limited {limit}"
            for key, limit in sorted(hard.items())
            if result.after.used[key] > limit
        ]
        binary = [
            f"{key}: {quota.hard[key]} means {limit} units"
            for key, limit in sorted(hard.items())
            if key not in result.after.in_bytes | self._core.vendors.byte_keys and is_binary(quota.hard[key])
        ]
        others = sorted(key for key in quota.hard if key not in hard and _is_native(key)) if hard else []
        mixed = (
            f"also limits {', '.join(others)}, which Kubernetes counts: writes to one object get in each other's way; "
            "use a quota of its own for accelerators"
        )
        await self._tell("ResourceQuota", quota, "QuotaExceeded", "; ".join(over))
        await self._tell("ResourceQuota", quota, "QuotaUnitSuspicious", "; ".join(binary))
        await self._tell("ResourceQuota", quota, "QuotaMixed", mixed if others else "")
        for pod, texts in result.problems:
            await self._tell("Pod", pod, "BadAllocation", "; ".join(texts))
        for pod, keys in result.overruns:
            text = f"pod {pod.key} got more than was charged when it was admitted, so quota {quota.name} is above hard"
            await self._tell("Pod", pod, "QuotaOverrun", f"{text}: {', '.join(keys)}", quota.name)

    async def _tell(self, kind: str, about: Pod | ResourceQuota, reason: str, message: str, topic: str = "") -> None:
        await self._object_events.warn(kind, about.namespace, about.name, about.uid, reason, message, topic)

    def _quota_facts(self, pod: Pod) -> tuple[object, ...]:
        """What of a pod a quota depends on."""
        vendors = self._core.vendors
        watched = (key for scheduler in vendors.foreign for key in scheduler.watched)
        keys = (NODE, TIME, *(vendor.keys.allocated for vendor in vendors.values()), *watched)
        return (
            pod.terminal,
            pod.node_name,
            pod.deletion_time,
            pod.deletion_grace,
            pod.init_finished,
            pod.active_deadline,
            tuple(pod.annotations.get(key) for key in keys),
        )


def _is_native(key: str) -> bool:
    """Whether Kubernetes itself counts the key and so writes to the same object: all but `limits.<extended>`."""
    return not (key.startswith("limits.") and "/" in key)
