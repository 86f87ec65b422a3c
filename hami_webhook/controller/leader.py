"""Leader election on a Lease, by client-go's protocol: one holder that renews, taken over only when it stops.

Times of other holders decide nothing, as machines' clocks may be minutes off: what counts is for how long we saw their
record unchanged, by our own monotonic clock. That one process leads is only likely: one that stood still believes it,
too. So nothing that a leader writes may be wrong if two write it (docs/decisions/0011-leader-election.md).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from hami_webhook.cluster.api import JSON, AlreadyExists, Cluster, ClusterError, Conflict, NotFound
from hami_webhook.config import Settings
from hami_webhook.kube.objects import parse_time

logger = logging.getLogger(__name__)


_LEASE_SUFFIX = "-controller"
"""Distinguishes our Lease from that of the kube-scheduler in the same pod, which has the name in the settings."""

_MOST_TRANSITIONS = (1 << 31) - 1
"""The API server stores no more; one more would make the Lease unwritable for every replica."""


@dataclass(frozen=True, slots=True)
class LeaseDurations:
    """Seconds: a lease without renewal, the time after which a leader that can't renew stops, and between tries.

    `renew` is less than `lease` by more than a try, so that the one stops before another begins.
    """

    lease: float = 15.0
    renew: float = 10.0
    retry: float = 2.0


class LeaseName(NamedTuple):
    """Which Lease it is."""

    namespace: str
    name: str


class LeaseLock(NamedTuple):
    """A Lease, and the name by which a process holds it: another one for each process."""

    lease: LeaseName
    identity: str


def lease_of(settings: Settings) -> LeaseName:
    """The Lease that replicas of the controller compete for."""
    return LeaseName(settings.leader_elect_resource_namespace, settings.leader_elect_resource_name + _LEASE_SUFFIX)


async def _report_nothing(uid: str, problem: str) -> None:
    pass


@dataclass(frozen=True, slots=True)
class LeaseHooks:
    """What else happens with the lease.

    After each write `report` is called with the lease's UID and what was unusable in it, empty if nothing.
    `annotations` are written with the lease; `observed` is called with those of a lease that another process wrote.
    `changed` is called with whether this process leads, after each change of that.
    """

    report: Callable[[str, str], Awaitable[None]] = _report_nothing
    annotations: Callable[[], Mapping[str, str]] = dict
    observed: Callable[[Mapping[str, str]], None] = lambda annotations: None
    changed: Callable[[bool], None] = lambda leading: None


class LeaderElection:
    """Competes for one Lease. `run(lead)` runs `lead` while this process is the leader, and cancels it when it isn't.

    `clock` returns Unix seconds (written into the lease), `monotonic` seconds for measuring.
    """

    def __init__(
        self,
        cluster: Cluster,
        lock: LeaseLock,
        *,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
        terms: LeaseDurations | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        jitter: Callable[[], float] = random.random,
        hooks: LeaseHooks | None = None,
    ) -> None:
        self._cluster = cluster
        self._namespace, self._name = lock.lease
        self._identity = lock.identity
        self._clock = clock
        self._monotonic = monotonic
        self._terms = terms or LeaseDurations()
        self._sleep = sleep
        self._jitter = jitter
        self._hooks = hooks or LeaseHooks()
        self._seen: tuple[Any, float] | None = None
        self.leading = False
        self.skew: float | None = None
        """Seconds by which our clock is ahead of the leader's, by its last renewal, which we see some seconds late.

        None where we lead, or have seen none.
        """

    async def run(self, lead: Callable[[], Awaitable[None]]) -> None:
        """Compete until cancelled, then release the lease. What `lead` raises is raised."""
        while True:
            while not await self._try():
                await self._sleep(self._terms.retry * (1 + 0.2 * self._jitter()))
            logger.warning("leader: %s has the lease %s/%s", self._identity, self._namespace, self._name)
            self._set_leading(True)
            work = asyncio.ensure_future(lead())
            renewing = asyncio.ensure_future(self._keep())
            try:
                await asyncio.wait((work, renewing), return_when=asyncio.FIRST_COMPLETED)
            finally:
                self._set_leading(False)
                for task in (work, renewing):
                    if not task.done():
                        task.cancel()
                        with contextlib.suppress(asyncio.CancelledError):
                            await task
                await self._release()
            if work.done() and not work.cancelled():
                work.result()
            logger.warning("leader: %s lost the lease %s/%s", self._identity, self._namespace, self._name)

    async def holds(self) -> bool:
        """Whether the lease is ours by a live read, as nobody took it while this process stood still.

        Raises `ClusterError` where that can't be read.
        """
        lease = await self._cluster.get_lease(self._namespace, self._name)
        return self.leading and _LeaseSpec.read(lease, 2 * self._terms.lease).holder == self._identity

    def _set_leading(self, leading: bool) -> None:
        self.leading = leading
        self.skew = None
        self._hooks.changed(leading)

    async def _keep(self) -> None:
        """Renew the lease; returns when that failed for too long."""
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
        except ClusterError as error:  # whether it was written or not: the next try sees
            logger.warning("leader: lease %s/%s: %s", self._namespace, self._name, error)
            return False

    async def _take(self) -> bool:
        try:
            lease = await self._cluster.get_lease(self._namespace, self._name)
        except NotFound:
            await self._cluster.create_lease(
                self._namespace,
                {
                    "metadata": {"name": self._name, "annotations": dict(self._hooks.annotations())},
                    "spec": self._spec(None),
                },
            )
            return True
        record = _LeaseSpec.read(lease, 2 * self._terms.lease)
        if self._seen is None or self._seen[0] != lease.get("spec"):
            if self._seen is not None and not self.leading and record.renewed is not None:
                self.skew = self._clock() - record.renewed
            self._seen = (lease.get("spec"), self._monotonic())
        if not self.leading:
            self._hooks.observed(lease["metadata"].get("annotations") or {})
        held_for = self._monotonic() - self._seen[1]
        if record.holder not in ("", self._identity) and held_for < record.duration:
            return False
        taken = await self._cluster.replace_lease(
            self._namespace, {"metadata": self._meta(lease), "spec": self._spec(record)}
        )
        self._seen = (taken.get("spec"), self._monotonic())
        await self._hooks.report(str(lease["metadata"].get("uid", "")), "; ".join(record.faults))
        return True

    def _meta(self, lease: JSON) -> JSON:
        version = lease["metadata"].get("resourceVersion", "")  # of two that take it at once one meets a conflict
        return {"name": self._name, "resourceVersion": version, "annotations": dict(self._hooks.annotations())}

    def _spec(self, before: _LeaseSpec | None) -> JSON:
        now = datetime.fromtimestamp(self._clock(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        same = before is not None and before.holder == self._identity
        transitions = before.transitions if before is not None else 0
        return {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": int(self._terms.lease),
            "acquireTime": (before.acquired if before is not None and same else "") or now,
            "renewTime": now,
            "leaseTransitions": transitions if same or before is None or before.empty else transitions + 1,
        }

    async def _release(self) -> None:
        """Release the lease, if it is still ours, so that another replica can take it at once."""
        with contextlib.suppress(ClusterError):
            lease = await self._cluster.get_lease(self._namespace, self._name)
            record = _LeaseSpec.read(lease, 2 * self._terms.lease)
            if record.holder == self._identity:
                given = {**self._spec(record), "holderIdentity": "", "leaseDurationSeconds": 1}
                await self._cluster.replace_lease(self._namespace, {"metadata": self._meta(lease), "spec": given})


@dataclass(frozen=True, slots=True)
class _LeaseSpec:
    """The spec of a Lease. A field that is unusable has its default, and a sentence in `faults`."""

    holder: str = ""
    duration: float = 0.0
    acquired: str = ""
    transitions: int = 0
    renewed: float | None = None
    empty: bool = True
    faults: tuple[str, ...] = ()

    @classmethod
    def read(cls, lease: JSON, longest: float) -> _LeaseSpec:
        """`longest` is the most seconds that one of our replicas holds a Lease unrenewed; longer ones count as that."""
        spec = lease.get("spec")
        if not isinstance(spec, dict) or not spec:
            return cls(faults=() if not spec else ("spec must be an object",))
        holder, duration, transitions = (
            spec.get(name) for name in ("holderIdentity", "leaseDurationSeconds", "leaseTransitions")
        )
        faults = []
        if not isinstance(holder, str | None):
            faults.append("holderIdentity must be a string")
            holder = ""
        if duration is not None and not (_is_whole(duration) and 0 < duration <= longest):
            faults.append(f"leaseDurationSeconds must be a whole number from 1 to {longest:g}")
            duration = longest
        if transitions is not None and not (_is_whole(transitions) and 0 <= transitions < _MOST_TRANSITIONS):
            faults.append(f"leaseTransitions must be a whole number from 0 to {_MOST_TRANSITIONS - 1}")
            transitions = 0
        acquired = spec.get("acquireTime")
        return cls(
            holder or "",
            duration or 0.0,
            acquired if isinstance(acquired, str) else "",
            transitions or 0,
            _time(spec.get("renewTime")),
            False,
            tuple(faults),
        )


def _time(written: object) -> float | None:
    try:
        return parse_time(written) if isinstance(written, str) else None
    except (ValueError, OverflowError):
        return None


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
