"""Leader election on a Lease, by client-go's protocol: one holder, renewed, taken over only when it stopped renewing.

Times of other holders are never compared with our clock: what counts is how long *we* saw their record unchanged.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from hami_webhook.cluster.api import AlreadyExists, Cluster, ClusterError, Conflict, NotFound

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Terms:
    """Seconds: how long a lease holds unrenewed, after how long without success a leader gives up, between tries."""

    lease: float = 15.0
    renew: float = 10.0
    retry: float = 2.0


class LeaderElection:
    """Competes for one Lease. `run(lead)` runs `lead` while this process is the leader, and cancels it when it isn't.

    `clock` gives Unix seconds (written into the lease), `monotonic` seconds for measuring.
    """

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        name: str,
        identity: str,
        *,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
        terms: Terms | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._clock = clock
        self._monotonic = monotonic
        self._terms = terms or Terms()
        self._sleep = sleep
        self._jitter = jitter
        self._seen: tuple[Any, float] | None = None
        self.leading = False

    async def run(self, lead: Callable[[], Awaitable[None]]) -> None:
        """Compete until cancelled; then the lease is given back. What `lead` raises is raised."""
        while True:
            while not await self._try():
                await self._sleep(self._terms.retry * (1 + 0.2 * self._jitter()))
            logger.warning("leader: %s has the lease %s/%s", self._identity, self._namespace, self._name)
            self.leading = True
            work = asyncio.ensure_future(lead())
            renewing = asyncio.ensure_future(self._keep())
            try:
                await asyncio.wait((work, renewing), return_when=asyncio.FIRST_COMPLETED)
            finally:
                self.leading = False
                for task in (work, renewing):
                    if not task.done():
                        task.cancel()
                        with contextlib.suppress(asyncio.CancelledError):
                            await task
                await self._give_back()
            if work.done() and not work.cancelled():
                work.result()
            logger.warning("leader: %s lost the lease %s/%s", self._identity, self._namespace, self._name)

    async def _keep(self) -> None:
        """Renew the lease; returns when that didn't succeed for too long."""
        renewed = self._monotonic()
        while True:
            await self._sleep(self._terms.retry)
            if await self._try():
                renewed = self._monotonic()
            elif self._monotonic() - renewed >= self._terms.renew:
                return

    async def _try(self) -> bool:
        """Take or renew the lease; whether it is ours now."""
        try:
            return await self._take()
        except (Conflict, AlreadyExists):
            return False
        except ClusterError as error:
            logger.warning("leader: lease %s/%s: %s", self._namespace, self._name, error)
            return False

    async def _take(self) -> bool:
        try:
            lease = await self._cluster.get_lease(self._namespace, self._name)
        except NotFound:
            await self._cluster.create_lease(
                self._namespace, {"metadata": {"name": self._name}, "spec": self._spec(None)}
            )
            return True
        spec = lease.get("spec") or {}
        holder = spec.get("holderIdentity") or ""
        if self._seen is None or self._seen[0] != spec:
            self._seen = (spec, self._monotonic())
        held_for = self._monotonic() - self._seen[1]
        if holder not in ("", self._identity) and held_for < float(spec.get("leaseDurationSeconds") or 0):
            return False
        meta = {"name": self._name, "resourceVersion": lease["metadata"]["resourceVersion"]}
        taken = await self._cluster.replace_lease(self._namespace, {"metadata": meta, "spec": self._spec(spec)})
        self._seen = (taken.get("spec") or {}, self._monotonic())
        return True

    def _spec(self, before: dict[str, Any] | None) -> dict[str, Any]:
        now = datetime.fromtimestamp(self._clock(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        before = before or {}
        same = before.get("holderIdentity") == self._identity
        transitions = int(before.get("leaseTransitions") or 0)
        return {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": int(self._terms.lease),
            "acquireTime": (same and before.get("acquireTime")) or now,
            "renewTime": now,
            "leaseTransitions": transitions if same or not before else transitions + 1,
        }

    async def _give_back(self) -> None:
        """Let the next one have it at once, if it is still ours."""
        with contextlib.suppress(ClusterError):
            lease = await self._cluster.get_lease(self._namespace, self._name)
            spec = lease.get("spec") or {}
            if spec.get("holderIdentity") == self._identity:
                meta = {"name": self._name, "resourceVersion": lease["metadata"]["resourceVersion"]}
                given = {**self._spec(spec), "holderIdentity": "", "leaseDurationSeconds": 1}
                await self._cluster.replace_lease(self._namespace, {"metadata": meta, "spec": given})
