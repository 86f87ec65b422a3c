"""The one place that drives charges: batches per namespace, compare-and-swap against the cluster port (quota chapter 7)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from hami_webhook.cluster.api import Cluster, ClusterError, Conflict, Kind, NotFound
from hami_webhook.devices.registry import Vendors
from hami_webhook.kube.objects import ResourceQuota
from hami_webhook.quota.books import (
    Ask,
    Books,
    NeedsRecompute,
    Refusal,
    judge,
    refuse_now,
)
from hami_webhook.quota.ledger import LEDGER, State

ATTEMPTS = 6

logger = logging.getLogger(__name__)


class QuotaCache(Protocol):
    """A synced view of quotas, if there is one."""

    def quotas(self, namespace: str) -> Sequence[ResourceQuota] | None:
        """The namespace's quotas; None while the cache isn't synced or hasn't been alive within 60 s."""
        ...


class NoCache:
    """Every look at the quotas is live."""

    def quotas(self, namespace: str) -> Sequence[ResourceQuota] | None:
        return None


@dataclass(frozen=True, slots=True)
class Charged:
    """The pod is charged (or concerns no quota): the amounts by quota name, for the audit annotation."""

    amounts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


Outcome = Charged | Refusal
Recompute = Callable[[str, str], Awaitable[None]]
"""Recompute one quota inline, by namespace and name; raises `ClusterError` if it can't."""


@dataclass(slots=True)
class ChargeCounts:
    """What the charger did, for metrics."""

    conflicts: int = 0
    writes: int = 0
    denied: dict[str, int] = field(default_factory=dict)

    def deny(self, refusal: Refusal) -> None:
        reason = "exceeded" if refusal.overrun else "unknown" if refusal.code == 403 else "unavailable"
        self.denied[reason] = self.denied.get(reason, 0) + 1


class Charger:
    """Charges pods to their namespace's quotas. Any number of chargers may work on one cluster."""

    def __init__(
        self,
        cluster: Cluster,
        vendors: Vendors,
        *,
        clock: Callable[[], float],
        recompute: Recompute,
        cache: QuotaCache | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        jitter: Callable[[], float] = random.random,
        timeout: float = 3.0,
        max_ledger: int = 1000,
    ) -> None:
        self._cluster = cluster
        self._vendors = vendors
        self._clock = clock
        self._recompute = recompute
        self._cache = cache or NoCache()
        self._sleep = sleep
        self._jitter = jitter
        self._timeout = timeout
        self._max_ledger = max_ledger
        self._waiting: dict[str, list[tuple[Ask, asyncio.Future[Outcome]]]] = {}
        self._workers: dict[str, asyncio.Task[None]] = {}
        self.counts = ChargeCounts()

    async def charge(self, ask: Ask, timeout: float | None = None) -> Outcome:
        """Charge one pod, together with whoever else of its namespace waits. `timeout` is seconds left to answer in."""
        if not ask.charge.amounts:
            return Charged()
        namespace = ask.pod.namespace
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(namespace, []).append((ask, future))
        if namespace not in self._workers:
            self._workers[namespace] = asyncio.create_task(self._work(namespace))
        try:
            async with asyncio.timeout(min(self._timeout, timeout) if timeout is not None else self._timeout):
                outcome = await asyncio.shield(future)
        except TimeoutError:
            outcome = refuse_now(namespace, "no answer from the API server in time")
        if isinstance(outcome, Refusal):
            self.counts.deny(outcome)
        return outcome

    async def _work(self, namespace: str) -> None:
        try:
            while batch := self._waiting.pop(namespace, None):
                asks = [ask for ask, _ in batch]
                try:
                    async with asyncio.timeout(self._timeout):
                        outcomes = await self.charge_batch(namespace, asks)
                except TimeoutError:
                    outcomes = [refuse_now(namespace, "no answer from the API server in time")] * len(asks)
                except Exception:
                    logger.exception("charging a batch of namespace %s failed", namespace)
                    outcomes = [refuse_now(namespace, "an internal error")] * len(asks)
                for (_, future), outcome in zip(batch, outcomes, strict=True):
                    if not future.done():
                        future.set_result(outcome)
        finally:
            del self._workers[namespace]

    async def charge_batch(self, namespace: str, asks: Sequence[Ask]) -> list[Outcome]:
        """Judge the asks in order and write what they add, one compare-and-swap per quota in name order."""
        try:
            return await self._charge_batch(namespace, asks)
        except ClusterError as error:
            return [refuse_now(namespace, str(error))] * len(asks)

    async def _charge_batch(self, namespace: str, asks: Sequence[Ask]) -> list[Outcome]:
        recomputed: frozenset[str] = frozenset()
        written: dict[str, set[str]] = {}
        cached = self._cache.quotas(namespace)
        conflicts = 0
        while True:
            live = cached is None
            quotas = await self._live(namespace) if cached is None else cached
            cached = None
            books = {q.name: b for q in quotas if (b := Books.read(q, self._vendors)).hard}
            try:
                judged = judge(books, asks, self._clock(), self._max_ledger, recomputed=recomputed)
            except NeedsRecompute as need:
                if live:
                    recomputed |= {need.quota}
                    with contextlib.suppress(ClusterError):  # then the judgement says that the status is unknown
                        await self._recompute(namespace, need.quota)
                continue
            if judged.refusals and not live:
                continue
            try:
                await self._write(namespace, books, judged.books, written)
            except (Conflict, NotFound):
                conflicts += 1
                self.counts.conflicts += 1
                if conflicts == ATTEMPTS:
                    await self._undo(namespace, written, None)
                    return [refuse_now(namespace, f"{ATTEMPTS} conflicting writes")] * len(asks)
                await self._sleep(self._jitter() * min(0.2, 0.01 * 2**conflicts))
                continue
            except ClusterError:
                await self._undo(namespace, written, None)
                raise
            await self._undo(namespace, written, {asks[index].identity for index in judged.refusals})
            return [
                judged.refusals.get(index)
                or Charged({n: ask.charge.only(b.hard) for n, b in books.items() if b.concerns(ask.pod, ask.charge)})
                for index, ask in enumerate(asks)
            ]

    async def _live(self, namespace: str) -> list[ResourceQuota]:
        listing = await self._cluster.list(Kind.RESOURCE_QUOTAS, namespace)
        return [ResourceQuota.from_object(item) for item in listing.items]

    async def _write(
        self, namespace: str, before: Mapping[str, Books], after: Mapping[str, Books], written: dict[str, set[str]]
    ) -> None:
        """Write each quota that changes; `written` gets the ids whose entries may be new there, by quota."""
        for name in sorted(before):
            patch = before[name].patch(after[name]) if after[name] is not before[name] else None
            if patch is None:
                continue
            ours = {key for key, entry in after[name].ledger.items() if before[name].ledger.get(key) != entry}
            written.setdefault(name, set()).update(ours)
            self.counts.writes += 1
            _verify(await self._cluster.patch_status(Kind.RESOURCE_QUOTAS, name, patch, namespace), patch)

    async def _undo(self, namespace: str, written: Mapping[str, set[str]], only: set[str] | None) -> None:
        """Take what this call wrote (of the ids in `only`; None: all) out again, where it still stands as admitted.

        Best effort: what can't be undone expires.
        """
        for name in sorted(written):
            identities = written[name] if only is None else written[name] & only
            if identities:
                with contextlib.suppress(ClusterError):
                    await self._undo_one(namespace, name, identities)

    async def _undo_one(self, namespace: str, name: str, identities: set[str]) -> None:
        for _ in range(ATTEMPTS):
            quota = ResourceQuota.from_object(await self._cluster.get(Kind.RESOURCE_QUOTAS, name, namespace))
            before = after = Books.read(quota, self._vendors)
            for identity in sorted(identities):
                entry = before.ledger.get(identity)
                if entry is not None and entry.state is State.ADMITTED:
                    after = after.with_entry(identity, None)
            patch = before.patch(after) if after is not before else None
            if patch is None:
                return
            try:
                self.counts.writes += 1
                await self._cluster.patch_status(Kind.RESOURCE_QUOTAS, name, patch, namespace)
            except Conflict:
                self.counts.conflicts += 1
                continue
            return


def _verify(answer: Mapping[str, Any], patch: Mapping[str, Any]) -> None:
    """The answer must carry the ledger as written: an API server that drops metadata on `/status` would lose it."""
    written = patch["metadata"].get("annotations")
    if written is None:
        return
    found = (answer.get("metadata") or {}).get("annotations") or {}
    if found.get(LEDGER) != written[LEDGER]:
        raise ClusterError("the API server didn't keep the ledger annotation")
